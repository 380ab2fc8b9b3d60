"""What a run is started with and what it gives: its order, the ports that it uses, and its end."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Protocol, assert_never

from gpucore.errors import GpucoreError
from vdbg_env.common.clock import Clock, Interrupts
from vdbg_env.common.errors import ANY_ERROR, HostNotAble, VdbgError
from vdbg_env.common.stop import ToldToStop, limited
from vdbg_env.evidence.finding import EndedBy, Finding, Observation
from vdbg_env.record.event_log import Event, EventLog
from vdbg_env.record.progress import OpenAttempt, Progress, StepVisit, apply, at_start, finish_step, replay
from vdbg_env.record.redactor import Redactor
from vdbg_env.record.run_directory import RunDirectory, RunHead
from vdbg_env.record.values import from_document, to_document
from vdbg_env.run.placement import StartedAttempt, StepPlacement
from vdbg_env.runbook import machine
from vdbg_env.runbook.model import Builtin
from vdbg_env.runbook.state import (
    OURS,
    AskPerson,
    BranchTo,
    Finish,
    Invocation,
    ResultValue,
    RunState,
    RunStep,
    StepResult,
    UseBuiltin,
    placed,
)

if TYPE_CHECKING:
    from pathlib import Path


Listener = Callable[[Event, Progress], None]


@dataclass(frozen=True, kw_only=True)
class StepContext:
    """What a built-in may read: the run's folder, and the steps before it.

    `began_s` is when this process started or resumed the run, in seconds since the machine's start.
    """

    directory: Path
    state: RunState
    visits: tuple[StepVisit, ...]
    began_s: float


class Builtins(Protocol):
    """The tool's own steps and readers."""

    def use(self, order: UseBuiltin, context: StepContext) -> StepResult:
        """Do a built-in step; a VdbgError becomes the step's `error`."""
        ...

    def read(self, reader: Builtin, observations: Sequence[Observation], context: StepContext) -> StepResult:
        """Read what a run step left behind; a VdbgError becomes the step's `error`."""
        ...


class Worker(Protocol):
    """Does a piece of this program's work where it can be ended; see `ForkedWorker`."""

    def do(self, work: Callable[[], bytes], *, timeout_s: float | None, check: Callable[[], None]) -> bytes:
        """Do the work and return its result; raises HostNotAble, and what `check` raises."""
        ...


class Person(Protocol):
    """Answers a runbook's questions."""

    def ask(self, question: AskPerson) -> str | None:
        """Return one of the choices, or None without an answer in time."""
        ...


@dataclass(frozen=True, kw_only=True)
class RunOrder:
    """A run to begin or to continue: `state` is the runbook's first state, `total_s` the limit on the whole run.

    `left_s` is how long this process may work on it. No step is started below `disk_floor` bytes of free space.
    `sensitive` are the values of sensitive inputs, which must not be kept, as `redactor` sees to. `runbooks` are the
    texts to be kept with a new run, by their names in it.
    """

    directory: RunDirectory
    head: RunHead
    state: RunState
    start_branch: Callable[[BranchTo], RunState]
    total_s: float | None = None
    left_s: float | None = None
    disk_floor: int = 0
    redactor: Redactor = field(default_factory=Redactor)
    sensitive: tuple[str, ...] = ()
    runbooks: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class RunContext:
    """The ports that a run uses; `waiting` is called again and again while an attempt runs."""

    placement: StepPlacement
    builtins: Builtins
    worker: Worker
    person: Person
    clock: Clock
    interrupts: Interrupts
    listener: Listener = lambda _event, _walk: None
    notice: Callable[[str], None] = lambda _text: None
    waiting: Callable[[], None] = lambda: None


@dataclass(frozen=True, kw_only=True)
class RunEnd:
    """How a run ended: its progress and its verdict.

    `unfinished` says that it was cut short and can be resumed, `signal` which signal did that, if one did.
    """

    progress: Progress
    finish: Finish
    elapsed_s: float
    unfinished: bool = False
    signal: int | None = None


# Run a runbook to its end, or continue one that was cut short: decide, do, record, decide again.
#
# Every state change is an event on disk before anything follows from it, and the progress of a run is a function of its
# events alone (`record.progress`), live and after a resumption alike.


