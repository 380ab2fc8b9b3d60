"""Write recorded runs as text and as JSON: what a list shows, what was recorded of one, how two differ."""

from __future__ import annotations

from typing import Any, Literal

from vdbg_env.application.run.history import Condition, RecordedRun, RecordedStep
from vdbg_env.application.run.run_list import RunLine, RunList
from vdbg_env.common.printable import printable
from vdbg_env.record.diff import Difference
from vdbg_env.record.run_directory import RunHead, way_on
from vdbg_env.report.codec.document import Document, field
from vdbg_env.report.plain_text import duration


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
    lines += [_step(step, width) for step in run.steps]
    if run.condition in {"interrupted", "cut off"} and head.in_pods:
        lines.append("  its ranks were pods, which vdbg-env no longer starts: it cannot be continued")
    elif run.condition in {"interrupted", "cut off"}:
        lines.append("  {}: {}".format(*way_on(head, str(run.directory))))
    elif run.condition == "finished":
        lines.append(f"  all of it: vdbg-env runs report {run.directory}")
    return "\n".join(printable(line) for line in lines)


def _step(step: RecordedStep, width: int) -> str:
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
