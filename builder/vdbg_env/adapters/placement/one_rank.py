"""An attempt of one rank, on this machine or in a container."""

from __future__ import annotations

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

    def start(self, invocation: Invocation, directory: Path) -> OneStartedRank:
        """Start the rank; see `StepPlacement.start`."""
        folder = directory / f"{HOST}-0"
        return OneStartedRank(self._runner.start(on_this_host(invocation, folder, 0), folder))

    def adopt(self, invocation: Invocation, directory: Path) -> OneStartedRank | None:
        """Take over the rank; see `StepPlacement.adopt`."""
        folder = directory / f"{HOST}-0"
        step = self._runner.adopt(on_this_host(invocation, folder, 0), folder)
        return None if step is None else OneStartedRank(step)


class OneStartedRank:
    """A StartedAttempt of one rank."""

    def __init__(self, step: StartedStep) -> None:
        self._step = step

    def wait(self, timeout_s: float | None = None) -> tuple[Observation] | None:
        """Wait for the end of the rank."""
        seen = self._step.wait(timeout_s)
        return None if seen is None else (seen,)

    def cancel(self, *, firmly: bool = False) -> None:
        """Have the rank ended."""
        self._step.cancel(firmly=firmly)


def on_this_host(invocation: Invocation, folder: Path, rank: int) -> Invocation:
    """Return the invocation of one rank, with its number, host and folder filled in."""
    return placed(invocation, attempt=invocation.attempt, rank=rank, host=HOST, directory=str(folder.resolve()))
