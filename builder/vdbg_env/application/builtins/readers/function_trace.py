"""`builtin/function-trace@v1`: the last Python call that each worker thread entered and did not leave."""

from __future__ import annotations

from vdbg_env.application.builtins.context import BuiltinContext, BuiltinResult
from vdbg_env.evidence.logs.function_trace import parse_function_trace
from vdbg_env.runbook.catalogue import BuiltinContract

CONTRACT = BuiltinContract(
    name="function-trace",
    version=1,
    role="reader",
    does="Reads vLLM's function trace: the last call each thread entered and did not leave.",
    parameters={"artifact": "string"},
    results={"last_call": "string", "source": "string"},
)


def work(context: BuiltinContext) -> BuiltinResult:
    """Read every thread's trace; the first result is that of the trace that was written to last."""
    paths = sorted(context.artifact_paths(str(context.parameters.get("artifact", "trace"))), key=context.files.modified)
    open_calls = {
        path.name: parse_function_trace(context.files.text(path).splitlines()).calls for path in reversed(paths)
    }
    last = next((calls[0] for calls in open_calls.values() if calls), None)
    if last is None:
        return BuiltinResult()
    notes = tuple(f"{name}: in {calls[0]}" for name, calls in open_calls.items() if calls)
    return BuiltinResult(results={"last_call": last.function or str(last), "source": str(last)}, notes=notes[:16])
