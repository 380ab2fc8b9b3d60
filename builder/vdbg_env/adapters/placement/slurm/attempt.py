"""The ranks of one attempt as the tasks of a Slurm step, known by the files that they write."""

from __future__ import annotations

import re
import signal
import subprocess
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from vdbg_env.adapters.placement.followed import AGAIN_S, RemoteRanks, Repeated
from vdbg_env.adapters.placement.rank.orders import NODE
from vdbg_env.adapters.placement.records import SILENT_S, RankRecords
from vdbg_env.adapters.placement.slurm.commands import SlurmCommands
from vdbg_env.common.errors import HostNotAble
from vdbg_env.common.reading import opened, read_document
from vdbg_env.common.stop import ToldToStop, waiting
from vdbg_env.common.writing import NotAFile
from vdbg_env.evidence.observation import Ended, EndedBy, Observation

AFTER_STEP_S = 5.0  # for a file system to show what a rank wrote last
AFTER_CANCEL_S = 60.0  # a rank of a lost node cannot be asked to end, and is not waited for any longer
_SAID_LINES = 5
_KILLED = (
    "Slurm killed it before its record was written: scancel of its step, or a job's end whose KillWait was too short"
)
_SIGKILL = "its supervisor was killed, and with it the workload: the node's or the job's memory, or a kill -9"
_SRUN_KILLED = "srun was killed, and Slurm killed its ranks: the memory of the node that starts them, or a kill -9"
_NODE_FAILURE = re.compile(r"Node failure on (\S+)")
_TASKS_KILLED = re.compile(r": tasks? ([\d,-]+): Killed$")


