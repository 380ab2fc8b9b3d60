"""`vdbg-env run` and `shell` start a program in the debug image; `doctor` checks this machine.

Below 150 lines: what the flags mean is `engine.request`, what is checked is `run.doctor`.
"""

from __future__ import annotations

import os
import sys
from typing import assert_never

import click

from vdbg_env.common import console
from vdbg_env.common.console import shows_colour
from vdbg_env.common.errors import BadInput
from vdbg_env.common.flags import Sectioned, takes
from vdbg_env.common.programs import Programs
from vdbg_env.engine.client import connect
from vdbg_env.engine.containers import DockerContainers
from vdbg_env.engine.request import ContainerFlags, read_flags, run_in_image
from vdbg_env.engine.targets import existing_dump_store
from vdbg_env.run import doctor
from vdbg_env.run.doctor import TOOLS, Status, judge
from vdbg_env.runbook.workload import Settings, stale_settings

_EVERYDAY = {"image", "gpu", "dumps", "mounts", "variables", "ports", "user"}


@click.command("run", cls=Sectioned, everyday=_EVERYDAY)
@takes(flags=ContainerFlags)
@click.argument("argv", nargs=-1, type=click.UNPROCESSED, metavar="-- ARGV...")
def run_command(argv: tuple[str, ...], flags: ContainerFlags) -> int:
    """Run a program in the debug image, with all that debuggers and core dumps need.

    The container may trace processes (SYS_PTRACE and a seccomp profile that allows it, not --privileged) and write
    cores of any size, and its dump volume is at /dumps. A limit that the engine cannot raise is left out with a note.
    The exit status is the program's.

    \b
    Example:
      vdbg-env run --mount /models:ro -- vllm serve /models/MODEL
      vdbg-env run --gpu none --mount . -- python repro.py
    """
    if not argv:
        raise BadInput("no program is named", next_step="vdbg-env run -- COMMAND, or vdbg-env shell for a shell")
    return _run(argv, flags, interactive=False)


@click.command("shell", cls=Sectioned, everyday=_EVERYDAY)
@takes(flags=ContainerFlags)
@click.argument("argv", nargs=-1, type=click.UNPROCESSED, metavar="[-- ARGV...]")
def shell_command(argv: tuple[str, ...], flags: ContainerFlags) -> int:
    """Open a shell in the debug image, on this terminal.

    Like `run`, but interactive. Starts bash if no program is named.

    \b
    Example:
      vdbg-env shell
      vdbg-env shell --image my-debug-image:latest -- cuda-gdb python
    """
    return _run(argv or ("bash",), flags, interactive=True)


def _run(argv: tuple[str, ...], flags: ContainerFlags, *, interactive: bool) -> int:
    """Start the container that the flags describe and return its exit status."""
    request = read_flags(flags, argv, interactive=interactive)
    for stale in stale_settings(Settings(argv=argv, environment=dict(request.settings.env)), {}, None):
        console.note(f"stale: {stale.text}")
    watched = request.settings.dumps if request.dump_quota is not None else None
    dumps = existing_dump_store(watched) if watched else None
    return run_in_image(request, DockerContainers(connect()), dumps, console.note)


@click.command("doctor")
@click.option("--dumps", "dump_place", default=".", metavar="FOLDER", help="Check the disk of this dump folder too.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON (schema vdbg-env/doctor/v1).")
def doctor_command(dump_place: str, as_json: bool) -> int:
    """Check what this machine can build, run and debug, and print how to get the rest.

    Changes nothing, and starts nothing but `--version` of the tools.

    Exit status: 0 no problem; 4 warnings only; 3 something will fail.

    \b
    Example:
      vdbg-env doctor
      vdbg-env doctor --json --dumps /var/dumps
    """
    found = judge(doctor.LocalHost(Programs(), TOOLS).gather(os.path.abspath(dump_place)))  # noqa: PTH100 - as typed
    colour = shows_colour(sys.stdout)
    click.echo(doctor.as_json(found) if as_json else doctor.as_text(found, colour=colour), nl=False)
    return exit_status(found.status)


def exit_status(status: Status) -> int:
    """Return the exit status that says the worst check."""
    match status:
        case "ok":
            return 0
        case "warn":
            return 4
        case "fail":
            return 3
        case never:
            assert_never(never)
