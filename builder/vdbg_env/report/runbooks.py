"""Runbooks, their plans and their explanations, as text and as JSON."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, assert_never

from vdbg_env.common.yaml_source import Complaint
from vdbg_env.runbook.expressions import is_template
from vdbg_env.runbook.machine import Plan, PlannedStep
from vdbg_env.runbook.model import (
    End,
    Manual,
    Next,
    Outcome,
    Run,
    Runbook,
    Step,
    ToRunbook,
    ToStep,
    Uses,
    duration_text,
    size_text,
)
from vdbg_env.runbook.parse import Library


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


def _next_words(target: Next) -> str:
    if isinstance(target, ToRunbook) and is_template(target.runbook):
        return "the runbook of the failure that the log shows"
    return next_text(target)


# JSON: docs/schemas/runbook-plan-v1.schema.json is the contract and says what each field means.


def plan_json(plan: Plan) -> dict[str, Any]:
    """Return the plan as plain values; what is not run has no `kind`."""
    return {
        "schema": "vdbg-env/runbook-plan/v1",
        "runbook": {"name": plan.runbook.name, "file": plan.runbook.file, "digest": plan.runbook.digest},
        "inputs": {
            name: "***" if wanted.sensitive and plan.inputs.get(name) is not None else plan.inputs.get(name)
            for name, wanted in plan.runbook.inputs.items()
        },
        "on": plan.facts.on,
        "image": plan.image,
        "ranks": plan.ranks,
        "nodes": plan.nodes,
        "steps": [_planned_json(planned) for planned in plan.steps],
    }


def _planned_json(planned: PlannedStep) -> dict[str, Any]:
    step, ran = planned.step, planned.invocation
    document: dict[str, Any] = {
        "id": step.id,
        "title": step.title,
        "runs": planned.runs,
        "why_not": planned.why_not,
        "leads_to": [
            {"outcome": outcome, "when": when, "next": next_text(target)} for outcome, when, target in planned.leads_to
        ],
    }
    match step:
        case Uses():
            return document | {"kind": "uses", "uses": step.uses, "timeout_s": step.timeout_s}
        case Manual(question=asked):
            document |= {"kind": "manual", "prompt": asked.prompt, "default": asked.default}
            return document | {"timeout_s": asked.timeout_s}
        case Run() if ran:
            return document | {
                "kind": "run",
                "argv": list(ran.argv),
                "env": dict(ran.env),
                "changes": planned.changes,
                "attempts": step.repeat.count,
                "timeout_s": ran.timeout_s,
                "kill": {"signal": ran.kill.signal, "grace_s": ran.kill.grace_s},
                "matchers": [matcher.name for matcher in ran.matchers],
                "artifacts": [rule.glob for rule in ran.artifacts],
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
        lines += [f"       {line}" for line in _step_lines(planned, _where(plan, planned))]
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


def _where(plan: Plan, planned: PlannedStep) -> str:
    """Return on how many ranks and nodes a step runs, as far as that is known before there is an allocation."""
    own = planned.invocation and planned.invocation.placement
    ranks = plan.ranks or (own.ranks if own and not plan.nodes else 1)
    nodes = plan.nodes or (own and own.nodes) or 1
    counts = [f"{count} {what}" for count, what in ((ranks, "ranks"), (nodes, "nodes")) if count > 1]
    return f"on {' of '.join(counts)}, " if counts else ""


def _step_lines(planned: PlannedStep, where: str) -> list[str]:
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
            in_batch = f"in batch the run is not begun: {asked.unattended}" if asked.unattended else "at once in batch"
            lines.append(f"takes {asked.default!r} after {duration_text(asked.timeout_s)}, {in_batch}")
        case Run() if invocation is not None:
            lines.append("argv " + " ".join(quoted(word) for word in invocation.argv))
            changed = planned.changes.get("env", {})
            assert isinstance(changed, dict)
            lines += [f"env  {_variable(name, value)}" for name, value in invocation.env.items() if name in changed]
            tries = f"up to {step.repeat.count} times, " if step.repeat.count > 1 else ""
            kill = f"{invocation.kill.signal}, SIGKILL after {duration_text(invocation.kill.grace_s)}"
            limit = f"at most {duration_text(invocation.timeout_s)} each" if invocation.timeout_s else "for any time"
            lines.append(f"runs {tries}{where}{limit}; ended by {kill}")
        case _:
            pass
    leads = ", ".join(f"{outcome} -> {_next_words(target)}" for outcome, target in _shortened(planned))
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


# Say what a runbook, one of its steps, or a shared step does: in words and as JSON.


_WIDTH = 96


def runbook_text(runbook: Runbook) -> str:
    """Return a runbook's inputs, matchers and steps on a few lines each."""
    lines = [f"{runbook.name}: {runbook.title}", *_wrapped(runbook.description, "  "), "", "inputs"]
    for wanted in runbook.inputs.values():
        default = "required" if wanted.required else f"default {wanted.default!r}"
        lines.append(f"  {wanted.name} ({wanted.type}, {default})  {wanted.description}")
    lines += ["", "looks for"]
    lines += [f"  {matcher.name}  {matcher.pattern}" for matcher in runbook.matchers.values()]
    lines += ["", "steps"]
    for step in runbook.steps:
        lines.append(f"  {step.id}: {step.title}")
        lines += [f"      {line}" for line in _leads(step)]
    return "\n".join(lines) + "\n"


