"""Assemble the Report of a run from the decisions and the results of its steps."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import assert_never

from vdbg_env.application.run.result import rank_rows
from vdbg_env.application.run.result.cause import cause_of
from vdbg_env.application.run.result.model import Attempt, Provenance, Report, StepReport, StepStatus
from vdbg_env.application.run.result.next_steps import by_verdict, next_steps, on_its_command, resuming
from vdbg_env.evidence.observation import Artifact, Match, Observation
from vdbg_env.evidence.system.ranks import first_failure, last_attempt
from vdbg_env.evidence.weigh_findings import judge
from vdbg_env.record.progress import Progress, StepVisit
from vdbg_env.runbook.invocation import Invocation, placed
from vdbg_env.runbook.model import End, Manual, Next, Run, Status, Step, ToRunbook, ToStep, Uses
from vdbg_env.runbook.state import Finish, RunStep, StepRecord
from vdbg_env.runbook.workload import engine_args

_LINES_OF_EVIDENCE = 20


@dataclass(frozen=True, kw_only=True)
class RunFacts:
    """What is known of a run besides its steps; see `Report` for the meaning of each.

    `folder` is what commands name the run by, its name if empty; `resumable` says that it can be continued.
    """

    run: str
    workload: tuple[str, ...] = ()
    started: str | None = None
    duration_s: float | None = None
    provenance: Provenance = Provenance.REAL
    origin: str | None = None
    environment: Mapping[str, str]
    tool_version: str | None = None
    notes: tuple[str, ...] = ()
    folder: str = ""
    resumable: bool = False


def assemble(walk: Progress, finish: Finish, facts: RunFacts) -> Report:
    """Return the report of a run, finished or cut short; source lines and warps are added later."""
    runbook = walk.state.runbook
    name = facts.folder or facts.run
    going = (resuming(runbook.name, name),) if facts.resumable else ()
    findings = judge(on_its_command(finding, name) for visit in walk.visits for finding in visit.record.findings)
    seen = {visit.step.id for visit in walk.visits}
    cut = _cut_short(walk)
    seen |= {step.id for step in cut}
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
        steps=(*(step_report(visit) for visit in walk.visits), *cut, *missed),
        findings=findings,
        environment=facts.environment,
        next_steps=(*going, *next_steps(findings)) or (by_verdict(finish.verdict, run=name),),
        tool_version=facts.tool_version,
        notes=facts.notes,
        fingerprint=cause_of(walk, finish, findings),
    )


def _cut_short(walk: Progress) -> tuple[StepReport, ...]:
    """Return the step whose attempts were begun and never judged; nothing where there is none or it has no name."""
    decision = walk.state.decision  # the run itself may be finished: its time was up
    if not isinstance(decision, RunStep):
        return ()
    invocation = decision.invocation
    seen = sorted((*walk.observations, *walk.cancelled), key=lambda one: (one.attempt, one.rank))
    if not seen and not walk.open:
        return ()
    roles = rank_rows.parts(seen)
    return (
        StepReport(
            id=invocation.step,
            name=walk.state.runbook.step(invocation.step).title,
            status=StepStatus.INTERRUPTED,
            argv=invocation.argv,
            env=invocation.env,
            started_s=walk.since_s,
            attempts=tuple(_attempt(one, None, roles) for one in seen),
            evidence=_evidence(seen),
            artifacts=_artifacts(seen),
            notes=("this step was cut short", *rank_rows.notes(seen)),
        ),
    )


def step_report(visit: StepVisit) -> StepReport:
    """Return one visit as the report shows it."""
    record, step = visit.record, visit.step
    roles = rank_rows.parts(visit.observations)
    report = StepReport(
        id=step.id,
        name=step.title,
        status=_status(record),
        outcome=record.outcome,
        message=_message(record),
        next=_next(record.next),
        ended=record.ended,
        builtin=_builtin(step),
        started_s=visit.started_s,
        duration_s=visit.duration_s,
        attempts=tuple(_attempt(seen, record, roles) for seen in visit.observations),
        evidence=_evidence(visit.observations),
        results=record.results,
        artifacts=_artifacts(visit.observations),
        notes=(*rank_rows.notes(visit.observations), *record.notes),
    )
    if isinstance(step, Run) and isinstance(visit.decision, RunStep):
        report = _with_command(report, visit.decision.invocation, step, visit.observations)
    return report


def _with_command(
    report: StepReport, invocation: Invocation, step: Run, observations: Sequence[Observation]
) -> StepReport:
    """Add the command as it was last started, on the rank that failed first: with that rank's number and folder."""
    if ranks := last_attempt(observations):
        last = first_failure(ranks) or ranks[0]
        invocation = placed(invocation, attempt=last.attempt, rank=last.rank, host=last.host, directory=last.directory)
    changed = {name: value for name, value in invocation.env.items() if name in step.env}
    return replace(
        report,
        argv=invocation.argv,
        argv_change=step.argv,
        env=invocation.env,
        env_change=changed,
        engine_args=_engine_args(invocation, step),
        plugged=bool(invocation.env.get(engine_args.VARIABLE)),
    )


def _engine_args(invocation: Invocation, step: Run) -> tuple[str, ...]:
    """Return the engine arguments a step changed, as flags: what the plug-in got, else what the command gained."""
    if not step.engine_args:
        return ()
    plugged = invocation.env.get(engine_args.VARIABLE)
    if plugged:
        return engine_args.as_flags((), json.loads(plugged))
    begin = invocation.argv.index(invocation.base_argv[0])  # before it is what wraps the command
    gained = Counter(invocation.argv[begin:]) - Counter((*invocation.base_argv, *step.argv.append))
    return tuple(word for word in invocation.argv[begin:] if gained[word])


def _status(record: StepRecord) -> StepStatus:
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
        case Uses(uses=builtin):
            return builtin
        case Manual():
            return "a question to a person"
        case Run():
            return None
    assert_never(step)


def _attempt(seen: Observation, record: StepRecord | None, parts: Mapping[tuple[int, int], str]) -> Attempt:
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
        held_by=seen.held_by,
        part=parts.get((seen.attempt, seen.rank), ""),
        node=seen.node,
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
    return not seen.went_well


def _evidence(observations: Sequence[Observation]) -> tuple[Match, ...]:
    matches = (match for seen in observations for found in seen.matched.values() for match in found)
    return tuple(islice(matches, _LINES_OF_EVIDENCE))


def _artifacts(observations: Sequence[Observation]) -> tuple[Artifact, ...]:
    return tuple(artifact for seen in observations for found in seen.artifacts.values() for artifact in found)
