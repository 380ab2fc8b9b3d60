"""`builtin/coredump-progress@v1`: what the driver printed while it wrote GPU core dumps."""

from __future__ import annotations

from dataclasses import replace

from vdbg_env.application.builtins.context import BuiltinContext, BuiltinResult
from vdbg_env.evidence.finding import Finding
from vdbg_env.evidence.system.driver_progress import driver_findings, read_driver_progress
from vdbg_env.runbook.catalogue import BuiltinContract
from vdbg_env.runbook.state import ResultValue

CONTRACT = BuiltinContract(
    name="coredump-progress",
    version=1,
    role="reader",
    does="Reads the driver's core-dump progress lines: exceptions seen, files written, whether all were done.",
    results={"exceptions": "list", "files": "list", "done": "bool"},
)


def work(context: BuiltinContext) -> BuiltinResult:
    """Read the driver's lines; `done` is whether every dump begun was finished, if the driver says so."""
    progress = read_driver_progress(context.lines(b"oredump"))
    if not (progress.exceptions or progress.files or progress.finished or progress.unknown_flags or progress.begun):
        return BuiltinResult()
    results: dict[str, ResultValue] = {
        "exceptions": [exception.name for exception in progress.exceptions],
        "files": list(progress.files),
    }
    if progress.exceptions or progress.files or progress.finished:
        results["done"] = not progress.cut_short
    return BuiltinResult(
        results=results,
        findings=tuple(_with_file(finding, context) for finding in driver_findings(progress)),
    )


def _with_file(finding: Finding, context: BuiltinContext) -> Finding:
    """Put the dump that was found into a next step that names one."""
    dump = next((context.relative(path) for path in context.artifact_paths("cores")), None)
    if dump is None or finding.next_step is None or not finding.next_step.endswith(" FILE"):
        return finding
    return replace(finding, next_step=finding.next_step.removesuffix("FILE") + dump)
