"""The frozen value of a linted runbook: its inputs, commands and steps, and where each step leads.

Texts that hold expressions (`when`, `condition`, everything with `${{ }}`) stay text here: they are compiled by
`vdbg_env.runbook.expressions.cel` in lint and evaluated by `vdbg_env.runbook.machine.transitions`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Literal

from vdbg_env.evidence.finding import HowKnown, Level
from vdbg_env.runbook.invocation import ArtifactRule, KillPolicy, Matcher, OutputPolicy, ServerDriver, Watch

Data = str | int | float | bool | None | list["Data"] | dict[str, "Data"]


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


@dataclass(frozen=True, kw_only=True)
class ToStep:
    """Go on at another step of the same runbook."""

    step: str


@dataclass(frozen=True, kw_only=True)
class ToRunbook:
    """Go on with another runbook, on the same workload; an outcome may name it by an expression."""

    runbook: str


@dataclass(frozen=True, kw_only=True)
class End:
    """Stop here."""


Next = ToStep | ToRunbook | End


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """One line of a step's switch: the first whose `when` holds is taken, and the last has none.

    With a `rule` it also makes a finding of that id; `message` and `location` may hold `${{ }}`.
    """

    status: Status
    next: Next
    when: str | None = None
    message: str | None = None
    rule: str | None = None
    level: Level = Level.NOTE
    location: str | None = None
    how_known: HowKnown = HowKnown.STEP_CHANGE
    confidence: float = 0.6
    next_step: str | None = None


@dataclass(frozen=True, kw_only=True)
class Skipped:
    """Where a step leads that was not run because its `if` did not hold or a tool is missing."""

    next: Next


@dataclass(frozen=True, kw_only=True)
class ArgvOverlay:
    """What a step changes of a command line: `wrap` goes before it, `remove` takes flags out, `append` adds.

    A removed flag goes with its value in all three spellings: `--flag value`, `--flag=value` and, for a flag that
    takes none, `--flag`.
    """

    append: tuple[str, ...] = ()
    remove: tuple[str, ...] = ()
    wrap: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Repeat:
    """Run a step up to `count` times, and no more once `until` holds after an attempt."""

    count: int = 1
    until: str | None = None


@dataclass(frozen=True, kw_only=True)
class Builtin:
    """A built-in step or reader of `vdbg_env.runbook.catalogue`, with its parameters before substitution."""

    name: str
    version: int
    parameters: Mapping[str, Data] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"builtin/{self.name}@v{self.version}"


@dataclass(frozen=True, kw_only=True)
class StepBase:
    """What every step has; `condition` is its `if`, `tools` what the host must have for it to be run."""

    id: str
    title: str
    explanation: str = ""
    condition: str | None = None
    skipped: Skipped | None = None
    tools: tuple[str, ...] = ()
    outcomes: tuple[Outcome, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Run(StepBase):
    """Start a command of the runbook with a delta; `readers` turn what it left behind into results and findings.

    `engine_args` are arguments of vLLM's engine by their Python names; `workload.engine_args` says how they
    reach a command line of vLLM's own and a script that builds its engine itself.
    """

    command: str
    env: Mapping[str, str | None] = field(default_factory=dict)
    argv: ArgvOverlay = field(default_factory=ArgvOverlay)
    engine_args: Mapping[str, Data] = field(default_factory=dict)
    repeat: Repeat = field(default_factory=Repeat)
    timeout_s: float | None = None
    kill: KillPolicy = field(default_factory=KillPolicy)
    watch: Watch = field(default_factory=Watch)
    output: OutputPolicy = field(default_factory=OutputPolicy)
    matchers: tuple[Matcher, ...] = ()
    artifacts: tuple[ArtifactRule, ...] = ()
    readers: tuple[Builtin, ...] = ()
    results: Mapping[str, str] = field(default_factory=dict)
    verify_env: bool = True


@dataclass(frozen=True, kw_only=True)
class Uses(StepBase):
    """Let the tool itself do something: check the host, read cores, write the report."""

    builtin: Builtin
    timeout_s: float | None = None
    results: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Manual(StepBase):
    """Ask a person; after `timeout_s` seconds, or at once in batch, `default` is taken."""

    prompt: str
    choices: Mapping[str, Next]
    default: str
    timeout_s: float


Step = Run | Uses | Manual


@dataclass(frozen=True, kw_only=True)
class Input:
    """A typed value the user gives; a sensitive one is masked and kept out of the record."""

    name: str
    type: Literal["string", "int", "float", "bool", "path", "array"]
    description: str = ""
    required: bool = False
    default: Data = None
    from_env: str | None = None
    sensitive: bool = False


@dataclass(frozen=True, kw_only=True)
class Command:
    """A command line that steps start with their deltas; `argv` is a list, or one `${{ }}` that gives a list."""

    name: str
    argv: str | tuple[str, ...]
    env: Mapping[str, str | None] = field(default_factory=dict)
    driver: ServerDriver | None = None


@dataclass(frozen=True, kw_only=True)
class Requires:
    """What must be there before anything starts; `free_disk` in bytes."""

    tools: tuple[str, ...] = ()
    free_disk: int | None = None
    gpu: bool = False
    lineinfo: bool = False


@dataclass(frozen=True, kw_only=True)
class Runbook:
    """A whole runbook; the first step is where it starts."""

    name: str
    title: str
    description: str = ""
    labels: tuple[str, ...] = ()
    sources: tuple[str, ...] = ()  # what its remedies stand on, each with a version or a date
    file: str = ""
    digest: str = ""  # SHA-256 over the texts of the file and the shared steps it takes
    requires: Requires = field(default_factory=Requires)
    inputs: Mapping[str, Input] = field(default_factory=dict)
    matchers: Mapping[str, Matcher] = field(default_factory=dict)
    commands: Mapping[str, Command] = field(default_factory=dict)
    steps: tuple[Step, ...]

    def step(self, step_id: str) -> Step:
        """Return the step called `step_id`; lint has proven that every name used is there."""
        return next(step for step in self.steps if step.id == step_id)
