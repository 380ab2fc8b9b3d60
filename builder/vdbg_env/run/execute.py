"""Run a runbook to its end, or continue one that was cut short: decide, do, record, decide again.

Every state change is an event on disk before anything follows from it, and the progress of a run is a function of its
events alone (`record.progress`), live and after a resumption alike.
"""

from __future__ import annotations

import json
import logging
import os
import select
import signal
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NoReturn, Protocol, assert_never

from gpucore.errors import GpucoreError
from vdbg_env.common.errors import ANY_ERROR, HostNotAble, VdbgError
from vdbg_env.common.files import write_whole
from vdbg_env.common.stop import Clock, Interrupts, SystemClock, ToldToStop, limited
from vdbg_env.evidence.finding import EndedBy, Finding, Observation
from vdbg_env.record.event_log import Event, EventLog
from vdbg_env.record.progress import (
    OpenAttempt,
    Progress,
    StartBranch,
    StepVisit,
    apply,
    at_start,
    finish_step,
    from_document,
    replay,
    to_document,
)
from vdbg_env.record.redactor import Redactor
from vdbg_env.record.run_directory import RunDirectory, RunHead
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
from vdbg_env.supervisor.proc import descendants, die_with_parent, send

Listener = Callable[[Event, Progress], None]


class Builtins(Protocol):
    """The tool's own steps and readers."""

    def use(self, order: UseBuiltin, progress: Progress) -> StepResult:
        """Do a built-in step; a VdbgError becomes the step's `error`."""
        ...

    def read(self, reader: Builtin, observations: Sequence[Observation], progress: Progress) -> StepResult:
        """Read what a run step left behind; a VdbgError becomes the step's `error`."""
        ...


class Worker(Protocol):
    """Does a piece of this program's work where it can be ended; see `in_fork`."""

    def __call__(self, work: Callable[[], bytes], *, timeout_s: float | None, check: Callable[[], None]) -> bytes:
        """Do the work and return its result; raises HostNotAble, and what `check` raises."""
        ...


class Person(Protocol):
    """Answers a runbook's questions."""

    def ask(self, question: AskPerson) -> str | None:
        """Return one of the choices, or None without an answer in time."""
        ...


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


class _CutShort(Exception):
    """The run must stop before its end: a signal was received, the total time is spent, or the disk takes no more."""

    def __init__(self, why: str, *, signal: int | None = None, out_of_time: bool = False) -> None:
        super().__init__(why)
        self.why = why
        self.signal = signal
        self.out_of_time = out_of_time


