"""The values that pass between the engine and who runs its steps: invocations, facts, decisions, results, the trail.

A state is a pure function of (runbook, inputs, facts, the step results so far): to resume a run is to replay its
recorded results through `vdbg_env.runbook.machine.advance`. The contracts of built-ins are here too.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum

from vdbg_env.evidence.finding import Ended, Finding, Observation
from vdbg_env.runbook.model import (
    ArtifactRule,
    Builtin,
    Data,
    KillPolicy,
    Matcher,
    Next,
    OutputPolicy,
    Placement,
    Repeat,
    Runbook,
    ServerDriver,
    Status,
    Watch,
)
from vdbg_env.runbook.workload import Inputs

# What a step's workload is given in addition to what the user and the step ask for. vLLM requires setproctitle, which
# overwrites the environment that /proc shows, and with it what a worker really has, unless this is set.
OURS: Mapping[str, str] = {"SPT_NOENV": "1"}


@dataclass(frozen=True, kw_only=True)
class Invocation:
    """One start of one step. `env` is a delta: a value sets, None unsets; `argv` stays a list to the end.

    Without a `driver` the command runs to its end; a `server` has none while it is well, and is ended when one of the
    matchers named in `decisive` has matched and its grace is over. `listens` is its URL, where nothing may listen
    before it is started. `hooks` are variables by which our plug-in is loaded, and those of ranks; they are no part of
    the delta. `alarm` is a file, seen from a rank's folder: a rank that hangs has all others take their stacks by it.
    """

    step: str
    attempt: int
    argv: tuple[str, ...]
    env: Mapping[str, str | None] = field(default_factory=dict)
    hooks: Mapping[str, str] = field(default_factory=dict)
    base_argv: tuple[str, ...] = ()
    timeout_s: float | None = None
    kill: KillPolicy = field(default_factory=KillPolicy)
    watch: Watch = field(default_factory=Watch)
    output: OutputPolicy = field(default_factory=OutputPolicy)
    matchers: tuple[Matcher, ...] = ()
    artifacts: tuple[ArtifactRule, ...] = ()
    driver: ServerDriver | None = None
    server: bool = False
    listens: str = ""
    decisive: tuple[str, ...] = ()
    verify_env: bool = True
    alarm: str = ""
    placement: Placement = field(default_factory=Placement)


def placed(invocation: Invocation, *, attempt: int, rank: int, host: str, directory: str) -> Invocation:
    """Return the invocation for one attempt on one rank: the strings `${{ rank.* }}` in it become their values."""
    known = {"dir": directory, "number": str(rank), "host": host, "local": str(rank)}

    def filled(text: str) -> str:
        return _RANK.sub(lambda found: known[found[1]], text)

    return replace(
        invocation,
        attempt=attempt,
        argv=tuple(map(filled, invocation.argv)),
        base_argv=tuple(map(filled, invocation.base_argv)),
        env={name: None if value is None else filled(value) for name, value in invocation.env.items()},
        hooks={name: filled(value) for name, value in invocation.hooks.items()},
    )


_RANK = re.compile(r"\$\{\{ rank\.(dir|number|host|local) \}\}")


ResultValue = str | int | float | bool | list[str] | list[int] | list[float]


@dataclass(frozen=True, kw_only=True)
class Facts:
    """What is known of the place where steps will run, before the first one starts (expressions see it as `host`).

    A field of None was not looked up: conditions see null, and a step that needs a tool is not skipped for it. `cuda`
    is the release of the runtime the workload's Python brings, else of the toolkit; `lineinfo` serves `requires` alone.
    """

    on: str = "local"  # or docker, slurm, another plug-in's name, replay, plan; k8s in older records
    nodes: int = 1
    tools: frozenset[str] | None = None
    gpus: int | None = None
    driver: str | None = None
    cuda: str | None = None
    vllm: str | None = None
    torch: str | None = None
    lineinfo: bool | None = None
    interactive: bool = False
    nameless: bool = False  # no file may be named after its host, as `%h` asks drivers and libraries to
    python_path: str = ""  # PYTHONPATH as the workload would inherit it
    data_dir: str = ""  # the shipped runbooks/ folder as the workload sees it (its lib/ holds hooks a step may load)


@dataclass(frozen=True, kw_only=True)
class StepResult:
    """All that came of one decision.

    A RunStep gives the observations of every attempt and rank, and what its readers found; a builtin gives `results`
    and `findings`; AskPerson gives `choice`. `error` says why the tool itself failed (a builtin that could not work,
    a reader that met nonsense): it is never set for a crash of the workload.
    """

    step: str
    observations: tuple[Observation, ...] = ()
    results: Mapping[str, ResultValue] = field(default_factory=dict)
    findings: tuple[Finding, ...] = ()
    choice: str | None = None
    error: str | None = None
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class RunStep:
    """Start this; `invocation.attempt` is 1, and `engine.again` says whether a further attempt is wanted.

    The strings `${{ rank.dir }}`, `${{ rank.number }}` and `${{ rank.host }}` are still in the invocation:
    `invocation.placed` fills them in for one attempt on one rank.
    """

    invocation: Invocation
    repeat: Repeat
    readers: tuple[Builtin, ...] = ()


@dataclass(frozen=True, kw_only=True)
class UseBuiltin:
    """Let the built-in step `name` do its work; its parameters are final values."""

    step: str
    name: str
    version: int
    parameters: Mapping[str, Data] = field(default_factory=dict)
    timeout_s: float | None = None


@dataclass(frozen=True, kw_only=True)
class AskPerson:
    """Ask; answer with `default` after `timeout_s` seconds, and at once where no person can answer."""

    step: str
    prompt: str
    choices: tuple[str, ...]
    default: str
    timeout_s: float


@dataclass(frozen=True, kw_only=True)
class BranchTo:
    """Go on with another runbook: start it on the same workload, with `came_from` handed to `engine.start`."""

    runbook: str
    step: str
    came_from: tuple[str, ...]


class Verdict(StrEnum):
    """What the whole run says about the bug."""

    REPRODUCED = "reproduced"
    NOT_REPRODUCED = "not_reproduced"
    HANG = "hang"  # another failure than the one asked for: it hangs
    FAILED = "failed"  # another failure than the one asked for, or a check of the host
    PASSED = "passed"  # a runbook of checks alone, all well
    WARNED = "warned"
    INCONCLUSIVE = "inconclusive"
    OUT_OF_TIME = "out_of_time"


@dataclass(frozen=True, kw_only=True)
class Finish:
    """The run is over; `why` is one sentence."""

    verdict: Verdict
    why: str


Decision = RunStep | UseBuiltin | AskPerson | BranchTo | Finish


@dataclass(frozen=True, kw_only=True)
class StepRecord:
    """One visit of one step: how it ended and whether the bug showed are two fields, never one.

    `outcome` is None for a skipped step (`skipped_because` says why) and for an answered question.
    """

    step: str
    outcome: Status | None
    next: Next
    ended: Ended | None = None
    message: str | None = None
    skipped_because: str | None = None
    choice: str | None = None
    attempts: int = 0
    reproduced: int = 0  # attempts in which the outcome's `when` held: k of n
    results: Mapping[str, Data] = field(default_factory=dict)
    artifacts: Mapping[str, Data] = field(default_factory=dict)
    findings: tuple[Finding, ...] = ()
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class RunState:
    """Where a run stands: what went before, and the decision that waits for its result."""

    runbook: Runbook
    inputs: Inputs
    facts: Facts
    decision: Decision
    trail: tuple[StepRecord, ...] = ()
    came_from: tuple[str, ...] = ()

    @property
    def findings(self) -> tuple[Finding, ...]:
        """All findings so far, in the order they were made."""
        return tuple(finding for record in self.trail for finding in record.findings)
