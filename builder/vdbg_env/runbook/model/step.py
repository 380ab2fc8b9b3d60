"""A step of a runbook: what it runs, uses or asks, its outcomes, and where each leads.

Texts that hold expressions (`when`, `if`, everything with `${{ }}`) stay text here: lint compiles them, and
`vdbg_env.runbook.machine` evaluates them. Sources of the terms: Actions' `env`, `if`, `uses` and `with`, SSM
Automation's `next`, troubleshoot.sh's `outcomes` and `when`, Tekton's `results`, SARIF's `rule`, `level`, `location`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated

from pydantic import AfterValidator, Discriminator, Field, StrictBool, StringConstraints, Tag, WithJsonSchema
from pydantic_core import PydanticKnownError

from vdbg_env.evidence.finding import HowKnown, Level
from vdbg_env.runbook.model.fields import (
    ByName,
    Condition,
    Count,
    Env,
    FromKey,
    Name,
    Part,
    RunbookName,
    Seconds,
    Text,
    Values,
    Written,
)
from vdbg_env.runbook.model.limits import ArtifactRule, KillPolicy, Matcher, OutputPolicy, Placement, Watch


class Status(StrEnum):
    """Whether the bug showed in a step (SARIF's `kind` and git bisect's words); never how the process ended."""

    PASS = "pass"
    WARN = "warn"
    FAIL = "fail"
    REPRODUCED = "reproduced"
    NOT_REPRODUCED = "not_reproduced"
    HANG = "hang"
    UNRESOLVED = "unresolved"  # the step ran, but says nothing about the bug
    ERROR = "error"  # the step could not do its work


class ToStep(Part):
    """Continue with another step of the same runbook."""

    step: Name


class End(Part):
    """Stop here."""


class ToRunbook(Part):
    """Continue with another runbook on the same workload; an outcome may name it by one expression."""

    runbook: RunbookName


_StepOrEnd = Annotated[
    ToStep | End, Written(Name, lambda name: End() if name == "end" else ToStep(step=name)), Tag("next step")
]
_Branch = Annotated[ToRunbook, Tag("next runbook")]


def _next_kind(value: object) -> str:
    match value:
        case ToRunbook() | {"runbook": _}:
            return "next runbook"
        case dict():
            return "next by status"
        case _:
            return "next step"


Next = Annotated[
    _StepOrEnd | _Branch,
    Discriminator(lambda value: "next runbook" if isinstance(value, dict | ToRunbook) else "next step"),
]
"""The id of a step, `end`, or another runbook."""


class Outcome(Part):
    """One line of a step's switch: the first whose `when` holds is taken, and the last has none.

    With a `rule` it makes a finding of that id; `message`, `location` and `next_step` may hold `${{ }}`.
    """

    status: FromKey[Status] = Status.UNRESOLVED
    when: Condition | None = None
    message: Text | None = None
    next: Next = End()
    rule: Annotated[str, StringConstraints(pattern=r"^[A-Z][A-Z0-9_.-]*$")] | None = None
    level: Level = Level.NOTE
    location: Text | None = None
    how_known: HowKnown = HowKnown.STEP_CHANGE
    confidence: Annotated[float, Field(strict=True, ge=0, le=1)] = 0.6
    next_step: Text | None = None


def _outcome(entry: Mapping[Status, Outcome]) -> Outcome:
    if len(entry) != 1:
        raise ValueError("an outcome is one status with what follows: '- reproduced: {when: ..., next: ...}'")
    ((status, outcome),) = entry.items()
    return outcome.model_copy(update={"status": status})


_OutcomeEntry = Annotated[Mapping[Status, Outcome], Field(json_schema_extra={"minProperties": 1, "maxProperties": 1})]
Outcomes = tuple[Annotated[Outcome, Written(_OutcomeEntry, _outcome)], ...]


def _status(key: str) -> str:
    statuses = [*Status, "otherwise"]
    if key not in statuses:
        keys = [*statuses, "runbook"]  # which would have made it another kind of `next`
        raise PydanticKnownError("literal_error", {"expected": ", ".join(f"'{key}'" for key in keys)})
    return key


NextByStatus = Mapping[
    Annotated[str, AfterValidator(_status), WithJsonSchema({"type": "string", "enum": [*Status, "otherwise"]})], Next
]
"""Where each status leads; `otherwise` for those not named."""
StepNext = Annotated[_StepOrEnd | _Branch | Annotated[NextByStatus, Tag("next by status")], Discriminator(_next_kind)]


class Skipped(Part):
    """Where a step leads that was not run."""

    next: Next


class StepRequires(Part):
    """What the host must have for this step; without it the step is skipped, and the record names the tool."""

    tools: tuple[Text, ...] = ()


class ArgvOverlay(Part):
    """What a step changes of a command line: `wrap` goes before it, `remove` takes flags out, `append` adds."""

    append: tuple[str, ...] = ()
    remove: tuple[Text, ...] = ()
    wrap: tuple[str, ...] = ()


class Repeat(Part):
    """Run up to `count` times, and stop once `until` holds after an attempt."""

    count: Count = 1
    until: Condition | None = None


_BUILTIN = re.compile(r"builtin/([a-z][a-z0-9-]*)@v([0-9]{1,3})")


def _builtin(text: str) -> str:
    if not _BUILTIN.fullmatch(text):
        raise ValueError(f"{text!r} is not a built-in with its version, such as 'builtin/collect-env@v1'")
    return text


class Builtin(Part):
    """A built-in step or reader, with its parameters."""

    uses: Annotated[str, AfterValidator(_builtin)]
    parameters: Annotated[Values, Field(alias="with")] = Field(default_factory=dict)

    @property
    def name(self) -> str:
        """Its name in the catalogue."""
        return self.uses.removeprefix("builtin/").partition("@v")[0]

    @property
    def version(self) -> int:
        """Its version in the catalogue."""
        return int(self.uses.partition("@v")[2])

    def __str__(self) -> str:
        return self.uses


class StepBase(Part):
    """What every step may have."""

    title: Annotated[Text, Field(alias="name")] = ""
    explanation: Annotated[Text, Field(alias="explain")] = ""
    condition: Annotated[Condition | None, Field(alias="if")] = None
    skipped: Skipped | None = None


class JudgedStep(StepBase):
    """A step that ends in an outcome; `next` is for the outcomes without one."""

    requires: StepRequires = StepRequires()
    outcomes: Annotated[Outcomes, Field(min_length=1)] = ()
    next: StepNext | None = None

    @property
    def tools(self) -> tuple[str, ...]:
        """The programs that the host must have for it."""
        return self.requires.tools


class Delta(JudgedStep):
    """A step that changes a command of the runbook, and how it is run.

    `engine_args` are arguments of vLLM's engine by their Python names; `workload.engine_args` passes them to vLLM's
    own command line and to a script that builds its engine itself.
    """

    env: Env = Field(default_factory=dict)
    argv: ArgvOverlay = ArgvOverlay()
    engine_args: Values = Field(default_factory=dict)
    repeat: Repeat = Repeat()
    timeout_s: Annotated[Seconds | None, Field(alias="timeout")] = None
    kill: KillPolicy = KillPolicy()
    watch: Watch = Watch()
    placement: Placement = Placement()


class RunFields(Delta):
    """A step that starts a command; `readers` turn what it left behind into results and findings."""

    command: Annotated[Name, Field(alias="run")]
    output: OutputPolicy = OutputPolicy()
    matchers: ByName[Matcher] = Field(default_factory=dict)
    artifacts: ByName[ArtifactRule] = Field(default_factory=dict)
    readers: tuple[Builtin, ...] = ()
    results: Mapping[Name, Text] = Field(default_factory=dict)
    verify_env: StrictBool = True


class UsesFields(Builtin, JudgedStep):
    """A step that the tool does itself: check the host, read cores, write the report."""

    timeout_s: Annotated[Seconds | None, Field(alias="timeout")] = None
    results: Mapping[Name, Text] = Field(default_factory=dict)


class Question(Part):
    """What is asked, what may be answered, and what is taken without an answer.

    Where no one can answer, a run that would ask a question with `unattended` is not begun, for that reason.
    """

    prompt: Text
    choices: Annotated[Mapping[Name, Next], Field(min_length=1)]
    timeout_s: Annotated[Seconds, Field(alias="timeout")]
    default: Name
    unattended: Text | None = None


class ManualFields(StepBase):
    """A step that asks a person; after the timeout, or at once in batch, the default is taken."""

    question: Annotated[Question, Field(alias="manual")]

    @property
    def tools(self) -> tuple[str, ...]:
        """No program is needed to ask."""
        return ()

    @property
    def outcomes(self) -> tuple[Outcome, ...]:
        """A question has choices instead."""
        return ()


class Run(RunFields):
    """A step of a runbook that starts a command."""

    id: Name


class Uses(UsesFields):
    """A step of a runbook that the tool does itself."""

    id: Name


class Manual(ManualFields):
    """A step of a runbook that asks."""

    id: Name


class SharedStep(Delta):
    """A step taken from runbooks/lib; what is given here goes before what is given there, `env` key by key."""

    id: Name
    source: Annotated[Name, Field(alias="from")]
    command: Annotated[Name | None, Field(alias="run")] = None
    parameters: Annotated[Values, Field(alias="with")] = Field(default_factory=dict)


Step = Run | Uses | Manual

_KINDS = {
    "from": "step from the library",
    "manual": "step that asks",
    "uses": "step that uses a built-in",
    "run": "step that runs a command",
}


def _step_kind(value: object) -> str | None:
    keys = value if isinstance(value, dict) else ()
    return next((kind for key, kind in _KINDS.items() if key in keys), None)


def _step_kinds(*keys: str) -> Discriminator:
    listed = ", ".join(f"'{key}'" for key in keys)
    return Discriminator(
        _step_kind,
        custom_error_type="step_kind",
        custom_error_message=f"a step has one of the keys {listed}: what is it to do?",
    )


AnyStep = Annotated[
    Annotated[Run, Tag(_KINDS["run"])]
    | Annotated[Uses, Tag(_KINDS["uses"])]
    | Annotated[Manual, Tag(_KINDS["manual"])]
    | Annotated[SharedStep, Tag(_KINDS["from"])],
    _step_kinds("run", "uses", "manual", "from"),
]
LibraryStep = Annotated[
    Annotated[RunFields, Tag(_KINDS["run"])]
    | Annotated[UsesFields, Tag(_KINDS["uses"])]
    | Annotated[ManualFields, Tag(_KINDS["manual"])],
    _step_kinds("run", "uses", "manual"),
]
