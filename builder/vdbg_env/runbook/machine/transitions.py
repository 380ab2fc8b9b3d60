"""The engine: a pure state machine from step results to decisions.

`start` gives the first decision; `advance` takes what came of one decision and gives the next. Nothing here starts a
process, reads a clock or a file: a run is resumed by replaying its recorded results.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from vdbg_env.common.errors import BadInput
from vdbg_env.evidence.observation import EndedBy, Observation
from vdbg_env.runbook.expressions import scope
from vdbg_env.runbook.expressions.cel import ExpressionFailed, compile_condition
from vdbg_env.runbook.machine import decide, judge
from vdbg_env.runbook.model import Data, End, Manual, Next, Run, Runbook, ToRunbook, ToStep
from vdbg_env.runbook.state import BranchTo, Decision, Facts, Finish, RunState, RunStep, StepRecord, StepResult, Verdict
from vdbg_env.runbook.verdict import conclude
from vdbg_env.runbook.workload import server
from vdbg_env.runbook.workload.inputs import Inputs

MAX_VISITS = 25  # of one step: only a person's answers can lead back, and this many are no progress


def start(
    runbook: Runbook, inputs: Mapping[str, Data], facts: Facts, *, came_from: tuple[str, ...] = ()
) -> tuple[RunState, Decision]:
    """Begin a linted runbook and return the state with its first decision.

    `inputs` are final values (see `machine.inputs`); `came_from` names the runbooks that branched here.
    """
    state = RunState(
        runbook=runbook,
        inputs=Inputs(inputs),
        facts=facts,
        decision=Finish(verdict=Verdict.INCONCLUSIVE, why="not begun"),
        came_from=came_from,
    )
    return _go(state, ToStep(step=runbook.steps[0].id))


def advance(state: RunState, result: StepResult) -> tuple[RunState, Decision]:
    """Take in what came of the last decision and return the next; raises BadInput for a result of another step."""
    step_id = waiting_for(state)
    if result.step != step_id:
        raise BadInput(f"a result of step {result.step!r} came where one of {step_id!r} was awaited")
    record = judge.record(state, state.runbook.step(step_id), result)
    return _go(replace(state, trail=(*state.trail, record)), record.next)


def again(state: RunState, observations: Sequence[Observation]) -> bool:
    """Return whether the step that is being run needs another attempt after those observed so far."""
    decision = state.decision
    assert isinstance(decision, RunStep), "only a run step is repeated"
    done = len({x.attempt for x in observations})
    if done >= decision.repeat.count or any(_will_not_start(x) for x in observations):
        return False
    step = state.runbook.step(decision.invocation.step)
    assert isinstance(step, Run)
    if decision.repeat.until is None:
        return True
    values = {
        **scope.values_before(state.runbook, state.inputs, state.facts, state.trail),
        **scope.values_of_attempts(step, observations),
    }
    try:
        return not compile_condition(decision.repeat.until, scope.names(state.runbook, step, "attempt")).holds(values)
    except ExpressionFailed:
        return True  # what was asked for has not been seen; judging the outcome notes the reason


def _will_not_start(seen: Observation) -> bool:
    """Say whether a second attempt has nothing to show: it cannot be started, or a server's start raised an error."""
    if seen.ended.by is EndedBy.NOT_STARTED:
        return True
    ready = server.STARTED.name in seen.matched or (seen.requests is not None and seen.requests.ready)
    raised = seen.ended.by is EndedBy.EXIT and seen.ended.code and server.TRACEBACK.name in seen.matched
    return bool(raised) and not ready


def cut_short(state: RunState, why: str, *, out_of_time: bool = False) -> tuple[RunState, Finish]:
    """End a run before its end: the total time is spent, or the user asked. What is known so far stays."""
    verdict = Verdict.OUT_OF_TIME if out_of_time else conclude(state.trail, state.runbook).verdict
    finish = Finish(verdict=verdict, why=why)
    return replace(state, decision=finish), finish


def waiting_for(state: RunState) -> str:
    """Return the id of the step whose result is awaited; raises BadInput when the run is over."""
    match state.decision:
        case RunStep(invocation=invocation):
            return invocation.step
        case Finish():
            raise BadInput("the run is over: no result is awaited")
        case BranchTo(runbook=name):
            raise BadInput(f"the run continues with runbook {name!r}: no result is awaited here")
        case decision:
            return decision.step


def _go(state: RunState, goal: Next) -> tuple[RunState, Decision]:
    """Follow `next` from step to step until one must really be done; steps that are skipped are put on the trail."""
    while True:
        decision: Decision
        match goal:
            case End():
                decision = conclude(state.trail, state.runbook)
            case ToRunbook(runbook=name):
                decision = _branch(state, name)
            case ToStep(step=step_id):
                step = state.runbook.step(step_id)
                visits = sum(record.step == step_id for record in state.trail)
                skipped = decide.why_skipped(state, step)
                if visits >= MAX_VISITS:
                    decision = Finish(
                        verdict=conclude(state.trail, state.runbook).verdict,
                        why=f"step {step_id!r} came {visits} times",
                    )
                elif skipped:
                    goal = _after_skip(state, step_id)
                    record = StepRecord(step=step_id, outcome=None, next=goal, skipped_because=skipped)
                    state = replace(state, trail=(*state.trail, record))
                    continue
                else:
                    decision = decide.decision(state, step)
        state = replace(state, decision=decision)
        return state, decision


def _after_skip(state: RunState, step_id: str) -> Next:
    """Return where a skipped step leads: where it says, else where its last outcome leads."""
    step = state.runbook.step(step_id)
    if step.skipped:
        return step.skipped.next
    if isinstance(step, Manual):
        return step.question.choices[step.question.default]
    return step.outcomes[-1].next


def _branch(state: RunState, name: str) -> Decision:
    seen = (*state.came_from, state.runbook.name)
    if name in seen:
        # Two runbooks that send a run to each other have both had their say.
        return replace(conclude(state.trail, state.runbook), why=f"runbook {name!r} was already walked")
    last = state.trail[-1].step if state.trail else ""
    return BranchTo(runbook=name, step=last, came_from=seen)
