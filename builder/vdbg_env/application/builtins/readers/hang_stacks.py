"""`builtin/hang-stacks@v1`: where each process of a silent tree waits, by its stacks."""

from __future__ import annotations

from vdbg_env.application.builtins.context import BuiltinContext, BuiltinResult
from vdbg_env.evidence.logs.host_stacks import parse_host_stacks

HANG_FILE = "hang.txt"


def work(context: BuiltinContext) -> BuiltinResult:
    """Read the stacks of every attempt on every rank."""
    found = [
        parse_host_stacks(context.text_lines(context.run_directory / seen.directory / HANG_FILE))
        for seen in context.observations
    ]
    processes = sum(len(stacks.processes) for stacks in found)
    if not processes:
        return BuiltinResult()
    waiting = [place for stacks in found for place in stacks.waiting_in]
    return BuiltinResult(results={"waiting_in": waiting, "processes": processes}, notes=tuple(waiting[:16]))