@dataclass(kw_only=True)
class Execution:
    """One run: what it is, what it uses, how far it is, and at its end how it ended.

    `state` is the runbook's first state. `total_s` is the limit on the whole run, `left_s` how long this process may
    work on it. No step is started below `disk_floor` bytes of free space. `waiting` is called again and again while an
    attempt runs. `unfinished` says that it was cut short and can be resumed, `signal` which signal did that, if one
    did.
    """

    directory: RunDirectory
    head: RunHead
    state: RunState
    start_branch: StartBranch
    placement: StepPlacement
    builtins: Builtins
    person: Person
    interrupts: Interrupts
    worker: Worker = field(default_factory=lambda: in_fork)
    clock: Clock = field(default_factory=SystemClock)
    redactor: Redactor = field(default_factory=Redactor)
    total_s: float | None = None
    left_s: float | None = None
    disk_floor: int = 0
    listener: Listener = lambda _event, _progress: None
    notice: Callable[[str], None] = lambda _text: None
    waiting: Callable[[], None] = lambda: None
    progress: Progress = field(init=False)
    finish: Finish | None = field(default=None, init=False)
    elapsed_s: float = field(default=0.0, init=False)
    unfinished: bool = field(default=False, init=False)
    signal: int | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        self.progress = at_start(self.state)
        self._began_s = self.clock.monotonic()

    def to_its_end(self) -> None:
        """Take decision after decision until one is the last; the run's lock must be held (`RunDirectory.locked`).

        Raises HostNotAble when the record cannot be written, or steps cannot be started at all.
        """
        self._log = EventLog(self.directory.events, self.redactor, self.clock.monotonic, self.clock.wall)
        try:
            self.progress = replay(self.progress, self._log.recorded(), self.start_branch)
            if self.progress.finish is None:
                self._append("run_resumed" if self._log.count else "run_started")
            try:
                with limited(self._left_s()):
                    self.finish = self._decisions()
            except _CutShort as cut:
                self.finish = machine.cut_short(self.progress.state, cut.why, out_of_time=cut.out_of_time)[1]
                self.unfinished, self.signal = True, cut.signal
                self._append("run_interrupted", signal=cut.signal, why=cut.why, out_of_time=cut.out_of_time)
            else:
                if self.progress.finish is None:
                    self._append("run_finished", finish=to_document(self.finish))
        finally:
            self.elapsed_s = self._log.last_s
            self._log.close()

    def _decisions(self) -> Finish:
        """Do what is decided until that is the end; raises _CutShort."""
        try:
            while not isinstance(decision := self.progress.decision, Finish):
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
            self.notice(_SILENT)
            self._check_limits()
            raise
        return decision

    def _left_s(self) -> float:
        """Return how long the run may still take."""
        total = self.total_s
        limits = (self.left_s, None if total is None else total - self._log.elapsed_s())
        return min((limit for limit in limits if limit is not None), default=float("inf"))

    # -- one decision -----------------------------------------------------------------------------------------------

    def _run_step(self, decision: RunStep) -> StepResult:
        """Make the attempts that are due, adopting one that still runs, and let the readers read them."""
        for attempt in self.progress.open:
            self._observe(self._adopted(decision.invocation, attempt), began_before=True)
        while not self.progress.observations or machine.again(self.progress.state, self.progress.observations):
            self._check_limits()
            self._observe(self._started_again(decision.invocation))
        return self._read(decision, self.progress.observations)

    def _started_again(self, invocation: Invocation) -> StartedAttempt:
        """Start an attempt; one that repeats what was lost with its node may find too few nodes for it."""
        lost = self.progress.lost
        try:
            return self._started(invocation)
        except HostNotAble as error:
            if lost is None or lost.ended.by is not EndedBy.NODE_LOST:
                raise
            self.notice(error.next_step or "")
            why = _NODE_LOST.format(step=lost.step, rank=lost.rank, host=lost.host, why=lost.ended.message)
            raise _CutShort(f"{why}; {error.what}") from error

    def _started(self, invocation: Invocation) -> StartedAttempt:
        """Write down that an attempt begins, then begin it; none does on a disk that is nearly full."""
        free, floor = self.directory.free_space(), self.disk_floor
        if free < floor:
            raise _CutShort(_NO_ROOM.format(step=invocation.step, free=free >> 20, floor=floor >> 20))
        attempt = self.progress.used.get(invocation.step, 0) + 1
        layout = self.placement.layout(invocation)
        directory = self.directory.attempt(invocation.step, attempt, layout.folder)
        where = str(directory.relative_to(self.directory.path))
        opened = OpenAttempt(attempt=attempt, directory=where, ranks=layout.ranks)
        self._append("attempt_started", step=invocation.step, **opened.document())
        return self._start(invocation, opened)

    def _adopted(self, invocation: Invocation, attempt: OpenAttempt) -> StartedAttempt:
        """Take over an attempt whose end is not on record; start one that was recorded but never started."""
        numbered = replace(invocation, attempt=attempt.attempt)
        adopted = self.placement.adopt(numbered, self.directory.path / attempt.folder)
        return adopted or self._start(invocation, attempt)

    def _start(self, invocation: Invocation, attempt: OpenAttempt) -> StartedAttempt:
        invocation = replace(invocation, attempt=attempt.attempt)
        redactor = self.redactor
        shown = invocation if attempt.ranks > 1 else self._placed(invocation, attempt)
        env = {"delta": redactor.env(shown.env), "ours": {**OURS, **shown.hooks}}
        self.directory.begin_attempt(attempt.directory, redactor.argv(shown.argv), env)
        return self.placement.start(invocation, self.directory.path / attempt.folder)

    def _observe(self, attempt: StartedAttempt, *, began_before: bool = False) -> None:
        """Wait for an attempt's end and write it down; when the run is cut short, the attempt is ended first."""
        cut: _CutShort | None = None
        seen = attempt.wait(_OVER_S)
        watched = seen is None
        while seen is None:
            seen = attempt.wait(POLL_S)
            if seen is None:
                self.waiting()
            if seen is None and cut is None:
                try:
                    self._check_limits()
                except _CutShort as reason:
                    cut = reason
                    attempt.cancel()
                    self.notice(_ENDING if reason.out_of_time else f"{_ENDING}; Ctrl-C again kills them at once")
            elif seen is None and len(self.interrupts.pending()) > 1:
                attempt.cancel(firmly=True)
        if began_before:
            self._log.count_work(max(one.duration_s for one in seen))
        lost = self.progress.lost
        documents = [to_document(one) for one in seen]
        self._append(
            "attempt_ended", **({"observations": documents} if documents[1:] else {"observation": documents[0]})
        )
        live = watched and not self.head.recorded_on
        if cut is None and live and EndedBy.CANCEL in {one.ended.by for one in seen}:
            cut = _CutShort(_CANCELLED.format(step=seen[0].step))
        if cut:
            raise cut
        newly = self.progress.lost
        if newly and newly is not lost and newly.ended.by is EndedBy.DISK and not self.head.recorded_on:
            raise _CutShort(f"the disk is full, or fails: {newly.ended.message}")

    def _read(self, decision: RunStep, observations: tuple[Observation, ...]) -> StepResult:
        """Let the readers read what was seen; where that is long, in a process that a signal or a limit can end."""

        def work() -> bytes:
            return json.dumps(to_document(replace(self._readings(decision, observations), observations=()))).encode()

        if sum(seen.output_bytes for seen in observations) <= _READ_HERE:
            return self._readings(decision, observations)
        try:
            done = json.loads(self.worker(work, timeout_s=None, check=self._check_limits))
        except HostNotAble as error:
            return StepResult(step=decision.invocation.step, observations=observations, error=_reason(error))
        return replace(from_document(StepResult, done), observations=observations)

    def _readings(self, decision: RunStep, observations: tuple[Observation, ...]) -> StepResult:
        results: dict[str, ResultValue] = {}
        findings: list[Finding] = []
        lost = self.progress.lost
        step = decision.invocation.step
        notes = [_LOST.format(number=lost.attempt, why=lost.ended.message or "its end was not seen")] if lost else []
        cancelled = sorted({seen.attempt for seen in self.progress.cancelled})
        notes += [_REPEATED.format(number=number, folder=f"steps/{step}/{number}") for number in cancelled]
        try:
            for reader in decision.readers:
                reading = self.builtins.read(reader, observations, self.progress)
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
        total = self.total_s
        if total is not None:
            left = max(0.0, total - self._log.elapsed_s())
            question = replace(question, timeout_s=min(question.timeout_s, left))
        choice = self.person.ask(question)
        self._check_limits()
        return StepResult(step=question.step, choice=choice)

    def _use_builtin(self, decision: UseBuiltin) -> StepResult:
        """Have a built-in do its work within its time limit; what it cannot do is the step's error."""
        self.directory.check_in_place(f"steps/{decision.step}")

        def work() -> bytes:
            try:
                result = self.builtins.use(decision, self.progress)
            except ANY_ERROR as error:
                result = StepResult(step=decision.step, error=_reason(error))
            return json.dumps(to_document(result)).encode()

        try:
            done = self.worker(work, timeout_s=decision.timeout_s, check=self._check_limits)
        except HostNotAble as error:
            return StepResult(step=decision.step, error=_reason(error))
        return from_document(StepResult, json.loads(done))

    def _placed(self, invocation: Invocation, attempt: OpenAttempt) -> Invocation:
        directory = str(self.directory.where(attempt.directory))
        return placed(invocation, attempt=attempt.attempt, rank=attempt.rank, host=attempt.host, directory=directory)

    # -- what holds the run together --------------------------------------------------------------------------------

    def _finish_step(self, result: StepResult) -> None:
        """Record a step's result with its outcome, for readers of the log that have no runbook.

        The result is judged as it will be read back, redacted: a resumed run has to decide alike.
        """
        document = self.redactor.document(to_document(result))
        recorded = from_document(StepResult, document)
        state, _ = machine.advance(self.progress.state, recorded)
        judged = state.trail[len(self.progress.state.trail)]
        outcome = judged.outcome and judged.outcome.value
        event = self._log.append(
            "step_finished", step=result.step, result=document, outcome=outcome, message=judged.message
        )
        self._report(event, finish_step(self.progress, recorded, state, event.elapsed_s))

    def _append(self, kind: str, **data: Any) -> None:
        """Record an event, and only then let it count."""
        event = self._log.append(kind, **data)
        self._report(event, apply(self.progress, event, self.start_branch))

    def _report(self, event: Event, progress: Progress) -> None:
        _LOG.info("event %d: %s %s", event.seq, event.kind, event.data.get("step", ""))
        self.progress = progress
        self.listener(event, progress)

    def _check_limits(self) -> None:
        came = self.interrupts.pending()
        if came:
            raise _CutShort("interrupted", signal=came[0])
        total = self.total_s
        if total is not None and self._log.elapsed_s() >= total:
            raise _CutShort(f"the {total:g} s allowed for the whole run are spent", out_of_time=True)
        left = self.left_s
        if left is not None and self.clock.monotonic() >= self._began_s + left:
            raise _CutShort("the job's own time limit is near: the rest is for the record", out_of_time=True)


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


