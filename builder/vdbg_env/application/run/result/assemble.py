"""Assemble the Report of a run, live or recorded, from its head and the decisions and results of its steps."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import assert_never

from vdbg_env.application.run.result import rank_rows
from vdbg_env.application.run.result.cause import cause_of
from vdbg_env.application.run.result.model import (
    Attempt,
    NextStep,
    Provenance,
    Report,
    StepReport,
    StepStatus,
    attempt_lengths,
)
from vdbg_env.application.run.result.next_steps import advice, flags_after_guard, on_its_command
from vdbg_env.application.run.result.source_context import complete
from vdbg_env.crash.files import CoreFiles, SourceText
from vdbg_env.evidence.observation import Artifact, Match, Observation
from vdbg_env.evidence.system.ranks import first_failure, last_attempt
from vdbg_env.evidence.weigh_findings import judge
from vdbg_env.record.progress import Progress, StepVisit
from vdbg_env.record.run_directory import GUARD, RunHead, way_on
from vdbg_env.runbook.invocation import Invocation, placed
from vdbg_env.runbook.model import Data, End, Manual, Next, Run, Status, Step, ToRunbook, ToStep, Uses
from vdbg_env.runbook.state import Finish, RunStep, StepRecord, Verdict
from vdbg_env.runbook.verdict import conclude
from vdbg_env.runbook.workload import engine_args, server

_LINES_OF_EVIDENCE = 20
# Results of steps that look at the host, by the name the report's environment gives them.
_OF_THE_HOST = {"driver": "driver", "cuda": "CUDA", "vllm": "vLLM", "torch": "PyTorch", "gpus": "GPUs"}


def run_report(
    head: RunHead,
    progress: Progress,
    directory: Path,
    *,
    cores: CoreFiles,
    sources: SourceText,
    redact: Callable[[str], str],
    elapsed_s: float | None = None,
    finish: Finish | None = None,
) -> Report:
    """Return the whole report; of a run that is not at its end, `finish` says how it was cut short."""
    report = assemble(
        progress,
        finish or progress.finish or conclude(progress.state.trail),
        head,
        folder=str(directory),
        resumable=bool(finish and progress.finish is None and not head.recorded_on),
        elapsed_s=elapsed_s,
    )
    return complete(report, directory, cores=cores, sources=sources, redact=redact)


def assemble(
    walk: Progress,
    finish: Finish,
    head: RunHead,
    *,
    folder: str = "",
    resumable: bool = False,
    elapsed_s: float | None = None,
) -> Report:
    """Return the report of a run, finished or cut short; source lines and warps are added later.

    `folder` is what commands name the run by, its name if empty; `resumable` says that it can be continued.
    """
    runbook = walk.state.runbook
    name = folder or head.run
    text, command = way_on(head, name)
    going = (NextStep(text=text, command=command),) if resumable and not head.in_pods else ()
    flags = flags_after_guard(head.workload) if runbook.name == GUARD else ""
    findings = judge(on_its_command(finding, name, flags) for visit in walk.visits for finding in visit.record.findings)
    seen = {visit.step.id for visit in walk.visits}
    cut = _cut_short(walk)
    seen |= {step.id for step in cut}
    steps = _one_after_another((*(step_report(visit) for visit in walk.visits), *cut))
    missed = (
        StepReport(id=s.id, name=s.title, status=StepStatus.NOT_REACHED) for s in runbook.steps if s.id not in seen
    )
    return Report(
        run=head.run,
        runbook=runbook.name,
        title=runbook.title,
        verdict=finish.verdict,
        why=_why(finish, walk) if head.runbook == GUARD else finish.why,
        provenance=_provenance(head),
        origin=head.recorded_on or None,
        workload=head.workload,
        started=head.started or None,
        duration_s=elapsed_s if elapsed_s is None else max(elapsed_s, _end(steps)),
        steps=(*steps, *missed),
        findings=findings,
        environment={**head.environment, **_host(walk.state.trail), **({"host": head.host} if head.host else {})},
        next_steps=(*going, *advice(findings, finish.verdict, walked=runbook.name, run=name, ended=not going)),
        tool_version=head.tool_version or None,
        fingerprint=cause_of(walk, finish, findings),
    )


def _one_after_another(steps: Iterable[StepReport]) -> tuple[StepReport, ...]:
    """Return the steps as long as their attempts took, each after the one before.

    A recorded attempt is replayed in no time, and has the duration that it had then.
    """
    placed: list[StepReport] = []
    for step in steps:
        if step.started_s is not None and step.duration_s is not None:
            length = max(step.duration_s, round(sum(attempt_lengths(step.attempts)), 6))
            step = replace(step, started_s=max(step.started_s, round(_end(placed), 6)), duration_s=length)
        placed.append(step)
    return tuple(placed)


def _end(steps: Sequence[StepReport]) -> float:
    return max(((step.started_s or 0.0) + (step.duration_s or 0.0) for step in steps), default=0.0)


def _why(finish: Finish, walk: Progress) -> str | None:
    """Return of a guard's run what its command's end showed: it has one step that can fail."""
    bad = {Verdict.FAILED, Verdict.HANG}
    said = next((visit.record.message for visit in walk.visits if visit.record.message), None)
    return said if said and finish.verdict in bad else finish.why


def _cut_short(walk: Progress) -> tuple[StepReport, ...]:
    """Return the step whose attempts were begun and never judged; nothing where there is none or it has no name."""
    decision = walk.state.decision  # the run itself may be finished: its time was up
    if not isinstance(decision, RunStep):
        return ()
    invocation = decision.invocation
    seen = sorted((*walk.observations, *walk.cancelled, *walk.lost_ranks), key=lambda one: (one.attempt, one.rank))
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
        argv_change=step.argv.model_copy(update={"wrap": invocation.argv[: len(step.argv.wrap)]}),
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
    part = parts.get((seen.attempt, seen.rank), "")
    return Attempt(**vars(seen), reproduced=_reproduced(seen, record), part=part)


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
    named = ((name, found) for seen in observations for name, found in seen.matched.items())
    matches = (match for name, found in named if name not in server.MARKS for match in found)
    return tuple(islice(matches, _LINES_OF_EVIDENCE))


def _artifacts(observations: Sequence[Observation]) -> tuple[Artifact, ...]:
    return tuple(artifact for seen in observations for found in seen.artifacts.values() for artifact in found)


def _provenance(head: RunHead) -> Provenance:
    if head.synthetic:
        return Provenance.SYNTHETIC
    return Provenance.REPLAY if head.recorded_on else Provenance.REAL


def _host(trail: Iterable[StepRecord]) -> dict[str, str]:
    """Return what the steps found out about the host; the last value of each counts."""
    found: dict[str, Data] = {}
    for record in trail:
        told = {name: record.results[name] for name in _OF_THE_HOST if name in record.results}
        found |= {
            name: value for name, value in told.items() if isinstance(value, str | int) and not isinstance(value, bool)
        }
    return {_OF_THE_HOST[name]: str(value) for name, value in found.items()}
