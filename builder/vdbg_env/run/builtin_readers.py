"""The built-in readers of runbooks: each turns what a step left into findings."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from signal import Signals

from vdbg_env.common.errors import HostNotAble
from vdbg_env.evidence.deaths import DEATH_NEEDLES as DEATHS
from vdbg_env.evidence.deaths import LOAD_NEEDLES as LOAD
from vdbg_env.evidence.deaths import STACK_NEEDLES as STACKS
from vdbg_env.evidence.deaths import (
    ProcessDeath,
    death_findings,
    first_failure,
    is_victim,
    last_attempt,
    native_stack,
    process_death,
    read_deaths,
    read_load,
    seconds_between,
    traceback_of,
)
from vdbg_env.evidence.finding import Death, EndedBy, Finding, HowKnown, Level, Observation
from vdbg_env.evidence.log_line import LogLine, parse_cuda_error, rank_of_process, unwrap
from vdbg_env.evidence.nccl import (
    NotPlainData,
    RasAnswer,
    flight_findings,
    nccl_findings,
    parse_nccl_log,
    read_flight_record,
    read_ras,
    unfinished_collective,
)
from vdbg_env.evidence.python_text import (
    FatalError,
    HostStacks,
    Stuck,
    Traceback,
    firsthand,
    missing_ranks,
    parse_function_trace,
    parse_host_stacks,
    raised_finding,
    read_fatal_errors,
    read_tracebacks,
    stuck_finding,
    stuck_process,
    telling,
)
from vdbg_env.evidence.sanitizer import SanitizerReport, parse_sanitizer, sanitizer_findings
from vdbg_env.evidence.system import driver_findings, memory_kill_findings, read_driver_progress
from vdbg_env.evidence.triage_rules import OF_A_PEER, rule_book
from vdbg_env.evidence.triage_scan import LogClassifier, LogEvidence, Sighting
from vdbg_env.evidence.triage_verdict import RootCause, Triage, judge
from vdbg_env.run.library import BuiltinContext, BuiltinResult, RecordedOutput, builtin
from vdbg_env.run.stale import installed_versions, workload_python
from vdbg_env.runbook.state import ResultValue


@builtin(
    name="coredump-progress",
    version=1,
    role="reader",
    does="Reads the driver's core-dump progress lines: exceptions seen, files written, whether all were done.",
    results={"exceptions": "list", "files": "list", "done": "bool"},
)
def coredump_progress(context: BuiltinContext) -> BuiltinResult:
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
    step = finding.next_step
    if dump is None or step is None or step.command is None:
        return finding
    return replace(finding, next_step=replace(step, command=step.command.replace(" FILE", f" {shlex.quote(dump)}")))


# `builtin/flight-recorder@v1`: who is missing from which collective, by PyTorch's own dumps.


MOST_BYTES = 64 << 20
_RANK = re.compile(r"(\d+)$")


@builtin(
    name="flight-recorder",
    version=1,
    role="reader",
    does="Reads the dumps of PyTorch's flight recorder: which ranks are missing from which collective, or which "
    "one did not end on the ranks that entered it, and its line in Python.",
    parameters={"artifact": "string"},
    results={"dumps": "int", "missing": "string", "collective": "string", "collective_at": "string"},
)
def flight_recorder(context: BuiltinContext) -> BuiltinResult:
    """Read the dump of each rank, whose number ends the file's name, and compare them."""
    records, notes = [], []
    for path in context.artifact_paths(str(context.parameters.get("artifact", "flight"))):
        rank = _RANK.search(path.name)
        try:
            records.append(read_flight_record(_bytes(context, path), int(rank[1]) if rank else 0))
        except NotPlainData as error:
            notes.append(f"{context.relative(path)} was not read: {error}")
    if not records:
        return BuiltinResult(notes=tuple(notes))
    findings = flight_findings(records)
    results: dict[str, ResultValue] = {"dumps": len(records)}
    if findings:
        results["missing"] = findings[0].message
    elif waits := unfinished_collective(records):
        results |= {"collective": waits[0]} | ({"collective_at": str(waits[1])} if waits[1] else {})
    return BuiltinResult(results=results, findings=findings, notes=tuple(notes))


