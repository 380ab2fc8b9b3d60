"""`builtin/hang-stacks@v1`: which process holds up a silent tree, and where each of it waits, by its stacks."""

from __future__ import annotations

from dataclasses import replace

from vdbg_env.application.builtins.context import BuiltinContext, BuiltinResult, RecordedOutput
from vdbg_env.evidence.logs.host_stacks import (
    HostStacks,
    Stuck,
    missing_ranks,
    parse_host_stacks,
    stuck_finding,
    stuck_process,
)
from vdbg_env.runbook.catalogue import BuiltinContract
from vdbg_env.runbook.state import ResultValue

HANG_FILE = "hang.txt"

CONTRACT = BuiltinContract(
    name="hang-stacks",
    version=1,
    role="reader",
    does="Reads the stacks taken when a hang was seen: which process the others wait for, and what each waits in.",
    results={
        "waiting_in": "list",
        "processes": "int",
        "stuck": "string",
        "stuck_in": "string",
        "stuck_process": "string",
        "stuck_rank": "int",
    },
)


def work(context: BuiltinContext) -> BuiltinResult:
    """Read the stacks of every attempt on every rank; the ranks of the last one are compared."""
    return read_hang(context)


def read_hang(context: RecordedOutput) -> BuiltinResult:
    """Return what the stacks of a step say of the process that the others wait for."""
    found = _stacks(context)
    processes = sum(len(stacks.processes) for stacks in found.values())
    if not processes:
        return BuiltinResult()
    last = max(attempt for attempt, _ in found)
    ranks = {rank: stacks for (attempt, rank), stacks in found.items() if attempt == last}
    stuck = next((one for stacks in ranks.values() if (one := stuck_process(stacks))), None)
    if stuck and stuck.rank is None and (label := context.label(stuck.process.pid)) and label.process:
        stuck = replace(stuck, process=replace(stuck.process, name=label.process))
    waiting = [
        f"rank {rank}: {place}" if len(ranks) > 1 else place
        for (_, rank), stacks in found.items()
        for place in stacks.waiting_in
    ]
    if stuck:  # first what matters
        waiting.sort(key=lambda place: f" ({stuck.process.pid}): " not in place)
    return BuiltinResult(
        results={"waiting_in": waiting, "processes": processes, **_told(stuck)},
        notes=tuple(waiting[:16]),
        findings=(*((stuck_finding(stuck),) if stuck else ()), *missing_ranks(ranks)),
    )


def _stacks(output: RecordedOutput) -> dict[tuple[int, int], HostStacks]:
    """Return the stacks of each attempt and rank."""
    return {
        (seen.attempt, seen.rank): parse_host_stacks(
            output.text_lines(output.run_directory / seen.directory / HANG_FILE)
        )
        for seen in output.observations
    }


def _told(stuck: Stuck | None) -> dict[str, ResultValue]:
    """Return what is told of the process that the others wait for."""
    if stuck is None:
        return {}
    told: dict[str, ResultValue] = {"stuck": stuck.how, "stuck_process": stuck.name}
    told |= {"stuck_in": str(stuck.place)} if stuck.place else {}
    return told | ({"stuck_rank": stuck.rank} if stuck.rank is not None else {})
