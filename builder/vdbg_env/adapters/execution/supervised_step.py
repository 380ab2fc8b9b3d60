"""Follows an attempt by what its supervisor leaves in the attempt's folder: a lock, a few lines, and the end.

A supervisor alone holds the lock of its folder, and a lock dies with its holder, also across a bind mount: an engine
that has just started knows as much as the one that started the attempt.
"""

from __future__ import annotations

import os
import time
from abc import ABC, abstractmethod
from contextlib import suppress
from pathlib import Path

from vdbg_env.adapters.execution.attempt_result import InThread, observation
from vdbg_env.common.errors import HostNotAble
from vdbg_env.common.writing import refusal_cause
from vdbg_env.evidence.observation import Observation
from vdbg_env.runbook.invocation import Invocation
from vdbg_env.supervisor.job import Job
from vdbg_env.supervisor.state import lock_file, result_file

POLL_S = 0.05
READ_LIMIT_S = 1.0  # for the files that a step left behind, which was cancelled while it ran
READ_MORE_S = 0.25  # for those of one that had ended, whose files are being read


class SupervisedStep(ABC):
    """A StartedStep under its supervisor; where that runs, and how it is spoken to, is for each kind to say."""

    def __init__(self, invocation: Invocation, directory: Path, job: Job) -> None:
        self._invocation = invocation
        self._directory = directory
        self._literals = tuple(os.fsencode(x) for x in job.literals)
        self._reading: InThread[Observation] | None = None
        self._cancelled = False

    def wait(self, timeout_s: float | None = None) -> Observation | None:
        """Wait until the supervisor is gone; without an `ended.json` it was lost, and what still runs is killed.

        Raises HostNotAble when the record can no longer be read; the step has then been ended.
        """
        try:
            return self._waited(timeout_s)
        except OSError as error:
            with suppress(OSError):
                self.cancel()
            self._over()
            raise HostNotAble(
                f"{error.filename or self._directory} cannot be read: {error.strerror}",
                cause=refusal_cause(error),
                next_step="check that nothing of the step still runs; when that is over, continue with --resume",
            ) from error

    def _waited(self, timeout_s: float | None) -> Observation | None:
        until = None if timeout_s is None else time.monotonic() + timeout_s
        while self._runs():
            left = None if until is None else until - time.monotonic()
            if left is not None and left <= 0:
                return None
            self._sleep(left)
        if self._reading is None and not has_ended(self._directory):
            self._lost()
        if self._reading is None:
            self._over()
            self._reading = InThread(
                lambda check: observation(self._invocation, self._directory, self._literals, check=check)
            )
            if self._cancelled:
                self._reading.stop(READ_LIMIT_S)
        seen = self._reading.result(None if until is None else max(0.0, until - time.monotonic()))
        return None if seen is None else self._completed(seen)

    def cancel(self, *, firmly: bool = False) -> None:
        """Have the tree ended; of a step that has ended, stop reading what it left behind. Does not wait."""
        self._cancelled = True
        if self._reading is None:
            self._ask_to_end(firmly=firmly)
        else:
            self._reading.stop(0.0 if firmly else READ_MORE_S)

    @abstractmethod
    def _ask_to_end(self, *, firmly: bool) -> None:
        """Ask the supervisor to end the tree; two signals at once are firm, as two of a kind may merge into one."""

    def _runs(self) -> bool:
        """Return whether a supervisor lives, by what the workload cannot write."""
        return lock_file.is_held(str(self._directory))

    @abstractmethod
    def _lost(self) -> None:
        """Kill what a lost supervisor left."""

    @abstractmethod
    def _over(self) -> None:
        """Take away what held the supervisor, which has written the end or is lost."""

    def _sleep(self, left: float | None) -> None:
        """Sleep until the supervisor ends, or for a while where that cannot be waited for."""
        time.sleep(POLL_S if left is None else min(left, POLL_S))

    def _completed(self, seen: Observation) -> Observation:
        """Add to what the folder shows what only the kind of step knows."""
        return seen


def has_ended(directory: Path) -> bool:
    """Whether the supervisor has written the end."""
    return (directory / result_file.NAME).exists()
