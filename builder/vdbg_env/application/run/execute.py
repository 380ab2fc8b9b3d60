"""Runs a runbook to its end, or goes on with one that was cut short: decide, do, write down, decide again.

Every state change is an event on disk before anything follows from it, and where the run stands is a function of the
events alone (`record.walk`), live and after a resumption alike.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol, assert_never

from vdbg_env.application.ports import Apart, Clock, Interrupts, StartedStep, StepRunner
from vdbg_env.common.errors import HostNotAble, VdbgError
from vdbg_env.evidence.finding import Finding
from vdbg_env.evidence.observation import Observation
from vdbg_env.record.codec import from_document, to_document
from vdbg_env.record.event_log import Event, EventLog
from vdbg_env.record.progress import OpenAttempt, Walk, Walked, begin, take, walk
from vdbg_env.record.redaction.redaction import Redactor
from vdbg_env.record.run_directory import RunDirectory, RunHead
from vdbg_env.runbook.invocation import Invocation, placed
from vdbg_env.runbook.machine import transitions
from vdbg_env.runbook.model import Builtin
from vdbg_env.runbook.state import (
    AskPerson,
    BranchTo,
    Finish,
    ResultValue,
    RunState,
    RunStep,
    StepResult,
    UseBuiltin,
)

POLL_S = 0.25  # how long a signal or the total time limit may wait to be seen
HOST = "localhost"
_ENDING = "ending the step: its processes are asked to end, and killed when their grace is over"


@dataclass(frozen=True, kw_only=True)
class Reading:
    """What a reader made of a run step: typed results and findings."""

    results: Mapping[str, ResultValue]
    findings: tuple[Finding, ...] = ()
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Standing:
    """What a built-in may look at: the run's folder, and all that was walked before it.

    `began_s` is when this engine took the run up, by the clock that counts the seconds since the machine's start.
    """

    directory: Path
    state: RunState
    walked: tuple[Walked, ...]
    began_s: float


class Builtins(Protocol):
    """The tool's own steps and readers."""

    def use(self, order: UseBuiltin, standing: Standing) -> StepResult:
        """Do a built-in step; a VdbgError becomes the step's `error`."""
        ...

    def read(self, reader: Builtin, observations: Sequence[Observation], standing: Standing) -> Reading:
        """Read what a run step left behind; a VdbgError becomes the step's `error`."""
        ...


class Person(Protocol):
    """Who answers a runbook's questions."""

    def ask(self, question: AskPerson) -> str | None:
        """Return one of the choices, or None when nobody answered in time."""
        ...


@dataclass(frozen=True, kw_only=True)
class RunOrder:
    """A run to begin, or to go on with: `state` is the engine's first state, `total_s` the limit on all of it."""

    directory: RunDirectory
    head: RunHead
    state: RunState
    start_branch: Callable[[BranchTo], RunState]
    total_s: float | None = None


@dataclass(frozen=True, kw_only=True)
class Hands:
    """All that a run needs of the outside."""

    runner: StepRunner
    builtins: Builtins
    apart: Apart
    person: Person
    clock: Clock
    interrupts: Interrupts
    redactor: Redactor
    listener: Callable[[Event, Walk], None] = lambda _event, _walk: None
    notice: Callable[[str], None] = lambda _text: None


@dataclass(frozen=True, kw_only=True)
class RunEnd:
    """How a run ended: all that was walked, the engine's last word, and the signal that cut it short if one did."""

    walk: Walk
    finish: Finish
    elapsed_s: float
    signal: int | None = None


def run_runbook(order: RunOrder, hands: Hands) -> RunEnd:
    """Run to the end and return it; the run's lock must be held (`RunDirectory.locked`).

    Raises HostNotAble when the record cannot be written, or steps cannot be started at all.
    """
    log = EventLog(order.directory.events, hands.redactor, hands.clock.monotonic, hands.clock.wall)
    try:
        return _Run(order, hands, log).to_its_end()
    finally:
        log.close()


class _CutShort(Exception):
    """The run must stop before its end: a signal came, or the total time is spent."""

    def __init__(self, why: str, *, signal: int | None = None) -> None:
        super().__init__(why)
        self.why = why
        self.signal = signal


