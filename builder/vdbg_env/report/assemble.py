"""Make the Report of a run, live or recorded, from its head and the decisions and results of its steps."""

from __future__ import annotations

import json
import re
import shlex
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import assert_never

from gpucore.core import WarpGroup as DecodedWarps
from gpucore.core import decode_core
from gpucore.dwarf import SourceFrame, parse_frame
from gpucore.mangling import demangle
from vdbg_env.common.errors import BAD_INPUT
from vdbg_env.common.files import read_document
from vdbg_env.crash.files import CORE_SUFFIXES, CoreFiles, SourceText
from vdbg_env.evidence.deaths import blame, first_failure, is_victim, last_attempt
from vdbg_env.evidence.finding import Artifact, EndedBy, Finding, HowKnown, Level, Match, NextStep, Observation
from vdbg_env.evidence.log_line import role_of
from vdbg_env.evidence.system import FIND_THE_KERNEL
from vdbg_env.record.event_log import well_formed
from vdbg_env.record.progress import Progress, StepVisit
from vdbg_env.record.run_directory import GUARD, RunDirectory, RunHead, way_on
from vdbg_env.report.model import (
    Attempt,
    Provenance,
    Report,
    SourceExcerpt,
    StepReport,
    StepStatus,
    WarpGroup,
    WarpHistogram,
    attempt_lengths,
    signal_name,
)
from vdbg_env.runbook import workload
from vdbg_env.runbook.judge import Crash, Fingerprint, conclude, fingerprint, judge
from vdbg_env.runbook.model import Data, End, Manual, Next, Run, Status, Step, ToRunbook, ToStep, Uses
from vdbg_env.runbook.state import Finish, Invocation, RunStep, StepRecord, Verdict, placed
from vdbg_env.runbook.workload import recognise

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
    progress = replace(progress, visits=tuple(_as_started(visit, directory) for visit in progress.visits))
    report = assemble(
        progress,
        finish or progress.finish or conclude(progress.state.trail),
        head,
        folder=str(directory),
        resumable=bool(finish and progress.finish is None and not head.recorded_on),
        elapsed_s=elapsed_s,
    )
    return complete(report, directory, cores=cores, sources=sources, redact=redact)


def _as_started(visit: StepVisit, run: Path) -> StepVisit:
    """Return a visit with the command and variables that its last attempt was started with, whatever today's are."""
    ranks = last_attempt(visit.observations)
    if not ranks or not isinstance(visit.decision, RunStep):
        return visit
    own = (first_failure(ranks) or ranks[0]).directory
    # The attempt's folder has those of several ranks, that of a single rank its own.
    folder = next((run / one for one in (own, own.rpartition("/")[0]) if (run / one / "env.json").is_file()), None)
    if folder is None:
        return visit
    of_then = re.compile(rf"/[^\s:,=]*/(?={re.escape(own)})")  # the run's folder
    with well_formed(f"{folder}"):
        words = read_document(folder / "argv.json")["argv"]
        delta = read_document(folder / "env.json")["delta"]
        invocation = replace(
            visit.decision.invocation,
            argv=tuple(of_then.sub("", word) for word in words),
            env={name: text and of_then.sub("", text) for name, text in delta.items()},
        )
    return replace(visit, decision=replace(visit.decision, invocation=invocation))


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
    found = (on_its_command(finding, name, flags) for visit in walk.visits for finding in visit.record.findings)
    findings = _with_assertion(judge(found))
    relevant = [finding for finding in findings if not (head.recorded_on and _is_of_this_host(finding))]
    then = (*going, *advice(relevant, finish.verdict, walked=runbook.name, run=name, ended=not going))
    if runbook.name == GUARD and finish.verdict is Verdict.HANG:
        again = f"vdbg-env runbook {_of_hang(walk)}{flags} --from {shlex.quote(name)}"
        then = (*then, NextStep("run its steps, which run the command again", again))
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
        next_steps=then,
        tool_version=head.tool_version or None,
        fingerprint=cause_of(walk, finish, findings),
    )


def _is_of_this_host(finding: Finding) -> bool:
    """Return whether a finding warns of the machine that the run is on, which a replayed crash never saw."""
    return finding.how_known is HowKnown.HOST_CHECK and finding.level is not Level.ERROR


