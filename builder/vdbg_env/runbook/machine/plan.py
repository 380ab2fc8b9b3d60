"""Show what a runbook would do: each step's final command line and environment delta, with nothing started.

Every step is shown as if it were reached by a run in which nothing was seen yet; what depends on what an earlier step
sees (its `if`, a path it left behind) is shown as the expression it is.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, assert_never

from vdbg_env.common.errors import BadInput
from vdbg_env.runbook.expressions import scope
from vdbg_env.runbook.expressions.cel import ExpressionFailed, compile_condition
from vdbg_env.runbook.invocation import Invocation
from vdbg_env.runbook.machine import decide
from vdbg_env.runbook.model import Data, Manual, Next, Run, Runbook, Step, Uses
from vdbg_env.runbook.state import Facts, Finish, RunState, RunStep, Verdict
from vdbg_env.runbook.workload.inputs import Inputs

Whether = Literal["yes", "no", "depends"]


@dataclass(frozen=True, kw_only=True)
class PlannedStep:
    """One step of the plan; `runs` says whether it would be run, and `why_not` the reason where it would not."""

    step: Step
    runs: Whether
    why_not: str | None = None
    invocation: Invocation | None = None
    changes: Mapping[str, Data]
    leads_to: tuple[tuple[str, str | None, Next], ...]


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What a runbook would do with these inputs on this host, or in containers of `image`.

    `ranks` and `nodes` are those of the command line, which a step's own give way to.
    """

    runbook: Runbook
    inputs: Mapping[str, Data]
    facts: Facts
    steps: tuple[PlannedStep, ...]
    image: str | None = None
    ranks: int | None = None
    nodes: int | None = None


def plan(runbook: Runbook, given: Mapping[str, Data], facts: Facts) -> Plan:
    """Return the plan of a linted runbook; raises BadInput when these inputs give no command line."""
    inputs, nothing = Inputs(given), Finish(verdict=Verdict.INCONCLUSIVE, why="a plan")
    state = RunState(runbook=runbook, inputs=inputs, facts=facts, decision=nothing)
    steps = tuple(_planned(state, step) for step in runbook.steps)
    return Plan(runbook=runbook, inputs=inputs, facts=facts, steps=steps)


def unattended(runbook: Runbook, given: Mapping[str, Data], facts: Facts) -> str | None:
    """Return why a run in which no one can answer is not to be begun, or None; what a step sees does not change it."""
    nothing = Finish(verdict=Verdict.INCONCLUSIVE, why="a plan")
    state = RunState(runbook=runbook, inputs=Inputs(given), facts=facts, decision=nothing)
    for step in runbook.steps:
        if isinstance(step, Manual) and step.question.unattended and _whether(state, step)[0] == "yes":
            return step.question.unattended
    return None


def _planned(state: RunState, step: Step) -> PlannedStep:
    runs, why_not = _whether(state, step)
    invocation = None
    common: Mapping[str, str | None] = {}
    if isinstance(step, Run):
        common = state.runbook.commands[step.command].env
        invocation = _invocation(state, step, runs)
    return PlannedStep(
        step=step,
        runs=runs,
        why_not=why_not,
        invocation=invocation,
        changes=_changes(step, invocation, common),
        leads_to=tuple(_leads_to(step)),
    )


def _invocation(state: RunState, step: Run, runs: Whether) -> Invocation | None:
    """Return the final command of a step; one that would not be run may lack what it needs, such as a workload."""
    try:
        decision = decide.decision(state, step)
    except BadInput:
        if runs == "no":
            return None
        raise
    assert isinstance(decision, RunStep)
    return decision.invocation


def _whether(state: RunState, step: Step) -> tuple[Whether, str | None]:
    """Say whether a step would run: without its condition first, because that may depend on what was not seen yet."""
    reason = decide.why_skipped(state, step.model_copy(update={"condition": None}))
    if reason:
        return "no", reason
    if step.condition is None:
        return "yes", None
    if not _depends(state, step.condition, step):
        reason = decide.why_skipped(state, step)
        return ("no", reason) if reason else ("yes", None)
    return "depends", f"if {step.condition}"


def _depends(state: RunState, condition: str, step: Step) -> bool:
    """Say whether a condition can still change with what earlier steps see.

    It cannot when it is the same whatever `steps` holds, which is tried with every value there is left out: CEL's
    `&&` and `||` take the side that is known (`false && error` is false), so only a true dependence fails.
    """
    names = scope.names(state.runbook, step, "before")
    values = scope.values_before(state.runbook, state.inputs, state.facts, ())
    compiled = compile_condition(condition, names)
    if "steps" not in compiled.needs:
        return False
    try:
        compiled.holds({**values, "steps": {}})
    except ExpressionFailed:
        return True
    return "has(steps" in condition


def _changes(step: Step, invocation: Invocation | None, common: Mapping[str, str | None]) -> dict[str, Data]:
    """Return only what the step changes of the command as given: the words added and taken, and the variables."""
    if invocation is None or not isinstance(step, Run):
        return {}
    start = len(step.argv.wrap)
    final = invocation.argv
    changes: dict[str, Data] = {
        "wrap": list(final[:start]),
        "append": [word for word in final[start:] if word not in invocation.base_argv],
        "remove": [word for word in invocation.base_argv if word not in final],
        "env": {name: value for name, value in invocation.env.items() if name not in common},
    }
    return {key: value for key, value in changes.items() if value}


def _leads_to(step: Step) -> list[tuple[str, str | None, Next]]:
    match step:
        case Run() | Uses():
            return [(outcome.status.value, outcome.when, outcome.next) for outcome in step.outcomes]
        case Manual():
            asked = step.question
            return [(name, "the default" if name == asked.default else None, x) for name, x in asked.choices.items()]
        case _:
            assert_never(step)
