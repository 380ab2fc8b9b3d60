"""The values that pass between the engine and who runs its steps: invocations, facts, decisions, results, the trail.

A state is a pure function of (runbook, inputs, facts, the step results so far): to resume a run is to replay its
recorded results through `vdbg_env.runbook.machine.advance`. The contracts of built-ins are here too.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import partial
from typing import Literal, TypeVar, assert_never

from vdbg_env.evidence import deaths
from vdbg_env.evidence.finding import Ended, Finding, Match, Observation
from vdbg_env.runbook import workload
from vdbg_env.runbook.expressions import Names, Value
from vdbg_env.runbook.model import (
    ArtifactRule,
    Builtin,
    Data,
    KillPolicy,
    Manual,
    Matcher,
    Next,
    OutputPolicy,
    Placement,
    Repeat,
    Run,
    Runbook,
    ServerDriver,
    Status,
    Step,
    Uses,
    Watch,
)
from vdbg_env.runbook.workload import Inputs, Workload

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
    """The result of one decision.

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
    """Where a run is: what went before, and the decision that waits for its result."""

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


# What expressions may name, and the values behind the names at each point of a run.


T = TypeVar("T")
Moment = Literal["before", "attempt", "after"]
"""Before a step is started, after one of its attempts, and when its outcomes are judged."""

_HOST: Names = dict.fromkeys(
    ("on", "nodes", "tools", "gpus", "driver", "cuda", "vllm", "torch", "interactive", "data_dir")
)
_WORKLOAD: Names = dict.fromkeys(("kind", "python", "vllm", "command", "ranks", "eager", "argv", "url"))
_RANK_NAMES: Names = dict.fromkeys(("dir", "number", "host"))
_ENDED: Names = dict.fromkeys(("by", "code", "signal", "core", "clean"))
_FIRST_ENDED: Names = {**_ENDED, "rank": None, "host": None, "folder": None}
_RANKS: Names = dict.fromkeys(("count", "failed", "lost", "hosts"))
_REQUESTS: Names = dict.fromkeys(("recorded", "ready", "sent", "answered", "refused", "failed"))
_MATCH: Names = {**dict.fromkeys(("count", "text", "line", "attempts")), "groups": None}
_ARTIFACT: Names = dict.fromkeys(("count", "size", "paths"))


def names_in(runbook: Runbook, step: Step, moment: Moment) -> Names:
    """Return the names an expression of `step` may use at that moment."""
    here: dict[str, Names | None] = {
        "inputs": dict.fromkeys(runbook.inputs),
        "host": _HOST,
        "workload": _WORKLOAD,
        "steps": _OfSteps(runbook.steps, partial(_record_names, runbook)),
    }
    if moment == "before":
        return {**here, "rank": _RANK_NAMES}
    if isinstance(step, Run):
        here["ended"] = _FIRST_ENDED
        here["ranks"] = _RANKS
        here["matched"] = dict.fromkeys(_matchers(runbook, step), _MATCH)
        here["artifacts"] = dict.fromkeys(step.artifacts, _ARTIFACT)
        here["attempts"] = None
        here["requests"] = _REQUESTS
    if moment == "after":
        here["results"] = _result_names(runbook, step)
    return here


def command_names(runbook: Runbook) -> Names:
    """Return the names that a command of the runbook may use: no step has run, and none is named."""
    return {"inputs": dict.fromkeys(runbook.inputs), "host": _HOST, "workload": _WORKLOAD}


def result_names(runbook: Runbook, step: Step) -> tuple[str, ...]:
    """Return the names of the results a step can have: its own, then those of its built-in or readers."""
    contracts = [runbook.catalogue.find(builtin.name, builtin.version) for builtin in _builtins(step)]
    own = () if isinstance(step, Manual) else step.results
    return tuple(dict.fromkeys([*own, *(name for contract in contracts if contract for name in contract.results)]))


def _result_names(runbook: Runbook, step: Step) -> Names | None:
    """Return the results as names; any is allowed after an unknown built-in, which has its own complaint."""
    if any(runbook.catalogue.find(builtin.name, builtin.version) is None for builtin in _builtins(step)):
        return None
    return dict.fromkeys(result_names(runbook, step))


def _builtins(step: Step) -> Sequence[Builtin]:
    match step:
        case Run():
            return step.readers
        case Uses():
            return (step,)
        case Manual():
            return ()
        case _:
            assert_never(step)


def values_before(runbook: Runbook, inputs: Inputs, facts: Facts, trail: Sequence[StepRecord]) -> dict[str, Value]:
    """Return the values known before a step is started."""
    return {
        "inputs": dict(inputs),
        "host": _host(facts),
        "workload": _workload(inputs.workload),
        "rank": {name: f"${{{{ rank.{name} }}}}" for name in _RANK_NAMES},  # `placed` fills them in
        "steps": _OfSteps(runbook.steps, partial(_record, trail)),
    }


def values_of_attempts(step: Run, observations: Sequence[Observation]) -> dict[str, Data]:
    """Return what conditions see of the attempts so far; how it ended is that of the last attempt's first failure."""
    requests = _requests(observations)
    last = deaths.last_attempt(observations)
    found = deaths.summary(last)
    first = found.first or (last[0] if last else None)
    ended = _ended(first.ended if first else None, well=not requests["failed"])
    return {
        "ended": {
            **ended,
            "rank": first.rank if first else None,
            "host": first.host if first else None,
            "folder": first.directory if first else "",
        },
        "ranks": {
            "count": found.count,
            "failed": list(found.failed),
            "lost": list(found.lost),
            "hosts": list(found.hosts),
        },
        "requests": requests,
        "matched": _matched(observations),
        "artifacts": {name: _artifacts(name, observations) for name in step.artifacts},
        "attempts": len({x.attempt for x in observations}),
    }