def _of_hang(walk: Progress) -> str:
    """Return the runbook of what the log of a hang shows; that it died of the signal that we sent is nothing."""
    named = (str(visit.record.results["runbook"]) for visit in walk.visits if "runbook" in visit.record.results)
    return next((name for name in named if name != "host-crash"), "kernel-hang")


_ASSERTION = re.compile(r"[^\s:]+:\d+: .{0,400}?[Aa]ssertion `.{1,400}?` failed", re.DOTALL)


def _with_assertion(findings: tuple[Finding, ...]) -> tuple[Finding, ...]:
    """Give the failed assertion of a core its words and its place, which the program's log alone has."""
    said = next((found[0] for finding in findings if (found := _ASSERTION.search(finding.message))), None)
    return tuple(
        replace(finding, why=(f"the program printed: {said}",))
        if said and finding.kernel and finding.message.startswith("Warp Assert ") and not finding.why
        else finding
        for finding in findings
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
    said = next((visit.record.message for visit in walk.visits if visit.record.message), None)
    return said if said and finish.verdict is not Verdict.INCONCLUSIVE else finish.why


def _cut_short(walk: Progress) -> tuple[StepReport, ...]:
    """Return the step whose attempts were begun and never judged; nothing where there is none or it has no name."""
    decision = walk.state.decision  # the run itself may be finished: its time was up
    if not isinstance(decision, RunStep):
        return ()
    invocation = decision.invocation
    seen = sorted((*walk.observations, *walk.cancelled, *walk.lost_ranks), key=lambda one: (one.attempt, one.rank))
    if not seen and not walk.open:
        return ()
    roles = parts(seen)
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
            notes=("this step was cut short", *notes(seen)),
        ),
    )


def step_report(visit: StepVisit) -> StepReport:
    """Return one visit as the report shows it."""
    record, step = visit.record, visit.step
    roles = parts(visit.observations)
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
        notes=(*notes(visit.observations), *record.notes),
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
        plugged=bool(invocation.env.get(workload.VARIABLE)),
    )


def _engine_args(invocation: Invocation, step: Run) -> tuple[str, ...]:
    """Return the engine arguments a step changed, as flags: what the plug-in got, else what the command gained."""
    if not step.engine_args:
        return ()
    plugged = invocation.env.get(workload.VARIABLE)
    if plugged:
        return workload.as_flags((), json.loads(plugged))
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
    matches = (match for name, found in named if name not in workload.MARKS for match in found)
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


# What to try next: what the findings say, and where none says anything, what the verdict asks for.


_READ_CORE = "vdbg-env core "
_READ_RECORD = ("tail ", "less ")
_COMMAND = " -- COMMAND"  # how a runbook writes the command that the run was given


def next_steps(findings: Sequence[Finding], *, walked: str = "") -> tuple[NextStep, ...]:
    """Return what the findings say to try next, each text and each command once: errors first, then surest first.

    The runbook that was `walked` is not among it.
    """
    levels = list(Level)
    said: dict[NextStep, NextStep] = {}
    kernel = any(finding.kernel for finding in findings)
    for finding in sorted(findings, key=lambda f: levels.index(f.level)):
        if kernel and finding.next_step and finding.next_step.text == FIND_THE_KERNEL:
            continue  # it is found
        if finding.next_step and (step := advised(finding)):
            said.setdefault(finding.next_step, step)
    steps = said.values()
    named = any((step.command or "").startswith(_READ_CORE) and step.command != f"{_READ_CORE}FILE" for step in steps)
    first = {step.command: step for step in reversed(said.values())}
    return tuple(
        step
        for step in steps
        if not (step.command or "").startswith(f"vdbg-env runbook {walked} --from ")
        and (
            step.command is None
            or (first[step.command] is step and not (named and step.command == f"{_READ_CORE}FILE"))
        )
    )


def advised(finding: Finding) -> NextStep | None:
    """Return what a finding says to try next; a command alone is for what the finding says."""
    step = finding.next_step
    return step and (step if step.text else replace(step, text=finding.message))


