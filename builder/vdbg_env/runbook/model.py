"""A runbook: the frozen value, which is the shape of its file too, one declaration of each concept."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Annotated, Any, Literal, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    GetCoreSchemaHandler,
    StrictBool,
    StrictInt,
    StringConstraints,
    Tag,
    TypeAdapter,
    ValidationInfo,
    WithJsonSchema,
    model_validator,
)
from pydantic.json_schema import SkipJsonSchema
from pydantic_core import CoreSchema, PydanticKnownError, core_schema

from vdbg_env.evidence.finding import HowKnown, Level

_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_BYTES = {
    "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12,
    "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40,
}  # fmt: skip
DURATION = r"^([0-9]+(\.[0-9]+)?(ms|s|m|h|d))+$"
SIZE = r"^[0-9]+(\.[0-9]+)?\s?(B|KB|MB|GB|TB|KiB|MiB|GiB|TiB)$"
MAX_DURATION_S = 30 * 86400.0


def duration_s(text: object) -> float:
    """Return a duration in seconds; raises ValueError with advice."""
    if not isinstance(text, str):
        raise ValueError(f"a duration needs its unit: write '{text}s', '{text}m' or '{text}h'")
    parts = re.findall(r"([0-9]+(?:\.[0-9]+)?)(ms|s|m|h|d)", text)
    if not re.match(DURATION, text) or len(text) > 40:
        raise ValueError(f"{text!r} is not a duration such as '30s', '15m' or '1h30m'")
    seconds = sum(float(number) * _SECONDS[unit] for number, unit in parts)
    if not 0 < seconds <= MAX_DURATION_S:
        raise ValueError(f"{text!r} is not between 1ms and 30d")
    return seconds


def size_bytes(text: object) -> int:
    """Return a size in bytes; raises ValueError with advice."""
    if not isinstance(text, str):
        raise ValueError(f"a size needs its unit: write '{text}MiB' or '{text}GiB'")
    found = re.match(r"^([0-9]+(?:\.[0-9]+)?)\s?([KMGT]i?B|B)$", text)
    if not found or len(text) > 40:
        raise ValueError(f"{text!r} is not a size such as '500MB' or '2GiB'")
    return int(float(found[1]) * _BYTES[found[2]])


def duration_text(seconds: float) -> str:
    """Return a duration as people write it: `90` as `1m30s`."""
    if seconds < 1:
        return f"{seconds * 1000:g}ms"
    text, rest = "", seconds
    for unit in ("d", "h", "m"):
        count, rest = divmod(rest, _SECONDS[unit])
        text += f"{count:g}{unit}" if count else ""
    return text + (f"{rest:g}s" if rest or not text else "")


def size_text(count: int) -> str:
    """Return a size in the largest binary unit that leaves a whole or short number."""
    for unit in ("TiB", "GiB", "MiB", "KiB"):
        if count >= _BYTES[unit]:
            return f"{count / _BYTES[unit]:.4g}{unit}"
    return f"{count}B"


# The kinds of value that a runbook file holds: names, durations, sizes, environments, places to continue.


NAME = "[a-z][a-z0-9_-]{0,59}"
Data = str | int | float | bool | None | list["Data"] | dict[str, "Data"]


class Part(BaseModel):
    """A part of a runbook: immutable, and without a key that is not declared."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", validate_by_name=True, validate_by_alias=True, defer_build=True
    )

    @model_validator(mode="before")
    @classmethod
    def _null_is_absent(cls, given: Any, info: ValidationInfo) -> Any:
        if not info.context or not isinstance(given, dict):
            return given
        known = {field.alias or name for name, field in cls.model_fields.items()}
        return {key: value for key, value in given.items() if value is not None or key not in known}


def is_name(text: str) -> bool:
    """Return whether a text can name a runbook, a step, an input and the like."""
    return re.fullmatch(NAME, text) is not None


def _name(text: str) -> str:
    if not is_name(text):
        raise ValueError(f"{text!r} is not a name: small letters, digits and '-' or '_', a letter first")
    return text


def _runbook_name(text: str) -> str:
    return text if text.startswith("${{") and text.endswith("}}") else _name(text)


