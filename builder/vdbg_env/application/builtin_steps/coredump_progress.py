"""`builtin/coredump-progress@v1`: what the driver said while it wrote GPU core dumps."""

from __future__ import annotations

from vdbg_env.application.builtin_steps.context import BuiltinContext, BuiltinResult
from vdbg_env.evidence.driver_progress import driver_findings, read_driver_progress


def work(context: BuiltinContext) -> BuiltinResult:
    """Read the driver's lines; `done` says that every dump begun was finished."""
    progress = read_driver_progress(context.lines(b"oredump"))
    if not (progress.exceptions or progress.files or progress.finished or progress.unknown_flags):
        return BuiltinResult()
    return BuiltinResult(
        results={
            "exceptions": [exception.name for exception in progress.exceptions],
            "files": list(progress.files),
            "done": not progress.cut_short,
        },
        findings=driver_findings(progress),
    )