def description_text(runbook: Runbook) -> str:
    """Return what a runbook is for and, step by step, why."""
    lines = [f"{runbook.name}: {runbook.title}", *_wrapped(runbook.description, "  ")]
    for step in runbook.steps:
        lines += ["", f"{step.id}: {step.title}", *_wrapped(step.explanation, "  ")]
    return "\n".join(lines) + "\n"


def step_text(runbook: Runbook, step_id: str) -> str | None:
    """Return all about one step, or None when the runbook has none of that id."""
    step = next((step for step in runbook.steps if step.id == step_id), None)
    if step is None:
        return None
    lines = [f"{step.id}: {step.title}", *_wrapped(step.explanation, "  "), ""]
    if step.condition:
        lines.append(f"  only if {step.condition}")
    lines += [f"  {line}" for line in _does(runbook, step)]
    for outcome in step.outcomes:
        lines += ["", *(f"  {line}" for line in _outcome(outcome))]
    return "\n".join(lines) + "\n"


def rule_text(runbooks: Iterable[Runbook], rule: str) -> str | None:
    """Return which outcomes make a finding of a rule, and in which steps; None where none does."""
    places: dict[tuple[str, ...], list[str]] = {}
    for runbook in runbooks:
        for step in runbook.steps:
            for outcome in (outcome for outcome in step.outcomes if outcome.rule == rule):
                places.setdefault(tuple(_outcome(outcome)), []).append(f"{runbook.name} {step.id}")
    if not places:
        return None
    lines = [f"{rule}, a finding of runbooks:"]
    for outcome_lines, named in places.items():
        lines += ["", *(f"  {line}" for line in outcome_lines), *_wrapped(f"in {', '.join(named)}", "    ")]
    return "\n".join(lines) + "\n"


def shared_step_text(library: Library, name: str) -> str:
    """Return what a shared step is for; raises BadDocument when its file is wrong."""
    title, explanation = library.about(name)
    lines = [f"{name}: {title} (a shared step: `from: {name}`)", *_wrapped(explanation, "  ")]
    return "\n".join(lines) + "\n"


# JSON: docs/schemas/runbooks-{list,lint,show}-v1.schema.json are the contracts.


