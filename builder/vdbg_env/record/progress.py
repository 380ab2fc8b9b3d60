"""How far a run has got, as a function of its events alone: the same function serves a live run and its resumption.

Kinds of events: `run_started`, `run_resumed`, `attempt_started`, `attempt_ended`, `step_finished`, `branched`,
`run_interrupted`, `run_finished`. A step is finished when its `step_finished` is on disk, and not before.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from vdbg_env.evidence.finding import EndedBy, Observation
from vdbg_env.evidence.ranks import first_failure
from vdbg_env.record.event_log import Event, damaged
from vdbg_env.record.run_directory import from_document
from vdbg_env.runbook import machine
from vdbg_env.runbook.model import Step
from vdbg_env.runbook.state import BranchTo, Decision, Finish, RunState, StepRecord, StepResult

StartBranch = Callable[[BranchTo], RunState]
_LOST = {EndedBy.ENGINE_LOST, EndedBy.DISK}  # what happened to us: it says nothing about the bug


@dataclass(frozen=True, kw_only=True)
class OpenAttempt:
    """An attempt whose end is not on record; `directory` is relative to the run.

    It is the folder of the single rank, or that of the attempt, in which several ranks have theirs.
    """

    attempt: int
    directory: str
    rank: int = 0
    host: str = "localhost"
    ranks: int = 1

    @property
    def folder(self) -> str:
        """The attempt's folder, in which each rank has its own."""
        return self.directory if _of_attempt(self.directory) else self.directory.rpartition("/")[0]

    def document(self) -> dict[str, object]:
        """Return the fields of the event `attempt_started`."""
        shared: dict[str, object] = {"attempt": self.attempt, "directory": self.directory}
        return shared | ({"rank": self.rank, "host": self.host} if self.ranks == 1 else {"ranks": self.ranks})


@dataclass(frozen=True, kw_only=True)
class StepVisit:
    """One visit of one step; `decision` is None where it was skipped, times in seconds of `elapsed_s`."""

    step: Step
    decision: Decision | None
    record: StepRecord
    observations: tuple[Observation, ...] = ()
    started_s: float | None = None
    duration_s: float | None = None


@dataclass(frozen=True, kw_only=True)
class Progress:
    """The state of a run: that of its runbook, the steps visited, and the attempts of the current step.

    `lost` is the attempt of this step whose end nothing saw, that a full disk ended, or that lost a node: it is
    repeated, a second one counts. `lost_ranks` is what was seen of all its ranks. `cancelled` are the attempts that the
    user or the end of the time ended: none counts. `used` holds the highest attempt number given to each step: each
    attempt has a folder, so no number is used twice.
    """

    state: RunState
    visits: tuple[StepVisit, ...] = ()
    observations: tuple[Observation, ...] = ()
    open: tuple[OpenAttempt, ...] = ()
    lost: Observation | None = None
    lost_ranks: tuple[Observation, ...] = ()
    cancelled: tuple[Observation, ...] = ()
    used: Mapping[str, int] = field(default_factory=dict)
    since_s: float = 0.0
    finish: Finish | None = None

    @property
    def decision(self) -> Decision:
        """What is to be done next."""
        return self.finish or self.state.decision


def at_start(state: RunState) -> Progress:
    """Return the progress of a run that has only begun."""
    return Progress(state=state, visits=_skipped(state, 0))


def replay(start: Progress, events: Iterable[Event], start_branch: StartBranch) -> Progress:
    """Return the progress after these events; raises BadInput at one that lacks a field of its kind."""
    for event in events:
        try:
            start = apply(start, event, start_branch)
        except (KeyError, TypeError, ValueError, AttributeError, AssertionError) as error:
            raise damaged(f"event {event.seq} ({event.kind})") from error
    return start


