"""Makes the Report of a run out of what the engine decided and what came of it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import assert_never

from vdbg_env.evidence.finding import Finding, Level
from vdbg_env.evidence.observation import Artifact, EndedBy, Match, Observation
from vdbg_env.report.model import Attempt, NextStep, Provenance, Report, StepReport, StepStatus
from vdbg_env.runbook.model import Builtin, End, Manual, Next, Run, Runbook, Status, Step, ToRunbook, ToStep, Uses
from vdbg_env.runbook.state import Finish, RunStep, StepRecord, UseBuiltin

_LINES_OF_EVIDENCE = 20
_NOT_TO_ITS_END = {EndedBy.CANCEL, EndedBy.ENGINE_LOST}


@dataclass(frozen=True, kw_only=True)
class Visit:
    """One step that a run came to: the step, what was decided for it, what was seen, and the engine's record of it.

    `decision` is None for a skipped step; `record` is None for a step whose end was never seen. Times in seconds,
    `started_s` since the run began.
    """

    step: Step
    decision: RunStep | UseBuiltin | None = None
    observations: tuple[Observation, ...] = ()
    record: StepRecord | None = None
    started_s: float | None = None
    duration_s: float | None = None


@dataclass(frozen=True, kw_only=True)
class RunFacts:
    """What is known of a run besides its steps; see `Report` for the meaning of each."""

    run: str
    workload: tuple[str, ...] = ()
    started: str | None = None
    duration_s: float | None = None
    provenance: Provenance = Provenance.REAL
    origin: str | None = None
    environment: Mapping[str, str]
    tool_version: str | None = None
    notes: tuple[str, ...] = ()


def assemble(runbook: Runbook, visits: Sequence[Visit], finish: Finish, facts: RunFacts) -> Report:
    """Return the report of a run, finished or cut short; source lines and warps are added by who can read them."""
    findings = ranked(f for visit in visits if visit.record for f in visit.record.findings)
    seen = {visit.step.id for visit in visits}
    missed = (
        StepReport(id=s.id, name=s.title, status=StepStatus.NOT_REACHED) for s in runbook.steps if s.id not in seen
    )
    return Report(
        run=facts.run,
        runbook=runbook.name,
        title=runbook.title,
        verdict=finish.verdict,
        why=finish.why,
        provenance=facts.provenance,
        origin=facts.origin,
        workload=facts.workload,
        started=facts.started,
        duration_s=facts.duration_s,
        steps=(*(step_report(visit) for visit in visits), *missed),
        findings=findings,
        environment=facts.environment,
        next_steps=next_steps(findings),
        tool_version=facts.tool_version,
        notes=facts.notes,
    )


def ranked(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """Return findings by falling confidence, the graver first among equals, the same one only once."""
    unique: dict[tuple[object, ...], Finding] = {}
    for finding in findings:
        key = (finding.rule, finding.location, finding.kernel, finding.message)
        if key not in unique or unique[key].confidence < finding.confidence:
            unique[key] = finding
    levels = list(Level)
    return tuple(sorted(unique.values(), key=lambda f: (-f.confidence, levels.index(f.level))))


def next_steps(findings: Sequence[Finding]) -> tuple[NextStep, ...]:
    """Return what the findings say to try next, surest first, each once; a command is shown as one."""
    texts = dict.fromkeys(finding.next_step for finding in findings if finding.next_step)
    return tuple(_next_step(text) for text in texts)


def _next_step(text: str) -> NextStep:
    """Split `what it is for: vdbg-env ...` into words and command."""
    words, colon, command = text.rpartition(": ")
    if colon and command.startswith(("vdbg-env ", "VLLM_", "CUDA_")):
        return NextStep(text=words, command=command)
    return NextStep(text="Look closer", command=text) if text.startswith("vdbg-env ") else NextStep(text=text)


def step_report(visit: Visit) -> StepReport:
    """Return one visit as the report tells it."""
    record, step = visit.record, visit.step
    report = StepReport(
        id=step.id,
        name=step.title,
        status=_status(visit),
        outcome=record.outcome if record else None,
        message=_message(record) if record else None,
        next=_next(record.next) if record else None,
        ended=record.ended if record else None,
        builtin=_builtin(step),
        started_s=visit.started_s,
        duration_s=visit.duration_s,
        attempts=tuple(_attempt(seen, record) for seen in visit.observations),
        evidence=_evidence(visit.observations),
        results=record.results if record else {},
        artifacts=_artifacts(visit.observations),
        notes=record.notes if record else ("the end of this step was never seen",),
    )
    if isinstance(step, Run) and isinstance(visit.decision, RunStep):
        invocation = visit.decision.invocation
        report = replace(report, argv=invocation.argv, env=invocation.env, argv_change=step.argv)
    return report


def _status(visit: Visit) -> StepStatus:
    record = visit.record
    if record is None or any(seen.ended.by in _NOT_TO_ITS_END for seen in visit.observations):
        return StepStatus.INTERRUPTED
    if record.skipped_because is not None:
        return StepStatus.SKIPPED
    return StepStatus.FAILED if record.outcome is Status.ERROR else StepStatus.FINISHED


def _message(record: StepRecord) -> str | None:
    if record.skipped_because is not None:
        return record.skipped_because
    return f"answered {record.choice!r}" if record.choice is not None else record.message


def _next(following: Next) -> str:
    match following:
        case ToStep(step=step):
            return step
        case ToRunbook(runbook=runbook):
            return f"runbook:{runbook}"
        case End():
            return "end"
    assert_never(following)


def _builtin(step: Step) -> str | None:
    match step:
        case Uses(builtin=Builtin() as builtin):
            return str(builtin)
        case Manual():
            return "a question to a person"
        case Run():
            return None
    assert_never(step)


def _attempt(seen: Observation, record: StepRecord | None) -> Attempt:
    return Attempt(
        attempt=seen.attempt,
        rank=seen.rank,
        host=seen.host,
        ended=seen.ended,
        duration_s=seen.duration_s,
        reproduced=_reproduced(seen, record),
        output_bytes=seen.output_bytes,
        directory=seen.directory,
        workers=seen.workers,
        notes=seen.notes,
    )


def _reproduced(seen: Observation, record: StepRecord | None) -> bool | None:
    """Say whether this attempt showed the fault; the engine counts how many did, not always which."""
    if record is None:
        return None
    if record.outcome not in {Status.REPRODUCED, Status.HANG, Status.FAIL}:
        return False if record.outcome is Status.NOT_REPRODUCED else None
    if record.reproduced >= record.attempts:
        return True
    return not seen.ended.clean


def _evidence(observations: Sequence[Observation]) -> tuple[Match, ...]:
    matches = (match for seen in observations for found in seen.matched.values() for match in found)
    return tuple(islice(matches, _LINES_OF_EVIDENCE))


def _artifacts(observations: Sequence[Observation]) -> tuple[Artifact, ...]:
    return tuple(artifact for seen in observations for found in seen.artifacts.values() for artifact in found)