def on_its_command(finding: Finding, run: str, flags: str = "") -> Finding:
    """Return the finding with the command of `run` in place of the word COMMAND, so it can be typed as it is.

    `flags` are what a runbook needs on that command.
    """
    step = finding.next_step
    if step is None or step.command is None or not step.command.endswith(_COMMAND):
        return finding
    command = f"{step.command.removesuffix(_COMMAND)}{flags} --from {shlex.quote(run)}"
    return replace(finding, next_step=replace(step, command=command))


def flags_after_guard(workload: Sequence[str]) -> str:
    """Return the flags of a runbook on a command that was guarded.

    A server in production is started again at its port, and its requests were not recorded.
    """
    return " -i request=synthetic -i port=auto" if recognise(tuple(workload)).serves else ""


def advice(
    findings: Sequence[Finding], verdict: Verdict, *, walked: str, run: str, ended: bool
) -> tuple[NextStep, ...]:
    """Return what to try next of a run; of one that has `ended`, never nothing.

    A failure that did not show is looked for with what it failed with, before what warnings of the machine ask for.
    """
    said = next_steps(findings, walked=walked)
    if walked == GUARD and verdict is Verdict.PASSED:
        return said
    unseen = verdict is Verdict.NOT_REPRODUCED and not any(finding.level is Level.ERROR for finding in findings)
    if ended and (unseen or not said):
        return (by_verdict(verdict, run=run), *said)
    return said


def by_verdict(verdict: Verdict, *, run: str) -> NextStep:
    """Return what to try where no finding says: no run ends without a way on."""
    shown = shlex.join(["vdbg-env", "runs", "show", run])
    match verdict:
        case Verdict.REPRODUCED | Verdict.HANG | Verdict.FAILED:
            return NextStep(text="give report.md to the owner of the code: it holds the failure and all that was tried")
        case Verdict.NOT_REPRODUCED:
            return NextStep(
                text="run it as it was when it failed: the same requests (-i request=FILE), load, node and versions"
            )
        case Verdict.PASSED:
            return NextStep(text="nothing is wrong here; run the same on the machine where it failed")
        case Verdict.WARNED:
            return NextStep(text="read what warned, and what its step printed", command=shown)
        case Verdict.INCONCLUSIVE | Verdict.OUT_OF_TIME:
            return NextStep(text="see what each step printed", command=shown)
    assert_never(verdict)


def typed_outside(report: Report, folder: str) -> Report:
    """Return the report with the files its commands name given by `folder`, the run's own: next to the record, a report
    names them from there, and on a terminal a command is typed in any folder. So are those of the findings.
    """
    paths = {artifact.path for step in report.steps for artifact in step.artifacts}
    inside = {spelled: path for path in paths for spelled in (path, shlex.quote(path))}  # older ones: unquoted
    longest_first = "|".join(map(re.escape, sorted(inside, key=len, reverse=True)))
    named = re.compile(rf"(?<!\S)(?:{longest_first})(?!\S)") if inside else None

    def typed(step: NextStep) -> NextStep:
        command = step.command or ""
        if named and named.search(command):
            command = named.sub(lambda found: shlex.quote(f"{folder}/{inside[found[0]]}"), command)
        elif command.startswith(_READ_RECORD):  # may be a pattern, for the shell
            command = re.sub(r"(?<!\S)steps/", lambda _: f"{shlex.quote(folder)}/steps/", command)
        return replace(step, command=command or None)

    findings = (replace(one, next_step=one.next_step and typed(one.next_step)) for one in report.findings)
    return replace(report, next_steps=tuple(map(typed, report.next_steps)), findings=tuple(findings))


# One row per rank: the part that each had in the end of an attempt, and the nodes that differ.


_NAMED = 3  # nodes or ranks named in one note


def parts(observations: Sequence[Observation]) -> Mapping[tuple[int, int], str]:
    """Return the part of each rank by attempt and rank; nothing for attempts of a single rank."""
    found: dict[tuple[int, int], str] = {}
    for attempt in {seen.attempt for seen in observations}:
        ranks = [seen for seen in observations if seen.attempt == attempt]
        began = blame(ranks)
        named = {seen.rank: began.part for seen in began.ranks} if began else {}
        if len(ranks) > 1:
            found |= {(seen.attempt, seen.rank): named.get(seen.rank) or _part(seen) for seen in ranks}
    return found


