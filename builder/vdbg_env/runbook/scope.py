"""What expressions may name, and the values behind the names at each point of a run."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Literal, TypeVar, assert_never

from vdbg_env.evidence import ranks
from vdbg_env.evidence.finding import Ended, Match, Observation
from vdbg_env.runbook import workload
from vdbg_env.runbook.expressions import Names, Value
from vdbg_env.runbook.model import Builtin, Data, Manual, Run, Runbook, Step, Uses
from vdbg_env.runbook.state import Facts, StepRecord, StepResult
from vdbg_env.runbook.workload import Inputs, Workload

T = TypeVar("T")
Moment = Literal["before", "attempt", "after"]
"""Before a step is started, after one of its attempts, and when its outcomes are judged."""

_HOST: Names = dict.fromkeys(
    ("on", "nodes", "tools", "gpus", "driver", "cuda", "vllm", "torch", "interactive", "data_dir")
)
_WORKLOAD: Names = dict.fromkeys(("kind", "python", "vllm", "command", "ranks", "eager", "argv", "url"))
_ENDED: Names = dict.fromkeys(("by", "code", "signal", "core", "clean"))
_FIRST_ENDED: Names = {**_ENDED, "rank": None, "host": None, "folder": None}
_RANKS: Names = dict.fromkeys(("count", "failed", "lost", "hosts"))
_REQUESTS: Names = dict.fromkeys(("recorded", "ready", "sent", "answered", "refused", "failed"))
_MATCH: Names = {**dict.fromkeys(("count", "text", "line", "attempts")), "groups": None}
_ARTIFACT: Names = dict.fromkeys(("count", "size", "paths"))


def names(runbook: Runbook, step: Step, moment: Moment) -> Names:
    """Return the names an expression of `step` may use at that moment."""
    here: dict[str, Names | None] = {
        "inputs": dict.fromkeys(runbook.inputs),
        "host": _HOST,
        "workload": _WORKLOAD,
        "steps": _OfSteps(runbook.steps, partial(_record_names, runbook)),
    }
    if moment == "before":
        return here
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
        "steps": _OfSteps(runbook.steps, partial(_record, trail)),
    }


def values_of_attempts(step: Run, observations: Sequence[Observation]) -> dict[str, Data]:
    """Return what conditions see of the attempts so far; how it ended is that of the last attempt's first failure."""
    requests = _requests(observations)
    last = ranks.last_attempt(observations)
    found = ranks.summary(last)
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


def first_failure(observations: Sequence[Observation]) -> Ended | None:
    """Return how the last attempt ended: with its first failure, else as its first rank did."""
    last = ranks.last_attempt(observations)
    first = ranks.first_failure(last) or (last[0] if last else None)
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
    first = ranks.first_failure(ranks.last_attempt(observations))
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
