"""One recorded run, read from its record alone: what a list shows of it, and what was recorded.

Nothing else is imported here: a list of ten thousand runs takes no longer than this program takes to start.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any, Literal

from gpucore.mangling import short_name
from vdbg_env.common.errors import BadInput
from vdbg_env.record.event_log import Event, damaged, read_events, well_formed
from vdbg_env.record.run_directory import RunDirectory, RunHead

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
