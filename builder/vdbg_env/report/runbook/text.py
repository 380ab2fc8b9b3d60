"""Say what a runbook, one of its steps, or a shared step does: in words and as JSON."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator
from typing import Any, Literal, assert_never

from vdbg_env.common.errors import Complaint
from vdbg_env.report.codec.document import Document, field
from vdbg_env.report.runbook.plan import next_text
from vdbg_env.runbook.model import Input, Manual, Outcome, Run, Runbook, Status, Step, Uses, duration_text, size_text
from vdbg_env.runbook.parse import Library

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


class ListEntry(Document):
    """A runbook that was found, and where it is from."""

    name: str = field(lambda found, _: found[1].name)
    title: str = field(lambda found, _: found[1].title)
    labels: list[str] = field(lambda found, _: found[1].labels)
    origin: str = field(lambda found, _: found[0].origin)
    file: str = field(lambda found, _: str(found[0].path))


class RunbookList(Document):
    """The runbooks that are found. Fields are only ever added."""

    schema: Literal["vdbg-env/runbooks-list/v1"]
    runbooks: list[ListEntry] = field(lambda found, _: found)


class ComplaintEntry(Document, of=Complaint):
    """One thing wrong at one place of a file; line and column are 1-based."""

    file: str
    line: int
    column: int
    what: str
    suggestion: str | None


class Lint(Document):
    """What is wrong with runbooks, and how many were checked. Fields are only ever added."""

    schema: Literal["vdbg-env/runbooks-lint/v1"]
    checked: int = field(lambda _, checked: checked)
    complaints: list[ComplaintEntry] = field(lambda found, _: found)


class InputEntry(Document, of=Input):
    """An input of a runbook."""

    name: str
    type: str
    required: bool
    default: Any
    description: str


class OutcomeEntry(Document, of=Outcome):
    """An outcome of a step, when it is the one, and where it leads."""

    outcome: Status = field("status")
    when: str | None
    rule: str | None
    next: str = field(lambda outcome, _: next_text(outcome.next))


class StepEntry(Document):
    """A step of a runbook."""

    id: str
    title: str
    explanation: str
    if_: str | None = field("condition")
    outcomes: list[OutcomeEntry]


class Shown(Document, of=Runbook):
    """A runbook: its inputs, what it looks for, and its steps. Fields are only ever added."""

    schema: Literal["vdbg-env/runbooks-show/v1"]
    name: str
    title: str
    description: str
    labels: list[str]
    file: str
    digest: str
    inputs: list[InputEntry] = field(lambda runbook, _: runbook.inputs.values())
    matchers: dict[str, str] = field(lambda runbook, _: {x.name: x.pattern for x in runbook.matchers.values()})
    steps: list[StepEntry]


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