def values_of_results(runbook: Runbook, step: Step, result: StepResult) -> dict[str, Data]:
    """Return the typed results of a step's built-in or readers; one that was not found is absent, not empty."""
    known = set(result_names(runbook, step))
    return {"results": {name: value for name, value in result.results.items() if name in known}}  # type: ignore[misc]


def first_end(observations: Sequence[Observation]) -> Ended | None:
    """Return how the last attempt ended: with its first failure, else as its first rank did."""
    last = deaths.last_attempt(observations)
    first = deaths.first_failure(last) or (last[0] if last else None)
    return first.ended if first else None


def _host(facts: Facts) -> Data:
    tools = None if facts.tools is None else sorted(facts.tools)
    return {**{name: getattr(facts, name) for name in _HOST}, "tools": tools}


def _workload(known: Workload) -> Data:
    return {
        "kind": known.kind,
        "python": known.python,
        "vllm": known.kind == "vllm",
        "command": known.command or "",
        "ranks": known.ranks,
        "eager": known.eager,
        "argv": list(known.argv),
        "url": workload.url(known.argv),
    }


class _OfSteps(Mapping[str, T]):
    """Something of each step, made when it is asked for: an expression names few steps of many."""

    def __init__(self, steps: Sequence[Step], make: Callable[[Step], T]) -> None:
        self._steps = steps
        self._make = make

    def __getitem__(self, name: str) -> T:
        for step in self._steps:
            if step.id == name:
                return self._make(step)
        raise KeyError(name)

    def __iter__(self) -> Iterator[str]:
        return (step.id for step in self._steps)

    def __len__(self) -> int:
        return len(self._steps)


def _record_names(runbook: Runbook, step: Step) -> Names:
    return {
        "outcome": None,
        "visited": None,
        "skipped": None,
        "choice": None,
        "ended": _ENDED,
        "results": _result_names(runbook, step),
        "artifacts": dict.fromkeys(step.artifacts, _ARTIFACT) if isinstance(step, Run) else {},
    }


def _record(trail: Sequence[StepRecord], step: Step) -> Data:
    """Return what later steps see of a step; one not visited has an empty outcome, and `!=` needs no `has`."""
    record = next((x for x in reversed(trail) if x.step == step.id), None)
    artifacts: dict[str, Data] = {}
    if isinstance(step, Run):
        artifacts = {name: {"count": 0, "size": 0, "paths": []} for name in step.artifacts}
    return {
        "outcome": record.outcome.value if record and record.outcome else "",
        "visited": record is not None and record.skipped_because is None,
        "skipped": record is not None and record.skipped_because is not None,
        "choice": (record.choice if record else None) or "",
        "ended": _ended(record.ended if record else None),
        "results": dict(record.results) if record else {},
        "artifacts": {**artifacts, **(dict(record.artifacts) if record else {})},
    }


def _requests(observations: Sequence[Observation]) -> dict[str, Data]:
    """Return the counts of the last attempt, over its ranks; all are 0 where no requests were to be sent."""
    last = max((x.attempt for x in observations), default=0)
    replays = [x.requests for x in observations if x.attempt == last and x.requests is not None]
    counts: dict[str, Data] = {
        name: sum(getattr(x, name) for x in replays) for name in ("recorded", "sent", "answered", "refused", "failed")
    }
    return {**counts, "ready": any(x.ready for x in replays)}


def _ended(ended: Ended | None, *, well: bool = True) -> dict[str, Data]:
    """Return how it ended; `clean` needs a `well` server too, none of whose requests failed."""
    if ended is None:
        return {"by": "", "code": None, "signal": None, "core": False, "clean": False}
    return {
        "by": ended.by.value,
        "code": ended.code,
        "signal": ended.signal,
        "core": ended.core,
        "clean": ended.clean and well,
    }


def _matched(observations: Sequence[Observation]) -> Data:
    """Return each matcher that matched in any attempt or rank: its text and groups are those of the last attempt.

    Of its ranks they are those of the one that failed first, where it matched there: the others' words are effects.
    """
    found: dict[str, list[tuple[int, Match]]] = {}
    first = deaths.first_failure(deaths.last_attempt(observations))
    for seen in sorted(observations, key=lambda x: (x.attempt, x is first, x.duration_s, x.rank)):
        for name, matches in seen.matched.items():
            found.setdefault(name, []).extend((seen.attempt, match) for match in matches)
    return {
        name: {
            "count": len(pairs),
            "text": pairs[-1][1].text,
            "line": pairs[-1][1].line,
            "groups": dict(pairs[-1][1].groups),
            "attempts": len({attempt for attempt, _ in pairs}),
        }
        for name, pairs in found.items()
        if pairs
    }


def _artifacts(name: str, observations: Sequence[Observation]) -> Data:
    files = [file for seen in observations for file in seen.artifacts.get(name, ())]
    return {"count": len(files), "size": sum(x.size for x in files), "paths": [x.path for x in files]}


def _matchers(runbook: Runbook, step: Run) -> tuple[str, ...]:
    return tuple(dict.fromkeys((*runbook.matchers, *step.matchers)))
