"""The shape of one step of a runbook, as pydantic models.

Sources of the terms: Actions' `env`, `if`, `uses` and `with`, SSM Automation's `next`, troubleshoot.sh's `outcomes` and
`when`, Tekton's `results`, SARIF's `rule`, `level` and `location`.
"""

from __future__ import annotations

from typing import Annotated, Any, Generic, Literal, TypeVar

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    StringConstraints,
    Tag,
    WithJsonSchema,
    model_validator,
)

from vdbg_env.runbook import quantities


def _name(value: object) -> object:
    if isinstance(value, str) and not _is_name(value):
        raise ValueError(f"{value!r} is not a name: small letters, digits and '-' or '_', a letter first")
    return value


def _runbook_name(value: object) -> object:
    return value if isinstance(value, str) and value.startswith("${{") and value.endswith("}}") else _name(value)


def _is_name(text: str) -> bool:
    return text.isascii() and text[:1].isalpha() and text == text.lower() and text.replace("-", "").replace(
        "_", ""
    ).isalnum() and len(text) <= 60  # fmt: skip


def variable_name(value: object) -> object:
    if isinstance(value, str) and not (
        value.isascii() and value.replace("_", "a").isalnum() and not value[0].isdigit()
    ):
        raise ValueError(f"{value!r} is not the name of an environment variable")
    return value


def _env_value(value: object) -> object:
    if value is not None and not isinstance(value, str):
        raise ValueError(f'the value of a variable is text: write it in quotes, "{str(value).lower()}"')
    if isinstance(value, str) and "\0" in value:
        raise ValueError("the value of a variable cannot hold a NUL")
    return value


Text = Annotated[str, StringConstraints(min_length=1)]
Name = Annotated[str, BeforeValidator(_name), WithJsonSchema({"type": "string", "pattern": "^[a-z][a-z0-9_-]{0,59}$"})]
RunbookName = Annotated[
    str,
    BeforeValidator(_runbook_name),
    WithJsonSchema({"type": "string", "pattern": r"^([a-z][a-z0-9_-]{0,59}|\$\{\{.*\}\})$"}),
]
Condition = Annotated[str, StringConstraints(min_length=1), WithJsonSchema({"type": "string", "description": "CEL"})]
Duration = Annotated[
    float,
    BeforeValidator(quantities.duration_s),
    WithJsonSchema({"type": "string", "pattern": quantities.DURATION, "examples": ["30s", "15m", "1h30m"]}),
]
Size = Annotated[
    int,
    BeforeValidator(quantities.size_bytes),
    WithJsonSchema({"type": "string", "pattern": quantities.SIZE, "examples": ["500MB", "2GiB"]}),
]
Env = dict[
    Annotated[str, BeforeValidator(variable_name)],
    Annotated[str | None, BeforeValidator(_env_value), WithJsonSchema({"type": ["string", "null"]})],
]


class Part(BaseModel):
    """Every part of the file: no key that is not known, no value that is not of its type."""

    model_config = ConfigDict(extra="forbid", strict=True)


class Branch(Part):
    """Go on with another runbook on the same workload; an outcome may name it by one expression."""

    runbook: RunbookName


Target = Annotated[
    Annotated[Name, Tag("next step")] | Annotated[Branch, Tag("next runbook")],
    Discriminator(lambda value: "next runbook" if isinstance(value, dict | Branch) else "next step"),
]
"""The id of a step, `end`, or another runbook."""


class Outcome(Part):
    """What follows when this outcome is the first whose `when` holds."""

    when: Condition | None = None
    message: Text | None = None
    next: Target | None = None
    rule: Annotated[str, StringConstraints(pattern=r"^[A-Z][A-Z0-9_.-]*$")] | None = None
    level: Literal["error", "warning", "note"] | None = None
    location: Text | None = None
    how_known: Literal["gpu-core", "sanitizer", "driver", "kernel-log", "step-change", "log", "host-check"] | None = (
        None
    )
    confidence: Annotated[float, Field(ge=0, le=1, strict=False)] | None = None
    next_step: Text | None = None


Follows = TypeVar("Follows")


class ByStatus(Part, Generic[Follows]):
    """What follows from each status a step can have."""

    # `pass` is a word of Python's, so that one field is spelt otherwise than its key.
    pass_: Annotated[Follows | None, Field(alias="pass")] = None
    warn: Follows | None = None
    fail: Follows | None = None
    reproduced: Follows | None = None
    not_reproduced: Follows | None = None
    hang: Follows | None = None
    unresolved: Follows | None = None
    error: Follows | None = None


class OutcomeEntry(ByStatus[Outcome]):
    """One line of the switch: a status, and what follows from it."""

    model_config = ConfigDict(json_schema_extra={"minProperties": 1, "maxProperties": 1})

    @model_validator(mode="after")
    def _one_status(self) -> OutcomeEntry:
        given = self.model_fields_set
        if len(given) != 1 or getattr(self, next(iter(given))) is None:
            raise ValueError("an outcome is one status with what follows: '- reproduced: {when: ..., next: ...}'")
        return self


class NextByStatus(ByStatus[Target]):
    """Where each status leads; `otherwise` for those not named."""

    otherwise: Target | None = None


def _next_kind(value: Any) -> str:
    if isinstance(value, dict):
        return "next runbook" if "runbook" in value else "next by status"
    match value:
        case Branch():
            return "next runbook"
        case NextByStatus():
            return "next by status"
        case _:
            return "next step"


StepNext = Annotated[
    Annotated[Name, Tag("next step")]
    | Annotated[Branch, Tag("next runbook")]
    | Annotated[NextByStatus, Tag("next by status")],
    Discriminator(_next_kind),
]


