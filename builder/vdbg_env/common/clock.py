"""The clocks of this machine, and the signals that ask this process to stop."""

from __future__ import annotations

import signal
import time
from types import FrameType, TracebackType
from typing import Any, Protocol

from vdbg_env.common import stop

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


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
        stop.forget()
        for number in STOP_SIGNALS:
            self._before[number] = signal.signal(number, self._note)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        stop.forget()

    def _note(self, number: int, _frame: FrameType | None) -> None:
        self._came.append(number)
        stop.told(number)
