"""The first contact: what `vdbg-env` prints when it is typed alone, and `vdbg-env demo`.

The lines about this machine are those that decide which door is open. `vdbg-env doctor` looks at everything.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import click

from vdbg_env.common.errors import VdbgError

_DOORS = (
    ("a log", "vdbg-env triage LOG"),
    ("a GPU core dump", "vdbg-env core FILE"),
    ("a job that crashes", "vdbg-env runbook illegal-memory-access -- COMMAND"),
    ("a cluster", "vdbg-env guard -- COMMAND, vdbg-env build --lineinfo"),
)
_SLURM_CONF = ("/etc/slurm/slurm.conf", "/etc/slurm-llnl/slurm.conf", "/run/slurm/conf/slurm.conf")  # or in SLURM_CONF
_GPUS = Path("/proc/driver/nvidia/gpus")  # the driver's own list: a folder for each GPU


def first_contact() -> str:
    """Return the four doors and what this machine can do, one line each; starts no program."""
    width = max(len(have) for have, _ in _DOORS)
    machine = list(_machine())
    return "\n".join(
        [
            "From a crashed GPU kernel to its source line, and to the reason.",
            "",
            "You have",
            *(f"  {have:{width}}  {command}" for have, command in _DOORS),
            "",
            "This machine can",
            *(f"  {'yes' if able else 'no ':3}  {what}" for able, what in machine),
            "",
            "vdbg-env demo explains a bundled crash, vdbg-env doctor looks closer, vdbg-env --help lists all commands.",
        ]
    )


def _machine() -> Iterator[tuple[bool, str]]:
    version = ".".join(map(str, sys.version_info[:3]))
    yield True, f"read logs, GPU cores, libraries and packages (Python {version})"
    gpus = len(list(_GPUS.iterdir())) if _GPUS.is_dir() else 0
    yield bool(gpus), f"reproduce a crash on {gpus} GPU{'s' * (gpus > 1)}" if gpus else "reproduce a crash: no GPU here"
    yield _containers()
    yield _slurm()


def _slurm() -> tuple[bool, str]:
    can = "run the ranks of a job on Slurm"
    if shutil.which("srun") is None:
        return False, f"{can}: no srun here"
    places = filter(None, (os.environ.get("SLURM_CONF"), *_SLURM_CONF))
    if not any(Path(place).is_file() for place in places):
        return False, f"{can}: srun is here, but no slurm.conf"
    return True, f"{can} (srun; the cluster itself was not asked)"


def _containers() -> tuple[bool, str]:
    from vdbg_env.engine.client import connect

    can = "build images and run steps in containers"
    try:
        engine = connect()
    except VdbgError as error:
        return False, f"{can}: {error.what}"
    return True, f"{can} ({'Podman' if engine.is_podman else 'Docker Engine'} {engine.version})"


@click.command("demo")
@click.pass_context
def demo_command(context: click.Context) -> int:
    """Explain a bundled crash, from the first run to the report.

    It replays a recording of `vdbg-env runbook illegal-memory-access`, and needs neither a GPU nor Docker.

    \b
    Example:
      vdbg-env demo

    Exit status: 3, because the crash is found.
    """
    from vdbg_env.cli.runbook import runbook_command
    from vdbg_env.run.begin import SAMPLE
    from vdbg_env.run.recordings import bundled_recording

    name = "illegal-memory-access"
    words = [name, "--batch", "--replay", str(bundled_recording(name)), "--", f"./{SAMPLE}"]
    with runbook_command.make_context("runbook", words, parent=context.parent) as replay:
        status: int = runbook_command.invoke(replay)
    return status
