"""The words of a report, the same in each of its forms: outcomes, findings, changes, durations."""

from __future__ import annotations

import shlex
import signal
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import assert_never

from vdbg_env.common.size import duration
from vdbg_env.evidence.finding import Ended, EndedBy, Finding, HowKnown
from vdbg_env.record.run_directory import GUARD
from vdbg_env.report.model import Provenance, Report, StepReport, StepStatus
from vdbg_env.runbook.model import Data, Status
from vdbg_env.runbook.state import Verdict


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
    native_stack: tuple[str, ...] = ()


def is_guards(report: Report) -> bool:
    """Return whether this is the report of a command in production: it was run once, and nothing was tried."""
    return report.runbook == GUARD


def shown_steps(report: Report) -> tuple[StepReport, ...]:
    """Return the steps to show; of a guard's those that did something."""
    return tuple(step for step in report.walked if not is_guards(report) or step.status is not StepStatus.SKIPPED)


def incident(report: Report) -> Incident | None:
    """Return what the log of the guarded command says of its end; None for other reports."""
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
        native_stack=_lines(results, "native_stack"),
    )


def _process(results: Mapping[str, Data]) -> str:
    """Return the process that failed; the one that wrote the line is another where it tells of a death."""
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
            text = "a server, stopped by us after its requests"
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


def how_known(source: HowKnown) -> str:
    """Return the source of a finding, to be read after `known from`."""
    match source:
        case HowKnown.GPU_CORE:
            return "the faulting PC of a GPU core dump and its own line table"
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
    assert_never(source)


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
            return "warnings only"
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
    """Return what a finding says, with the process that it is of where its own words do not name it."""
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
