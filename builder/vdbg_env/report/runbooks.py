"""Runbooks, their plans and their explanations, as text and as JSON."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Literal, assert_never

from vdbg_env.common.errors import Complaint
from vdbg_env.report.codec.document import ABSENT, Document, Source, field
from vdbg_env.runbook.machine import Plan, PlannedStep, Whether
from vdbg_env.runbook.model import (
    Data,
    End,
    Input,
    KillPolicy,
    Manual,
    Next,
    Outcome,
    Run,
    Runbook,
    Status,
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


def _of_run(read: Source) -> Any:
    """A field that only a step with a command has; `read` is given its invocation and its step."""

    def source(planned: PlannedStep, _: object) -> object:
        ran = isinstance(planned.step, Run) and planned.invocation is not None
        return read(planned.invocation, planned.step) if ran else ABSENT

    return field(source, may_be_absent=True)


def _of_step(kind: type[Step], read: Source) -> Any:
    """A field that only one kind of step has."""
    return field(lambda planned, _: read(planned.step, None) if isinstance(planned.step, kind) else ABSENT,
                 may_be_absent=True)  # fmt: skip


def _kind(planned: PlannedStep, _: object) -> object:
    match planned.step:
        case Uses():
            return "uses"
        case Manual():
            return "manual"
        case _:
            return "run" if planned.invocation else ABSENT


def _time_limit(planned: PlannedStep, _: object) -> object:
    match planned.step:
        case Uses() as step:
            return step.timeout_s
        case Manual() as step:
            return step.question.timeout_s
        case _:
            return planned.invocation.timeout_s if planned.invocation else ABSENT


class LeadsTo(Document):
    """An outcome or a choice, when it is taken, and where it leads."""

    outcome: str = field(lambda row, _: row[0])
    when: str | None = field(lambda row, _: row[1])
    next: str = field(lambda row, _: next_text(row[2]))


class Changes(Document):
    """What a step changes of the command as given; what it leaves as it is, is absent."""

    wrap: list[str] = field(lambda changes, _: changes.get("wrap", ABSENT), may_be_absent=True)
    append: list[str] = field(lambda changes, _: changes.get("append", ABSENT), may_be_absent=True)
    remove: list[str] = field(lambda changes, _: changes.get("remove", ABSENT), may_be_absent=True)
    env: dict[str, str | None] = field(lambda changes, _: changes.get("env", ABSENT), may_be_absent=True)


class Kill(Document, of=KillPolicy):
    """How a step is ended: the signal, and the seconds until SIGKILL."""

    signal: str
    grace_s: float


class StepDocument(Document, of=PlannedStep):
    """A step of the plan. The fields behind `kind` are those of its kind; a step that is not run has no `kind`."""

    id: str = field("step.id")
    title: str = field("step.title")
    runs: Whether
    why_not: str | None
    leads_to: list[LeadsTo]
    kind: Literal["run", "uses", "manual"] = field(_kind, may_be_absent=True)
    uses: str = _of_step(Uses, lambda step, _: step.uses)
    prompt: str = _of_step(Manual, lambda step, _: step.question.prompt)
    default: str = _of_step(Manual, lambda step, _: step.question.default)
    argv: list[str] = _of_run(lambda command, _: command.argv)
    env: dict[str, str | None] = _of_run(lambda command, _: command.env)
    changes: Changes = field(lambda planned, _: planned.changes if planned.invocation else ABSENT, may_be_absent=True)
    attempts: int = _of_run(lambda _, step: step.repeat.count)
    timeout_s: float | None = field(_time_limit, may_be_absent=True)
    kill: Kill = _of_run(lambda command, _: command.kill)
    matchers: list[str] = _of_run(lambda command, _: [matcher.name for matcher in command.matchers])
    artifacts: list[str] = _of_run(lambda command, _: [rule.glob for rule in command.artifacts])
    readers: list[str] = _of_run(lambda _, step: [str(reader) for reader in step.readers])


class RunbookOfPlan(Document, of=Runbook):
    """The runbook that was planned."""

    name: str
    file: str
    digest: str


class PlanDocument(Document, of=Plan):
    """What a runbook would do with these inputs on this host. Fields are only ever added."""

    schema: Literal["vdbg-env/runbook-plan/v1"]
    runbook: RunbookOfPlan
    inputs: dict[str, Any] = field(lambda plan, _: _shown_inputs(plan))
    on: str = field("facts.on")
    image: str | None
    ranks: int | None
    nodes: int | None
    steps: list[StepDocument]


def _shown_inputs(plan: Plan) -> Mapping[str, Data]:
    return {
        name: "***" if wanted.sensitive and plan.inputs.get(name) is not None else plan.inputs.get(name)
        for name, wanted in plan.runbook.inputs.items()
    }


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