def notes(observations: Sequence[Observation]) -> Iterator[str]:
    """Yield what the ranks of the last attempt show together: who failed first, and which nodes are not alike."""
    last = max((seen.attempt for seen in observations), default=0)
    ranks = [seen for seen in observations if seen.attempt == last]
    if len(ranks) < 2:
        return
    if began := blame(ranks):
        yield began.words
    yield from (note for note in ranks[0].notes if all(note in other.notes for other in ranks))
    blur = max((seen.clock.within_s for seen in ranks if seen.clock), default=0.0)
    ahead = max((abs(seen.clock.ahead_s) for seen in ranks if seen.clock), default=0.0)
    if ahead > blur:
        yield f"the nodes' clocks are up to {ahead:.3g} s apart, known to {blur:.2g} s; the order of ends allows for it"
    yield from _differences({seen.host: seen.node for seen in ranks if seen.node})


def _part(seen: Observation) -> str:
    if seen.went_well:
        return "well"
    if seen.ended.by is EndedBy.CANCEL:
        return "cancelled"
    if seen.ended.by is EndedBy.PEER:
        return "ended by us"
    if seen.ended.by in {EndedBy.NODE_LOST, EndedBy.ENGINE_LOST}:
        return "lost"
    if seen.ended.by is EndedBy.WATCH:
        return "reported the hang"
    if seen.ended.by is EndedBy.TIMEOUT:
        return "out of time"
    return "victim" if is_victim(seen) else "failed"


def _differences(nodes: Mapping[str, Mapping[str, str]]) -> Iterator[str]:
    """Yield one note for each property in which a node is not like most of the others."""
    for name in dict.fromkeys(name for node in nodes.values() for name in node):
        values = Counter(node.get(name, "none") for node in nodes.values())
        usual = values.most_common(1)[0][0]
        odd = [
            f"{host} has {node.get(name, 'none')}" for host, node in nodes.items() if node.get(name, "none") != usual
        ]
        if odd:
            more = f" and {len(odd) - _NAMED} more" if len(odd) > _NAMED else ""
            yield f"nodes differ in {name}: {', '.join(odd[:_NAMED])}{more}, the others {usual}"


# The fingerprint of a run's crash, from what its steps found.


CRASHED = {Verdict.REPRODUCED, Verdict.HANG, Verdict.FAILED}
SHOWED = {Status.REPRODUCED, Status.HANG, Status.FAIL}
_DEPTH = re.compile(r"\A.*? \(\d+\): ", re.DOTALL)


def cause_of(walk: Progress, finish: Finish, findings: Sequence[Finding]) -> Fingerprint | None:
    """Return the cause of what a run saw: by its findings, and by the first step in which it showed."""
    showed = [visit.record for visit in walk.visits if visit.record.outcome in SHOWED and visit.record.ended]
    if finish.verdict not in CRASHED or not showed:
        return None
    first = showed[0]
    number = first.ended.signal if first.ended else None
    return cause_by(findings, first.results, hangs=first.outcome is Status.HANG, signal_number=number)


def cause_by(
    findings: Sequence[Finding], results: Mapping[str, Data], *, hangs: bool, signal_number: int | None
) -> Fingerprint | None:
    """Return the cause by all findings of a run, and by the results of the step in which it showed first."""
    stuck = _text(results.get("stuck"))
    hangs = hangs and not (results.get("raised_before_hang") is True and stuck in {None, "waits"})
    if not hangs:
        stack = tuple(_places(results.get("stack")))
    elif stuck:
        stack = tuple(_places([results.get("stuck_in")]))
    else:
        stack = tuple(sorted(set(_places(results.get("waiting_in"))), key=str))
    return fingerprint(
        Crash(
            findings=findings,
            error=_text(results.get("error")),
            stack=stack,
            failure=_text(results.get("failure")),
            signal=signal_name(signal_number) or (f"signal {signal_number}" if signal_number else None),
            hang=hangs,
            stuck=stuck,
            died=_text(results.get("died")),
            process=role_of(_text(results.get("stuck_process" if hangs else "failed_process")) or ""),
            crashed=tuple(_places(results.get("crashed_stack"))),
        )
    )


