"""The report of a run: the value, its words, which are the same in every form, and its JSON.

Every field that may be unknown is optional, and stays absent rather than guessed: a run that was cut short, a step
without output and a machine without a GPU all make a Report.
"""

from __future__ import annotations

import shlex
import signal
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final, assert_never

from gpucore.dwarf import Chain, SourceFrame
from vdbg_env.common.console import duration, json_text
from vdbg_env.evidence.finding import Artifact, Ended, EndedBy, Finding, HowKnown, Level, Match, NextStep, Observation
from vdbg_env.record.run_directory import GUARD
from vdbg_env.runbook.judge import Fingerprint, exit_status, is_backdrop
from vdbg_env.runbook.model import ArgvOverlay, Data, Status
from vdbg_env.runbook.state import Verdict

REPORT_FILES: Final[Mapping[str, str]] = {
    "html": "report.html",
    "markdown": "report.md",
    "json": "report.json",
}
"""The file of each format of a report, in the run directory."""


class Provenance(StrEnum):
    """Where the run took place; a reader must never take a replay for a crash on this machine."""

    REAL = "real"  # the workload ran here, now
    REPLAY = "replay"  # a recording of a workload that ran elsewhere
    SYNTHETIC = "synthetic"  # a recording made by hand, without a GPU


class StepStatus(StrEnum):
    """Whether a step ran to its end; what it showed is its outcome, how its process ended is `ended`."""

    FINISHED = "finished"
    SKIPPED = "skipped"  # its `if` was false
    FAILED = "failed"  # it could not do its work: no program, or an environment that did not reach the workers
    INTERRUPTED = "interrupted"  # started, its end was never seen
    NOT_REACHED = "not-reached"  # no outcome led to it


@dataclass(frozen=True, kw_only=True)
class Attempt(Observation):
    """One start of a step on one rank: what was seen of it, and what that means.

    `part` is that among several ranks: "first failure", "failed", "victim", "ended by us", "cancelled", "lost", "well";
    in a hang "reported the hang" or "out of time", and "stopped", "running" or "left early" of a rank that may be its
    cause.
    """

    reproduced: bool | None = None
    part: str = ""


def attempt_lengths(attempts: Iterable[Attempt]) -> tuple[float, ...]:
    """Return the seconds that each attempt took, in their order; its ranks ran together."""
    lengths: dict[int, float] = {}
    for attempt in attempts:
        lengths[attempt.attempt] = max(lengths.get(attempt.attempt, 0.0), attempt.duration_s or 0.0)
    return tuple(lengths.values())


@dataclass(frozen=True, kw_only=True)
class StepReport:
    """One step of the escalation: its delta, how it ended, what it showed and where that led.

    `env` is all that differs from the user's environment, `env_change` what this step adds to the unchanged
    workload's: a value sets, None unsets. `engine_args` are the arguments of vLLM's engine that it changes, as flags,
    `plugged` says that no flag brought them but a plug-in. `started_s` counts from the start of the run, both times in
    seconds; `next` is the step it led to, `runbook:NAME` or `end`. `evidence` holds the lines that decided, not all
    that matched.
    """

    id: str
    name: str | None = None
    status: StepStatus
    outcome: Status | None = None
    message: str | None = None
    next: str | None = None
    ended: Ended | None = None
    argv: tuple[str, ...] = ()
    argv_change: ArgvOverlay = field(default_factory=ArgvOverlay)
    env: Mapping[str, str | None] = field(default_factory=dict)
    env_change: Mapping[str, str | None] = field(default_factory=dict)
    engine_args: tuple[str, ...] = ()
    plugged: bool = False
    builtin: str | None = None
    started_s: float | None = None
    duration_s: float | None = None
    attempts: tuple[Attempt, ...] = ()
    evidence: tuple[Match, ...] = ()
    results: Mapping[str, Data] = field(default_factory=dict)
    artifacts: tuple[Artifact, ...] = ()
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class SourceExcerpt:
    """A few lines around a line of source; `first` is the 1-based number of the first, `marked` of the one meant."""

    file: str
    first: int
    marked: int
    lines: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class WarpGroup:
    """Warps at one place: `pc` and `offset` in bytes, `count` in warps, `chain` leaf first."""

    pc: int
    count: int
    kernel: str | None = None
    offset: int | None = None
    chain: Chain = ()
    state: str | None = None


