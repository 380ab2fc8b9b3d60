"""`builtin/incident@v1`: what is asked first of a server that died: the line, its process, the time, the load."""

from __future__ import annotations

from itertools import islice

from vdbg_env.application.builtins.context import BuiltinContext, BuiltinResult
from vdbg_env.application.builtins.readers import triage
from vdbg_env.application.knowledge.installed_packages import installed_versions, workload_python
from vdbg_env.common.errors import HostNotAble
from vdbg_env.evidence.logs.incident import (
    NEEDLES,
    STACKS,
    native_stack,
    read_load,
    seconds_between,
    traceback_of,
)
from vdbg_env.evidence.logs.log_line import LogLine, unwrap
from vdbg_env.evidence.logs.python_traceback import read_tracebacks
from vdbg_env.runbook.catalogue import BuiltinContract
from vdbg_env.runbook.state import ResultValue

_STREAMS = ("stdout", "stderr")
_HEAD = b"Traceback (most recent call last)"
_MOST_LINES, _FIRST = 5000, 500

CONTRACT = BuiltinContract(
    name="incident",
    version=1,
    role="reader",
    does="Reads around the line that triage says decided: its process, rank and time, the traceback that it ends, how "
    "long the workload ran, the requests it served, vLLM's own dump of what was scheduled (sizes, no prompts), and the "
    "native stack, where one was printed.",
    results={
        "decided_by": "string",
        "decided_at": "string",
        "decided_process": "string",
        "decided_pid": "int",
        "decided_rank": "int",
        "decided_time": "string",
        "traceback": "list",
        "native_stack": "list",
        "ran_s": "float",
        "uptime_s": "float",
        "requests_answered": "int",
        "requests_failed": "int",
        "vllm": "string",
        "torch": "string",
        "scheduled": "string",
    },
)


def work(context: BuiltinContext) -> BuiltinResult:
    """Read the last attempt; what its log does not say is left out."""
    if not context.observations:
        return BuiltinResult()
    last = context.observations[-1]
    if last.went_well:
        return BuiltinResult()
    results: dict[str, ResultValue] = {"ran_s": round(last.duration_s, 1)}
    paths = [context.files.inside(f"{last.directory}/{name}") for name in _STREAMS]
    root = triage.root_cause(context)
    if root and (line := _line(context, root.file, root.line)):
        results |= _decided(context, line, f"{root.file.rpartition('/')[2]}:{root.line}")
    load = read_load(line for path in paths for line in context.files.lines(path, *NEEDLES))
    if load.answered or load.failed:
        results |= {"requests_answered": load.answered, "requests_failed": load.failed}
    results |= {"scheduled": load.scheduled} if load.scheduled else {}
    for path in paths:
        printed = any(True for _ in context.files.lines(path, *STACKS))
        if printed and (stack := native_stack(context.text_lines(path))):
            results["native_stack"] = stack
            break
    return BuiltinResult(results=results | _versions(context, load.vllm))


def _line(context: BuiltinContext, file: str, number: int) -> LogLine | None:
    lines = context.text_lines(context.files.inside(file))
    text = next(islice(lines, number - 1, number), None)
    return unwrap(text) if text is not None else None


def _decided(context: BuiltinContext, line: LogLine, at: str) -> dict[str, ResultValue]:
    results: dict[str, ResultValue] = {"decided_by": line.text, "decided_at": at}
    given = {"process": line.process, "pid": line.pid, "rank": line.rank, "time": line.stamp or line.container}
    results |= {f"decided_{name}": value for name, value in given.items() if value is not None}
    if found := traceback_of(line, read_tracebacks(context.lines_after(_HEAD, _MOST_LINES))):
        results["traceback"] = [str(frame) for frame in found.frames]
    first = next((seen for seen in islice(context.lines(), _FIRST) if seen.stamp), None)
    if first and (uptime := seconds_between(first, line)) is not None:
        results["uptime_s"] = uptime
    return results


def _versions(context: BuiltinContext, logged: str | None) -> dict[str, ResultValue]:
    """Return the releases of vLLM and torch: those installed for the workload's Python, and vLLM's by its own log."""
    try:
        python = workload_python(context.programs, context.workload)
        found = installed_versions(context.programs, python, ("vllm", "torch")) if python and logged else {}
    except (HostNotAble, OSError):
        found = {}
    return {**found, **({"vllm": logged} if logged else {})}
