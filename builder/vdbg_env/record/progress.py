"""How far a run has got, as a function of its events alone: the same function serves a live run and its resumption.

Kinds of events: `run_started`, `run_resumed`, `attempt_started`, `attempt_ended`, `step_finished`, `branched`,
`run_interrupted`, `run_finished`. A step is finished when its `step_finished` is on disk, and not before.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from pydantic import TypeAdapter

from vdbg_env.common.errors import BadInput
from vdbg_env.evidence.deaths import first_failure
from vdbg_env.evidence.finding import EndedBy, Observation
from vdbg_env.record.event_log import Event, damaged
from vdbg_env.runbook import machine
from vdbg_env.runbook.model import Status, Step
from vdbg_env.runbook.state import BranchTo, Decision, Facts, Finish, RunState, StepRecord, StepResult

Value = TypeVar("Value", Observation, StepResult, Facts, Finish)
# A list of runs does without this module: these types take longer to import than an index to read.
_ADAPTERS: dict[type[Any], TypeAdapter[Any]] = {
    kind: TypeAdapter(kind) for kind in (Observation, StepResult, Facts, Finish)
}


def to_document(value: Observation | StepResult | Facts | Finish) -> dict[str, Any]:
    """Return a value as plain JSON values; defaults are left out."""
    document: dict[str, Any] = _ADAPTERS[type(value)].dump_python(value, mode="json", exclude_defaults=True)
    return document


def from_document(kind: type[Value], document: object) -> Value:
    """Return the value a document was made of; raises pydantic's ValidationError (a ValueError) for any other."""
    value: Value = _ADAPTERS[kind].validate_python(document)
    return value


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


def judges_alike(start: Progress, events: Iterable[Event], start_branch: StartBranch) -> bool:
    """Return whether the runbook of `start` leads to each recorded attempt and outcome: that of the run was another."""
    for event in events:
        before = len(start.state.trail)
        try:
            if event.kind == "attempt_started" and event.data["step"] != machine.waiting_for(start.state):
                return False
            start = apply(start, event, start_branch)
        except (BadInput, KeyError, TypeError, ValueError, AttributeError, AssertionError):
            return False
        if event.kind == "step_finished":
            outcome = start.state.trail[before].outcome
            if (outcome and outcome.value) != event.data.get("outcome"):
                return False
    return True


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
            return finish_step(progress, result, _judged(progress.state, result, event), event.elapsed_s)
        case "branched":
            assert isinstance(progress.state.decision, BranchTo)
            state = start_branch(progress.state.decision)
            return replace(progress, state=state, visits=(*progress.visits, *_skipped(state, 0)))
        case "run_finished":
            return replace(progress, finish=from_document(Finish, event.data["finish"]))
    return progress


def _judged(state: RunState, result: StepResult, event: Event) -> RunState:
    """Return the state after a recorded step.

    The runbook of then may have asked for other variables, which a step had that did not end as an error.
    """
    judged = machine.advance(state, result)[0]
    if judged.trail[len(state.trail)].outcome is Status.ERROR and event.data.get("outcome") != Status.ERROR.value:
        unasked = tuple(replace(seen, workers=()) for seen in result.observations)
        judged = machine.advance(state, replace(result, observations=unasked))[0]
    return judged


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
