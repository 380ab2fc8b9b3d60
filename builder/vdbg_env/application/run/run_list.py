"""All recorded runs, from an index of the finished ones: a line for each, or all that was recorded of each."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import PurePath
from typing import Any, Protocol, TypeVar

from vdbg_env.application.run.history import Condition, RecordedRun, RecordedStep, condition, lead_finding, recorded
from vdbg_env.common.errors import BadInput
from vdbg_env.record.event_log import damaged, summarize
from vdbg_env.record.run_directory import RunDirectory, RunHead
from vdbg_env.record.runs import RunIndex, runs_home


class Listed(Protocol):
    """What a list shows of a run; it is kept in the index once the run has finished."""

    @property
    def condition(self) -> Condition:
        """Whether it runs, has finished, or was cut short."""
        ...


Entry = TypeVar("Entry", bound=Listed)
Run = TypeVar("Run")


@dataclass(frozen=True, kw_only=True)
class RunLine:
    """What a list shows of a run: read from its head, the last line of its log, and its report."""

    run: str
    condition: Condition
    verdict: str | None
    steps: int
    elapsed_s: float
    found: str | None
    started: str = ""


@dataclass(frozen=True, kw_only=True)
class Selection:
    """Which runs a list shows: the `last` ones, those begun `since` a time (seconds since the epoch), or failed."""

    last: int | None = None
    since: float | None = None
    failed: bool = False

    def of(self, runs: Sequence[Run], started: Callable[[Run], str], verdict: Callable[[Run], str | None]) -> list[Run]:
        """Return the runs that are wanted, the oldest first."""
        found = [run for run in runs if not self.failed or verdict(run) in CRASHED]
        found = [run for run in found if self.since is None or _seconds(started(run)) >= self.since]
        return found if self.last is None else found[max(0, len(found) - self.last) :]


ALL = Selection()
CRASHED = {"reproduced", "hang", "failed"}


@dataclass(frozen=True, kw_only=True)
class RunList:
    """The runs of the folder of all runs, the oldest first, and why other records cannot be read."""

    runs: tuple[RecordedRun, ...]
    unreadable: tuple[BadInput, ...]


def list_lines(
    environment: Mapping[str, str], selection: Selection = ALL
) -> tuple[tuple[RunLine, ...], tuple[BadInput, ...]]:
    """Return a line for each run of the folder of all runs, the oldest first, and why other records cannot be read."""
    found, unreadable = entries(environment, "line", _line, asdict, _line_from_index)
    return tuple(selection.of(found, lambda run: run.started, lambda run: run.verdict)), unreadable


def list_runs(environment: Mapping[str, str], selection: Selection = ALL) -> RunList:
    """Return everything that was recorded of each run of the folder of all runs."""
    found, unreadable = entries(environment, "run", recorded, _to_index, _from_index)
    runs = selection.of(found, lambda run: run.head.started, lambda run: run.verdict)
    return RunList(runs=tuple(runs), unreadable=unreadable)


def _seconds(started: str) -> float:
    """Return a time in seconds since the epoch; of a record that has none, the first of all times."""
    try:
        return datetime.fromisoformat(started).timestamp()
    except (ValueError, OverflowError, OSError):
        return float("-inf")


def entries(
    environment: Mapping[str, str],
    kind: str,
    read: Callable[[RunDirectory], Entry],
    to_index: Callable[[Entry], Mapping[str, Any]],
    from_index: Callable[[Mapping[str, Any]], Entry],
) -> tuple[tuple[Entry, ...], tuple[BadInput, ...]]:
    """Return what `read` gives of each run, the oldest first, from the index where it is known, and what is damaged."""
    home = runs_home(environment)
    index = RunIndex(home, kind)
    found: list[Entry] = []
    unreadable = []
    for name, stamp in index.names():
        if (known := index.get(name, stamp)) is not None:
            with suppress(TypeError, KeyError, ValueError, AttributeError):  # another program's: read again
                found.append(from_index(known))
                continue
        try:
            entry = read(RunDirectory(home / name))
        except BadInput as error:
            unreadable.append(error)
            continue
        if entry.condition == "finished":  # the others may change without a word in their files
            index.put(name, stamp, to_index(entry))
        found.append(entry)
    index.save()
    return tuple(found), tuple(unreadable)


def _line(run: RunDirectory) -> RunLine:
    head = run.read_head()
    log = summarize(run.events)
    finish = log.last.data.get("finish") if log.last and log.last.kind == "run_finished" else None
    try:
        return RunLine(
            run=head.run,
            condition="finished" if finish is not None else condition(run, log.last),
            verdict=None if finish is None else finish["verdict"],
            steps=log.steps,
            elapsed_s=log.last.elapsed_s if log.last else 0.0,
            found=lead_finding(run),
            started=head.started,
        )
    except (KeyError, TypeError, AttributeError) as error:
        raise damaged(f"an event of {run.events}") from error


def _line_from_index(known: Mapping[str, Any]) -> RunLine:
    line = RunLine(**known)
    texts = (line.run, line.condition, line.verdict or "", line.found or "", line.started)
    if not all(isinstance(text, str) for text in texts) or not isinstance(line.elapsed_s + line.steps, float | int):
        raise TypeError("not a line of a list")
    return line


def _to_index(run: RecordedRun) -> Mapping[str, Any]:
    return {**asdict(run), "directory": str(run.directory)}


def _from_index(known: Mapping[str, Any]) -> RecordedRun:
    head = {**known["head"], "workload": tuple(known["head"]["workload"])}
    steps = tuple(RecordedStep(**step) for step in known["steps"])
    whole = {**known, "directory": PurePath(known["directory"]), "head": RunHead(**head), "steps": steps}
    return RecordedRun(**whole)