def _bytes(context: BuiltinContext, path: Path) -> bytes:
    data = bytearray()
    for chunk in context.files.chunks(path):
        data += chunk
        if len(data) > MOST_BYTES:
            raise NotPlainData(f"larger than {MOST_BYTES >> 20} MiB")
    return bytes(data)


# `builtin/function-trace@v1`: the last Python call that each worker thread entered and did not leave.


@builtin(
    name="function-trace",
    version=1,
    role="reader",
    does="Reads vLLM's function trace: the last call each thread entered and did not leave.",
    parameters={"artifact": "string"},
    results={"last_call": "string", "source": "string"},
)
def function_trace(context: BuiltinContext) -> BuiltinResult:
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


# `builtin/hang-stacks@v1`: which process holds up a silent tree, and where each of it waits, by its stacks.


HANG_FILE = "hang.txt"
_NO_PYTHON_STACK = "no Python stack was taken: py-spy is not installed, or may not attach (vdbg-env doctor)"


@builtin(
    name="hang-stacks",
    version=1,
    role="reader",
    does="Reads the stacks taken when a hang was seen: which process the others wait for, and what each waits in.",
    results={
        "waiting_in": "list",
        "processes": "int",
        "stuck": "string",
        "stuck_in": "string",
        "stuck_process": "string",
        "stuck_rank": "int",
    },
)
def hang_stacks(context: BuiltinContext) -> BuiltinResult:
    """Read the stacks of every attempt on every rank; the ranks of the last one are compared."""
    return read_hang(context)


def read_hang(context: RecordedOutput) -> BuiltinResult:
    """Return what the stacks of a step show of the process that the others wait for."""
    found = _stacks(context)
    processes = sum(len(stacks.processes) for stacks in found.values())
    if not processes:
        return BuiltinResult()
    last = max(attempt for attempt, _ in found)
    ranks = {rank: stacks for (attempt, rank), stacks in found.items() if attempt == last}
    stuck = next((one for stacks in ranks.values() if (one := stuck_process(stacks))), None)
    if stuck and stuck.rank is None and (label := context.label(stuck.process.pid)) and label.process:
        stuck = replace(stuck, process=replace(stuck.process, name=label.process))
    waiting = [
        f"rank {rank}: {place}" if len(ranks) > 1 else place
        for (_, rank), stacks in found.items()
        for place in stacks.waiting_in
    ]
    if stuck:  # first what matters
        waiting.sort(key=lambda place: f" ({stuck.process.pid}): " not in place)
    return BuiltinResult(
        results={"waiting_in": waiting, "processes": processes, **_told(stuck)},
        notes=(*waiting[:16], *(() if any(one.threads for one in found.values()) else (_NO_PYTHON_STACK,))),
        findings=(*((stuck_finding(stuck),) if stuck else ()), *missing_ranks(ranks)),
    )


def _stacks(output: RecordedOutput) -> dict[tuple[int, int], HostStacks]:
    """Return the stacks of each attempt and rank."""
    return {
        (seen.attempt, seen.rank): parse_host_stacks(
            output.text_lines(output.run_directory / seen.directory / HANG_FILE)
        )
        for seen in output.observations
    }


def _told(stuck: Stuck | None) -> dict[str, ResultValue]:
    """Return what is known of the process that the others wait for."""
    if stuck is None:
        return {}
    told: dict[str, ResultValue] = {"stuck": stuck.how, "stuck_process": stuck.name}
    told |= {"stuck_in": str(stuck.place)} if stuck.place else {}
    return told | ({"stuck_rank": stuck.rank} if stuck.rank is not None else {})


# `builtin/triage@v1`: which failure the workload's own log shows, and which runbook is the one for it.
#
# A workload rarely fails as expected: `vdbg-env triage` names the failure, and that decides which runbook continues.


_KERNEL_LOG = "kernel.log"
_LOGS = ("stdout", "stderr", _KERNEL_LOG)
_SEGFAULT = b"segfault at "  # arch/x86/mm/fault.c, show_signal_msg
_HOST_CRASH = "host-crash"
_FAILURE = "failure"  # the matcher by which each runbook says what its failure looks like
# Ends that this program caused: what such a log says in passing is not a failure.
_OURS = {EndedBy.MATCH, EndedBy.CANCEL, EndedBy.PEER, EndedBy.NOT_STARTED}


