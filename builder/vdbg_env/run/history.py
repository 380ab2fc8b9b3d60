"""Recorded runs: list, show, compare and prune them, as text and as JSON."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import PurePath
from typing import Any, Literal, Protocol, TypeVar

from gpucore.mangling import short_name
from vdbg_env.common.console import duration, json_text, printable, size_text
from vdbg_env.common.errors import BadInput, quoted
from vdbg_env.record.diff import Difference, end_in_words
from vdbg_env.record.dump_files import Retention, retired
from vdbg_env.record.event_log import Event, damaged, read_events, summarize, well_formed
from vdbg_env.record.run_directory import RunDirectory, RunHead, way_on
from vdbg_env.record.runs import RunFolder, RunIndex, remove_run, run_folders, runs_home

Condition = Literal["running", "finished", "interrupted", "cut off"]


@dataclass(frozen=True, kw_only=True)
class RecordedStep:
    """One step of a recorded run: its outcome, how its last attempt ended, how many there were, its duration.

    `outcome` is None for an answered question (`choice`), and in records made before outcomes were written down.
    """

    id: str
    outcome: str | None
    message: str | None
    choice: str | None
    attempts: int
    ended: Mapping[str, Any] | None
    duration_s: float
    error: str | None


@dataclass(frozen=True, kw_only=True)
class RecordedRun:
    """A run as it was recorded, even if its runbook has changed since.

    `found` is the finding to read first, as one line; None where nothing was found, or no report was written.
    """

    directory: PurePath
    head: RunHead
    condition: Condition
    verdict: str | None
    why: str | None
    found: str | None
    elapsed_s: float
    steps: tuple[RecordedStep, ...]


def recorded(run: RunDirectory) -> RecordedRun:
    """Return a run from its record; raises BadInput for a folder or a log that cannot be read."""
    head = run.read_head()
    try:
        return _recorded(run, head, read_events(run.events))
    except (KeyError, TypeError, AttributeError, IndexError) as error:
        raise damaged(f"an event of {run.events}") from error


def _recorded(run: RunDirectory, head: RunHead, events: Iterable[Event]) -> RecordedRun:
    finish: Mapping[str, Any] | None = None
    steps: list[RecordedStep] = []
    before = 0.0
    last = None
    for last in events:
        if last.kind == "run_finished":
            finish = last.data["finish"]
        elif last.kind == "step_finished":
            steps.append(_step(last, before))
            before = last.elapsed_s
    found, took = _reported(run)
    return RecordedRun(
        directory=run.path,
        head=head,
        condition="finished" if finish is not None else condition(run, last),
        verdict=finish["verdict"] if finish else None,
        why=finish.get("why") if finish else None,
        found=found,
        elapsed_s=max(last.elapsed_s if last else 0.0, took),
        steps=tuple(steps),
    )


def lead_finding(run: RunDirectory) -> str | None:
    """Return the finding to read first: what it says, in which kernel, at which line."""
    return _reported(run)[0]


def _reported(run: RunDirectory) -> tuple[str | None, float]:
    """Return the finding to read first, and how long the run took in seconds, as its report says.

    A replay takes no time: its report has the time that the steps took when they were recorded.
    """
    try:
        report = run.read_report()
    except BadInput:
        return None, 0.0
    with well_formed(f"{run.path / 'report.json'}"):
        return _lead(report), float(report.get("duration_s") or 0.0)


def named_by_guard(run: RunDirectory) -> str | None:
    """Return the runbook that the report of a guard's run leads to; None where it names none."""
    report = run.read_report()
    with well_formed(f"{run.path / 'report.json'}"):
        commands = [shlex.split(str(step.get("command") or "")) for step in report.get("next_steps", ())]
    return next((words[2] for words in commands if words[:2] == ["vdbg-env", "runbook"] and len(words) > 2), None)


def _lead(report: Mapping[str, Any]) -> str | None:
    lead = next((f for f in report.get("findings", ()) if f.get("id") == report.get("lead")), None)
    if lead is None:
        return None
    place, kernel = lead.get("location"), lead.get("kernel")
    at = (
        f" at {PurePath(place['file']).name}:{place['line']}"
        if place
        else f" in {short_name(kernel)}"
        if kernel
        else ""
    )
    return str(lead["message"]) + ("" if at and at.rsplit(" ", 1)[-1] in lead["message"] else at)