# Work in a forked process.


_CHECK_S = 0.25  # how long a signal to this program may wait to be seen
_FAILED = 1


def in_fork(work: Callable[[], bytes], *, timeout_s: float | None, check: Callable[[], None]) -> bytes:
    """Do work in a forked process, which can be ended with all that it has started; return its result.

    It may hang, or take all memory. For a program of one thread: the work sees all that this process had when it
    began, and may change files, but not the memory of this process. `check` is called during the work, and ends it by
    raising. Raises HostNotAble when it dies, or takes longer than `timeout_s` seconds.
    """
    engine = os.getpid()
    try:
        read, write = os.pipe2(os.O_CLOEXEC)
        pid = os.fork()
    except OSError as error:
        raise HostNotAble(
            f"no process for it can be started: {error.strerror}", cause="this machine has no room for one more"
        ) from error
    if pid == 0:
        _work(work, write, engine)
    os.close(write)
    status: int | None = None
    try:
        given = _all_of(read, pid, None if timeout_s is None else time.monotonic() + timeout_s, check)
        if given is not None:
            status = os.waitpid(pid, 0)[1]
    finally:
        os.close(read)
        if status is None:
            _end(pid)
    if given is None:
        raise HostNotAble(f"it was not done within {timeout_s:g} s", cause="the step's timeout is over")
    if status:
        code = os.waitstatus_to_exitcode(status)
        how = given.decode("utf-8", "replace") if code == _FAILED else f"it was ended by signal {-code}"
        raise HostNotAble(f"the work failed: {how}", cause="a fault of this program, or a lack of memory")
    return given


