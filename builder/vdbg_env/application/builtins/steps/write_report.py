"""`builtin/report@v1`: writes the report of all steps so far into the run directory."""

from __future__ import annotations

from vdbg_env.application.builtins.context import BuiltinContext, BuiltinResult
from vdbg_env.application.run.report_files import FORMATS, write_report


def work(context: BuiltinContext) -> BuiltinResult:
    """Write the formats asked for, all of them when none is named; a name nobody knows is noted."""
    asked = context.parameters.get("formats")
    names = [str(name) for name in asked] if isinstance(asked, list) and asked else list(FORMATS)
    files = write_report(context.report(), context.run_directory, [name for name in names if name in FORMATS])
    notes = tuple(f"{name} is no format of a report; {', '.join(FORMATS)} are" for name in names if name not in FORMATS)
    return BuiltinResult(results={"files": list(files)}, notes=notes)
