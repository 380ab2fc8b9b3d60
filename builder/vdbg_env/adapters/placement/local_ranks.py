"""Several ranks on this machine: each is a process tree under a supervisor, all are one attempt."""

from __future__ import annotations

import socket
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from vdbg_env.adapters.placement.ending_rule import EndingRule
from vdbg_env.adapters.placement.followed import FollowedAttempt
from vdbg_env.adapters.placement.one_rank import HOST, OneRank, on_this_host
from vdbg_env.application.ports.steps import Layout, StartedAttempt, StartedStep, StepRunner
from vdbg_env.evidence.observation import Observation
from vdbg_env.runbook.invocation import Invocation
from vdbg_env.runbook.machine.ranks import master_port, ranked

_PORT = "master_port"  # in the attempt's folder, for an engine that takes over


class LocalRanks:
    """A StepPlacement of `ranks` that `runner` starts, or as many as the step asks for where that is None."""

    def __init__(self, runner: StepRunner, ranks: int | None = None) -> None:
        self._runner = runner
        self._ranks = ranks
        self._one = OneRank(runner)

    def layout(self, invocation: Invocation) -> Layout:
        """Return the ranks; a single one has the folder that it always had."""
        ranks = self._count(invocation)
        return self._one.layout(invocation) if ranks == 1 else Layout(ranks=ranks)

    def start(self, invocation: Invocation, directory: Path) -> StartedAttempt:
        """Start all ranks, the first one first; see `StepPlacement.start`."""
        ranks = self._count(invocation)
        if ranks == 1:
            return self._one.start(invocation, directory)
        steps = [self._started(invocation, directory, rank) for rank in range(ranks)]
        return FollowedAttempt(LocalSteps(steps), ranks, EndingRule(invocation, directory))

    def adopt(self, invocation: Invocation, directory: Path) -> StartedAttempt | None:
        """Take over all ranks, and start those that the other engine had not started; see `StepPlacement.adopt`."""
        ranks = self._count(invocation)
        if ranks == 1:
            return self._one.adopt(invocation, directory)
        found = [self._adopted(invocation, directory, rank) for rank in range(ranks)]
        if not any(found):
            return None
        steps = [step or self._started(invocation, directory, rank) for rank, step in enumerate(found)]
        return FollowedAttempt(LocalSteps(steps), ranks, EndingRule(invocation, directory))

    def _count(self, invocation: Invocation) -> int:
        return self._ranks or invocation.placement.ranks

    def _started(self, invocation: Invocation, directory: Path, rank: int) -> StartedStep:
        folder = _folder(directory, rank)
        folder.mkdir(exist_ok=True)
        return self._runner.start(_of_rank(invocation, folder, rank, self._count(invocation)), folder)

    def _adopted(self, invocation: Invocation, directory: Path, rank: int) -> StartedStep | None:
        folder = _folder(directory, rank)
        return (
            self._runner.adopt(_of_rank(invocation, folder, rank, self._count(invocation)), folder)
            if folder.is_dir()
            else None
        )


class LocalSteps:
    """RunningRanks, each a step of this machine."""

    def __init__(self, steps: Sequence[StartedStep]) -> None:
        self._running = dict(enumerate(steps))
        self._seen: dict[int, Observation] = {}

    def look(self) -> Mapping[int, Observation]:
        """See `RunningRanks.look`."""
        for rank, step in tuple(self._running.items()):
            if (found := step.wait(0.0)) is not None:
                self._seen[rank] = found
                del self._running[rank]
        return self._seen

    def end(self, *, firmly: bool) -> None:
        """Have those that still run ended."""
        for step in self._running.values():
            step.cancel(firmly=firmly)

    def closed(self, seen: list[Observation]) -> list[Observation]:
        """Return what was seen."""
        return seen


def _folder(directory: Path, rank: int) -> Path:
    return directory / f"{HOST}-{rank}"


def _port(directory: Path) -> int:
    """Return the port at which the ranks of an attempt meet, free when the first of them was started."""
    path = directory / _PORT
    with suppress(OSError, ValueError):
        return int(path.read_text())
    first = master_port(str(directory))
    port = next((one for one in range(first, first + 1000) if _is_free(one)), first)
    path.write_text(str(port))
    return port


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("", port))
        except OSError:
            return False
    return True


def _of_rank(invocation: Invocation, folder: Path, rank: int, ranks: int) -> Invocation:
    """Return what one rank runs."""
    both = ranked(invocation, ranks=ranks, nodes=1, master="127.0.0.1", port=_port(folder.parent))
    return on_this_host(both.others if rank else both.first, folder, rank)
