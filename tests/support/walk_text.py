"""What a scenario's run tells its reader, as text for a golden: messages, findings, what to try next."""

from __future__ import annotations

from collections.abc import Iterator

from tests.support.walks import Scenario, Told
from vdbg_env.evidence.finding import Finding
from vdbg_env.record.progress import StepVisit
from vdbg_env.record.run_directory import RunHead
from vdbg_env.report.assemble import assemble
from vdbg_env.report.model import Report
from vdbg_env.runbook.judge import bisect_status, conclude, exit_status

_OF_OUTCOMES = "VDBG"


def report_of(told: Told) -> Report:
    """Return the report of a scenario's run."""
    finish = told.finish or conclude(told.walk.state.trail)
    return assemble(told.walk, finish, RunHead(run="walk", runbook=told.walk.state.runbook.name))


def walk_text(scenario: Scenario, told: Told) -> str:
    """Return what each step says and finds, how it ended, and what to try next; silent steps are left out."""
    lines = [f"== {scenario.name}: {' '.join(scenario.argv)}"]
    visits = [visit for visit in told.walk.visits if visit.record.skipped_because is None]
    for visit, step in zip(visits, told.path, strict=True):
        lines += _step(visit, step)
    if told.finish:
        status = exit_status(told.finish.verdict, told.walk.state.findings)
        lines.append(f"-> {told.ends}, exit {status}, bisect {bisect_status(told.finish.verdict)}")
        lines += [f"   next: {x.text}{' $ ' + x.command if x.command else ''}" for x in report_of(told).next_steps]
    else:
        lines.append(f"-> {told.ends}")
    return "\n".join(lines) + "\n"


def _step(visit: StepVisit, step: str) -> Iterator[str]:
    if visit.record.message or visit.record.findings:
        yield f"{step}: {visit.record.message or ''}".rstrip()
    for finding in visit.record.findings:
        yield from (f"    {line}" for line in _finding(finding, visit.record.message))


def _finding(finding: Finding, said: str | None) -> Iterator[str]:
    """Tell a finding; its words are left out where the step has said them, or a reader's own tests hold them."""
    where = f" at {finding.location}" if finding.location else ""
    words = "" if finding.message == said or not finding.rule.startswith(_OF_OUTCOMES) else f": {finding.message}"
    yield f"{finding.rule} {finding.level.value}, {finding.how_known.value} {finding.confidence:g}{where}{words}"
    if finding.next_step and finding.rule.startswith(_OF_OUTCOMES):
        yield f"    try {finding.next_step}"