@dataclass(frozen=True, kw_only=True)
class WarpHistogram:
    """Where the warps of one core dump were, the fullest place first; `core` is the artifact's path."""

    core: str
    step: str | None = None
    groups: tuple[WarpGroup, ...]

    @property
    def total(self) -> int:
        """How many warps were resident."""
        return sum(group.count for group in self.groups)

    @property
    def title(self) -> str:
        """The heading of its table."""
        return "Where the only warp is" if self.total == 1 else f"Where the {self.total:,} warps are"


@dataclass(frozen=True, kw_only=True)
class Report:
    """One run of one runbook, whole.

    `findings` are by falling confidence, `why` is the verdict's reason in a sentence. `started` is ISO 8601 in UTC,
    a label only: all durations are in seconds of a monotonic clock. `origin` says where a replay was recorded.
    `fingerprint` names the cause, and is the same for each crash of that cause.
    """

    run: str
    runbook: str
    title: str | None = None
    verdict: Verdict
    why: str | None = None
    provenance: Provenance = Provenance.REAL
    origin: str | None = None
    workload: tuple[str, ...] = ()
    started: str | None = None
    duration_s: float | None = None
    steps: tuple[StepReport, ...] = ()
    findings: tuple[Finding, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    next_steps: tuple[NextStep, ...] = ()
    excerpts: tuple[SourceExcerpt, ...] = ()
    histograms: tuple[WarpHistogram, ...] = ()
    notes: tuple[str, ...] = ()
    tool_version: str | None = None
    fingerprint: Fingerprint | None = None

    @property
    def exit_status(self) -> int:
        """The exit status of a command that ends with this report."""
        return exit_status(self.verdict, self.findings)

    @property
    def walked(self) -> tuple[StepReport, ...]:
        """The steps that the escalation reached, in that order."""
        return tuple(step for step in self.steps if step.status is not StepStatus.NOT_REACHED)

    @property
    def lead(self) -> Finding | None:
        """The finding to read first: the surest of the highest level present.

        A warning of the machine alone leads only where the run itself said nothing of a failure.
        """
        seen = self.verdict not in {Verdict.NOT_REPRODUCED, Verdict.PASSED, Verdict.WARNED}
        for level in Level:
            for finding in self.findings:
                if finding.level is level and not (seen and is_backdrop(finding)):
                    return finding
        return None

    def excerpt(self, file: str, line: int) -> SourceExcerpt | None:
        """Return the lines around `file`:`line`, or None when the source was not found."""
        return next((e for e in self.excerpts if e.file == file and e.marked == line), None)


_CAUSES: Final = ("first failure", "stopped", "running", "left early")
_PARTS: Final = (
    *(*_CAUSES, "failed", "lost", "reported the hang", "out of time", "victim", "ended by us", "cancelled", "well"),
)
RANKS_SHOWN: Final = 16


def ranks(report: Report) -> tuple[StepReport, tuple[Attempt, ...]] | None:
    """Return the last step that ran on several ranks, with its last attempt on each of them, the cause first."""
    step = next((step for step in reversed(report.walked) if any(a.part for a in step.attempts)), None)
    if step is None:
        return None
    last = [a for a in step.attempts if a.attempt == step.attempts[-1].attempt]
    return step, tuple(sorted(last, key=lambda a: (_PARTS.index(a.part), a.rank)))


def is_cause(rank: Attempt) -> bool:
    """Return whether the others failed because of this rank."""
    return rank.part in _CAUSES


def signal_name(number: int | None) -> str | None:
    """Return a signal's name, or None when there is no signal of that number."""
    try:
        return signal.Signals(number).name if number is not None else None
    except ValueError:
        return None


def place(file: str, line: int) -> str:
    """Return the last part of a path and the line, as one says it aloud."""
    return f"{file.replace(chr(92), '/').rsplit('/', 1)[-1]}:{line}"


# What is on top of a guard's report: the line that decided, who wrote it and when, and what the server was doing.


@dataclass(frozen=True, kw_only=True)
class Incident:
    """The line that decided, facts as (name, text), and the stacks that the log has; any of them may be empty."""

    line: str = ""
    facts: tuple[tuple[str, str], ...] = ()
    traceback: tuple[str, ...] = ()
    crashed_stack: tuple[str, ...] = ()
    native_stack: tuple[str, ...] = ()

    @property
    def stacks(self) -> tuple[tuple[str, tuple[str, ...]], ...]:
        """Each stack that there is, with its title."""
        stacks = (
            ("Traceback, the innermost call last", self.traceback),
            ("Python's stack where the signal came, the innermost call first", self.crashed_stack),
            ("Native stack", self.native_stack),
        )
        return tuple((title, stack) for title, stack in stacks if stack)


def is_guards(report: Report) -> bool:
    """Return whether this is the report of a command in production: it was run once, and nothing was tried."""
    return report.runbook == GUARD


def shown_steps(report: Report) -> tuple[StepReport, ...]:
    """Return the steps to show; of a guard's those that did something."""
    return tuple(step for step in report.walked if not is_guards(report) or step.status is not StepStatus.SKIPPED)


def incident(report: Report) -> Incident | None:
    """Return what the log of the guarded command says about its end; None for other reports."""
    results = next((step.results for step in report.walked if is_guards(report) and "ran_s" in step.results), None)
    if results is None:
        return None
    facts = (
        ("process", _process(results)),
        ("at", _text(results, "decided_time")),
        ("up for", _span(results, "uptime_s") or _span(results, "ran_s")),
        ("requests", _requests(results)),
        ("last step", _text(results, "scheduled")),
        ("vLLM", _text(results, "vllm")),
        ("torch", _text(results, "torch")),
    )
    return Incident(
        line=_text(results, "decided_by"),
        facts=tuple((name, text) for name, text in facts if text),
        # What others raised when a process died is not its traceback.
        traceback=_lines(results, "traceback") or (() if "died" in results else _lines(results, "stack")),
        crashed_stack=_lines(results, "crashed_stack"),
        native_stack=_lines(results, "native_stack"),
    )


def _process(results: Mapping[str, Data]) -> str:
    """Return the process that failed; the one that wrote the line is another where it reports a death."""
    name = _text(results, "failed_process") or _text(results, "decided_process")
    wrote = results.get("decided_process") == name
    pid = f" ({results['decided_pid']})" if wrote and "decided_pid" in results else ""
    rank = results.get("failed_rank", results.get("decided_rank"))
    return (f"{name}{pid}" + (f", rank {rank}" if rank is not None else "")) if name else ""


def _requests(results: Mapping[str, Data]) -> str:
    if "requests_answered" not in results:
        return ""
    failed = results.get("requests_failed")
    return f"{results['requests_answered']} answered" + (f", {failed} failed" if failed else "")


def _text(results: Mapping[str, Data], name: str) -> str:
    return str(results.get(name, ""))


def _span(results: Mapping[str, Data], name: str) -> str:
    value = results.get(name)
    return duration(value) if isinstance(value, int | float) else ""


def _lines(results: Mapping[str, Data], name: str) -> tuple[str, ...]:
    value = results.get(name)
    return tuple(map(str, value)) if isinstance(value, list) else ()


# The phrases that the writers of a run's report share.


def ended(end: Ended | None) -> str:
    """Return how a process ended, in words."""
    if end is None:
        return "its end was not seen"
    by = signal_name(end.signal) or (f"signal {end.signal}" if end.signal is not None else None)
    match end.by:
        case EndedBy.EXIT:
            text = f"exit status {end.code}" if end.code is not None else "ended"
        case EndedBy.SIGNAL:
            text = by or "ended by a signal"
        case EndedBy.TIMEOUT:
            text = "ended by us: out of time"
        case EndedBy.WATCH:
            text = "ended by us: a hang"
        case EndedBy.MATCH:
            text = "ended by us: all was known"
        case EndedBy.STOPPED:
            # The message says by whom and why: a guarded command was not stopped by us.
            text = "stopped" if end.message else "a server, stopped by us after its requests"
        case EndedBy.DIED:
            text = f"a server that ended by itself, exit status {end.code or 0}"
        case EndedBy.CANCEL:
            text = "cancelled"
        case EndedBy.PEER:
            text = "ended by us: another rank had failed"
        case EndedBy.DISK:
            text = "ended by us: the disk was nearly full"
        case EndedBy.NODE_LOST:
            text = "the node was lost"
        case EndedBy.ENGINE_LOST:
            text = "its end was not seen"
        case EndedBy.NOT_STARTED:
            text = "could not be started"
        case _:
            assert_never(end.by)
    text += ", core dumped" if end.core else ""
    return f"{text} ({end.message})" if end.message else text


def outcome(step: StepReport) -> str:
    """Return what a step showed in words, or its status when it showed nothing."""
    return (step.outcome.value if step.outcome else step.status.value).replace("_", " ").replace("-", " ")


def how_known(finding: Finding) -> str:
    """Return the source of a finding, to be read after `known from`."""
    match finding.how_known:
        case HowKnown.GPU_CORE:
            place = "the faulting PC of a GPU core dump"
            if "hang" in finding.rule:
                place = "where the warps of a GPU core dump stand"
            return f"{place} and its own line table" if finding.location else place
        case HowKnown.SANITIZER:
            return "compute-sanitizer's report"
        case HowKnown.DRIVER:
            return "the driver's own words"
        case HowKnown.KERNEL_LOG:
            return "the kernel log"
        case HowKnown.STEP_CHANGE:
            return "a change of behaviour when one thing was changed"
        case HowKnown.LOG:
            return "the workload's own log"
        case HowKnown.HOST_CHECK:
            return "a check of this machine"
    assert_never(finding.how_known)


def sureness(finding: Finding) -> str:
    """Return how sure a finding is, in percent."""
    return f"{round(finding.confidence * 100)} %"


def verdict(report: Report) -> str:
    """Return what the verdict means in a few words."""
    lead = report.lead
    match report.verdict:
        case Verdict.REPRODUCED:
            return "fault found" if lead and (lead.location or lead.kernel) else "reproduced, not located"
        case Verdict.HANG:
            return "hang found" if lead and (lead.location or lead.kernel) else "hang, not located"
        case Verdict.FAILED:
            return "the command failed" if is_guards(report) else "another failure"
        case Verdict.NOT_REPRODUCED:
            return "did not show"
        case Verdict.PASSED:
            return "nothing wrong found"
        case Verdict.WARNED:
            return "the command ended in order, and not all was well" if is_guards(report) else "warnings only"
        case Verdict.INCONCLUSIVE:
            return "inconclusive"
        case Verdict.OUT_OF_TIME:
            return "out of time"
    assert_never(report.verdict)


def headline(report: Report) -> str:
    """Return the one sentence a reader takes away."""
    lead = report.lead
    return message(lead) if lead else report.why or verdict(report)


def message(finding: Finding) -> str:
    """Return what a finding says, with the process that it is of where its message does not name it."""
    if finding.process is None or finding.process in finding.message:
        return finding.message
    rank = f", rank {finding.rank}" if finding.rank is not None else ""
    return f"{finding.message} (in {finding.process}{rank})"


def provenance(report: Report) -> str | None:
    """Return the warning that belongs above everything when this was not a run of the reader's own workload."""
    origin = f": {report.origin}" if report.origin else ""
    match report.provenance:
        case Provenance.REAL:
            return None
        case Provenance.REPLAY:
            return f"Replay of a recorded run{origin}. Nothing was run on this machine's GPU."
        case Provenance.SYNTHETIC:
            return f"Synthetic recording{origin}. No GPU ever ran this; it shows the path, not your crash."
    assert_never(report.provenance)


# What each step tried, and whether the fault went away with it: what maintainers ask for first.


_SHOWN = {Status.REPRODUCED, Status.HANG, Status.FAIL}


class Effect(StrEnum):
    """What became of the fault when one thing was changed, against the unchanged workload."""

    BASELINE = "baseline"  # the unchanged workload itself
    SAME = "same"  # the fault showed again
    GONE = "gone"  # the fault did not show
    DIFFERENT = "different"  # another failure took its place
    UNKNOWN = "unknown"  # neither shown nor ruled out


@dataclass(frozen=True, kw_only=True)
class Change:
    """One thing tried: the step, what it changed in words, how often the fault showed, and the effect."""

    step: str
    change: str
    effect: Effect
    outcome: Status | None
    shown: int
    attempts: int

    @property
    def rate(self) -> str:
        """Return how often the fault showed, as `2 of 3`."""
        return f"{self.shown} of {self.attempts}"


def changes(report: Report) -> tuple[Change, ...]:
    """Return what was tried on the workload, in order; steps that only read what was left behind are no trial."""
    trials = [s for s in report.walked if s.builtin is None and s.status is StepStatus.FINISHED and s.attempts]
    baseline = trials[0] if trials else None
    return tuple(_change(step, baseline) for step in trials if baseline)


def delta(step: StepReport) -> tuple[str, ...]:
    """Return a step's changes: `CUDA_LAUNCH_BLOCKING=1`, `unset X`, `+ --flag`, `- --flag`, `plug-in: --flag`."""
    env = [
        f"unset {name}" if value is None else f"{name}={shlex.quote(value)}" for name, value in step.env_change.items()
    ]
    change = step.argv_change
    argv = [f"{shlex.join(change.wrap)} …"] if change.wrap else []
    argv += [f"+ {shlex.join(change.append)}"] if change.append else []
    argv += [f"- {shlex.join(change.remove)}"] if change.remove else []
    if step.engine_args:
        argv.append(f"{'plug-in: ' if step.plugged else '+ '}{shlex.join(step.engine_args)}")
    return (*env, *argv)


def _change(step: StepReport, baseline: StepReport) -> Change:
    shown = {attempt.attempt for attempt in step.attempts if attempt.reproduced}  # on whichever rank
    return Change(
        step=step.id,
        change=", ".join(delta(step)) or "nothing: the workload as given",
        effect=Effect.BASELINE if step is baseline else _effect(step, baseline),
        outcome=step.outcome,
        shown=len(shown),
        attempts=len({attempt.attempt for attempt in step.attempts}),
    )


def _effect(step: StepReport, baseline: StepReport) -> Effect:
    if baseline.outcome not in _SHOWN:
        return Effect.UNKNOWN
    if step.outcome is baseline.outcome:
        return Effect.SAME
    if step.outcome is Status.NOT_REPRODUCED:
        return Effect.GONE
    return Effect.DIFFERENT if step.outcome in _SHOWN else Effect.UNKNOWN


# JSON: docs/schemas/run-v1.schema.json is the contract and says what each field means.


def report_json(report: Report) -> str:
    """Return the report as indented JSON that ends with a newline."""
    return json_text(report_document(report))


def report_document(report: Report) -> dict[str, Any]:
    """Return the report as plain values."""

    def identifier(found: Finding | None) -> str | None:
        return next((f"F{number}" for number, one in enumerate(report.findings, 1) if one is found), None)

    return {
        "schema": "vdbg-env/run/v1",
        "run": report.run,
        "runbook": report.runbook,
        "title": report.title,
        "verdict": report.verdict,
        "why": report.why,
        "exit_status": report.exit_status,
        "provenance": report.provenance,
        "origin": report.origin,
        "tool_version": report.tool_version,
        "started": report.started,
        "duration_s": report.duration_s,
        "workload": list(report.workload),
        "steps": [
            _step_json(step, [identifier(f) for f in report.findings if f.step == step.id]) for step in report.walked
        ],
        "not_reached": [step.id for step in report.steps if step not in report.walked],
        "findings": [_finding_json(found, identifier(found)) for found in report.findings],
        "lead": identifier(report.lead),
        "fingerprint": report.fingerprint and vars(report.fingerprint),
        "changes": [vars(change) for change in changes(report)],
        "next_steps": [vars(step) for step in report.next_steps],
        "sources": [vars(excerpt) for excerpt in report.excerpts],
        "hangs": [_hang_json(histogram) for histogram in report.histograms],
        "environment": dict(report.environment),
        "notes": list(report.notes),
    }


def _step_json(step: StepReport, findings: list[str | None]) -> dict[str, Any]:
    change = step.argv_change
    return {
        "id": step.id,
        "name": step.name,
        "status": step.status,
        "outcome": step.outcome,
        "message": step.message,
        "next": step.next,
        "ended": _ended_json(step.ended),
        "argv": list(step.argv),
        "argv_change": {"append": change.append, "remove": change.remove, "wrap": change.wrap},
        "env": dict(step.env),
        "env_change": dict(step.env_change),
        "engine_args": {"flags": step.engine_args, "plugged": step.plugged},
        "builtin": step.builtin,
        "started_s": step.started_s,
        "duration_s": step.duration_s,
        "attempts": [_attempt_json(attempt) for attempt in step.attempts],
        "findings": findings,
        "evidence": [vars(match) for match in step.evidence],
        "results": dict(step.results),
        "artifacts": [vars(artifact) for artifact in step.artifacts],
        "notes": list(step.notes),
    }


def _attempt_json(seen: Attempt) -> dict[str, Any]:
    return {
        "attempt": seen.attempt,
        "rank": seen.rank,
        "host": seen.host,
        "ended": _ended_json(seen.ended),
        "duration_s": seen.duration_s,
        "reproduced": seen.reproduced,
        "output_bytes": seen.output_bytes,
        "directory": seen.directory,
        "held_by": seen.held_by,
        "part": seen.part,
        "root_cause": seen.root_cause and vars(seen.root_cause),
        "node": dict(seen.node),
        "workers": [vars(worker) for worker in seen.workers],
        "deaths": [vars(death) for death in seen.deaths],
        "notes": list(seen.notes),
    }


def _ended_json(end: Ended | None) -> dict[str, Any] | None:
    if end is None:
        return None
    return {
        "by": end.by,
        "code": end.code,
        "signal": end.signal,
        "signal_name": signal_name(end.signal),
        "core": end.core,
        "message": end.message,
    }


def _finding_json(found: Finding, identifier: str | None) -> dict[str, Any]:
    return {
        "id": identifier,
        "rule": found.rule,
        "level": found.level,
        "message": found.message,
        "kernel": found.kernel,
        "location": found.location and _frame_json(found.location),
        "chain": [_frame_json(frame) for frame in found.chain],
        "how_known": found.how_known,
        "confidence": found.confidence,
        "step": found.step,
        "artifact": found.artifact,
        "next_step": str(found.next_step) if found.next_step else None,
        "process": found.process,
        "rank": found.rank,
        "address": found.address,
        **({"owner": found.owner} if found.owner else {}),
        **({"around": found.around} if found.around else {}),
        **({"waits": found.waits} if found.waits else {}),
    }


def _frame_json(frame: SourceFrame) -> dict[str, Any]:
    place = {"function": frame.function, "file": frame.file, "line": frame.line}
    return place | ({"headers": vars(frame.headers)} if frame.headers else {})


def _hang_json(histogram: WarpHistogram) -> dict[str, Any]:
    warps = [
        {
            "pc": f"{group.pc:#x}",
            "kernel": group.kernel,
            "offset": None if group.offset is None else f"{group.offset:#x}",
            "count": group.count,
            "chain": [_frame_json(frame) for frame in group.chain],
            "state": group.state,
        }
        for group in histogram.groups
    ]
    return {"core": histogram.core, "step": histogram.step, "total": histogram.total, "warps": warps}
