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
from vdbg_env.common.errors import BadInput
from vdbg_env.common.printable import printable
from vdbg_env.common.size import duration, size_text
from vdbg_env.record.diff import Difference
from vdbg_env.record.dump_files import Retention, retired
from vdbg_env.record.event_log import Event, damaged, read_events, summarize, well_formed
from vdbg_env.record.run_directory import RunDirectory, RunHead, way_on
from vdbg_env.record.runs import RunFolder, RunIndex, remove_run, run_folders, runs_home
from vdbg_env.report.codec.document import Document, field

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
    return RecordedRun(
        directory=run.path,
        head=head,
        condition="finished" if finish is not None else condition(run, last),
        verdict=finish["verdict"] if finish else None,
        why=finish.get("why") if finish else None,
        found=lead_finding(run),
        elapsed_s=last.elapsed_s if last else 0.0,
        steps=tuple(steps),
    )


def lead_finding(run: RunDirectory) -> str | None:
    """Return the finding to read first: what it says, in which kernel, at which line."""
    try:
        report = run.read_report()
    except BadInput:
        return None
    with well_formed(f"{run.path / 'report.json'}"):
        return _lead(report)


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
    return RecordedStep(
        id=event.data["step"],
        outcome=event.data.get("outcome"),
        message=event.data.get("message"),
        choice=result.get("choice"),
        attempts=len({seen.get("attempt") for seen in observations}),
        ended=observations[-1]["ended"] if observations else None,
        duration_s=round(event.elapsed_s - before, 3),
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
        lines.append(f"  all of it: vdbg-env runs report {run.directory}")
    return "\n".join(printable(line) for line in lines)


def _step_line(step: RecordedStep, width: int) -> str:
    """Return a step as a line: outcome, attempts, time and reason; a built-in step has no end."""
    ended = step.ended or {}
    number = next((ended[k] for k in ("signal", "code") if ended.get(k) is not None), "")
    outcome = step.outcome or (f"answered {step.choice}" if step.choice else "")
    reasons = (f"{ended.get('by', '')} {number}".strip(), step.error or step.message)
    why = ", ".join(reason for reason in reasons if reason)
    took = duration(step.duration_s)
    return f"    {step.id:<{width}}  {outcome:<14} {step.attempts or '':>3} {took:>11}  {why}".rstrip()


class RunEntry(Document, of=RecordedRun):
    """A recorded run."""

    run: str = field("head.run")
    directory: str = field(lambda run, _: str(run.directory))
    runbook: str = field("head.runbook")
    workload: list[str] = field("head.workload")
    started: str = field("head.started")
    host: str = field("head.host")
    recorded_on: str | None = field(lambda run, _: run.head.recorded_on or None)
    image: dict[str, Any] | None = field(
        lambda run, _: run.head.image or None,
        doc="The image of the containers that steps ran in: name, id, digest; null where they ran on that host.",
    )
    condition: Condition
    verdict: str | None = field(doc="Null for a run that has not ended.")
    why: str | None
    found: str | None = field(doc="The finding to read first, in a line.")
    elapsed_s: float
    steps: list[RecordedStep]


class RunsDocument(Document, of=RunList):
    """Recorded runs, the oldest first. Fields are only ever added."""

    schema: Literal["vdbg-env/runs/v1"]
    runs: list[RunEntry]
    unreadable: list[str] = field(
        lambda found, _: map(str, found.unreadable), doc="Why the records of other runs cannot be read."
    )


class DiffDocument(Document, of=tuple):
    """What differs between two runs in meaning, the gravest first. Fields are only ever added; kinds may grow."""

    schema: Literal["vdbg-env/runs-diff/v1"]
    differences: list[Difference] = field(lambda found, _: found)


class RunHeadDocument(Document, of=RunHead):
    """What a run was begun with, redacted: the file run.json of its folder. Fields are only ever added."""

    schema: Literal["vdbg-env/run-head/v1"]
    run: str = field(doc="Name of the run, unique in its folder.")
    runbook: str
    runbook_file: str = field(doc="Where the runbook was read from.", may_be_absent=True)
    digest: str = field(
        doc="SHA-256 of the runbook with its shared steps; a run is resumed by the same one only.", may_be_absent=True
    )
    started: str = field(doc="ISO 8601, UTC; a label, durations come from a monotonic clock.", may_be_absent=True)
    workload: list[str] = field(doc="The command line as given, without secrets.")
    inputs: dict[str, Any] = field(doc="Final inputs by name; a sensitive one is masked.")
    facts: dict[str, Any] = field(doc="What was known of the place before the first step; null is not known.")
    environment: dict[str, str] = field(may_be_absent=True)
    tool_version: str = field(may_be_absent=True)
    host: str = field(doc="Name of the machine, a pseudonym where one was asked for.", may_be_absent=True)
    recorded_on: str = field(doc="Where a replayed recording was made; empty for a real run.", may_be_absent=True)
    synthetic: bool = field(doc="Whether that recording was made by hand.", may_be_absent=True)
    image: dict[str, Any] = field(
        doc="The image of the containers that steps ran in: name, id, digest; empty on this machine.",
        may_be_absent=True,
    )
    container: dict[str, Any] = field(
        doc="How those containers are started, secrets redacted; enough for --resume. Defaults are left out.",
        may_be_absent=True,
    )
    placement: dict[str, Any] = field(
        doc="How the ranks of each attempt are started and how many; empty where the command line named none.",
        may_be_absent=True,
    )
    disk_floor: int | None = field(
        doc="Bytes of free space below which no step starts, as asked for; null for the usual.", may_be_absent=True
    )
    pseudonyms: bool = field(doc="Whether host names and addresses have stand-ins.", may_be_absent=True)
    folder: str = field(
        doc="The folder of this machine that commands started in; empty where it is not known, or has a secret.",
        may_be_absent=True,
    )


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


class RetiredRunDocument(Document, of=RetiredRun):
    """A run that retention removes, and the rule that says so."""

    run: str = field("run.path")
    runbook: str = field("run.runbook")
    size: int = field("run.size")
    modified: str = field(lambda one, _: datetime.fromtimestamp(one.run.modified, UTC).isoformat(timespec="seconds"))
    why: str


class PrunedRunsDocument(Document, of=PrunedRuns):
    """What retention removes from the folder of all runs; `removed` is false while it was only looked at."""

    schema: Literal["vdbg-env/runs-prune/v1"]
    place: str
    removed: bool
    bytes: int = field(lambda found, _: sum(one.run.size for one in found.runs))
    runs: list[RetiredRunDocument]
    running: list[str] = field(doc="Left because a process works on them.")
    unreadable: list[str] = field(doc="Left because their records cannot be read.")
