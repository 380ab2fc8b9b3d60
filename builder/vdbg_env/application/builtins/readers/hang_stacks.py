"""`builtin/hang-stacks@v1`: where each process of a silent tree waits, by its stacks."""

from __future__ import annotations

from vdbg_env.application.builtins.context import BuiltinContext, BuiltinResult
from vdbg_env.evidence.logs.host_stacks import missing_ranks, parse_host_stacks
from vdbg_env.runbook.catalogue import BuiltinContract

HANG_FILE = "hang.txt"

CONTRACT = BuiltinContract(
    name="hang-stacks",
    version=1,
    role="reader",
    does="Reads the stacks taken when a hang was seen: what each process and thread was waiting in.",
    results={"waiting_in": "list", "processes": "int"},
)


def work(context: BuiltinContext) -> BuiltinResult:
    """Read the stacks of every attempt on every rank; the ranks of the last one are compared."""
    found = {
        (seen.attempt, seen.rank): parse_host_stacks(
            context.text_lines(context.run_directory / seen.directory / HANG_FILE)
        )
        for seen in context.observations
    }
    processes = sum(len(stacks.processes) for stacks in found.values())
    if not processes:
        return BuiltinResult()
    last = max(attempt for attempt, _ in found)
    ranks = {rank: stacks for (attempt, rank), stacks in found.items() if attempt == last}
    waiting = [
        f"rank {rank}: {place}" if len(ranks) > 1 else place
        for (_, rank), stacks in found.items()
        for place in stacks.waiting_in
    ]
    return BuiltinResult(
        results={"waiting_in": waiting, "processes": processes},
        notes=tuple(waiting[:16]),
        findings=missing_ranks(ranks),
    )
