"""An attempt of one rank, on this machine or in a container."""

from __future__ import annotations

import time
from pathlib import Path

from vdbg_env.application.ports.steps import Layout, StartedStep, StepRunner
from vdbg_env.evidence.observation import Observation
from vdbg_env.runbook.invocation import Invocation, placed

HOST = "localhost"


class OneRank:
    """A StepPlacement of one rank that `runner` starts."""

    def __init__(self, runner: StepRunner) -> None:
        self._runner = runner

    def layout(self, invocation: Invocation) -> Layout:
        """Return one rank, whose folder is known beforehand."""
        return Layout(folder=f"{HOST}-0")

    def start(self, invocation: Invocation, directory: Path) -> StartedRanks:
        """Start the rank; see `StepPlacement.start`."""
        folder = directory / f"{HOST}-0"
        return StartedRanks(self._runner.start(on_this_host(invocation, folder, 0), folder))

    def adopt(self, invocation: Invocation, directory: Path) -> StartedRanks | None:
        """Take over the rank; see `StepPlacement.adopt`."""
        folder = directory / f"{HOST}-0"
        step = self._runner.adopt(on_this_host(invocation, folder, 0), folder)
        return None if step is None else StartedRanks(step)


class StartedRanks:
    """A StartedAttempt of ranks that are waited for one after the other."""

    def __init__(self, *steps: StartedStep) -> None:
        self._steps = steps
        self._seen: list[Observation] = []

    def wait(self, timeout_s: float | None = None) -> tuple[Observation, ...] | None:
        """Return what was seen of each rank, once all have ended."""
        until = None if timeout_s is None else time.monotonic() + timeout_s
        for step in self._steps[len(self._seen) :]:
            seen = step.wait(None if until is None else max(0.0, until - time.monotonic()))
            if seen is None:
                return None
            self._seen.append(seen)
        return tuple(self._seen)

    def cancel(self, *, firmly: bool = False) -> None:
        """Have all ranks ended."""
        for step in self._steps:
            step.cancel(firmly=firmly)


def on_this_host(invocation: Invocation, folder: Path, rank: int) -> Invocation:
    """Return the invocation of one rank, with its number, host and folder filled in."""
    return placed(invocation, attempt=invocation.attempt, rank=rank, host=HOST, directory=str(folder.resolve()))
