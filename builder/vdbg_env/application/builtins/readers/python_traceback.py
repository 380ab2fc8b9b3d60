"""`builtin/python-traceback@v1`: the process that failed, by its traceback, or by how and where it died."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from vdbg_env.application.builtins.context import BuiltinContext, BuiltinResult, RecordedOutput
from vdbg_env.evidence.logs.cuda_error import parse_cuda_error
from vdbg_env.evidence.logs.fatal_error import FatalError, read_fatal_errors
from vdbg_env.evidence.logs.log_line import rank_of_process
from vdbg_env.evidence.logs.process_death import NEEDLES, ProcessDeath, death_findings, process_death, read_deaths
from vdbg_env.evidence.logs.python_traceback import Traceback, firsthand, raised_finding, read_tracebacks, telling
from vdbg_env.evidence.observation import Death, EndedBy, Observation
from vdbg_env.evidence.system.ranks import first_failure, last_attempt
from vdbg_env.runbook.catalogue import BuiltinContract
from vdbg_env.runbook.state import ResultValue

_HEAD, _FATAL = b"Traceback (most recent call last)", b"Fatal Python error: "
_OF_OTHERS = {"died", "stack", "frame", "source"}  # what is not of a process that printed why it ended itself
_MOST_LINES = 5000  # of one traceback, with what other processes print between them

CONTRACT = BuiltinContract(
    name="python-traceback",
    version=1,
    role="reader",
    does="Finds the process that failed: the last Python traceback of the output that is no effect of another, and its "
    "innermost frame outside of torch; or how it died, and where Python's fault handler wrote it, the frame of the "
    "thread that got the signal.",
    results={
        "error": "string",
        "frame": "string",
        "source": "string",
        "stack": "list",
        "signal": "string",
        "crashed_in": "string",
        "crashed_stack": "list",
        "failed_process": "string",
        "failed_rank": "int",
        "failed_pid": "int",
        "died": "string",
        "raised_before_hang": "bool",
    },
)


def work(context: BuiltinContext) -> BuiltinResult:
    """Read the last attempt's output; a fault of an earlier attempt is read by that attempt's own lines."""
    return read_failure(context)


def read_failure(context: RecordedOutput) -> BuiltinResult:
    """Return what the output of a step says of the process that failed."""
    results: dict[str, ResultValue] = {}
    first = _failed_first(context)
    ranks = (
        (replace(context, observations=(first,)), context) if first and len(context.observations) > 1 else (context,)
    )
    raised = _raised(ranks)
    if found := telling(raised):
        results["error"] = f"{found.error}: {found.message}" if found.message else found.error
        results["stack"] = [str(frame) for frame in found.frames]
        if frame := found.own_frame:
            results |= {"frame": frame.function or "", "source": str(frame)}
    # Of several processes the first that crashed, in the rank that failed first; the others lost their peer.
    crashes = (error for rank in ranks for error in read_fatal_errors(rank.lines_after(_FATAL, _MOST_LINES)))
    if fatal := next(crashes, None):
        results["signal"] = fatal.error
        results["crashed_stack"] = [str(frame) for frame in fatal.frames]
        if frame := fatal.own_frame:
            results["crashed_in"] = str(frame)
    death = _death(context, raised, fatal)
    if found and found.rank is None and found.pid is not None and (label := context.label(found.pid)):
        found = replace(found, process=label.process, rank=rank_of_process(label.process or ""))
    results |= _process(death, found)
    # `exit` and `abort` are the end of programs in C++ that have printed a CUDA error, vLLM's custom all-reduce too.
    if death and death.by_itself and (said := _cuda_error(context)):
        results = {name: value for name, value in results.items() if name not in _OF_OTHERS} | {"error": said}
        return BuiltinResult(results=results, findings=())
    findings = death_findings(death, fatal.own_frame if fatal and death.stack else None) if death else ()
    if found and found.stops_others and any(seen.ended.by is EndedBy.WATCH for seen in context.observations):
        results["raised_before_hang"] = True
        findings = (*findings, raised_finding(found))
    return BuiltinResult(results=results, findings=findings)


def _cuda_error(context: RecordedOutput) -> str | None:
    lines = (line.text.strip() for line in context.lines(b"CUDA", b"Cuda", b"cuda"))
    return next((text for text in lines if parse_cuda_error(text)), None)


def _process(death: ProcessDeath | None, raised: Traceback | None) -> dict[str, ResultValue]:
    """Return which process failed: the one that died first, else the one that raised the error."""
    if death:
        named: dict[str, ResultValue] = {"failed_process": death.process, "died": death.how or "unknown"}
    else:
        named = {"failed_process": raised.process} if raised and raised.process else {}
    told = death or raised
    if named and told and told.rank is not None:
        named["failed_rank"] = told.rank
    return named | ({"failed_pid": told.pid} if named and told and told.pid is not None else {})


def _death(context: RecordedOutput, raised: list[Traceback], fatal: FatalError | None) -> ProcessDeath | None:
    first, said = _first_to_die(context), read_deaths(context.lines(*NEEDLES))
    label = context.label(first.pid) if first else None
    return process_death(first, said, firsthand(raised), label=label, fatal=fatal)


def _raised(ranks: Sequence[RecordedOutput]) -> list[Traceback]:
    """Return the tracebacks of the first of `ranks` that raised one itself, else those of the last, which is all."""
    raised: list[Traceback] = []
    for rank in ranks:
        raised = list(read_tracebacks(rank.lines_after(_HEAD, _MOST_LINES)))
        if firsthand(raised):
            break
    return raised


def _first_to_die(context: RecordedOutput) -> Death | None:
    """Return the first death of the rank that failed first in the last attempt."""
    ranks = last_attempt(context.observations)
    first = _failed_first(context) or (ranks[0] if ranks else None)
    return first.deaths[0] if first and first.deaths else None


def _failed_first(context: RecordedOutput) -> Observation | None:
    return first_failure(last_attempt(context.observations))
