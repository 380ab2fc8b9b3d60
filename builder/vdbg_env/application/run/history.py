"""Recorded runs: list and show them, report and redact them again."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import PurePath
from typing import Any, Literal

from vdbg_env.application.ports import CoreFiles, SourceText
from vdbg_env.application.ports.this_host import ThisHost
from vdbg_env.application.run.library import RunbookLibrary
from vdbg_env.application.run.pseudonyms import pseudonyms
from vdbg_env.application.run.result.model import Report
from vdbg_env.application.run.result.run_report import run_report
from vdbg_env.common.errors import BadInput
from vdbg_env.cuda.symbols.demangling import short_name
from vdbg_env.record.codec import from_document
from vdbg_env.record.event_log import Event, damaged, read_events
from vdbg_env.record.progress import at_start, replay
from vdbg_env.record.redaction.redact_run import Redacted, redact_run
from vdbg_env.record.redaction.redaction import Redactor
from vdbg_env.record.redaction.secrets import secret_values
from vdbg_env.record.run_directory import RunDirectory, RunHead
from vdbg_env.record.run_index import RunIndex
from vdbg_env.record.runs import runs_home
from vdbg_env.runbook.machine import transitions
from vdbg_env.runbook.state import BranchTo, Facts, RunState

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


def list_runs(environment: Mapping[str, str]) -> tuple[tuple[RecordedRun, ...], tuple[BadInput, ...]]:
    """Return every run of the folder of all runs, the oldest first, and why other records cannot be read."""
    home = runs_home(environment)
    index = RunIndex(home)
    found, unreadable = [], []
    for name, stamp in index.names():
        known = index.get(name, stamp)
        if known:
            found.append(_from_index(known))
            continue
        try:
            run = recorded(RunDirectory(home / name))
        except BadInput as error:
            unreadable.append(error)
            continue
        if run.condition == "finished":  # the others may change without a word in their files
            index.put(name, stamp, {**asdict(run), "directory": str(run.directory)})
        found.append(run)
    index.save()
    return tuple(found), tuple(unreadable)


def _from_index(known: Mapping[str, Any]) -> RecordedRun:
    head = {**known["head"], "workload": tuple(known["head"]["workload"])}
    steps = tuple(RecordedStep(**step) for step in known["steps"])
    whole = {**known, "directory": PurePath(known["directory"]), "head": RunHead(**head), "steps": steps}
    return RecordedRun(**whole)


def recorded(run: RunDirectory) -> RecordedRun:
    """Return a run from its record; raises BadInput for a folder or a log that cannot be read."""
    head = run.read_head()
    events = read_events(run.events)
    try:
        return _recorded(run, head, events)
    except (KeyError, TypeError, AttributeError, IndexError) as error:
        raise damaged(f"an event of {run.events}") from error


def _recorded(run: RunDirectory, head: RunHead, events: tuple[Event, ...]) -> RecordedRun:
    finish: Mapping[str, Any] = next((e.data["finish"] for e in reversed(events) if e.kind == "run_finished"), {})
    return RecordedRun(
        directory=run.path,
        head=head,
        condition=_condition(run, events),
        verdict=finish.get("verdict"),
        why=finish.get("why"),
        found=_found(run),
        elapsed_s=events[-1].elapsed_s if events else 0.0,
        steps=tuple(_step(event, events) for event in events if event.kind == "step_finished"),
    )


def _found(run: RunDirectory) -> str | None:
    """Return the finding to read first: what it says, in which kernel, at which line."""
    try:
        report = run.read_report()
    except BadInput:
        return None
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


def report_anew(
    run: RunDirectory,
    library: RunbookLibrary,
    environment: Mapping[str, str],
    *,
    cores: CoreFiles,
    sources: SourceText,
    host: ThisHost,
) -> Report:
    """Return the report of a run up to where its record ends, made by this release.

    The record has no secret, but source lines are read again: the secrets of `environment` are redacted in them too.

    Raises BadInput when its runbook has changed since: its steps would be judged by other rules.
    """
    head = run.read_head()
    runbook = library.load_recorded(head)
    if runbook.digest != head.digest:
        raise BadInput(
            f"runbook {runbook.name!r} has changed since run {head.run!r} was begun",
            next_step=f"read the report of then: {run.path / 'report.md'}",
        )
    facts = from_document(Facts, head.facts)

    def start_branch(branch: BranchTo) -> RunState:
        other = library.load(branch.runbook)
        inputs = {name: head.inputs.get(name, wanted.default) for name, wanted in other.inputs.items()}
        return transitions.start(other, inputs, facts, came_from=branch.came_from)[0]

    state, _ = transitions.start(runbook, {name: head.inputs.get(name) for name in runbook.inputs}, facts)
    events = read_events(run.events)
    progress = replay(at_start(state), events, start_branch)
    elapsed = events[-1].elapsed_s if events else None
    condition = _condition(run, events)
    finish = progress.finish
    if finish is None and condition in {"interrupted", "cut off"}:
        finish = transitions.cut_short(progress.state, condition)[1]
    redactor = Redactor(secret_values(environment), pseudonyms(host, {}, (head.host,)) if head.pseudonyms else None)
    return run_report(
        head, progress, run.path, cores=cores, sources=sources, redact=redactor.text, elapsed_s=elapsed, finish=finish
    )


def redact_again(
    run: RunDirectory, environment: Mapping[str, str], host: ThisHost, *, hosts: tuple[str, ...] | None = None
) -> Redacted:
    """Redact a run once more and return what changed; raises BadInput while a process works on it.

    With `hosts`, host names and addresses become pseudonyms, the same for all runs of this user: those of the run and
    of this machine, and the names given.
    """
    with run.locked():
        literals = secret_values(environment)
        names = None if hosts is None else pseudonyms(host, {}, (*hosts, run.read_head().host))
        return redact_run(run.path, Redactor(literals, names), literals)


def _condition(run: RunDirectory, events: tuple[Event, ...]) -> Condition:
    if any(event.kind == "run_finished" for event in events):
        return "finished"
    try:
        with run.locked():
            return "interrupted" if events and events[-1].kind == "run_interrupted" else "cut off"
    except BadInput:
        return "running"


def _step(event: Event, events: tuple[Event, ...]) -> RecordedStep:
    result = event.data["result"]
    observations = result.get("observations", [])
    before = next((e.elapsed_s for e in reversed(events) if e.seq < event.seq and e.kind == "step_finished"), 0.0)
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