_LOG = logging.getLogger(__name__)
POLL_S = 0.25  # how long a signal or the total time limit may wait to be seen
_OVER_S = 0.02  # by then an attempt that was over before, recorded or of another engine's time, is known to be
_READ_HERE = 1 << 20  # bytes of output that are read in a moment
_LOST = "attempt {number} was lost and has been repeated: {why}"
_REPEATED = "attempt {number} was cancelled and has been repeated: what was seen of it is in {folder}"
_NO_ROOM = (
    "step {step!r} was not started: {free} MiB are left on the disk, and no step starts below {floor} MiB; make room, "
    "or give --disk-floor SIZE, and then --resume"
)
_NODE_LOST = "step {step!r} lost rank {rank} on {host}: {why}"
# Said of an attempt that ran when this program did not ask for its end.
_CANCELLED = "step {step!r} was cancelled from outside: by scancel, its job's time limit, preemption or a SIGTERM"
_SILENT = (
    "ended without waiting for an answer: what this step started may still run where steps run, and --resume takes it "
    "over"
)
_ENDING = "ending the step: its processes are asked to end, and killed after their grace"


def run_runbook(order: RunOrder, context: RunContext) -> RunEnd:
    """Run to the end and return it; the run's lock must be held (`RunDirectory.locked`).

    Raises HostNotAble when the record cannot be written, or steps cannot be started at all.
    """
    log = EventLog(order.directory.events, order.redactor, context.clock.monotonic, context.clock.wall)
    try:
        return _Run(order, context, log).to_its_end()
    finally:
        log.close()


class _CutShort(Exception):
    """The run must stop before its end: a signal was received, the total time is spent, or the disk takes no more."""

    def __init__(self, why: str, *, signal: int | None = None, out_of_time: bool = False) -> None:
        super().__init__(why)
        self.why = why
        self.signal = signal
        self.out_of_time = out_of_time


