"""Report a recorded run anew, and redact it again: what takes more than reading its record."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from vdbg_env.common.console import json_text, printable, size_text
from vdbg_env.common.errors import BadInput
from vdbg_env.crash.files import CoreFiles, SourceText
from vdbg_env.record.event_log import Event, read_events, well_formed
from vdbg_env.record.export_run import Export, export_run
from vdbg_env.record.masking import Redacted, redact_run
from vdbg_env.record.progress import at_start, replay
from vdbg_env.record.redactor import Redactor, secret_values
from vdbg_env.record.run_directory import RunDirectory, RunHead, part_of
from vdbg_env.report.assemble import SHOWED, run_report
from vdbg_env.report.model import Report
from vdbg_env.run.begin import pseudonyms
from vdbg_env.run.history import condition
from vdbg_env.run.library import RunbookLibrary, recorded_inputs
from vdbg_env.runbook import machine
from vdbg_env.runbook.state import Facts

if TYPE_CHECKING:
    from pathlib import Path


def report_anew(
    run: RunDirectory,
    library: RunbookLibrary,
    environment: Mapping[str, str],
    *,
    cores: CoreFiles,
    sources: SourceText,
) -> Report:
    """Return the report of a run up to where its record ends, made by this release.

    The record has no secret, but source lines are read again: the secrets of `environment` are redacted in them too.

    Raises BadInput when its runbook has changed since: its steps would be judged by other rules.
    """
    head = run.read_head()
    runbook = library.load_recorded(run, head)
    facts = part_of(head, "facts", Facts)
    state, _ = machine.start(runbook, recorded_inputs(runbook, head), facts)
    log = LastOf(read_events(run.events))
    progress = replay(at_start(state), log, library.branching(head.inputs, facts))
    finish = progress.finish
    if finish is None and (cut := condition(run, log.last)) != "running":
        known = log.last.data if log.last else {}
        out_of_time = known.get("out_of_time") is True
        finish = machine.cut_short(progress.state, str(known.get("why") or cut), out_of_time=out_of_time)[1]
    elapsed = log.last.elapsed_s if log.last else None
    redactor = Redactor(secret_values(environment), pseudonyms({}, (head.host,)) if head.pseudonyms else None)
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
    run: RunDirectory, environment: Mapping[str, str], *, hosts: tuple[str, ...] | None = None
) -> Redacted:
    """Redact a run once more and return what changed; raises BadInput while a process works on it.

    With `hosts`, host names and addresses become pseudonyms, the same for all runs of this user: those of the run and
    of this machine, and the names given.
    """
    with run.locked():
        literals = secret_values(environment)
        names = None if hosts is None else pseudonyms({}, (*hosts, run.read_head().host))
        return redact_run(run.path, Redactor(literals, names), literals)


def export(
    run: RunDirectory,
    target: Path,
    environment: Mapping[str, str],
    *,
    cores: bool = False,
    hosts: tuple[str, ...] | None = None,
) -> Export:
    """Write what explains a run into one archive, redacted by today's rules; with `hosts` as `redact_again` has it.

    The logs are those of the steps in which the failure showed, of all where it showed in none. Raises BadInput while a
    process works on the run, or where it has no report.
    """
    if run.is_worked_on():
        raise BadInput(f"a process works on {run.path}", next_step="export it when it has ended")
    head, report = run.read_head(), run.read_report()
    with well_formed(f"{run.path / 'report.json'}"):
        steps = [step for step in report["steps"] if step.get("outcome") in SHOWED] or report["steps"]
        left = [str(artifact["path"]) for step in steps for artifact in step.get("artifacts", ())]
        lead = next((f["message"] for f in report["findings"] if f["id"] == report.get("lead")), report.get("why"))
        wanted = {str(step["id"]) for step in steps}
    literals = secret_values(environment)
    names = None if hosts is None else pseudonyms({}, (*hosts, head.host))
    return export_run(
        run,
        target,
        Redactor(literals, names),
        literals,
        steps=wanted,
        cores=left if cores else (),
        readme=_readme(head, report, lead, [] if cores else left),
    )


def _readme(head: RunHead, report: Mapping[str, Any], lead: str | None, left_out: Sequence[str]) -> str:
    """Return what a reader of the archive must know, who may never have heard of this program."""
    lines = [
        f"# {report.get('title') or head.runbook}",
        "",
        f"Verdict: {report.get('verdict')}. {lead or ''}".rstrip(),
        "",
        f"Command: `{shlex.join(head.workload)}`",
        f"Begun: {head.started}; vdbg-env {head.tool_version}; run {head.run}, runbook {head.runbook}",
        "",
        "- `report.md` is for an issue, `report.html` has all of it, `report.json` is for programs.",
        "- `steps/STEP/ATTEMPT/HOST-RANK/` has what the program printed (`stdout`, `stderr`), stacks (`hang.txt`), how",
        "  it ended, its command line, and what differed in its environment. Only steps in which the failure showed",
        "  are here.",
        "- Secrets were taken out by rules, and shown as `[redacted ...]`. Rules do not know everything: look before",
        "  you publish it.",
    ]
    if left_out:
        lines += ["- Left out, as they may be large and hold the program's memory (`--cores` adds them):"]
        lines += [f"  - {name}" for name in left_out]
    return "\n".join(lines) + "\n"


class LastOf:
    """Events as they are read, and the last of them, None before there is one."""

    def __init__(self, events: Iterable[Event]) -> None:
        self._events = events
        self.last: Event | None = None

    def __iter__(self) -> Iterator[Event]:
        for event in self._events:
            self.last = event
            yield event


# Write what an archive of a run has in it, as text and as JSON.


def as_text(export: Export) -> str:
    """Return a line for each file, and one for the archive."""
    lines = [f"{size_text(size):>10}  {name}" for name, size in export.files]
    lines.append(f"{export.path} ({size_text(export.size)}): look through it before you publish it")
    return "".join(f"{printable(line)}\n" for line in lines)


def as_json(export: Export) -> str:
    """Return what was written as docs/schemas/runs-export-v1.schema.json describes it."""
    return json_text(
        {
            "schema": "vdbg-env/runs-export/v1",
            "path": export.path,
            "size": export.size,
            "files": dict(export.files),
            "notes": export.notes,
        }
    )
