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
from vdbg_env.runbook.model import Data, End, Manual, Next, Run, Runbook, Step, ToRunbook, ToStep, Uses
from vdbg_env.runbook.model.quantities import duration_text
from vdbg_env.runbook.state import Facts, Finish, RunState, RunStep, Verdict
from vdbg_env.runbook.workload.inputs import Inputs

SCHEMA = "vdbg-env/runbook-plan/v1"
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
    """What a runbook would do with these inputs on this host, or in containers of `image`."""

    runbook: Runbook
    inputs: Mapping[str, Data]
    facts: Facts
    steps: tuple[PlannedStep, ...]
    image: str | None = None


def plan(runbook: Runbook, given: Mapping[str, Data], facts: Facts, *, image: str | None = None) -> Plan:
    """Return the plan of a linted runbook; raises BadInput when these inputs give no command line."""
    inputs, nothing = Inputs(given), Finish(verdict=Verdict.INCONCLUSIVE, why="a plan")
    state = RunState(runbook=runbook, inputs=inputs, facts=facts, decision=nothing)
    steps = tuple(_planned(state, step) for step in runbook.steps)
    return Plan(runbook=runbook, inputs=inputs, facts=facts, steps=steps, image=image)


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


def next_text(target: Next) -> str:
    """Return where something leads as one word or two."""
    match target:
        case End():
            return "end"
        case ToStep(step=step):
            return step
        case ToRunbook(runbook=name):
            return f"runbook {name}"
        case _:
            assert_never(target)


def as_json(plan: Plan) -> dict[str, Data]:
    """Return the plan as the document `--plan --json` prints."""
    return {
        "schema": SCHEMA,
        "runbook": {"name": plan.runbook.name, "file": plan.runbook.file, "digest": plan.runbook.digest},
        "inputs": {
            name: "***" if wanted.sensitive and plan.inputs.get(name) is not None else plan.inputs.get(name)
            for name, wanted in plan.runbook.inputs.items()
        },
        "on": plan.facts.on,
        "image": plan.image,
        "steps": [_step_json(planned) for planned in plan.steps],
    }


def _step_json(planned: PlannedStep) -> Data:
    step, invocation = planned.step, planned.invocation
    document: dict[str, Data] = {
        "id": step.id,
        "title": step.title,
        "runs": planned.runs,
        "why_not": planned.why_not,
        "leads_to": [{"outcome": o, "when": when, "next": next_text(x)} for o, when, x in planned.leads_to],
    }
    match step:
        case Uses():
            document |= {"kind": "uses", "uses": step.uses, "timeout_s": step.timeout_s}
        case Manual():
            asked = step.question
            document |= {"kind": "manual", "prompt": asked.prompt, "default": asked.default}
            document["timeout_s"] = asked.timeout_s
        case Run() if invocation is not None:
            document |= {
                "kind": "run",
                "argv": list(invocation.argv),
                "env": dict(invocation.env),
                "changes": dict(planned.changes),
                "attempts": step.repeat.count,
                "timeout_s": invocation.timeout_s,
                "kill": {"signal": invocation.kill.signal, "grace_s": invocation.kill.grace_s},
                "matchers": [matcher.name for matcher in invocation.matchers],
                "artifacts": [rule.glob for rule in invocation.artifacts],
                "readers": [str(reader) for reader in step.readers],
            }
    return document


def as_text(plan: Plan) -> str:
    """Return the plan for a terminal: one paragraph per step with what it changes, the commands as given once."""
    runbook = plan.runbook
    lines = [f"{runbook.name}: {runbook.title}", f"  {runbook.file}", *_command_lines(plan), ""]
    for number, planned in enumerate(plan.steps, 1):
        mark = {"yes": " ", "no": "-", "depends": "?"}[planned.runs]
        lines.append(f"{mark}{number:3} {planned.step.id}: {planned.step.title}")
        lines += [f"       {line}" for line in _step_lines(planned)]
    lines += ["", "  -  is not run here     ?  depends on what is seen before"]
    return "\n".join(line.rstrip() for line in lines) + "\n"


def _command_lines(plan: Plan) -> list[str]:
    """Return each command as given, with the variables that every step shares."""
    lines = [f"  each start in a separate container, of {plan.image}"] if plan.image else []
    for name, command in plan.runbook.commands.items():
        first = next((x.invocation for x in plan.steps if isinstance(x.step, Run) and x.step.command == name), None)
        if first:
            lines.append(f"  {name}: " + " ".join(quoted(word) for word in first.base_argv))
            lines += [f"    env {_variable(x, first.env[x])}" for x in command.env if first.env[x] is not None]
    return lines


def _step_lines(planned: PlannedStep) -> list[str]:
    step, invocation = planned.step, planned.invocation
    if planned.runs == "no":
        return [f"not run: {planned.why_not}"]
    lines = [planned.why_not] if planned.why_not else []
    match step:
        case Uses():
            lines.append(f"{step.uses}{_limit(step.timeout_s)}")
        case Manual():
            asked = step.question
            lines.append(f"asks: {asked.prompt}")
            lines.append(f"takes {asked.default!r} after {duration_text(asked.timeout_s)}, at once in batch")
        case Run() if invocation is not None:
            lines.append("argv " + " ".join(quoted(word) for word in invocation.argv))
            changed = planned.changes.get("env", {})
            assert isinstance(changed, dict)
            lines += [f"env  {_variable(name, value)}" for name, value in invocation.env.items() if name in changed]
            tries = f"up to {step.repeat.count} times, " if step.repeat.count > 1 else ""
            kill = f"{invocation.kill.signal}, SIGKILL after {duration_text(invocation.kill.grace_s)}"
            lines.append(f"runs {tries}at most {duration_text(invocation.timeout_s or 0)} each; ended by {kill}")
        case _:
            pass
    leads = ", ".join(f"{outcome} -> {next_text(target)}" for outcome, target in _shortened(planned))
    lines.append(f"then {leads}")
    return lines


def _variable(name: str, value: str | None) -> str:
    return f"unset {name}" if value is None else f"{name}={quoted(value)}"


def _shortened(planned: PlannedStep) -> list[tuple[str, Next]]:
    """Return each outcome once; when all lead to the same place, one line for all."""
    pairs = list(dict.fromkeys((outcome, target) for outcome, _, target in planned.leads_to))
    if len({target for _, target in pairs}) == 1:
        return [("any outcome", pairs[0][1])]
    return pairs


def _limit(seconds: float | None) -> str:
    return f", at most {duration_text(seconds)}" if seconds else ""


def quoted(word: str) -> str:
    """Return a word as a shell would have to be given it, control characters made visible: for eyes only."""
    if word and all(c.isalnum() or c in "@%+=:,./_-" for c in word) and word.isascii():
        return word
    if word.isprintable():
        return "'" + word.replace("'", "'\\''") + "'"
    return "$'" + word.encode("unicode_escape").decode("ascii").replace("'", "\\'") + "'"
