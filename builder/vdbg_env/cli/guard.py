"""`vdbg-env guard`: run a production command as it is, and explain its failure."""

from __future__ import annotations

import os
import sys
import threading
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from vdbg_env.cli.run_display import Nobody
from vdbg_env.common import console
from vdbg_env.common.console import printable
from vdbg_env.common.errors import BadInput
from vdbg_env.common.files import write_whole
from vdbg_env.common.flags import Option, Sectioned, takes
from vdbg_env.record.runs import RUNS_VARIABLE, runs_home
from vdbg_env.run import guard
from vdbg_env.run.guarded import Guarded, GuardFlags, core_room, forget_old_runs
from vdbg_env.run.session import RunView
from vdbg_env.runbook.workload import MEMORY_MAP

_SAY_S, _TOLD_S = 60.0, 1.0  # how long stderr may be full, and how long after a request to stop
_TERMINATION_LOG = "/dev/termination-log"


class _Setting(Option):
    """An option that also has a variable. A wrong value there is left out: guard keeps no command from starting."""

    def process_value(self, ctx: click.Context, value: Any) -> Any:
        """Return the value as its type has it, the default where the environment has a wrong one."""
        try:
            return super().process_value(ctx, value)
        except (click.UsageError, BadInput) as error:
            if ctx.get_parameter_source(self.name or "") is not ParameterSource.ENVIRONMENT:
                raise
            said = error.what if isinstance(error, BadInput) else error.message
            console.note(f"guard: VDBG_GUARD_{(self.name or '').upper()} is left out, the default counts: {said}")
            return super().process_value(ctx, self.get_default(ctx))


_EVERYDAY = {"runs", "keep", "hang_after", "core", "exit_status_on_crash", "hook", "print_environment"}


@click.command("guard", cls=Sectioned, everyday=_EVERYDAY, context_settings={"auto_envvar_prefix": "VDBG_GUARD"})
@click.argument("argv", nargs=-1, type=click.UNPROCESSED, metavar="[--] COMMAND...")
@takes(option=_Setting, flags=GuardFlags)
def guard_command(argv: tuple[str, ...], flags: GuardFlags) -> int:
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
    if flags.termination_log is None and os.access(_TERMINATION_LOG, os.W_OK):
        flags = replace(flags, termination_log=Path(_TERMINATION_LOG))
    command = Guarded(flags)
    variables = {**os.environ, **({RUNS_VARIABLE: str(flags.runs)} if flags.runs else {})}
    variables |= {} if flags.memory_map else {MEMORY_MAP: "off"}
    home = runs_home(variables)
    forget_old_runs(home, flags.keep - 1)
    view = RunView(interactive=False, listener=lambda _: lambda *_: None, person=lambda _: Nobody())
    guarding = guard.Guard(
        argv=argv,
        variables=variables,
        view=view,
        command=command,
        say=_Stderr(command),
        room=lambda: core_room(home, flags.disk_floor, whole=flags.core_size == "full"),
    )
    if flags.print_environment:
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
