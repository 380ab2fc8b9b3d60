"""The ranks of a recording in place of running steps."""

from __future__ import annotations

from pathlib import Path

from vdbg_env.adapters.execution.replay import Replay, ReplayedStep
from vdbg_env.adapters.placement.one_rank import HOST, StartedRanks, on_this_host
from vdbg_env.application.ports.steps import Layout
from vdbg_env.runbook.invocation import Invocation, placed


class RecordedRanks:
    """A StepPlacement over a recording: an attempt has the ranks that were recorded."""

    def __init__(self, replay: Replay) -> None:
        self._replay = replay

    def layout(self, invocation: Invocation) -> Layout:
        """Return the recorded ranks; a single one gets the folder that it would have here."""
        ranks = self._replay.ranks(invocation)
        return Layout(ranks=len(ranks)) if ranks[1:] else Layout(folder=f"{HOST}-0")

    def start(self, invocation: Invocation, directory: Path) -> StartedRanks:
        """Copy each recorded rank into the attempt's folder."""
        ranks = self._replay.ranks(invocation)
        if not ranks[1:]:
            folder = directory / f"{HOST}-0"
            return StartedRanks(self._replay.start(on_this_host(invocation, folder, 0), folder))
        return StartedRanks(*(self._started(invocation, directory / name) for name in ranks))

    def adopt(self, invocation: Invocation, directory: Path) -> StartedRanks | None:
        """Return None: a copy may have been cut short, so it is made again."""
        return None

    def _started(self, invocation: Invocation, folder: Path) -> ReplayedStep:
        host, _, rank = folder.name.rpartition("-")
        folder.mkdir(exist_ok=True)
        number = int(rank) if rank.isdecimal() else 0
        directory = str(folder.resolve())
        filled = placed(invocation, attempt=invocation.attempt, rank=number, host=host, directory=directory)
        return self._replay.start(filled, folder, recorded=folder.name)