class Skipped(Part):
    """Where a step leads that was not run."""

    next: Target


class StepRequires(Part):
    """What the host must have for this step; without it the step is skipped, and the record says so."""

    tools: list[Text] = []


class ArgvOverlay(Part):
    """What a step changes of the command line."""

    append: list[str] = []
    remove: list[Text] = []
    wrap: list[str] = []


class Matcher(Part):
    """A named pattern (Python `re` on bytes) that is looked for in every line as it comes."""

    regex: Text
    source: Literal["output", "kernel-log"] = "output"
    take: Literal["first", "last", "all"] = "first"
    stop: bool = False


class Kill(Part):
    """How the process tree is ended: the signal, then SIGKILL to all that is left."""

    signal: Literal["SIGTERM", "SIGINT", "SIGABRT", "SIGQUIT", "SIGKILL", "SIGUSR1", "SIGUSR2", "SIGHUP"] = "SIGTERM"
    grace: Duration = 15.0


class Watch(Part):
    """When silence counts as a hang, and what is done about it."""

    output_idle: Duration | None = None
    gpu_idle: Duration | None = None
    gpu_pinned: Duration | None = None
    on_hang: list[Literal["py-spy", "gpu-coredump", "stacks"]] = ["stacks"]
    dump_wait: Duration = 300.0


class Output(Part):
    """How much of the output is kept."""

    limit: Size = 2 << 30
    keep: Literal["head+tail", "head", "tail"] = "head+tail"


class ArtifactRule(Part):
    """Files to collect: a glob under the folder of the rank."""

    path: Text
    required: bool = False
    max_size: Size | None = None


class Repeat(Part):
    """Run up to `count` times, no more once `until` holds."""

    count: Annotated[int, Field(ge=1, le=1000)] = 1
    until: Condition | None = None


class Reader(Part):
    """A built-in that turns what the run left behind into results and findings."""

    uses: Text
    with_: Annotated[dict[str, Any], Field(alias="with")] = {}


class Step(Part):
    """What every step may say."""

    name: Text | None = None
    explain: Text | None = None
    if_: Annotated[Condition | None, Field(alias="if")] = None
    requires: StepRequires | None = None
    outcomes: Annotated[list[OutcomeEntry], Field(min_length=1)] | None = None
    next: StepNext | None = None
    skipped: Skipped | None = None


class Delta(Step):
    """A step that changes a command of the runbook, and how it is run."""

    env: Env = {}
    argv: ArgvOverlay | None = None
    engine_args: dict[Name, Any] = {}
    repeat: Repeat | None = None
    timeout: Duration | None = None
    kill: Kill | None = None
    watch: Watch | None = None


class RunFields(Delta):
    """A step that starts a command of the runbook with a delta."""

    run: Name
    output: Output | None = None
    matchers: dict[Name, Matcher] = {}
    artifacts: dict[Name, ArtifactRule] = {}
    readers: list[Reader] = []
    results: dict[Name, Text] = {}
    verify_env: bool = True


class UsesFields(Step):
    """A step done by the tool itself."""

    uses: Text
    with_: Annotated[dict[str, Any], Field(alias="with")] = {}
    timeout: Duration | None = None
    results: dict[Name, Text] = {}


class Question(Part):
    """What is asked, what may be answered, and what is taken when nobody answers."""

    prompt: Text
    choices: Annotated[dict[Name, Target], Field(min_length=1)]
    timeout: Duration
    default: Name


class ManualFields(Part):
    """A step that asks a person, and ends by itself."""

    name: Text | None = None
    explain: Text | None = None
    if_: Annotated[Condition | None, Field(alias="if")] = None
    manual: Question
    skipped: Skipped | None = None


class RunStep(RunFields):
    """A step of a runbook that starts a command."""

    id: Name


class UsesStep(UsesFields):
    """A step of a runbook that the tool does itself."""

    id: Name


class ManualStep(ManualFields):
    """A step of a runbook that asks."""

    id: Name


class SharedStep(Delta):
    """A step taken from runbooks/lib; what is said here goes before what is said there, `env` key by key."""

    id: Name
    from_: Annotated[Name, Field(alias="from")]
    run: Name | None = None
    with_: Annotated[dict[str, Any], Field(alias="with")] = {}


_TAGS = {
    "run": "step that runs a command",
    "uses": "step that uses a built-in",
    "manual": "step that asks",
    "from": "step from the library",
}


def _step_kind(value: Any) -> str | None:
    kinds = [key for key in ("from", "manual", "uses", "run") if isinstance(value, dict) and key in value]
    return _TAGS[kinds[0]] if kinds else None


def _kinds(*names: str) -> Discriminator:
    listed = ", ".join(f"'{name}'" for name in names)
    return Discriminator(
        _step_kind,
        custom_error_type="step_kind",
        custom_error_message=f"a step has one of the keys {listed}: what is it to do?",
    )


AnyStep = Annotated[
    Annotated[RunStep, Tag(_TAGS["run"])]
    | Annotated[UsesStep, Tag(_TAGS["uses"])]
    | Annotated[ManualStep, Tag(_TAGS["manual"])]
    | Annotated[SharedStep, Tag(_TAGS["from"])],
    _kinds("run", "uses", "manual", "from"),
]
LibraryStep = Annotated[
    Annotated[RunFields, Tag(_TAGS["run"])]
    | Annotated[UsesFields, Tag(_TAGS["uses"])]
    | Annotated[ManualFields, Tag(_TAGS["manual"])],
    _kinds("run", "uses", "manual"),
]