def _work(work: Callable[[], bytes], write: int, engine: int) -> NoReturn:
    """Do the work in the child and give what it returned, or why it could not, to the pipe."""
    try:
        os.setsid()  # a Ctrl-C is the parent's to answer: it ends this process when it sees fit
        die_with_parent(engine)
        _let_go(write)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_DFL)
        write_whole(write, work())
        os._exit(0)
    except BaseException as error:
        with suppress(OSError):
            write_whole(write, f"{type(error).__name__}: {error}".encode("utf-8", "replace"))
    finally:
        os._exit(_FAILED)


def _let_go(kept: int) -> None:
    """Close what was open in the engine: the lock of its run, held here too, would outlive it for a moment."""
    for descriptor in [int(path.name) for path in Path("/proc/self/fd").iterdir()]:
        if descriptor > 2 and descriptor != kept:
            with suppress(OSError):
                os.close(descriptor)


def _all_of(read: int, pid: int, until: float | None, check: Callable[[], None]) -> bytes | None:
    """Return what is written to a pipe up to its end, or that of the process; None when that was not reached in time.

    What the work has forked and left behind may hold the pipe for ever.
    """
    given = bytearray()
    ended = False
    while True:
        left = _CHECK_S if until is None else min(_CHECK_S, until - time.monotonic())
        if left <= 0:
            return None
        if select.select([read], [], [], 0 if ended else left)[0]:
            data = os.read(read, 1 << 16)
            if not data:
                return bytes(given)
            given += data
        elif ended:
            return bytes(given)
        else:
            check()
            ended = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def _end(pid: int) -> None:
    """Kill a process and all below it, children first seen: an orphan could no longer be found."""
    below = descendants(pid)
    os.kill(pid, signal.SIGKILL)
    send(below, signal.SIGKILL)
    os.waitpid(pid, 0)