class SlurmStep(RemoteRanks):
    """RunningRanks; `process` is the srun that this program started, None where another one did.

    `note` is what is to be known of all its ranks.
    """

    def __init__(
        self,
        *,
        directory: Path,
        records: RankRecords,
        ranks: int,
        slurm: SlurmCommands,
        job: str,
        name: str,
        process: subprocess.Popen[bytes] | None,
        note: str = "",
    ) -> None:
        super().__init__(directory, records, ranks)
        self._directory = directory
        self._slurm = slurm
        self._job = job
        self._name = name
        self._process = process
        self._notes = (note,) if note else ()
        self._over_at: float | None = None
        self._failures: dict[str, str] = {}  # what srun said of each node that Slurm has lost
        self._read_at = 0.0
        self._question = Repeated()
        self._running = True

    def closed(self, seen: list[Observation]) -> list[Observation]:
        """Return what the ends mean, and take srun's status, which says only whether the supervisors ran."""
        if self._process is not None:
            with suppress(subprocess.TimeoutExpired, ToldToStop), waiting():
                self._process.wait(AFTER_STEP_S)
        return [replace(self._meant(one), notes=(*one.notes, *self._lived_on(one), *self._notes)) for one in seen]

    def _lived_on(self, seen: Observation) -> tuple[str, ...]:
        """Return what is to be known of a rank that wrote its end on a node that Slurm had lost."""
        said = self._node_failures().get(seen.host) if seen.ended.by is not EndedBy.NODE_LOST else None
        return (f"Slurm lost its node, and it ran on there ({said})",) if said else ()

    def _ask_to_end(self, times: int) -> bool:
        """Send so many SIGTERM, the second of which kills; returns False where no step runs, or Slurm is away."""
        with suppress(HostNotAble):
            step = self._step() or self._slurm.step(self._job, self._name)
            for _ in range(times if step else 0):
                self._slurm.terminate(step or "")
            return step is not None
        return False

    def _step(self) -> str | None:
        """Return JOB.STEP, which the first rank that started has written down."""
        for path in self._directory.glob(f"*/{NODE}"):
            with suppress(OSError, ValueError, KeyError):
                return f"{self._job}.{read_document(path)['step']}"
        return None

    def _meant(self, seen: Observation) -> Observation:
        """Return what a rank's end means: scancel reaches the workload too, which may be faster than its supervisor."""
        ended = seen.ended
        ours = self._request.sent_at is not None and ended.by in {EndedBy.EXIT, EndedBy.SIGNAL}
        if ours and (ended.signal == signal.SIGTERM or ended.code == 128 + signal.SIGTERM):
            return replace(seen, ended=replace(ended, by=EndedBy.CANCEL))
        return seen

    def _without_end(self, rank: int) -> Observation | None:
        """Return what is known of a rank whose step is over, or whose node is lost; None while it lives on.

        The others wait for a lost rank, for ever as a rule: it must not be known only when they have ended. Raises
        HostNotAble, with what srun said, when it started no rank.
        """
        if self._launcher_runs():
            self._over_at = None
            return self._lost_with_its_node(rank)
        if self._process and self._process.returncode and not self._seen and not self._records.any_started():
            raise self._never_started()
        now = time.monotonic()
        self._over_at = self._over_at or now
        if now < self._over_at + AFTER_STEP_S:
            return None
        folder = self._records.folder(rank)
        if folder is None:
            if not self._seen and not self._records.any_started():
                raise self._never_started()
            why = "no record of it was found: its node was lost before it started, or does not share the run's folder"
            return self._records.lost(rank, why)
        if found := self._records.half_written(folder):
            return found
        if (killed := self._killed(rank, folder.name.rpartition("-")[0])) is not None:
            return self._records.without_end(rank, killed)
        given_up = self._request.sent_at is not None and now > self._request.sent_at + AFTER_CANCEL_S
        if self._records.silent_for(folder) < SILENT_S and not given_up:
            return None
        if self._process is not None and self._process.returncode < 0:  # Slurm then kills every task of the step
            return self._records.without_end(rank, Ended(by=EndedBy.ENGINE_LOST, message=_SRUN_KILLED))
        said = self._node_failures().get(folder.name.rpartition("-")[0], "Slurm ended the step without it")
        return self._records.lost(rank, f"its node was lost: {said}")

    def _lost_with_its_node(self, rank: int) -> Observation | None:
        """Return what is known of a rank of a lost node while others run; None where its tasks still live there."""
        if not (failures := self._node_failures()) or (folder := self._records.folder(rank)) is None:
            return None
        said = failures.get(folder.name.rpartition("-")[0])
        if said is None or self._records.silent_for(folder) < SILENT_S:
            return None
        return self._records.half_written(folder) or self._records.lost(rank, f"its node was lost: {said}")

    def _node_failures(self) -> dict[str, str]:
        """Return what srun said of each node that Slurm has lost since the step began, read now and then."""
        if time.monotonic() >= self._read_at + AGAIN_S:
            self._read_at = time.monotonic()
            for line in _tail(self._directory / "srun.txt"):
                if found := _NODE_FAILURE.search(line):
                    with suppress(HostNotAble):
                        self._failures |= dict.fromkeys(self._slurm.hosts(found[1]), line.strip())
        return self._failures

    def _killed(self, rank: int, host: str) -> Ended | None:
        """Return the end of a rank that was killed on a node that Slurm has not lost, by what srun says."""
        said = _tail(self._directory / "srun.txt")
        if host in self._node_failures():
            return None
        if any(" CANCELLED AT " in line for line in said):
            return Ended(by=EndedBy.CANCEL, message=_KILLED)
        found = (_TASKS_KILLED.search(line) for line in said)
        if any(rank in _numbers(tasks[1]) for tasks in found if tasks):
            return Ended(by=EndedBy.ENGINE_LOST, message=_SIGKILL)
        return None

    def _launcher_runs(self) -> bool:
        if self._process is not None:
            return self._process.poll() is None
        self._question.again(self._ask_whether_it_runs)
        return self._running

    def _ask_whether_it_runs(self) -> None:
        with suppress(HostNotAble):  # a controller that is away will be back with its state
            self._running = self._slurm.step(self._job, self._name) is not None

    def _never_started(self) -> HostNotAble:
        said = [line for line in _tail(self._directory / "srun.txt") if line.strip()]
        status = self._process.returncode if self._process is not None else None
        return HostNotAble(
            "srun started no rank" + (f" and ended with status {status}" if status is not None else ""),
            cause="it refused an argument, or the nodes do not share the run's folder",
            details=tuple(said[-_SAID_LINES:]),
            next_step="--run-dir on a file system that all nodes share; --slurm-arg passes arguments to srun",
        )


def _tail(path: Path) -> list[str]:
    try:
        with opened(path) as file:
            return file.read().decode(errors="replace").splitlines()
    except (FileNotFoundError, NotAFile):
        return []


def _numbers(text: str) -> set[int]:
    """Return the numbers of a list such as `0,3-5`."""
    ends = ([int(end) for end in part.split("-")] for part in text.split(",") if part)
    return {number for end in ends for number in range(end[0], end[-1] + 1)}