def apply(progress: Progress, event: Event, start_branch: StartBranch) -> Progress:
    """Return the progress after one more event."""
    match event.kind:
        case "attempt_started":
            opened = OpenAttempt(**{k: v for k, v in event.data.items() if k in OpenAttempt.__dataclass_fields__})
            used = {**progress.used, event.data["step"]: max(opened.attempt, progress.used.get(event.data["step"], 0))}
            others = tuple(o for o in progress.open if o.directory != opened.directory)
            since = progress.since_s if progress.observations or progress.open else event.elapsed_s
            return replace(progress, open=(*others, opened), used=used, since_s=since)
        case "attempt_ended":
            return _ended(progress, ranks_of(event))
        case "step_finished":
            result = from_document(StepResult, event.data["result"])
            return finish_step(progress, result, machine.advance(progress.state, result)[0], event.elapsed_s)
        case "branched":
            assert isinstance(progress.state.decision, BranchTo)
            state = start_branch(progress.state.decision)
            return replace(progress, state=state, visits=(*progress.visits, *_skipped(state, 0)))
        case "run_finished":
            return replace(progress, finish=from_document(Finish, event.data["finish"]))
    return progress


def ranks_of(event: Event) -> tuple[Observation, ...]:
    """Return what was seen of each rank, from an event `attempt_ended`."""
    documents = event.data.get("observations") or [event.data["observation"]]
    return tuple(from_document(Observation, one) for one in documents)


def _ended(progress: Progress, ranks: tuple[Observation, ...]) -> Progress:
    """Return the progress after the end of an attempt on all its ranks."""
    attempt, rank = ranks[0].attempt, ranks[0].rank
    left = tuple(o for o in progress.open if o.attempt != attempt or (len(ranks) == 1 and o.rank != rank))
    ends = {seen.ended.by for seen in ranks}
    lost = next((seen for seen in ranks if seen.ended.by in _LOST), None)
    if lost and not ends <= _LOST | {EndedBy.CANCEL, EndedBy.PEER, EndedBy.STOPPED}:
        lost = None
    if (first := first_failure(ranks)) and first.ended.by is EndedBy.NODE_LOST:
        lost = first  # whatever the others then did: no rank failed by itself
    if lost and progress.lost is None:
        return replace(progress, lost=lost, lost_ranks=ranks, open=left)
    if EndedBy.CANCEL in ends:  # it says nothing about the bug: after a resumption it is tried again
        return replace(progress, cancelled=(*progress.cancelled, *ranks), open=left)
    return replace(progress, observations=(*progress.observations, *ranks), open=left)


def finish_step(progress: Progress, result: StepResult, state: RunState, now: float) -> Progress:
    """Return the progress after a step whose result has led to `state`."""
    before = len(progress.state.trail)
    done = StepVisit(
        step=state.runbook.step(result.step),
        decision=progress.state.decision,
        record=state.trail[before],
        observations=result.observations,
        started_s=progress.since_s,
        duration_s=round(now - progress.since_s, 6),
    )
    visits = (*progress.visits, done, *_skipped(state, before + 1))
    return replace(
        progress,
        state=state,
        visits=visits,
        observations=(),
        open=(),
        lost=None,
        lost_ranks=(),
        cancelled=(),
        since_s=now,
    )


def _of_attempt(directory: str) -> bool:
    """Whether a folder is an attempt's: a rank's has a name of the form `<host>-<rank>`."""
    return directory.rpartition("/")[2].isdigit()


def _skipped(state: RunState, start: int) -> tuple[StepVisit, ...]:
    """Return the steps that the runbook itself skipped, from place `start` of the trail on."""
    return tuple(
        StepVisit(step=state.runbook.step(record.step), decision=None, record=record) for record in state.trail[start:]
    )


# What differs between two runs in meaning: outcomes, ends, findings, deltas and versions, never times or paths.
#
# Works on the runs' report documents (`report.json`, schema vdbg-env/run/v1), so runs of older releases compare too.


Document = Mapping[str, Any]
_FOLDER_OF_ATTEMPT = re.compile(r"(steps/\w+/)\d+(?=/)")
Kind = Literal["verdict", "step", "outcome", "ended", "reproduced", "finding", "command", "variable", "environment"]