def _variable(text: str) -> str:
    if not (text.isascii() and text.replace("_", "a").isalnum() and not text[0].isdigit()):
        raise ValueError(f"{text!r} is not the name of an environment variable")
    return text


def _variable_value(value: object) -> object:
    if value is not None and not isinstance(value, str):
        raise ValueError(f'the value of a variable is text: write it in quotes, "{str(value).lower()}"')
    if isinstance(value, str) and "\0" in value:
        raise ValueError("the value of a variable cannot hold a NUL")
    return value


def _duration(value: object, info: ValidationInfo) -> object:
    return duration_s(value) if info.context else value


def _size(value: object, info: ValidationInfo) -> object:
    return size_bytes(value) if info.context else value


def _not_in_file(value: object, info: ValidationInfo) -> object:
    if info.context:
        raise PydanticKnownError("extra_forbidden")
    return value


Text = Annotated[str, StringConstraints(min_length=1)]
Count = Annotated[StrictInt, Field(ge=1, le=1000)]
Condition = Annotated[Text, WithJsonSchema({"type": "string", "description": "CEL"})]
Name = Annotated[str, AfterValidator(_name), WithJsonSchema({"type": "string", "pattern": f"^{NAME}$"})]
RunbookName = Annotated[
    str, AfterValidator(_runbook_name), WithJsonSchema({"type": "string", "pattern": rf"^({NAME}|\$\{{\{{.*\}}\}})$"})
]
VariableName = Annotated[str, AfterValidator(_variable)]
Env = Mapping[
    VariableName, Annotated[str | None, BeforeValidator(_variable_value), WithJsonSchema({"type": ["string", "null"]})]
]
Values = Mapping[Name, Any]

# A file has durations and sizes with their unit; a program has seconds and bytes.
Seconds = Annotated[
    float,
    BeforeValidator(_duration),
    WithJsonSchema({"type": "string", "pattern": DURATION, "examples": ["30s", "15m", "1h30m"]}),
]
Bytes = Annotated[
    int,
    BeforeValidator(_size),
    WithJsonSchema({"type": "string", "pattern": SIZE, "examples": ["500MB", "2GiB"]}),
]


