"""`builtin/nccl-ras@v1`: what NCCL's own RAS service said when a hang was judged; a real one was never met."""

from __future__ import annotations

import json

from vdbg_env.application.builtins.context import BuiltinContext, BuiltinResult
from vdbg_env.evidence.finding import Finding, HowKnown, Level
from vdbg_env.evidence.logs.host_stacks import parse_host_stacks
from vdbg_env.evidence.logs.nccl_ras import RasAnswer, read_ras
from vdbg_env.runbook.catalogue import BuiltinContract

_FILE, _MARK = "hang.txt", b"nccl-ras: {"

CONTRACT = BuiltinContract(
    name="nccl-ras",
    version=1,
    role="reader",
    does="Reads what NCCL's RAS service said at a hang: the ranks that it misses, and those that are behind in a "
    "collective. Written from NCCL's documentation; a real service was never met.",
    results={"ras_missing": "list", "ras_behind": "list", "ras_nccl": "string"},
)


def work(context: BuiltinContext) -> BuiltinResult:
    """Read the last attempt; the answer of a service that belongs to other processes is left out."""
    for seen in reversed(context.observations):
        path = context.files.inside(f"{seen.directory}/{_FILE}")
        ours = set(parse_host_stacks(context.text_lines(path)).processes)
        for line in context.files.lines(path, _MARK):
            try:
                answer = read_ras(json.loads(line[len(_MARK) - 1 :]))
            except (ValueError, RecursionError):
                continue
            if not answer.pids & ours:
                return BuiltinResult(notes=("the RAS service that answered is of other processes: not used",))
            return _told(answer)
    return BuiltinResult()


def _told(answer: RasAnswer) -> BuiltinResult:
    findings = (
        Finding(
            rule="nccl-ras",
            level=Level.ERROR,
            message=f"NCCL's RAS service: {first}",
            how_known=HowKnown.HOST_CHECK,
            confidence=0.6,  # of a service that was never met
        )
        for first in (answer.missing or answer.behind)[:1]
    )
    return BuiltinResult(
        results={
            "ras_missing": list(answer.missing),
            "ras_behind": list(answer.behind),
            **({"ras_nccl": answer.nccl} if answer.nccl else {}),
        },
        findings=tuple(findings),
        notes=(*answer.missing, *answer.behind)[:16],
    )