class _Run:
    def __init__(self, order: RunOrder, hands: Hands, log: EventLog) -> None:
        self._order = order
        self._hands = hands
        self._log = log
        self._began_s = hands.clock.monotonic()
        self._walk = walk(begin(order.state), log.events, order.start_branch)

    def to_its_end(self) -> RunEnd:
        """Take decision after decision until one is the last."""
        if self._walk.finish is None:
            self._tell("run_resumed" if self._log.events else "run_started")
        signal = None
        try:
            while not isinstance(decision := self._walk.decision, Finish):
                self._check_limits()
                match decision:
                    case RunStep():
                        self._finish_step(self._run_step(decision))
                    case UseBuiltin():
                        self._finish_step(self._use_builtin(decision))
                    case AskPerson():
                        self._finish_step(self._asked(decision))
                    case BranchTo(runbook=name):
                        self._tell("branched", runbook=name)
                    case _:
                        assert_never(decision)
        except _CutShort as cut:
            signal = cut.signal
            finish = transitions.cut_short(self._walk.state, cut.why, out_of_time=signal is None)[1]
            if signal is None:
                self._tell("run_finished", finish=to_document(finish))
            else:
                self._tell("run_interrupted", signal=signal)
        else:
            finish = decision
            if self._walk.finish is None:
                self._tell("run_finished", finish=to_document(finish))
        return RunEnd(walk=self._walk, finish=finish, elapsed_s=self._log.events[-1].elapsed_s, signal=signal)

    # -- one decision -----------------------------------------------------------------------------------------------

    def _run_step(self, decision: RunStep) -> StepResult:
        """Make the attempts that are wanted, adopting one that still runs, and have the readers read them."""
        for attempt in self._walk.open:
            self._observe(self._adopted(decision.invocation, attempt))
        while not self._walk.observations or transitions.again(self._walk.state, self._walk.observations):
            self._check_limits()
            self._observe(self._started(decision.invocation))
        return self._read(decision, self._walk.observations)

    def _started(self, invocation: Invocation) -> StartedStep:
        """Write down that an attempt begins, then begin it."""
        attempt = self._walk.used.get(invocation.step, 0) + 1
        directory = self._order.directory.attempt(invocation.step, attempt, HOST, 0)
        where = str(directory.relative_to(self._order.directory.path))
        self._tell("attempt_started", step=invocation.step, attempt=attempt, rank=0, host=HOST, directory=where)
        return self._start(invocation, OpenAttempt(attempt=attempt, rank=0, host=HOST, directory=where))

    def _adopted(self, invocation: Invocation, attempt: OpenAttempt) -> StartedStep:
        """Take over an attempt whose end is not on record; one that was announced only is begun now."""
        directory = self._order.directory.path / attempt.directory
        adopted = self._hands.runner.adopt(_placed(invocation, attempt, directory), directory)
        return adopted or self._start(invocation, attempt)

    def _start(self, invocation: Invocation, attempt: OpenAttempt) -> StartedStep:
        directory = self._order.directory.path / attempt.directory
        placed_here = _placed(invocation, attempt, directory)
        try:
            self._order.directory.check_in_place(attempt.directory)
            directory.mkdir(parents=True, exist_ok=True)
            redactor = self._hands.redactor
            write = self._order.directory.write_json
            write(f"{attempt.directory}/argv.json", {"argv": redactor.argv(placed_here.argv)})
            write(f"{attempt.directory}/env.json", {"delta": redactor.env(placed_here.env)})
        except OSError as error:
            raise HostNotAble(f"{directory} cannot be written: {error.strerror}", cause="the disk is full") from error
        return self._hands.runner.start(placed_here, directory)

    def _observe(self, step: StartedStep) -> None:
        """Wait for an attempt's end and write it down; when the run is cut short, the attempt is ended first."""
        seen: Observation | None = None
        cut: _CutShort | None = None
        while seen is None:
            seen = step.wait(POLL_S)
            if seen is None and cut is None:
                try:
                    self._check_limits()
                except _CutShort as reason:
                    cut = reason
                    step.cancel()
                    self._hands.notice(
                        _ENDING if reason.signal is None else f"{_ENDING}; Ctrl-C again kills them at once"
                    )
            elif seen is None and len(self._hands.interrupts.pending()) > 1:
                step.cancel(firmly=True)
        self._tell("attempt_ended", observation=to_document(seen))
        if cut:
            raise cut

    def _read(self, decision: RunStep, observations: tuple[Observation, ...]) -> StepResult:
        results: dict[str, ResultValue] = {}
        findings: list[Finding] = []
        notes: list[str] = []
        step = decision.invocation.step
        try:
            for reader in decision.readers:
                reading = self._hands.builtins.read(reader, observations, self._standing())
                results |= reading.results
                findings += reading.findings
                notes += reading.notes
        except VdbgError as error:
            return StepResult(step=step, observations=observations, error=_told(error), notes=tuple(notes))
        return StepResult(
            step=step, observations=observations, results=results, findings=tuple(findings), notes=tuple(notes)
        )

    def _asked(self, question: AskPerson) -> StepResult:
        """Ask, for no longer than the whole run may last; a question that was interrupted is asked again later."""
        total = self._order.total_s
        if total is not None:
            left = max(0.0, total - self._log.elapsed_s())
            question = replace(question, timeout_s=min(question.timeout_s, left))
        choice = self._hands.person.ask(question)
        self._check_limits()
        return StepResult(step=question.step, choice=choice)

    def _use_builtin(self, decision: UseBuiltin) -> StepResult:
        """Have a built-in do its work within its time limit; what it cannot do is the step's error."""
        self._order.directory.check_in_place(f"steps/{decision.step}")

        def work() -> bytes:
            try:
                result = self._hands.builtins.use(decision, self._standing())
            except VdbgError as error:
                result = StepResult(step=decision.step, error=_told(error))
            return json.dumps(to_document(result)).encode()

        try:
            done = self._hands.apart.do(work, timeout_s=decision.timeout_s, check=self._check_limits)
        except HostNotAble as error:
            return StepResult(step=decision.step, error=_told(error))
        return from_document(StepResult, json.loads(done))

    # -- what holds the run together --------------------------------------------------------------------------------

    def _finish_step(self, result: StepResult) -> None:
        """Write a step's result with what it was judged to be, for readers of the log that have no engine."""
        judged = transitions.advance(self._walk.state, result)[0].trail[len(self._walk.state.trail)]
        self._tell(
            "step_finished",
            step=result.step,
            result=to_document(result),
            outcome=judged.outcome and judged.outcome.value,
            message=judged.message,
        )

    def _tell(self, kind: str, **data: Any) -> None:
        """Write an event, and only then let it count."""
        event = self._log.append(kind, **data)
        self._walk = take(self._walk, event, self._order.start_branch)
        self._hands.listener(event, self._walk)

    def _check_limits(self) -> None:
        came = self._hands.interrupts.pending()
        if came:
            raise _CutShort("interrupted", signal=came[0])
        total = self._order.total_s
        if total is not None and self._log.elapsed_s() >= total:
            raise _CutShort(f"the {total:g} s allowed for the whole run are spent")

    def _standing(self) -> Standing:
        return Standing(
            directory=self._order.directory.path,
            state=self._walk.state,
            walked=self._walk.walked,
            began_s=self._began_s,
        )


def _placed(invocation: Invocation, attempt: OpenAttempt, directory: Path) -> Invocation:
    return placed(
        invocation, attempt=attempt.attempt, rank=attempt.rank, host=attempt.host, directory=str(directory.resolve())
    )


def _told(error: VdbgError) -> str:
    return error.what if error.cause is None else f"{error.what} ({error.cause})"


def redacted(walk: Walk, redactor: Redactor) -> Walk:
    """Return a walk fit to be shown: what its argument lists and environments hold of secrets is taken out."""
    return replace(walk, walked=tuple(_redacted_step(walked, redactor) for walked in walk.walked))


def _redacted_step(walked: Walked, redactor: Redactor) -> Walked:
    if not isinstance(walked.decision, RunStep):
        return walked
    invocation = walked.decision.invocation
    invocation = replace(
        invocation,
        argv=redactor.argv(invocation.argv),
        base_argv=redactor.argv(invocation.base_argv),
        env=redactor.env(invocation.env),
    )
    return replace(walked, decision=replace(walked.decision, invocation=invocation))