@builtin(
    name="triage",
    version=1,
    role="reader",
    does="Names the failure that the log of the last attempt that ended badly shows, and the runbook for it; with "
    "`orderly` also of one that ended well, where the log shows a failure that programs do not get over.",
    parameters={"orderly": "bool"},
    results={
        "failure": "string",
        "fatal": "bool",
        "runbook": "string",
        "title": "string",
        "text": "string",
        "reason": "string",
        "fix": "string",
        "process": "string",
        "line": "int",
        "confidence": "float",
        "rank": "int",
        "kernel": "string",
    },
)
def triage(context: BuiltinContext) -> BuiltinResult:
    """Triage the last attempt that ended badly, all its ranks together; no result where each ended well.

    A server whose engine has died shuts down in order and may exit with status 0: then its log counts.
    """
    verdict = _verdict(context)
    if verdict is None:
        return BuiltinResult()
    return BuiltinResult(results={**_results(verdict), "fatal": _is_fatal(verdict, context)}, notes=verdict.notes)


def root_cause(context: BuiltinContext) -> RootCause | None:
    """Return the line that names the failure of that attempt; None where no line does."""
    verdict = _verdict(context)
    return verdict.root_cause if verdict else None


def _verdict(context: BuiltinContext) -> Triage | None:
    attempts = sorted({seen.attempt for seen in context.observations}, reverse=True)
    for attempt in attempts:
        ranks = [seen for seen in context.observations if seen.attempt == attempt and not _ended_by_us(seen)]
        logs = [log for seen in ranks for log in _evidence(context, seen)]
        if any(not seen.went_well for seen in ranks) or any(log.cascades for log in logs):
            verdict = judge(logs, rule_book())
            if _is_asked_for(verdict, ranks):
                return None
            return _of_first_failure(context, ranks) or verdict if verdict.failure.name == OF_A_PEER else verdict
        if context.parameters.get("orderly") and _is_lasting(verdict := judge(logs, rule_book())):
            return verdict
    return None


def _is_asked_for(verdict: Triage, ranks: Sequence[Observation]) -> bool:
    """Return whether a log only says that the driver began a dump, of ranks that hung: they were asked for it."""
    line = _line_of(verdict)
    hung = all(seen.ended.by is EndedBy.WATCH for seen in ranks)
    return hung and line is not None and line.rule.id == "gpu-coredump-begun"


def _is_lasting(verdict: Triage) -> bool:
    """Return whether a log shows a failure that its program cannot have got over, whatever its exit status.

    A stall counts where it came over a server that had been ready: one that loads or compiles is silent too.
    """
    line = _line_of(verdict)
    if line is None or not verdict.failed or not verdict.failure.runbook or line.rule.role == "exception":
        return False
    return not line.passing or (line.rule.role == "stall" and any(log.worked for log in verdict.logs))


def _is_fatal(verdict: Triage, context: BuiltinContext) -> bool:
    """Return whether a log outweighs an end in order: of a program that gave up, or had failed when it was stopped.

    The status 0 of one that ended by itself is its word that all is well, and it may get over the death of a child.
    """
    line = _line_of(verdict)
    gave_up = any(death.rule.failure is None for log in verdict.logs for death in log.cascades)
    got_over = verdict.failure.name == _HOST_CRASH or (line and line.rule.role == "stall")
    stopped = any(seen.ended.by is not EndedBy.EXIT for seen in last_attempt(context.observations))
    return gave_up or (stopped and not got_over)


def _line_of(verdict: Triage) -> Sighting | None:
    root, seen = verdict.root_cause, (sighting for log in verdict.logs for sighting in log.sightings)
    return next((s for s in seen if root and (s.file, s.line) == (root.file, root.line)), None)


def _of_first_failure(context: BuiltinContext, ranks: Sequence[Observation]) -> Triage | None:
    """Return what the rank that failed first shows, where that is another failure than that of ranks that waited."""
    first = first_failure(ranks)
    if first is None or len(ranks) == 1 or is_victim(first):
        return None
    verdict = judge(list(_evidence(context, first)), rule_book())
    return verdict if verdict.failed and verdict.root_cause and verdict.failure.name != OF_A_PEER else None


