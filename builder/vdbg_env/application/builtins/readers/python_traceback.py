"""`builtin/python-traceback@v1`: the most informative Python traceback, and its innermost frame outside of torch."""

from __future__ import annotations

from vdbg_env.application.builtins.context import BuiltinContext, BuiltinResult
from vdbg_env.evidence.logs.python_traceback import read_tracebacks, telling
from vdbg_env.runbook.catalogue import BuiltinContract
from vdbg_env.runbook.state import ResultValue

CONTRACT = BuiltinContract(
    name="python-traceback",
    version=1,
    role="reader",
    does="Finds the last Python traceback of the output and its innermost frame outside of torch.",
    results={"error": "string", "frame": "string", "source": "string", "stack": "list"},
)


def work(context: BuiltinContext) -> BuiltinResult:
    """Read the last attempt's output; a fault of an earlier attempt is read by that attempt's own lines."""
    found = telling(read_tracebacks(context.lines()))
    if found is None:
        return BuiltinResult()
    error = f"{found.error}: {found.message}" if found.message else found.error
    results: dict[str, ResultValue] = {"error": error, "stack": [str(frame) for frame in found.frames]}
    frame = found.own_frame
    if frame:
        results |= {"frame": frame.function or "", "source": str(frame)}
    return BuiltinResult(results=results)
