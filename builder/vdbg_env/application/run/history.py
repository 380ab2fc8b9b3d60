"""One recorded run: show it, report and redact it again."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
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
    log = LastOf(read_events(run.events))
    progress = replay(at_start(state), log, start_branch)
    finish = progress.finish
    if finish is None and (cut := condition(run, log.last)) != "running":
        finish = transitions.cut_short(progress.state, str((log.last and log.last.data.get("why")) or cut))[1]
    elapsed = log.last.elapsed_s if log.last else None
    redactor = Redactor(secret_values(environment), pseudonyms(host, {}, (head.host,)) if head.pseudonyms else None)
    return run_report(
        head,
        progress,
        run.path,
        cores=cores,
        sources=sources,
        redact=redactor.text,
        elapsed_s=elapsed,
        finish=finish,
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


def condition(run: RunDirectory, last: Event | None) -> Condition:
    """Return the condition of a run without an end, by the last event of its log and whether a process works on it."""
    try:
        with run.locked():
            return "interrupted" if last is not None and last.kind == "run_interrupted" else "cut off"
    except BadInput:
        return "running"


class LastOf:
    """Events as they are read, and the last of them, None before there is one."""

    def __init__(self, events: Iterable[Event]) -> None:
        self._events = events
        self.last: Event | None = None

    def __iter__(self) -> Iterator[Event]:
        for event in self._events:
            self.last = event
            yield event


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