def _ended_by_us(seen: Observation) -> bool:
    """Return whether it was ended while nothing had failed; a server that lived on after its failure had failed."""
    return seen.ended.by in _OURS and not (seen.ended.by is EndedBy.MATCH and _FAILURE in seen.matched)


def _evidence(context: BuiltinContext, seen: Observation) -> Iterator[LogEvidence]:
    """Yield what each log of one rank shows; a stream that was not kept is left out."""
    for name in _LOGS:
        path = context.files.inside(f"{seen.directory}/{name}")
        if context.files.exists(path):
            classifier = LogClassifier(rule_book(), f"{seen.directory}/{name}")
            chunks = context.files.chunks(path)
            for chunk in _of_the_workload(chunks, seen) if name == _KERNEL_LOG else chunks:
                classifier.feed(chunk)
            yield classifier.finish()


def _of_the_workload(chunks: Iterable[bytes], seen: Observation) -> Iterator[bytes]:
    """Yield the kernel's log without the segfaults of others: where no process of the workload was ended by a signal.

    The kernel logs those of the whole machine, with process numbers that are others in a container.
    """
    died = seen.ended.signal is not None or any(one.signal is not None for one in seen.deaths)
    left = b""
    for chunk in chunks:
        *lines, left = (left + chunk).split(b"\n")
        yield b"".join(line + b"\n" for line in lines if died or _SEGFAULT not in line)
    yield b"" if _SEGFAULT in left and not died else left


def _results(verdict: Triage) -> dict[str, ResultValue]:
    results: dict[str, ResultValue] = {
        "failure": verdict.failure.name,
        "title": verdict.said,
        "confidence": verdict.confidence,
    }
    results |= {"runbook": verdict.failure.runbook} if verdict.failure.runbook else {}
    if verdict.root_cause:
        results |= {"text": verdict.root_cause.text, "line": verdict.root_cause.line}
    if verdict.root_cause and verdict.failed:
        text = verdict.root_cause.text.strip()
        results["reason"] = f"{verdict.title}: {text}" if verdict.title else text
    results |= {"fix": verdict.fix} if verdict.fix else {}
    results |= {"process": verdict.process} if verdict.process else {}
    results |= {"rank": verdict.rank} if verdict.rank is not None else {}
    return results | ({"kernel": verdict.kernel} if verdict.kernel else {})


# `builtin/incident@v1`: what is asked first of a server that died: the line, its process, the time, the load.


_STREAMS = ("stdout", "stderr")
_TRACEBACK = b"Traceback (most recent call last)"
_LINES_OF_ONE = 5000  # of one traceback, with what other processes print between them
_FIRST = 500
_FIRST_DEATHS = 3  # named


