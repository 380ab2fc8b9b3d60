"""`builtin/nccl-log@v1`: NCCL's warnings and transports, and the ranks that are not where the others are."""

from __future__ import annotations

from collections.abc import Iterator

from vdbg_env.application.builtins.context import BuiltinContext, BuiltinResult
from vdbg_env.evidence.logs.nccl_log import nccl_findings, parse_nccl_log
from vdbg_env.runbook.catalogue import BuiltinContract
from vdbg_env.runbook.state import ResultValue

CONTRACT = BuiltinContract(
    name="nccl-log",
    version=1,
    role="reader",
    does="Reads NCCL_DEBUG output: transports chosen, interfaces, warnings, and the collective each rank was in.",
    results={"warnings": "list", "transport": "string", "ranks": "int"},
)


def work(context: BuiltinContext) -> BuiltinResult:
    """Read NCCL's own files, and the output where it writes into that."""
    log = parse_nccl_log(_lines(context))
    results: dict[str, ResultValue] = {"warnings": list(log.warnings), "ranks": log.ranks}
    if log.transports:
        results["transport"] = log.transports[0][0]
    return BuiltinResult(results=results, findings=nccl_findings(log))


def _lines(context: BuiltinContext) -> Iterator[str]:
    for path in context.artifact_paths("nccl"):
        yield from context.text_lines(path, b"NCCL")
    yield from (line.text for line in context.lines(b"NCCL"))
