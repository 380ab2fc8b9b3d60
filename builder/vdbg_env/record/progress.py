"""Where a run stands, as a function of its events alone: the same function serves the live run and its resumption.

Kinds of events: `run_started`, `run_resumed`, `attempt_started`, `attempt_ended`, `step_finished`, `branched`,
`run_interrupted`, `run_finished`. A step is finished when its `step_finished` is on disk, and not before.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace

from vdbg_env.evidence.observation import EndedBy, Observation
from vdbg_env.record.codec import from_document
from vdbg_env.record.event_log import Event, damaged
from vdbg_env.runbook.machine import transitions
from vdbg_env.runbook.model import Step
from vdbg_env.runbook.state import BranchTo, Decision, Finish, RunState, StepRecord, StepResult

StartBranch = Callable[[BranchTo], RunState]


@dataclass(frozen=True, kw_only=True)
class OpenAttempt:
    """An attempt whose end is not on record; `directory` is relative to the run."""

    attempt: int
    rank: int
    host: str
    directory: str


@dataclass(frozen=True, kw_only=True)
class Walked:
    """One step that the run came to; `decision` is None where it was skipped, times in seconds of `elapsed_s`."""

    step: Step
    decision: Decision | None
    record: StepRecord
    observations: tuple[Observation, ...] = ()
    started_s: float | None = None
    duration_s: float | None = None


@dataclass(frozen=True, kw_only=True)
class Walk:
    """Where a run stands: the engine's state, what was walked, and how far the step being run has come.

    `used` holds the highest attempt number given to each step: numbers are not used twice, for each has a folder.
    """

    state: RunState
    walked: tuple[Walked, ...] = ()
    observations: tuple[Observation, ...] = ()
    open: tuple[OpenAttempt, ...] = ()
    used: Mapping[str, int] = field(default_factory=dict)
    since_s: float = 0.0
    finish: Finish | None = None

    @property
    def decision(self) -> Decision:
        """What is to be done next."""
        return self.finish or self.state.decision


def begin(state: RunState) -> Walk:
    """Return the walk of a run that has only begun."""
    return Walk(state=state, walked=_skipped(state, 0))


def walk(start: Walk, events: Iterable[Event], start_branch: StartBranch) -> Walk:
    """Return where a run stands after these events; raises BadInput at one that lacks what its kind has."""
    for event in events:
        try:
            start = take(start, event, start_branch)
        except (KeyError, TypeError, ValueError, AttributeError, AssertionError) as error:
            raise damaged(f"event {event.seq} ({event.kind})") from error
    return start


def take(walk: Walk, event: Event, start_branch: StartBranch) -> Walk:
    """Return where a run stands after one more event."""
    match event.kind:
        case "attempt_started":
            opened = OpenAttempt(**{name: event.data[name] for name in OpenAttempt.__dataclass_fields__})
            used = {**walk.used, event.data["step"]: max(opened.attempt, walk.used.get(event.data["step"], 0))}
            already = tuple(o for o in walk.open if o.directory != opened.directory)
            since = walk.since_s if walk.observations or walk.open else event.elapsed_s
            return replace(walk, open=(*already, opened), used=used, since_s=since)
        case "attempt_ended":
            seen = from_document(Observation, event.data["observation"])
            left = tuple(o for o in walk.open if (o.attempt, o.rank) != (seen.attempt, seen.rank))
            # What the user interrupted says nothing about the bug: after a resumption it is tried again.
            kept = walk.observations if seen.ended.by is EndedBy.CANCEL else (*walk.observations, seen)
            return replace(walk, observations=kept, open=left)
        case "step_finished":
            return _finish_step(walk, from_document(StepResult, event.data["result"]), event.elapsed_s)
        case "branched":
            assert isinstance(walk.state.decision, BranchTo)
            state = start_branch(walk.state.decision)
            return replace(walk, state=state, walked=(*walk.walked, *_skipped(state, 0)))
        case "run_finished":
            return replace(walk, finish=from_document(Finish, event.data["finish"]))
    return walk


def _finish_step(walk: Walk, result: StepResult, now: float) -> Walk:
    decision = walk.state.decision
    before = len(walk.state.trail)
    state, _ = transitions.advance(walk.state, result)
    done = Walked(
        step=state.runbook.step(result.step),
        decision=decision,
        record=state.trail[before],
        observations=result.observations,
        started_s=walk.since_s,
        duration_s=round(now - walk.since_s, 6),
    )
    walked = (*walk.walked, done, *_skipped(state, before + 1))
    return replace(walk, state=state, walked=walked, observations=(), open=(), since_s=now)


def _skipped(state: RunState, start: int) -> tuple[Walked, ...]:
    """Return what the engine put on the trail by itself from `start` on: the steps it skipped."""
    return tuple(
        Walked(step=state.runbook.step(record.step), decision=None, record=record) for record in state.trail[start:]
    )