@builtin(
    name="incident",
    version=1,
    role="reader",
    does="Reads around the line that triage says decided: its process, rank and time, the traceback that it ends, how "
    "long the workload ran, the requests it served, vLLM's own dump of what was scheduled (sizes, no prompts), and the "
    "native stack, where one was printed. Of a workload that ended well, which of its processes did not.",
    parameters={"orderly": "bool"},
    results={
        "aside": "string",
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
def incident(context: BuiltinContext) -> BuiltinResult:
    """Read the last attempt; what its log does not say is left out."""
    if not context.observations:
        return BuiltinResult()
    last = context.observations[-1]
    root = root_cause(context)
    if last.went_well and not root:
        return BuiltinResult(results={"aside": aside} if (aside := "; ".join(_aside(last))) else {})
    results: dict[str, ResultValue] = {"ran_s": round(last.duration_s, 1)}
    paths = [context.files.inside(f"{last.directory}/{name}") for name in _STREAMS]
    if root and (line := _line(context, root.file, root.line)):
        results |= _decided(context, line, f"{root.file.rpartition('/')[2]}:{root.line}")
    load = read_load(line for path in paths for line in context.files.lines(path, *LOAD))
    if load.answered or load.failed:
        results |= {"requests_answered": load.answered, "requests_failed": load.failed}
    results |= {"scheduled": load.scheduled} if load.scheduled else {}
    for path in paths:
        printed = any(True for _ in context.files.lines(path, *STACKS))
        if printed and (stack := native_stack(context.text_lines(path))):
            results["native_stack"] = stack
            break
    return BuiltinResult(results=results | _versions(context, load.vllm))


def _aside(seen: Observation) -> Iterator[str]:
    """Yield which processes of a workload that ended well crashed, or were killed for memory."""
    yield from (found.message for found in memory_kill_findings([seen]) if found.level is Level.ERROR)
    crashed = [
        f"{died.name} ({died.pid}) was ended by {Signals(died.signal).name}"
        for died in seen.deaths
        if died.signal and died.crashed
    ]
    yield from crashed[:_FIRST_DEATHS]
    yield from [f"and {len(crashed) - _FIRST_DEATHS} more"] if len(crashed) > _FIRST_DEATHS else []


def _line(context: BuiltinContext, file: str, number: int) -> LogLine | None:
    lines = context.text_lines(context.files.inside(file))
    text = next(islice(lines, number - 1, number), None)
    return unwrap(text) if text is not None else None


def _decided(context: BuiltinContext, line: LogLine, at: str) -> dict[str, ResultValue]:
    results: dict[str, ResultValue] = {"decided_by": line.text, "decided_at": at}
    given = {"process": line.process, "pid": line.pid, "rank": line.rank, "time": line.stamp or line.container}
    results |= {f"decided_{name}": value for name, value in given.items() if value is not None}
    if found := traceback_of(line, read_tracebacks(context.lines_after(_TRACEBACK, _LINES_OF_ONE))):
        results["traceback"] = [str(frame) for frame in found.frames]
    first = next((seen for seen in islice(context.lines(), _FIRST) if seen.stamp), None)
    if first and (uptime := seconds_between(first, line)):
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


# `builtin/nccl-log@v1`: NCCL's warnings and transports, and the ranks that are not where the others are.


@builtin(
    name="nccl-log",
    version=1,
    role="reader",
    does="Reads NCCL_DEBUG output: transports chosen, interfaces, warnings, and the collective each rank was in.",
    results={"warnings": "list", "transport": "string", "ranks": "int"},
)
def nccl_log(context: BuiltinContext) -> BuiltinResult:
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


# `builtin/nccl-ras@v1`: what NCCL's own RAS service said when a hang was judged; a real one was never met.


_MARK = b"nccl-ras: {"


@builtin(
    name="nccl-ras",
    version=1,
    role="reader",
    does="Reads what NCCL's RAS service said at a hang: the ranks that it misses, and those that are behind in a "
    "collective. Written from NCCL's documentation; a real service was never met.",
    results={"ras_missing": "list", "ras_behind": "list", "ras_nccl": "string"},
)
def nccl_ras(context: BuiltinContext) -> BuiltinResult:
    """Read the last attempt; the answer of a service that belongs to other processes is left out."""
    for seen in reversed(context.observations):
        path = context.files.inside(f"{seen.directory}/{HANG_FILE}")
        ours = set(parse_host_stacks(context.text_lines(path)).processes)
        for line in context.files.lines(path, _MARK):
            try:
                answer = read_ras(json.loads(line[len(_MARK) - 1 :]))
            except (ValueError, RecursionError):
                continue
            if not answer.pids & ours:
                return BuiltinResult(notes=("the RAS service that answered is of other processes: not used",))
            return _told_of_ras(answer)
    return BuiltinResult()


def _told_of_ras(answer: RasAnswer) -> BuiltinResult:
    findings = (
        Finding(
            rule="nccl-ras",
            level=Level.ERROR,
            message=f"NCCL's RAS service: {first}",
            how_known=HowKnown.HOST_CHECK,
            confidence=0.6,  # of a service that was never met
        )
        for first in (answer.missing or answer.behind)[:1]
    )
    return BuiltinResult(
        results={
            "ras_missing": list(answer.missing),
            "ras_behind": list(answer.behind),
            **({"ras_nccl": answer.nccl} if answer.nccl else {}),
        },
        findings=tuple(findings),
        notes=(*answer.missing, *answer.behind)[:16],
    )


# `builtin/python-traceback@v1`: the process that failed, by its traceback, or by how and where it died.


_FATAL = b"Fatal Python error: "
_OF_OTHERS = {"died", "stack", "frame", "source"}  # what is not of a process that printed why it ended itself


@builtin(
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
def python_traceback(context: BuiltinContext) -> BuiltinResult:
    """Read the last attempt's output; a fault of an earlier attempt is read by that attempt's own lines."""
    return read_failure(context)


def read_failure(context: RecordedOutput) -> BuiltinResult:
    """Return what the output of a step has on the process that failed."""
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
    crashes = (error for rank in ranks for error in read_fatal_errors(rank.lines_after(_FATAL, _LINES_OF_ONE)))
    fatal = next(crashes, None)
    # Where a named process raised a CUDA error, those that abort lose their peer; nothing says whose stack it is.
    if fatal and not (found and found.cuda and found.process):
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
    first, said = _first_to_die(context), read_deaths(context.lines(*DEATHS))
    label = context.label(first.pid) if first else None
    return process_death(first, said, firsthand(raised), label=label, fatal=fatal)


def _raised(ranks: Sequence[RecordedOutput]) -> list[Traceback]:
    """Return the tracebacks of the first of `ranks` that raised one itself, else those of the last, which is all."""
    raised: list[Traceback] = []
    for rank in ranks:
        raised = list(read_tracebacks(rank.lines_after(_TRACEBACK, _LINES_OF_ONE)))
        if firsthand(raised):
            break
    return raised


def _first_to_die(context: RecordedOutput) -> Death | None:
    """Return the first death of the rank that failed first in the last attempt.

    Where all ended well, the first that its own instruction ended: to end a child, or to look at its exit status, is a
    program's everyday work.
    """
    ranks = last_attempt(context.observations)
    first = _failed_first(context)
    if first is None:
        return next((died for seen in ranks for died in seen.deaths if died.crashed), None)
    return first.deaths[0] if first.deaths else None


def _failed_first(context: RecordedOutput) -> Observation | None:
    return first_failure(last_attempt(context.observations))


# `builtin/sanitizer-report@v1`: compute-sanitizer's text, judged by its SUMMARY line and never by an exit status.


@builtin(
    name="sanitizer-report",
    version=1,
    role="reader",
    does="Reads compute-sanitizer's text; without a SUMMARY line the sanitizer itself failed, whatever its status.",
    parameters={"artifact": "string"},
    results={
        "summary": "bool",
        "errors": "int",
        "warnings": "int",
        "tool": "string",
        "kernel": "string",
        "first": "string",
        "source": "string",
    },
)
def sanitizer_report(context: BuiltinContext) -> BuiltinResult:
    """Read every log of the tool: one for each process, and the output itself where no log was asked for."""
    name = str(context.parameters.get("artifact", ""))
    texts = {context.relative(path): context.files.text(path) for path in context.artifact_paths(name)}
    texts = texts or {"": "\n".join(line.text for line in context.lines(b"====="))}
    reports = {path: parse_sanitizer(text) for path, text in texts.items() if text.strip()}
    counted = [report for report in reports.values() if report.verdict != "tool-failed"]
    findings = tuple(
        replace(finding, artifact=path or None)
        for path, report in reports.items()
        if report in counted or not counted
        for finding in sanitizer_findings(report)
    )
    return BuiltinResult(
        results=_sanitizer_results(counted, findings), findings=findings, notes=_notes(reports, counted)
    )


def _sanitizer_results(counted: list[SanitizerReport], findings: tuple[Finding, ...]) -> dict[str, ResultValue]:
    results: dict[str, ResultValue] = {"summary": bool(counted)}
    if not counted:
        return results
    results["errors"] = sum(report.errors or 0 for report in counted)
    results["warnings"] = sum(report.warnings for report in counted)
    tool = next((report.tool for report in counted if report.tool), None)
    first = next((f for f in findings if f.level is Level.ERROR), findings[0] if findings else None)
    if tool:
        results["tool"] = tool.value
    if first:
        results["first"] = first.message
        results |= {"kernel": first.kernel} if first.kernel else {}
        results |= {"source": str(first.location)} if first.location else {}
    return results


def _notes(reports: dict[str, SanitizerReport], counted: list[SanitizerReport]) -> tuple[str, ...]:
    """Say which process has no SUMMARY line when others have one: it was ended early, or never used the GPU."""
    if not counted:
        return ()
    silent = [path for path, report in reports.items() if report not in counted]
    return tuple(f"{path}: no SUMMARY line; that process ended early or never reached the GPU" for path in silent)