def condition(run: RunDirectory, last: Event | None) -> Condition:
    """Return the condition of a run without an end, by the last event of its log and whether a process works on it."""
    if run.is_worked_on():
        return "running"
    return "interrupted" if last is not None and last.kind == "run_interrupted" else "cut off"


def _step(event: Event, before: float) -> RecordedStep:
    result = event.data["result"]
    observations = result.get("observations", [])
    attempts: dict[int, float] = {}  # seconds; the ranks of an attempt ran together
    for seen in observations:
        attempts[seen["attempt"]] = max(attempts.get(seen["attempt"], 0.0), seen.get("duration_s", 0.0))
    return RecordedStep(
        id=event.data["step"],
        outcome=event.data.get("outcome"),
        message=event.data.get("message"),
        choice=result.get("choice"),
        attempts=len(attempts),
        ended=observations[-1]["ended"] if observations else None,
        duration_s=round(max(event.elapsed_s - before, sum(attempts.values())), 3),
        error=result.get("error"),
    )


# All recorded runs, from an index of the finished ones: a line for each, or all that was recorded of each.


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
    found, took = _reported(run)
    try:
        return RunLine(
            run=head.run,
            condition="finished" if finish is not None else condition(run, log.last),
            verdict=None if finish is None else finish["verdict"],
            steps=log.steps,
            elapsed_s=max(log.last.elapsed_s if log.last else 0.0, took),
            found=found,
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


# What `vdbg-env runs prune` does: remove the records that retention names, and no other folder.


@dataclass(frozen=True, kw_only=True)
class PruneRunsRequest:
    """What to keep, of which runbook (None for all), and whether to remove the rest or only to list it."""

    retention: Retention
    runbook: str | None = None
    remove: bool = False


@dataclass(frozen=True, kw_only=True)
class RetiredRun:
    """A run that retention removes, and the rule that says so."""

    run: RunFolder
    why: str


@dataclass(frozen=True, kw_only=True)
class PrunedRuns:
    """What retention removes from a folder; `removed` is False for a mere look.

    Runs that a process works on, and those that cannot be read, stay whatever the rules say.
    """

    place: str
    removed: bool
    runs: tuple[RetiredRun, ...]
    running: tuple[str, ...]
    unreadable: tuple[str, ...]


def prune_runs(request: PruneRunsRequest, environment: Mapping[str, str], *, now: float) -> PrunedRuns:
    """Decide what to remove from the folder of all runs, and remove it if asked to; `now` is since the epoch.

    Raises BadInput when no rule was given, or a run cannot be removed.
    """
    if request.retention == Retention():
        raise BadInput(
            "nothing says what to keep", next_step="vdbg-env runs prune --keep 50, --older-than 30d or --max-size 20g"
        )
    home = runs_home(environment)
    found = run_folders(home)
    ended = [run for run in found.ended if request.runbook in (None, run.runbook)]
    runs = tuple(RetiredRun(run=run, why=why) for run, why in retired(ended, request.retention, now=now))
    for one in runs if request.remove else ():
        remove_run(home, one.run)
    return PrunedRuns(
        place=str(home), removed=request.remove, runs=runs, running=found.running, unreadable=found.unreadable
    )


# Write recorded runs as text and as JSON: what a list shows, what was recorded of one, how two differ.


def line(run: RunLine) -> str:
    """Return a run as one line of a list."""
    took = f"{run.steps:>3} steps  {duration(run.elapsed_s):>11}"
    return printable(f"{run.run:<52} {run.verdict or run.condition:<15} {took}  {run.found or ''}".rstrip())


def text(run: RecordedRun) -> str:
    """Return all that was recorded of a run, and how to continue or read more."""
    head = run.head
    lines = [
        f"{head.run}: {run.verdict or run.condition}" + (f", {run.why}" if run.why else ""),
        f"  runbook  {head.runbook}",
        f"  workload {' '.join(head.workload)}",
        f"  started  {head.started} on {head.host}, {duration(run.elapsed_s)}",
    ]
    if image := head.image.get("name"):
        lines.append(f"  steps in containers of {image} ({head.image.get('digest') or head.image.get('id')})")
    if head.recorded_on:
        lines.append(f"  replayed from a recording of {head.recorded_on}")
    if run.found:
        lines.append(f"  found    {run.found}")
    width = max((len(step.id) for step in run.steps), default=0)
    lines += [_step_line(step, width) for step in run.steps]
    if run.condition in {"interrupted", "cut off"} and head.in_pods:
        lines.append("  its ranks were pods, which vdbg-env no longer starts: it cannot be continued")
    elif run.condition in {"interrupted", "cut off"}:
        lines.append("  {}: {}".format(*way_on(head, str(run.directory))))
    elif run.condition == "finished":
        lines.append(f"  all of it: vdbg-env runs report {quoted(run.directory)}")
    return "\n".join(printable(line) for line in lines)


def _step_line(step: RecordedStep, width: int) -> str:
    """Return a step as a line: outcome, attempts, time and reason; a built-in step has no end."""
    outcome = step.outcome or (f"answered {step.choice}" if step.choice else "")
    reasons = (end_in_words(step.ended), step.error or step.message)
    why = ", ".join(reason for reason in reasons if reason)
    took = duration(step.duration_s)
    return f"    {step.id:<{width}}  {outcome:<14} {step.attempts or '':>3} {took:>11}  {why}".rstrip()


# JSON: docs/schemas/runs-v1.schema.json and runs-diff-v1.schema.json are the contracts.


def runs_json(runs: Iterable[RecordedRun], unreadable: Iterable[BadInput] = ()) -> str:
    """Return recorded runs as JSON, the oldest first, and why the records of others cannot be read."""
    return json_text(
        {
            "schema": "vdbg-env/runs/v1",
            "runs": [_run_json(run) for run in runs],
            "unreadable": list(map(str, unreadable)),
        }
    )


def _run_json(run: RecordedRun) -> dict[str, Any]:
    return {
        "run": run.head.run,
        "directory": str(run.directory),
        "runbook": run.head.runbook,
        "workload": run.head.workload,
        "started": run.head.started,
        "host": run.head.host,
        "recorded_on": run.head.recorded_on or None,
        "image": run.head.image or None,
        "condition": run.condition,
        "verdict": run.verdict,
        "why": run.why,
        "found": run.found,
        "elapsed_s": run.elapsed_s,
        "steps": [vars(step) for step in run.steps],
    }


def diff_json(found: Iterable[Difference]) -> str:
    """Return what differs between two runs as JSON."""
    return json_text({"schema": "vdbg-env/runs-diff/v1", "differences": [vars(one) for one in found]})


# Write which records `runs prune` removes: as text and as JSON.


def as_text(found: PrunedRuns) -> str:
    """Return what goes and why, what stays whatever the rules say, and how to make it so."""
    width = max((len(one.run.path) for one in found.runs), default=0)
    lines = [f"{one.run.path:<{width}}  {size_text(one.run.size):>10}  {one.why}" for one in found.runs]
    verb = "removed" if found.removed else "would remove"
    count = f"{len(found.runs)} run{'' if len(found.runs) == 1 else 's'}"
    freed = size_text(sum(one.run.size for one in found.runs))
    lines.append(f"{found.place}: {verb} {count}, {freed}" if found.runs else f"{found.place}: nothing to remove")
    lines += [f"stays: {name}, a process works on it" for name in found.running]
    lines += [f"stays: {name}, its record cannot be read" for name in found.unreadable]
    if found.runs and not found.removed:
        lines.append("nothing was removed yet: the same command with --yes does it")
    return "".join(f"{printable(line)}\n" for line in lines)


# JSON: docs/schemas/runs-prune-v1.schema.json is the contract.


def prune_json(found: PrunedRuns) -> str:
    """Return what retention removes from the folder of all runs as JSON."""
    return json_text(
        {
            "schema": "vdbg-env/runs-prune/v1",
            "place": found.place,
            "removed": found.removed,
            "bytes": sum(one.run.size for one in found.runs),
            "runs": [
                {
                    "run": one.run.path,
                    "runbook": one.run.runbook,
                    "size": one.run.size,
                    "modified": datetime.fromtimestamp(one.run.modified, UTC).isoformat(timespec="seconds"),
                    "why": one.why,
                }
                for one in found.runs
            ],
            "running": found.running,
            "unreadable": found.unreadable,
        }
    )