def list_json(found: Iterable[tuple[str, Path, Runbook]]) -> dict[str, Any]:
    """Return the runbooks that are found, each with its origin and its file."""
    runbooks = [
        {"name": x.name, "title": x.title, "labels": x.labels, "origin": origin, "file": str(path)}
        for origin, path, x in found
    ]
    return {"schema": "vdbg-env/runbooks-list/v1", "runbooks": runbooks}


def lint_json(complaints: Iterable[Complaint], checked: int) -> dict[str, Any]:
    """Return what is wrong with runbooks, and how many were checked."""
    found = [
        {"file": one.file, "line": one.line, "column": one.column, "what": one.what, "suggestion": one.suggestion}
        for one in complaints
    ]
    return {"schema": "vdbg-env/runbooks-lint/v1", "checked": checked, "complaints": found}


def show_json(runbook: Runbook) -> dict[str, Any]:
    """Return a runbook: its inputs, what it looks for, and its steps."""
    return {
        "schema": "vdbg-env/runbooks-show/v1",
        "name": runbook.name,
        "title": runbook.title,
        "description": runbook.description,
        "labels": runbook.labels,
        "file": runbook.file,
        "digest": runbook.digest,
        "inputs": [
            {"name": x.name, "type": x.type, "required": x.required, "default": x.default, "description": x.description}
            for x in runbook.inputs.values()
        ],
        "matchers": {matcher.name: matcher.pattern for matcher in runbook.matchers.values()},
        "steps": [
            {
                "id": step.id,
                "title": step.title,
                "explanation": step.explanation,
                "if": step.condition,
                "outcomes": [
                    {"outcome": one.status, "when": one.when, "rule": one.rule, "next": next_text(one.next)}
                    for one in step.outcomes
                ],
            }
            for step in runbook.steps
        ],
    }


def _leads(step: Step) -> Iterator[str]:
    if isinstance(step, Manual):
        yield from (f"{choice} -> {next_text(target)}" for choice, target in step.question.choices.items())
    for outcome in step.outcomes:
        when = f" if {outcome.when}" if outcome.when else ""
        yield f"{outcome.status} -> {next_text(outcome.next)}{when}"


def _does(runbook: Runbook, step: Step) -> Iterator[str]:
    match step:
        case Uses():
            contract = runbook.catalogue.find(step.name, step.version)
            yield f"uses {step.uses}: {contract.does if contract else ''}"
        case Manual():
            yield f"asks: {step.question.prompt}"
            yield f"takes {step.question.default!r} after {duration_text(step.question.timeout_s)}"
        case Run():
            yield f"runs {step.command}, up to {step.repeat.count} times"
            yield from (f"sets {name}={value}" for name, value in step.env.items() if value is not None)
            yield from (f"unsets {name}" for name, value in step.env.items() if value is None)
            yield from (f"engine argument {name}: {value}" for name, value in step.engine_args.items())
            if step.argv.wrap:
                yield "under " + " ".join(step.argv.wrap)
            yield from (f"adds {word}" for word in step.argv.append)
            yield from (f"removes {word}" for word in step.argv.remove)
            for rule in step.artifacts.values():
                limit = f", at most {size_text(rule.max_size)} each" if rule.max_size else ""
                yield f"collects {rule.glob}{limit}"
        case _:
            assert_never(step)


def _outcome(outcome: Outcome) -> Iterator[str]:
    yield f"{outcome.status}" + (f" when {outcome.when}" if outcome.when else " otherwise")
    if outcome.message:
        yield from _wrapped(outcome.message, "  ")
    if outcome.rule:
        yield f"  finding {outcome.rule}, {outcome.level}, known by {outcome.how_known}, sure {outcome.confidence:g}"
    if outcome.next_step:
        yield f"  try: {outcome.next_step}"
    yield f"  then {next_text(outcome.next)}"


def _wrapped(text: str, indent: str) -> list[str]:
    return textwrap.wrap(text, _WIDTH, initial_indent=indent, subsequent_indent=indent) if text else []