class Written:
    """Pydantic metadata: how a file writes a part, and how to make the part of that; the part itself passes."""

    def __init__(self, form: Any, read: Callable[[Any], Part]) -> None:
        self.form = form
        self.read = read

    def __get_pydantic_core_schema__(self, _source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        written = core_schema.no_info_after_validator_function(self.read, handler.generate_schema(self.form))
        return core_schema.no_info_wrap_validator_function(
            lambda value, inner: value if isinstance(value, Part) else inner(value),
            written,
            serialization=core_schema.plain_serializer_function_ser_schema(lambda part: part.model_dump()),
        )


T = TypeVar("T")
FromKey = Annotated[T, SkipJsonSchema(), BeforeValidator(_not_in_file)]
"""A value that the file has as the key of the part."""


class Named(Part):
    """A part that its file keeps in a mapping, under its name."""

    name: FromKey[str] = ""


NamedPart = TypeVar("NamedPart", bound=Named)


def _with_names(parts: Mapping[str, NamedPart]) -> Mapping[str, NamedPart]:
    return {name: part.model_copy(update={"name": name}) for name, part in parts.items()}


ByName = Annotated[Mapping[Name, NamedPart], AfterValidator(_with_names)]


# How a command is run: what ends it, what counts as a hang, what of its output and files is kept.


HangAction = Literal["py-spy", "gpu-coredump", "stacks", "nccl-ras"]
Signal = Literal["SIGTERM", "SIGINT", "SIGABRT", "SIGQUIT", "SIGKILL", "SIGUSR1", "SIGUSR2", "SIGHUP"]


class KillPolicy(Part):
    """How a process tree is ended: the signal, then SIGKILL to all that is left after the grace."""

    signal: Signal = "SIGTERM"
    grace_s: Annotated[Seconds, Field(alias="grace")] = 15.0


class Watch(Part):
    """When silence counts as a hang, and what is done about it."""

    output_idle_s: Annotated[Seconds | None, Field(alias="output_idle")] = None
    gpu_idle_s: Annotated[Seconds | None, Field(alias="gpu_idle")] = None
    gpu_pinned_s: Annotated[Seconds | None, Field(alias="gpu_pinned")] = None
    on_hang: tuple[HangAction, ...] = ("stacks",)
    dump_wait_s: Annotated[Seconds, Field(alias="dump_wait")] = 300.0


class OutputPolicy(Part):
    """How much of the output is kept; beyond the limit the middle is dropped, and reported."""

    limit: Bytes = 2 << 30
    keep: Literal["head+tail", "head", "tail"] = "head+tail"


class OnFirstFailure(Part):
    """How long the other ranks run on after the first one failed; longer while a dump of theirs is growing."""

    wait_s: Annotated[Seconds, Field(alias="wait")] = 30.0


class Placement(Part):
    """How many ranks a command has: `per_node` on each of `nodes`.

    The command line and an allocation are stronger than what is written here.
    """

    nodes: Count | None = None
    per_node: Count | None = None
    on_first_failure: OnFirstFailure = OnFirstFailure()

    @property
    def ranks(self) -> int:
        """How many ranks that makes."""
        return (self.nodes or 1) * (self.per_node or 1)


class Matcher(Named):
    """A named pattern that is searched in every line of the output; `stop` ends the step at the first match."""

    pattern: Annotated[Text, Field(alias="regex")]
    source: Literal["output", "kernel-log"] = "output"
    take: Literal["first", "last", "all"] = "first"
    stop: StrictBool = False


class ArtifactRule(Named):
    """Files to collect after a step: a glob under the folder of the rank."""

    glob: Annotated[Text, Field(alias="path")]
    required: StrictBool = False
    max_size: Bytes | None = None


class Ready(Part):
    """How a server reports that it is ready: this URL answers."""

    http: Text
    timeout_s: Annotated[Seconds, Field(alias="timeout")] = 900.0


SYNTHETIC = "synthetic"


class ServerDriver(Part):
    """How a server is driven: wait until it is ready, send the requests of `replay`, stop it.

    `replay` is a file, or the word `synthetic`: requests that are made for the server's model. A file of that name is
    `./synthetic`.

    `concurrency` bounds how many requests are under way at once; without it they are sent at their recorded times, or
    one after the other where the recording has none.
    """

    replay: Text
    ready: Ready
    concurrency: Count | Text | None = None


# A step of a runbook: what it runs, uses or asks, its outcomes, and where each leads.
#
# Texts that hold expressions (`when`, `if`, everything with `${{ }}`) stay text here: lint compiles them, and
# `vdbg_env.runbook.machine` evaluates them. Sources of the terms: Actions' `env`, `if`, `uses` and `with`, SSM
# Automation's `next`, troubleshoot.sh's `outcomes` and `when`, Tekton's `results`, SARIF's `rule`, `level`, `location`.


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


# The contracts of built-in steps and readers, and the catalogue of those that a runbook may name.
#
# A *step* is done by the tool itself (`uses:`); a *reader* turns what a run step left behind into typed results and
# findings (`readers:`). Each built-in declares its contract next to its work, in `vdbg_env.run.builtin_steps`. The
# catalogue is handed to the loader of runbooks: lint finds a misspelt result before anything starts.


Role = Literal["step", "reader"]
Kind = Literal["string", "int", "float", "bool", "list", "any"]


@dataclass(frozen=True, kw_only=True)
class BuiltinContract:
    """One built-in of one version: its parameters and results by name and kind.

    `by_hand` is what a person types for much the same without this program.
    """

    name: str
    version: int
    role: Role
    does: str
    parameters: Mapping[str, Kind] = field(default_factory=dict)
    results: Mapping[str, Kind] = field(default_factory=dict)
    by_hand: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Catalogue:
    """The built-ins that are available."""

    contracts: tuple[BuiltinContract, ...] = ()

    def find(self, name: str, version: int) -> BuiltinContract | None:
        """Return the contract of a built-in, None where there is none of that name and version."""
        return next((c for c in self.contracts if (c.name, c.version) == (name, version)), None)

    def names(self, role: Role) -> tuple[str, ...]:
        """Return how runbooks name the built-ins of a role."""
        return tuple(f"builtin/{c.name}@v{c.version}" for c in self.contracts if c.role == role)


TOOLS: tuple[str, ...] = (
    "compute-sanitizer",
    "cuda-gdb",
    "cuobjdump",
    "nvdisasm",
    "nvidia-smi",
    "py-spy",
    "dcgmi",
    "ncu",
    "nsys",
    "gdb",
    "git",
    "python3",
    "vllm",
)
"""Programs a runbook may require: those the tool knows how to look for and how to advise about."""


# A whole runbook: the file as it is written, and the value it becomes once its shared steps are taken in.


SCHEMA_FILE = "runbook-v1.schema.json"


class Input(Named):
    """A typed value that the user gives; a sensitive one is masked and kept out of the record."""

    type: Literal["string", "int", "float", "bool", "path", "array"]
    description: Text = ""
    required: StrictBool = False
    default: Any = None
    choices: tuple[Text, ...] = ()
    from_env: VariableName | None = None
    sensitive: StrictBool = False


class Command(Named):
    """A command line that steps start with their deltas: a list of words, or one `${{ }}` that gives a list.

    The steps inherit its limits.
    """

    argv: Text | Annotated[tuple[str, ...], Field(min_length=1)]
    driver: ServerDriver | None = None
    env: Env = Field(default_factory=dict)
    timeout_s: Annotated[Seconds | None, Field(alias="timeout")] = None
    kill: KillPolicy = KillPolicy()
    watch: Watch = Watch()
    output: OutputPolicy = OutputPolicy()
    placement: Placement = Placement()


class Requires(Part):
    """What must be there before anything starts."""

    tools: tuple[Text, ...] = ()
    free_disk: Bytes | None = None
    gpu: StrictBool = False
    lineinfo: StrictBool = False


class Metadata(Part):
    """What the file is called, what it is for, and the sources of its remedies."""

    name: Name
    title: Text
    description: Text = ""
    labels: tuple[Name, ...] = ()
    sources: tuple[Text, ...] = ()


class Spec(Part):
    """What a runbook does; the first step is where it starts."""

    requires: Requires = Requires()
    inputs: ByName[Input] = Field(default_factory=dict)
    matchers: ByName[Matcher] = Field(default_factory=dict)
    commands: ByName[Command] = Field(default_factory=dict)
    steps: Annotated[tuple[AnyStep, ...], Field(min_length=1)]


class RunbookFile(Part):
    """A runbook: steps that lead to one another by what was seen."""

    model_config = ConfigDict(title="vdbg-env runbook")

    apiVersion: Literal["vdbg-env/v1"]  # noqa: N815  Kubernetes' spelling
    kind: Literal["Runbook"]
    metadata: Metadata
    spec: Spec


class StepFile(Part):
    """A shared step of runbooks/lib, taken into a runbook by `from:`."""

    model_config = ConfigDict(title="vdbg-env shared step")

    apiVersion: Literal["vdbg-env/v1"]  # noqa: N815
    kind: Literal["Step"]
    metadata: Metadata
    spec: LibraryStep


class Runbook(Metadata, Spec):
    """A runbook with its shared steps; `digest` is the SHA-256 of its texts, `catalogue` has its built-ins."""

    steps: tuple[Step, ...]
    file: str = ""
    digest: str = ""
    catalogue: Catalogue = Catalogue()

    def step(self, step_id: str) -> Step:
        """Return the step called `step_id`; lint has proven that every name used is there."""
        return next(step for step in self.steps if step.id == step_id)


def json_schema() -> Mapping[str, Any]:
    """Return the published JSON Schema (draft 2020-12) of both kinds of file."""
    either = Annotated[RunbookFile | StepFile, Field(discriminator="kind")]
    schema = TypeAdapter(either).json_schema(by_alias=True)
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": f"https://vdbg-env.invalid/{SCHEMA_FILE}",
        "title": "vdbg-env runbook or shared step, version 1",
        **schema,
    }