@dataclass(frozen=True, kw_only=True)
class Difference:
    """One thing that is not the same; None on a side that lacks it."""

    kind: Kind
    where: str
    before: str | None
    after: str | None

    def __str__(self) -> str:
        match (self.before, self.after):
            case (None, after):
                return f"+ {self.kind} {self.where}: {after}"
            case (before, None):
                return f"- {self.kind} {self.where}: {before}"
        return f"~ {self.kind} {self.where}: {self.before} -> {self.after}"


def diff(before: Document, after: Document) -> tuple[Difference, ...]:
    """Return what differs, the gravest first: verdict, findings, steps, then versions."""
    return (
        *_pair("verdict", "of the run", before.get("verdict"), after.get("verdict")),
        *_tables("finding", _findings(before), _findings(after)),
        *_steps(before, after),
        *_tables("environment", before.get("environment") or {}, after.get("environment") or {}),
    )


def _findings(document: Document) -> dict[str, str]:
    """Return the findings by fingerprint: the rule, and the place or kernel it was found at."""
    return {
        f"{f['rule']} {_place(f) or f.get('kernel') or f.get('step') or ''}".strip(): f["message"]
        for f in document.get("findings", [])
    }


def _place(finding: Mapping[str, Any]) -> str | None:
    location = finding.get("location")
    return f"{location['file']}:{location['line']}" if location else None


def _steps(before: Document, after: Document) -> Iterator[Difference]:
    old, new = ({step["id"]: step for step in d.get("steps", [])} for d in (before, after))
    for name in dict.fromkeys([*old, *new]):
        if name not in old or name not in new:
            yield from _pair("step", name, _summary(old.get(name)), _summary(new.get(name)))
            continue
        a, b = old[name], new[name]
        yield from _pair("outcome", name, a.get("outcome") or a.get("status"), b.get("outcome") or b.get("status"))
        yield from _pair("ended", name, _end_in_words(a), _end_in_words(b))
        yield from _pair("reproduced", name, _reproduced(a), _reproduced(b))
        yield from _pair("command", name, _command(a), _command(b))
        yield from _tables("variable", a.get("env") or {}, b.get("env") or {}, prefix=f"{name} ")


def _summary(step: Mapping[str, Any] | None) -> str | None:
    return None if step is None else str(step.get("outcome") or step.get("status"))


def _end_in_words(step: Mapping[str, Any]) -> str | None:
    ended = step.get("ended")
    if not ended:
        return None
    number = ended.get("signal") if ended.get("signal") is not None else ended.get("code")
    return ended["by"] if number is None else f"{ended['by']} {number}"


def _reproduced(step: Mapping[str, Any]) -> str | None:
    attempts = step.get("attempts")
    if not isinstance(attempts, list) or not attempts:
        return None
    shown = [a.get("reproduced") for a in attempts]
    return f"{sum(x is True for x in shown)} of {len(shown)}" if any(x is not None for x in shown) else None


def _tables(
    kind: Kind, before: Mapping[str, Any], after: Mapping[str, Any], *, prefix: str = ""
) -> Iterator[Difference]:
    for name in dict.fromkeys([*before, *after]):
        old, new = (_text(table, name) for table in (before, after))
        yield from _pair(kind, f"{prefix}{name}", old, new)


def _text(table: Mapping[str, Any], name: str) -> str | None:
    if name not in table:
        return None
    return "(unset)" if table[name] is None else _any_attempt(str(table[name]))


def _command(step: Mapping[str, Any]) -> str:
    return _any_attempt(" ".join(step.get("argv") or ()))


def _any_attempt(text: str) -> str:
    """Take the number of the attempt out of its folder: it is a path, and says only how often a step was started."""
    return _FOLDER_OF_ATTEMPT.sub(r"\1N", text)


def _pair(kind: Kind, where: str, before: str | None, after: str | None) -> Iterator[Difference]:
    if (before or None) != (after or None):
        yield Difference(kind=kind, where=where, before=before or None, after=after or None)