def _places(value: Data) -> Iterator[SourceFrame]:
    for text in value if isinstance(value, list) else ():
        frame = parse_frame(_DEPTH.sub("", str(text)))
        if frame:
            yield frame


def _text(value: Data) -> str | None:
    return value if isinstance(value, str) else None


# Complete a run's report with the source lines that it names and the warps of its core dumps.


_AROUND = 3  # lines of source shown before and after the one that is meant
_MOST_PLACES = 40  # most warps of a large grid are at a few places
_MOST_CORES = 16


def complete(
    report: Report, directory: Path, *, cores: CoreFiles, sources: SourceText, redact: Callable[[str], str]
) -> Report:
    """Return the report with the text of every source line it names, and where the warps of each core were.

    Lines that an earlier report of the run shows are kept: its sources may have changed since, or be on another machine
    or in an image. A program may hold a token next to the line that failed: `redact` takes it out of what is shown. A
    core that cannot be read is left out: the step that read it says why.
    """
    histograms = tuple(_histograms(report, directory, cores))
    frames = [frame for finding in report.findings for frame in (*finding.chain, finding.location) if frame]
    frames += [frame for histogram in histograms for group in histogram.groups for frame in group.chain]
    kept = {(one.file, one.marked): one for one in _kept(directory, redact)}
    excerpts = (
        kept.get((frame.file, frame.line)) or excerpt(frame, sources, redact)
        for frame in dict.fromkeys(frames)
        if not frame.headers
    )
    return replace(report, histograms=histograms, excerpts=tuple(dict.fromkeys(e for e in excerpts if e)))


def _kept(directory: Path, redact: Callable[[str], str]) -> Iterator[SourceExcerpt]:
    """Yield the source lines of the report that is there; what another program wrote there is passed over."""
    try:
        recorded = RunDirectory(directory).read_report().get("sources")
    except BAD_INPUT:
        return
    for one in recorded if isinstance(recorded, list) else ():
        try:
            lines = tuple(redact(str(line)) for line in one["lines"])
            yield SourceExcerpt(file=str(one["file"]), first=int(one["first"]), marked=int(one["marked"]), lines=lines)
        except (KeyError, TypeError, ValueError):
            continue


def excerpt(frame: SourceFrame, sources: SourceText, redact: Callable[[str], str]) -> SourceExcerpt | None:
    """Return the lines around a place, each redacted, or None when its source is not on this machine."""
    if sources.line(frame.file, frame.line) is None:
        return None
    first = frame.line
    while first > max(1, frame.line - _AROUND) and sources.line(frame.file, first - 1) is not None:
        first -= 1
    lines = []
    for number in range(first, frame.line + _AROUND + 1):
        text = sources.line(frame.file, number)
        if text is None:
            break
        lines.append(redact(text))
    return SourceExcerpt(file=frame.file, first=first, marked=frame.line, lines=tuple(lines))


def _histograms(report: Report, directory: Path, cores: CoreFiles) -> Iterable[WarpHistogram]:
    """Yield the warps of every core without a fault: of one with a fault, the fault says it all."""
    paths = [
        (artifact.path, step.id) for step in report.walked for artifact in step.artifacts if _is_core(artifact.path)
    ]
    for path, step in paths[:_MOST_CORES]:
        try:
            with cores.open(str(directory / path)) as core:
                read = decode_core(core.data, file=path, modified=core.modified)
        except BAD_INPUT:
            continue
        if read.warp_groups and not read.faults:
            groups = tuple(_group(group) for group in read.warp_groups[:_MOST_PLACES])
            yield WarpHistogram(core=path, step=step, groups=groups)


def _group(group: DecodedWarps) -> WarpGroup:
    location = group.location
    return WarpGroup(
        pc=group.pc,
        count=group.warps,
        kernel=demangle(group.kernel) if group.kernel else None,
        offset=location.offset if location else None,
        chain=location.chain if location else (),
        state=group.state,
    )


def _is_core(path: str) -> bool:
    name = path.rpartition("/")[2]
    return "core.cuda." in name or name.endswith(CORE_SUFFIXES)
