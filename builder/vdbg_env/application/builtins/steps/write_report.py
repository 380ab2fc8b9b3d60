"""`builtin/report@v1`: write the report of all steps so far into the run directory."""

from __future__ import annotations

from vdbg_env.application.builtins.context import BuiltinContext, BuiltinResult
from vdbg_env.application.run.result.model import REPORT_FILES
from vdbg_env.runbook.catalogue import BuiltinContract

CONTRACT = BuiltinContract(
    name="report",
    version=1,
    role="step",
    does="Writes the report of all steps so far.",
    parameters={"formats": "list"},
    results={"files": "list"},
)


def work(context: BuiltinContext) -> BuiltinResult:
    """Write the formats that were named, all of them when none is; note each unknown name."""
    asked = context.parameters.get("formats")
    names = [str(name) for name in asked] if isinstance(asked, list) and asked else list(REPORT_FILES)
    files = context.write_report([name for name in names if name in REPORT_FILES])
    known = ", ".join(REPORT_FILES)
    notes = tuple(f"{name} is not a format of a report; {known} are" for name in names if name not in REPORT_FILES)
    return BuiltinResult(results={"files": list(files)}, notes=notes)
