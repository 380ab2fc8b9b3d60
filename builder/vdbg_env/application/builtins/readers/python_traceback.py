"""`builtin/python-traceback@v1`: the most informative Python traceback, and where Python was when a signal ended it."""

from __future__ import annotations

from vdbg_env.application.builtins.context import BuiltinContext, BuiltinResult
from vdbg_env.evidence.logs.fatal_error import read_fatal_errors
from vdbg_env.evidence.logs.python_traceback import read_tracebacks, telling
from vdbg_env.runbook.catalogue import BuiltinContract
from vdbg_env.runbook.state import ResultValue

_HEAD, _FATAL = b"Traceback (most recent call last)", b"Fatal Python error: "
_MOST_LINES = 5000  # of one traceback, with what other processes print between them

CONTRACT = BuiltinContract(
    name="python-traceback",
    version=1,
    role="reader",
    does="Finds the last Python traceback of the output that is no effect of another, and its innermost frame outside "
    "of torch; and, where Python's fault handler wrote it, the frame of the thread that got the signal.",
    results={
        "error": "string",
        "frame": "string",
        "source": "string",
        "stack": "list",
        "signal": "string",
        "crashed_in": "string",
        "crashed_stack": "list",
    },
)


def work(context: BuiltinContext) -> BuiltinResult:
    """Read the last attempt's output; a fault of an earlier attempt is read by that attempt's own lines."""
    results: dict[str, ResultValue] = {}
    if found := telling(read_tracebacks(context.lines_after(_HEAD, _MOST_LINES))):
        results["error"] = f"{found.error}: {found.message}" if found.message else found.error
        results["stack"] = [str(frame) for frame in found.frames]
        if frame := found.own_frame:
            results |= {"frame": frame.function or "", "source": str(frame)}
    # Of several processes the first that crashed; the others lost their peer.
    if fatal := next(read_fatal_errors(context.lines_after(_FATAL, _MOST_LINES)), None):
        results["signal"] = fatal.error
        results["crashed_stack"] = [str(frame) for frame in fatal.frames]
        if frame := fatal.own_frame:
            results["crashed_in"] = str(frame)
    return BuiltinResult(results=results)
