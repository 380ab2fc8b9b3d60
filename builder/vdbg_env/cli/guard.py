"""`vdbg-env guard`: run a production command as it is, and explain its failure."""

from __future__ import annotations

import os
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

import click

from gpucore.arming import CORE_SIZES, CoreSize
from vdbg_env.cli.display.prompt import Nobody
from vdbg_env.cli.options.duration import seconds
from vdbg_env.common.printable import printable
from vdbg_env.common.writing import write_whole
from vdbg_env.image.settings import parse_size
from vdbg_env.record.runs import RUNS_VARIABLE, runs_home
from vdbg_env.run import guard
from vdbg_env.run.guarded import Guarded, GuardSettings, core_room, forget_old_runs
from vdbg_env.run.session import RunView

_SAY_S, _TOLD_S = 60.0, 1.0  # how long stderr may be full, and how long where this program was told to stop
_TERMINATION_LOG = "/dev/termination-log"


@click.command("guard", context_settings={"auto_envvar_prefix": "VDBG_GUARD"})
@click.argument("argv", nargs=-1, type=click.UNPROCESSED, metavar="[--] COMMAND...")
@click.option("--runs", type=click.Path(path_type=Path), help="The folder of runs that gets this one's record.")
@click.option(
    "--keep", default=20, show_default=True, type=click.IntRange(1), metavar="N", help="Runs of guards kept there."
)
@click.option("--log-limit", default="64m", show_default=True, metavar="SIZE", help="What is kept of each stream.")
@click.option(
    "--disk-floor", default="1g", show_default=True, metavar="SIZE", help="Record nothing below this much free space."
)
@click.option(
    "--hang-after",
    default="15m",
    show_default=True,
    callback=lambda context, option, text: seconds(context, option, None if text == "off" else text),
    metavar="DURATION",
    help="Without any progress while work waits, or with a GPU at full load; `off` for never.",
)
@click.option(
    "--core", type=click.Choice(CORE_SIZES), default="default", show_default=True,
    help="What GPU core dumps keep: registers and code; shared, local and constant memory too; all memory.",
)  # fmt: skip
@click.option("--full-core", is_flag=True, help="The same as --core full.")
@click.option(
    "--exit-status-on-crash",
    type=click.IntRange(1, 255),
    metavar="N",
    help="Returned after a crash or a hang, so that what supervises this restarts it. [default: the command's own]",
)
@click.option("--hook", metavar="LINE", help="A shell runs it after a failure, with the JSON line on standard input.")
@click.option(
    "--termination-log",
    type=click.Path(path_type=Path),
    default=lambda: Path(_TERMINATION_LOG) if os.access(_TERMINATION_LOG, os.W_OK) else None,
    help="Kubernetes' termination message. [default: /dev/termination-log where there is one]",
)
@click.option(
    "--print-environment", is_flag=True, help="Only print what COMMAND would be given, and how each is switched off."
)
def guard_command(
    argv: tuple[str, ...],
    runs: Path | None,
    keep: int,
    log_limit: str,
    disk_floor: str,
    hang_after: float | None,
    core: CoreSize,
    full_core: bool,
    exit_status_on_crash: int | None,
    hook: str | None,
    termination_log: Path | None,
    print_environment: bool,
) -> int:
    """Run COMMAND once, as it is, with core dumps and a watch for hangs armed.

    Its output and signals pass through, its exit status is this command's. When it dies or hangs, the record, the GPU
    cores and a report are in the folder of runs, and one line of JSON is on stderr. Each flag can be set in the
    environment: VDBG_GUARD_HOOK for --hook.

    \b
    Example:
      vdbg-env guard -- vllm serve MODEL
      vdbg-env guard --exit-status-on-crash 70 -- vllm serve MODEL
      vdbg-env guard --hook 'cat >> /var/log/crashes.jsonl' -- python offline.py

    Exit status: that of COMMAND, 128 and its number for a signal; 124 for one that hung and returned 0 when it was
    ended; 127 or 126 where it cannot be started. `vllm serve` returns 0 after many crashes: with
    --exit-status-on-crash every crash and every hang has that status.
    """
    settings = GuardSettings(
        log_limit=parse_size(log_limit, "--log-limit"),
        disk_floor=parse_size(disk_floor, "--disk-floor"),
        hang_after_s=hang_after,
    )
    request = guard.GuardRequest(
        argv=argv,
        core_size="full" if full_core else core,
        termination_log=termination_log,
        hook=hook,
        crash_status=exit_status_on_crash,
    )
    command = Guarded(settings)
    variables = {**os.environ, **({RUNS_VARIABLE: str(runs)} if runs else {})}
    home = runs_home(variables)
    forget_old_runs(home, keep - 1)
    view = RunView(interactive=False, listener=lambda _: lambda *_: None, person=lambda _: Nobody())
    guarding = guard.Guard(
        request=request,
        variables=variables,
        view=view,
        command=command,
        say=_Stderr(command),
        room=lambda: core_room(home, settings.disk_floor, whole=request.core_size == "full"),
    )
    if print_environment:
        for line in guarding.environment():
            click.echo(printable(line))
        return 0
    if not argv:
        raise click.UsageError("Missing argument '[--] COMMAND...'.")
    with command:
        return guarding.run()


class _Stderr:
    """Writes lines after the command's own output, where that can still be written: a pipe may be full for ever."""

    def __init__(self, command: Guarded) -> None:
        self._command = command
        self._begun = False

    def __call__(self, line: str) -> None:
        """Write a line, the first one apart from an unfinished line of the command."""
        apart = not self._begun and self._command.unfinished_line()
        self._begun = self._command.started
        text = "\n" * apart + printable(line) + "\n"
        thread = threading.Thread(target=_written, args=(text.encode(),), daemon=True)
        thread.start()
        until = time.monotonic() + _SAY_S
        while thread.is_alive() and time.monotonic() < until - (_SAY_S - _TOLD_S) * self._command.told_to_stop():
            thread.join(0.1)


def _written(data: bytes) -> None:
    """Write past the buffer of stderr: one that is full would keep this process from ending."""
    with suppress(OSError, ValueError):
        write_whole(sys.stderr.fileno(), data)
