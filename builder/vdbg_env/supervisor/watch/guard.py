"""What holds for a workload in production: its signals reach it, and it does not outlive the one that guards it."""

from __future__ import annotations

import os
import signal

from vdbg_env.supervisor.job import Job
from vdbg_env.supervisor.output.streams import CANCELS
from vdbg_env.supervisor.phase import EndReason
from vdbg_env.supervisor.processes.signals import send_to

# All that a program may be sent on purpose. SIGCHLD and SIGALRM are ours, a fault is of the process that has it, and
# SIGPIPE is what a write gives.
FORWARDED = (
    signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2, signal.SIGWINCH,
    signal.SIGCONT,
)  # fmt: skip
STOPS = {signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM}


class Guard:
    """Passes signals on and watches for the death of `vdbg-env guard`; does nothing for any other step."""

    def __init__(self, job: Job) -> None:
        self._pid = job.guard
        self._pending: list[int] = []
        self._stopped_by: int | None = None
        self.numbers = FORWARDED if self._pid else CANCELS

    def __bool__(self) -> bool:
        return self._pid > 0

    def received(self, number: int) -> None:
        """Take note of a signal, from within its handler."""
        self._pending.append(number)

    def pass_on(self, root: int | None) -> bool:
        """Send what was received to the workload's first process; returns whether it was asked to end now.

        `root` is None once that has ended: its number may be another's.
        """
        stop = False
        while self._pending:
            number = self._pending.pop(0)
            if root is not None:
                send_to(root, number)
            if number in STOPS:
                self._stopped_by = self._stopped_by or number
                stop = True
        return stop

    def is_gone(self) -> bool:
        """Return whether the guard has died: this process then has another parent."""
        return self._pid > 0 and os.getppid() != self._pid

    def end_of(self, own: EndReason) -> EndReason:
        """Return how the workload ended, where that was by itself: after a signal from outside it was stopped."""
        if self._stopped_by is None:
            return own
        return EndReason("stopped", f"{signal.Signals(self._stopped_by).name} was sent to it from outside")


GONE = EndReason("stopped", "vdbg-env guard was killed, and the workload does not run without it")
