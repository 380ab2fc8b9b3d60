"""Clocks and signals: stop at once in what can be left undone, after a moment where this program waits for others.

A container engine or a cluster may never answer. Signals belong to a process, and so does this: they are handled in the
main thread, whose waits they interrupt, and the work of other threads ends with the process.
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

if TYPE_CHECKING:
    from concurrent.futures import Future

PATIENCE_S = 1.0  # for an answer that is on its way when this program is told to stop
Made = TypeVar("Made")


class ToldToStop(BaseException):
    """This program was told to stop, in the middle of what can be left undone.

    Not an Exception: what is raised in the middle of other code must not be taken for a fault of that code. `signal` is
    the number of the signal, 0 where a time limit is over.
    """

    def __init__(self) -> None:
        super().__init__("ended by a signal")
        self.signal = _waits.told


class _Asked(threading.local):
    """What is set when no one waits any longer for what a thread does."""

    gone: threading.Event | None = None


asked = _Asked()


@contextmanager
def until(gone: threading.Event) -> Iterator[None]:
    """Have `go_on` end what this thread does in the block once `gone` is set."""
    asked.gone = gone
    try:
        yield
    finally:
        asked.gone = None


def go_on() -> None:
    """Raise ToldToStop where no one waits any longer for what this thread does; called between files and pieces."""
    if asked.gone and asked.gone.is_set():
        raise ToldToStop


class _Waits:
    """What the main thread is in, and when its waits end."""

    def __init__(self) -> None:
        self.told = 0  # the number of the first signal
        self.raises = False
        self.ends_at = float("inf")  # by the monotonic clock
        self.depth = 0
        self.given_up = False

    def arm(self) -> None:
        """Have the wait that is under way ended in time, and once more where that did not get through."""
        if self.depth and self.ends_at < float("inf"):
            signal.signal(signal.SIGALRM, self._alarm)
            left = max(0.0, self.ends_at - time.monotonic()) + PATIENCE_S
            signal.setitimer(signal.ITIMER_REAL, left, PATIENCE_S)

    def _alarm(self, _number: int, _frame: FrameType | None) -> None:
        if self.depth:
            self.given_up = True
            raise ToldToStop


_waits = _Waits()


def forget() -> None:
    """Forget the requests to stop so far: one that arrives from now on is for other work."""
    global _waits
    _waits = _Waits()


def told(number: int) -> None:
    """Note, in the handler of a signal, that this program is to stop; raises ToldToStop where it is `stoppable`."""
    if not _waits.told:
        _waits.told = number
        _waits.ends_at = time.monotonic()
        _waits.arm()
    if _waits.raises:
        _waits.raises = False  # what cleans up is not stopped again
        raise ToldToStop


@contextmanager
def stoppable() -> Iterator[None]:
    """Do in it what can be left undone; raises ToldToStop at once, or at its beginning, when told to stop."""
    _waits.raises = True
    try:
        if _waits.told:
            raise ToldToStop
        yield
    finally:
        _waits.raises = False


@contextmanager
def limited(left_s: float) -> Iterator[None]:
    """Let no wait in it outlast so many seconds by more than PATIENCE_S."""
    before = _waits.ends_at
    _waits.ends_at = min(before, time.monotonic() + left_s)
    try:
        yield
    finally:
        _waits.ends_at = time.monotonic() if _waits.told else before


@contextmanager
def waiting() -> Iterator[None]:
    """Wait in it for what may never answer; raises ToldToStop there when the waits are to end.

    Once one was given up, no other is begun: all of them are for the same engine or cluster.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    if _waits.given_up:
        raise ToldToStop
    _waits.depth += 1
    try:
        if _waits.depth == 1:
            _waits.arm()
        yield
    finally:
        _waits.depth -= 1
        if not _waits.depth and _waits.ends_at < float("inf"):
            signal.setitimer(signal.ITIMER_REAL, 0)


class Held:
    """Signals that are kept waiting from its beginning to `release`, or to the end of its block.

    Popen started a program already when a handler raises in the middle of it, and then no one ends that program. So it
    is called in such a block, and the signals are released where what cleans up is in force.
    """

    def __init__(self) -> None:
        self._came: list[int] = []
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Held:
        if threading.current_thread() is threading.main_thread():  # no other one runs handlers
            for number in STOP_SIGNALS:
                if callable(signal.getsignal(number)):
                    self._before[number] = signal.signal(number, lambda number, _: self._came.append(number))
        return self

    def release(self) -> None:
        """Let the signals through, those first that have arrived."""
        while self._before:
            signal.signal(*self._before.popitem())
        while self._came:
            signal.raise_signal(self._came.pop(0))

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()


def each_waited(items: Iterable[Made]) -> Iterator[Made]:
    """Yield what arrives piece by piece, each waited for by itself."""
    rest = iter(items)
    while True:
        with waiting():
            found = next(rest, _END)
        if found is _END:
            return
        yield found  # type: ignore[misc]


_END = object()


def in_background(work: Callable[[], Made]) -> Future[Made]:
    """Do the work in a thread that the end of this process does not wait for."""
    from concurrent.futures import Future  # it brings logging, which a command that only reads has no use for

    done: Future[Made] = Future()
    done.set_running_or_notify_cancel()  # from now on it cannot be called off

    def run() -> None:
        try:
            done.set_result(work())
        except BaseException as error:
            done.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return done


STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def is_below_nohup(number: int) -> bool:
    """Return whether this is SIGHUP, and who started this program has it outlive its terminal."""
    return number == signal.SIGHUP and signal.getsignal(number) is signal.SIG_IGN


class Clock(Protocol):
    """Two clocks, one to measure with and one to print."""

    def monotonic(self) -> float:
        """Return seconds that only ever grow, for durations and limits: on Linux, those since the machine's start."""
        ...

    def wall(self) -> float:
        """Return seconds since the epoch, a label only: it may jump by days."""
        ...


class Interrupts(Protocol):
    """Whether the user or the system has asked this program to stop."""

    def pending(self) -> tuple[int, ...]:
        """Return the numbers of the signals received, oldest first."""
        ...


class SystemClock:
    """A Clock that reads the machine's time."""

    def monotonic(self) -> float:
        """Return seconds since some fixed moment."""
        return time.monotonic()

    def wall(self) -> float:
        """Return seconds since the epoch."""
        return time.time()


class SignalInterrupts:
    """Note Ctrl-C, SIGTERM and SIGHUP instead of being stopped anywhere by them, as long as it is entered.

    An exception out of a handler could strike between an event's writing and its being known; a note cannot. What may
    be stopped says so (`common.stop`).
    """

    def __init__(self) -> None:
        self._came: list[int] = []
        self._before: dict[int, Any] = {}

    def pending(self) -> tuple[int, ...]:
        """Return the numbers of the signals received, oldest first."""
        return tuple(self._came)

    def __enter__(self) -> SignalInterrupts:
        forget()
        for number in STOP_SIGNALS:
            if not is_below_nohup(number):
                self._before[number] = signal.signal(number, self._note)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        forget()

    def _note(self, number: int, _frame: FrameType | None) -> None:
        self._came.append(number)
        told(number)
