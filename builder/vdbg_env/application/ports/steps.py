"""Running the steps of a runbook, and the work of this program in addition; clocks and signals."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from vdbg_env.evidence.observation import Observation
    from vdbg_env.runbook.invocation import Invocation


class StartedStep(Protocol):
    """One attempt of one step that runs, or has ended, under its supervisor."""

    def wait(self, timeout_s: float | None = None) -> Observation | None:
        """Wait for the end and return what was seen; None when it has not ended after `timeout_s` seconds."""
        ...

    def cancel(self, *, firmly: bool = False) -> None:
        """Ask for the end of the tree, with its grace unless `firmly`; return at once."""
        ...


class StepRunner(Protocol):
    """Runs one rank of a step. What it starts outlives this program and can be adopted by the next."""

    def start(self, invocation: Invocation, directory: Path) -> StartedStep:
        """Start an attempt; everything about it is kept in `directory`, which is there and empty.

        Raises HostNotAble when nothing at all can be started here. A workload that cannot be started is no error but
        an observation (`EndedBy.NOT_STARTED`).
        """
        ...

    def adopt(self, invocation: Invocation, directory: Path) -> StartedStep | None:
        """Take over an attempt that another engine started in `directory`; None when it was never really started."""
        ...


@dataclass(frozen=True, kw_only=True)
class Layout:
    """How many ranks an attempt has; `folder` is that of a single rank on this machine.

    It is empty where each rank makes its own in the attempt's folder, `<host>-<rank>`.
    """

    ranks: int = 1
    folder: str = ""


class StartedAttempt(Protocol):
    """One attempt of one step on all its ranks, which run or have ended."""

    def wait(self, timeout_s: float | None = None) -> tuple[Observation, ...] | None:
        """Wait for the end of all ranks and return what was seen of each; None when `timeout_s` seconds are over."""
        ...

    def cancel(self, *, firmly: bool = False) -> None:
        """Ask for the end of all ranks, with their grace unless `firmly`; return at once."""
        ...


class StepPlacement(Protocol):
    """Starts attempts on the ranks of a place. What it starts outlives this program and can be adopted by the next.

    `directory` is the attempt's folder, `steps/<step>/<attempt>`. The invocation may still have `${{ rank.* }}`, which
    the placement fills.
    """

    def layout(self, invocation: Invocation) -> Layout:
        """Return the ranks that an attempt has here."""
        ...

    def start(self, invocation: Invocation, directory: Path) -> StartedAttempt:
        """Start an attempt in a folder that is there, with the single rank's in it; raises HostNotAble."""
        ...

    def adopt(self, invocation: Invocation, directory: Path) -> StartedAttempt | None:
        """Take over an attempt that another engine started; None when no rank of it was ever started."""
        ...


class IsolatedWorker(Protocol):
    """Does a piece of this program's work where it can be ended: it may hang, or take all memory."""

    def do(self, work: Callable[[], bytes], *, timeout_s: float | None, check: Callable[[], None]) -> bytes:
        """Do the work and return its result; `check` is called during the work, and ends it by raising.

        The work may change files, but not this program's memory. Raises HostNotAble when it dies, or takes longer than
        `timeout_s` seconds.
        """
        ...


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