class _Run:
    def __init__(self, order: RunOrder, context: RunContext, log: EventLog) -> None:
        self._order = order
        self._context = context
        self._log = log
        self._began_s = context.clock.monotonic()
        self._progress = replay(at_start(order.state), log.recorded(), order.start_branch)

    def to_its_end(self) -> RunEnd:
        """Take decision after decision until one is the last."""
        if self._progress.finish is None:
            self._append("run_resumed" if self._log.count else "run_started")
        cut_short: _CutShort | None = None
        try:
            with limited(self._left_s()):
                decision = self._decisions()
        except _CutShort as cut:
            cut_short = cut
            finish = machine.cut_short(self._progress.state, cut.why, out_of_time=cut.out_of_time)[1]
            self._append("run_interrupted", signal=cut.signal, why=cut.why, out_of_time=cut.out_of_time)
        else:
            finish = decision
            if self._progress.finish is None:
                self._append("run_finished", finish=to_document(finish))
        return RunEnd(
            progress=self._progress,
            finish=finish,
            elapsed_s=self._log.last_s,
            unfinished=cut_short is not None,
            signal=cut_short.signal if cut_short else None,
        )

    def _decisions(self) -> Finish:
        """Do what is decided until that is the end; raises _CutShort."""
        try:
            while not isinstance(decision := self._progress.decision, Finish):
                self._check_limits()
                match decision:
                    case RunStep():
                        self._finish_step(self._run_step(decision))
                    case UseBuiltin():
                        self._finish_step(self._use_builtin(decision))
                    case AskPerson():
                        self._finish_step(self._asked(decision))
                    case BranchTo(runbook=name):
                        self._append("branched", runbook=name)
                    case _:
                        assert_never(decision)
        except ToldToStop:
            self._context.notice(_SILENT)
            self._check_limits()
            raise
        return decision

    def _left_s(self) -> float:
        """Return how long the run may still take."""
        total = self._order.total_s
        limits = (self._order.left_s, None if total is None else total - self._log.elapsed_s())
        return min((limit for limit in limits if limit is not None), default=float("inf"))

    # -- one decision -----------------------------------------------------------------------------------------------

    def _run_step(self, decision: RunStep) -> StepResult:
        """Make the attempts that are due, adopting one that still runs, and let the readers read them."""
        for attempt in self._progress.open:
            self._observe(self._adopted(decision.invocation, attempt), began_before=True)
        while not self._progress.observations or machine.again(self._progress.state, self._progress.observations):
            self._check_limits()
            self._observe(self._started_again(decision.invocation))
        return self._read(decision, self._progress.observations)

    def _started_again(self, invocation: Invocation) -> StartedAttempt:
        """Start an attempt; one that repeats what was lost with its node may find too few nodes for it."""
        lost = self._progress.lost
        try:
            return self._started(invocation)
        except HostNotAble as error:
            if lost is None or lost.ended.by is not EndedBy.NODE_LOST:
                raise
            self._context.notice(error.next_step or "")
            why = _NODE_LOST.format(step=lost.step, rank=lost.rank, host=lost.host, why=lost.ended.message)
            raise _CutShort(f"{why}; {error.what}") from error

    def _started(self, invocation: Invocation) -> StartedAttempt:
        """Write down that an attempt begins, then begin it; none does on a disk that is nearly full."""
        free, floor = self._order.directory.free_space(), self._order.disk_floor
        if free < floor:
            raise _CutShort(_NO_ROOM.format(step=invocation.step, free=free >> 20, floor=floor >> 20))
        attempt = self._progress.used.get(invocation.step, 0) + 1
        layout = self._context.placement.layout(invocation)
        directory = self._order.directory.attempt(invocation.step, attempt, layout.folder)
        where = str(directory.relative_to(self._order.directory.path))
        opened = OpenAttempt(attempt=attempt, directory=where, ranks=layout.ranks)
        self._append("attempt_started", step=invocation.step, **opened.document())
        return self._start(invocation, opened)

    def _adopted(self, invocation: Invocation, attempt: OpenAttempt) -> StartedAttempt:
        """Take over an attempt whose end is not on record; start one that was recorded but never started."""
        numbered = replace(invocation, attempt=attempt.attempt)
        adopted = self._context.placement.adopt(numbered, self._order.directory.path / attempt.folder)
        return adopted or self._start(invocation, attempt)

    def _start(self, invocation: Invocation, attempt: OpenAttempt) -> StartedAttempt:
        invocation = replace(invocation, attempt=attempt.attempt)
        redactor = self._order.redactor
        shown = invocation if attempt.ranks > 1 else self._placed(invocation, attempt)
        env = {"delta": redactor.env(shown.env), "ours": {**OURS, **shown.hooks}}
        self._order.directory.begin_attempt(attempt.directory, redactor.argv(shown.argv), env)
        return self._context.placement.start(invocation, self._order.directory.path / attempt.folder)

    def _observe(self, attempt: StartedAttempt, *, began_before: bool = False) -> None:
        """Wait for an attempt's end and write it down; when the run is cut short, the attempt is ended first."""
        cut: _CutShort | None = None
        seen = attempt.wait(_OVER_S)
        watched = seen is None
        while seen is None:
            seen = attempt.wait(POLL_S)
            if seen is None:
                self._context.waiting()
            if seen is None and cut is None:
                try:
                    self._check_limits()
                except _CutShort as reason:
                    cut = reason
                    attempt.cancel()
                    self._context.notice(
                        _ENDING if reason.out_of_time else f"{_ENDING}; Ctrl-C again kills them at once"
                    )
            elif seen is None and len(self._context.interrupts.pending()) > 1:
                attempt.cancel(firmly=True)
        if began_before:
            self._log.count_work(max(one.duration_s for one in seen))
        lost = self._progress.lost
        documents = [to_document(one) for one in seen]
        self._append(
            "attempt_ended", **({"observations": documents} if documents[1:] else {"observation": documents[0]})
        )
        live = watched and not self._order.head.recorded_on
        if cut is None and live and EndedBy.CANCEL in {one.ended.by for one in seen}:
            cut = _CutShort(_CANCELLED.format(step=seen[0].step))
        if cut:
            raise cut
        newly = self._progress.lost
        if newly and newly is not lost and newly.ended.by is EndedBy.DISK and not self._order.head.recorded_on:
            raise _CutShort(f"the disk is full, or fails: {newly.ended.message}")

    def _read(self, decision: RunStep, observations: tuple[Observation, ...]) -> StepResult:
        """Let the readers read what was seen; where that is long, in a process that a signal or a limit can end."""

        def work() -> bytes:
            return json.dumps(to_document(replace(self._readings(decision, observations), observations=()))).encode()

        if sum(seen.output_bytes for seen in observations) <= _READ_HERE:
            return self._readings(decision, observations)
        try:
            done = json.loads(self._context.worker.do(work, timeout_s=None, check=self._check_limits))
        except HostNotAble as error:
            return StepResult(step=decision.invocation.step, observations=observations, error=_reason(error))
        return replace(from_document(StepResult, done), observations=observations)

    def _readings(self, decision: RunStep, observations: tuple[Observation, ...]) -> StepResult:
        results: dict[str, ResultValue] = {}
        findings: list[Finding] = []
        lost = self._progress.lost
        step = decision.invocation.step
        notes = [_LOST.format(number=lost.attempt, why=lost.ended.message or "its end was not seen")] if lost else []
        cancelled = sorted({seen.attempt for seen in self._progress.cancelled})
        notes += [_REPEATED.format(number=number, folder=f"steps/{step}/{number}") for number in cancelled]
        try:
            for reader in decision.readers:
                reading = self._context.builtins.read(reader, observations, self._step_context())
                results |= reading.results
                findings += reading.findings
                notes += reading.notes
        except ANY_ERROR as error:
            return StepResult(step=step, observations=observations, error=_reason(error), notes=tuple(notes))
        return StepResult(
            step=step, observations=observations, results=results, findings=tuple(findings), notes=tuple(notes)
        )

    def _asked(self, question: AskPerson) -> StepResult:
        """Ask, for no longer than the whole run may last; a question that was interrupted is asked again later."""
        total = self._order.total_s
        if total is not None:
            left = max(0.0, total - self._log.elapsed_s())
            question = replace(question, timeout_s=min(question.timeout_s, left))
        choice = self._context.person.ask(question)
        self._check_limits()
        return StepResult(step=question.step, choice=choice)

    def _use_builtin(self, decision: UseBuiltin) -> StepResult:
        """Have a built-in do its work within its time limit; what it cannot do is the step's error."""
        self._order.directory.check_in_place(f"steps/{decision.step}")

        def work() -> bytes:
            try:
                result = self._context.builtins.use(decision, self._step_context())
            except ANY_ERROR as error:
                result = StepResult(step=decision.step, error=_reason(error))
            return json.dumps(to_document(result)).encode()

        try:
            done = self._context.worker.do(work, timeout_s=decision.timeout_s, check=self._check_limits)
        except HostNotAble as error:
            return StepResult(step=decision.step, error=_reason(error))
        return from_document(StepResult, json.loads(done))

    def _placed(self, invocation: Invocation, attempt: OpenAttempt) -> Invocation:
        directory = str(self._order.directory.where(attempt.directory))
        return placed(invocation, attempt=attempt.attempt, rank=attempt.rank, host=attempt.host, directory=directory)

    # -- what holds the run together --------------------------------------------------------------------------------

    def _finish_step(self, result: StepResult) -> None:
        """Record a step's result with its outcome, for readers of the log that have no runbook.

        The result is judged as it will be read back, redacted: a resumed run has to decide alike.
        """
        document = self._order.redactor.document(to_document(result))
        recorded = from_document(StepResult, document)
        state, _ = machine.advance(self._progress.state, recorded)
        judged = state.trail[len(self._progress.state.trail)]
        outcome = judged.outcome and judged.outcome.value
        event = self._log.append(
            "step_finished", step=result.step, result=document, outcome=outcome, message=judged.message
        )
        self._report(event, finish_step(self._progress, recorded, state, event.elapsed_s))

    def _append(self, kind: str, **data: Any) -> None:
        """Record an event, and only then let it count."""
        event = self._log.append(kind, **data)
        self._report(event, apply(self._progress, event, self._order.start_branch))

    def _report(self, event: Event, progress: Progress) -> None:
        _LOG.info("event %d: %s %s", event.seq, event.kind, event.data.get("step", ""))
        self._progress = progress
        self._context.listener(event, progress)

    def _check_limits(self) -> None:
        came = self._context.interrupts.pending()
        if came:
            raise _CutShort("interrupted", signal=came[0])
        total = self._order.total_s
        if total is not None and self._log.elapsed_s() >= total:
            raise _CutShort(f"the {total:g} s allowed for the whole run are spent", out_of_time=True)
        left = self._order.left_s
        if left is not None and self._context.clock.monotonic() >= self._began_s + left:
            raise _CutShort("the job's own time limit is near: the rest is for the record", out_of_time=True)

    def _step_context(self) -> StepContext:
        return StepContext(
            directory=self._order.directory.path,
            state=self._progress.state,
            visits=self._progress.visits,
            began_s=self._began_s,
        )


def _reason(error: VdbgError | GpucoreError) -> str:
    return error.what if error.cause is None else f"{error.what} ({error.cause})"


def redacted(progress: Progress, redactor: Redactor) -> Progress:
    """Return the progress without the secrets of argument lists and environments."""
    return replace(progress, visits=tuple(_redacted_visit(visit, redactor) for visit in progress.visits))


def _redacted_visit(visit: StepVisit, redactor: Redactor) -> StepVisit:
    if not isinstance(visit.decision, RunStep):
        return visit
    invocation = visit.decision.invocation
    invocation = replace(
        invocation,
        argv=redactor.argv(invocation.argv),
        base_argv=redactor.argv(invocation.base_argv),
        env=redactor.env(invocation.env),
    )
    return replace(visit, decision=replace(visit.decision, invocation=invocation))
