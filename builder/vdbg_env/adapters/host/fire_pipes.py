"""Fire the core-dump pipes of a process tree: a separate program, standard library only.

`python -I -S -c "...; from vdbg_env.adapters.host.fire_pipes import main; ..." PID`, so it can be started by a
supervisor, which outlives the engine, and in an image with Python alone.
"""

from __future__ import annotations

import sys

from vdbg_env.adapters.host.dump_pipes import CorePipesOfLinux
from vdbg_env.application.host.trigger_dumps import DumpRequest, dump, line
from vdbg_env.common.clock import SystemClock
from vdbg_env.common.errors import VdbgError


def main(pid: int) -> int:
    """Fire, wait for the dumps, and print the result of each process."""
    try:
        report = dump(DumpRequest(pid=pid), pipes=CorePipesOfLinux(), clock=SystemClock())
    except VdbgError as error:
        print(f"{error.what} ({error.cause})" if error.cause else error.what, file=sys.stderr)
        return error.exit_status
    for process in report.processes:
        print(line(process))
    return 0
