"""The time in which a step could run: what a scheduler, SIGSTOP or a paused container takes does not count."""

from __future__ import annotations

import time
from typing import Final

_LATE_S: Final = 5.0  # a wait that took so much longer was no busy machine: we did not run


class AwakeClock:
    """A monotonic clock, in seconds, that stands still while this process is stopped.

    Slurm suspends a job by SIGSTOP to all of its tasks (scontrol suspend, gang scheduling, preemption); without this,
    each would be over its time limit, or silent for too long, as soon as it continues.
    """

    def __init__(self) -> None:
        self._lost_s = 0.0

    def now(self) -> float:
        """Return the time."""
        return time.monotonic() - self._lost_s

    def waited(self, since: float, planned_s: float) -> None:
        """Take note that a wait begun at `since` was to last `planned_s` at most, and is over."""
        late = self.now() - since - planned_s
        if late >= _LATE_S:
            self._lost_s += late

    def notes(self) -> list[str]:
        """Say for how long the step did not run, if it was noticed at all."""
        if not self._lost_s:
            return []
        return [f"it was stopped for {self._lost_s:.0f} s (by its scheduler, or SIGSTOP), which no time limit counts"]
