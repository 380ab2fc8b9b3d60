"""`vdbg-env dump`: GPU core dumps of a process tree that hangs."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Literal

import click

from gpucore.arming import CORE_SIZES, CoreSize, arming, as_env_file, as_exports
from vdbg_env.application.host.trigger_dumps import DumpReport, DumpRequest, DumpStatus, dump
from vdbg_env.cli.composition.containers import core_pipes
from vdbg_env.cli.composition.runs import clock
from vdbg_env.report.codec import document as doc
from vdbg_env.report.dumps import triggered


def _pid(_context: click.Context, _argument: click.Parameter, text: str | None) -> int | None:
    if text is None:
        return None
    if text.isdecimal() and int(text):
        return int(text)
    raise click.BadParameter(f"{text!r} is not the number of a process: pgrep -af {shlex.quote(text)}")


@click.command("dump")
@click.argument("pid", callback=_pid, required=False)
@click.option("--timeout", default=600.0, show_default=True, type=click.FloatRange(0), help="Seconds for all of them.")
@click.option("--no-wait", is_flag=True, help="Fire the pipes and leave.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON (schema vdbg-env/dump/v1).")
@click.option("--arm", is_flag=True, help="Only print the environment that a program must be started with.")
@click.option(
    "--format", "form", type=click.Choice(["export", "env"]), default="export", show_default=True,
    help="With --arm: lines for a shell, or a file for docker run --env-file.",
)  # fmt: skip
@click.option("--folder", default=lambda: str(Path.cwd()), help="With --arm: the folder of the dumps. [default: here]")
@click.option(
    "--core", "size", type=click.Choice(CORE_SIZES), default="default", show_default=True,
    help="With --arm: what the dumps keep: registers and code; shared, local and constant memory too; all memory.",
)  # fmt: skip
@click.option("--full", is_flag=True, help="The same as --core full.")
def command(
    pid: int | None,
    timeout: float,
    no_wait: bool,
    as_json: bool,
    arm: bool,
    form: Literal["export", "env"],
    folder: str,
    size: CoreSize,
    full: bool,
) -> int:
    """Make every armed process of the tree of PID write a GPU core dump, and wait until the dumps are whole.

    The process continues afterwards. It must have been started with the environment that --arm prints; its pipe is
    found among its open files, also inside a container. Run as the process's user or as root.

    Exit status: 0 every dump is written; 4 some are; 1 none is; 2 no such process, or none of them is armed.

    \b
    Example:
      eval "$(vdbg-env dump --arm --folder /dumps)"; vllm serve MODEL &
      vdbg-env dump $!
      vdbg-env dump --arm --format env > cuda.env; docker run --env-file cuda.env ...
    """
    if arm:
        variables = arming(folder, size="full" if full else size)
        click.echo(as_exports(variables) if form == "export" else as_env_file(variables), nl=False)
        return 0
    if pid is None:
        raise click.UsageError("Missing argument 'PID' (or --arm).")
    request = DumpRequest(pid=pid, timeout_s=0 if no_wait else timeout)
    report = dump(request, pipes=core_pipes(), clock=clock())
    click.echo(doc.render(report, triggered.Triggered) if as_json else triggered.as_text(report), nl=False)
    return exit_status(report)


def exit_status(report: DumpReport) -> int:
    """Return 0 when all that was to be written is, 4 when some is, 1 when none is."""
    good = [p.status in {DumpStatus.WRITTEN, DumpStatus.FIRED} for p in report.processes]
    return 0 if all(good) else 4 if any(good) else 1
