"""An attempt whose ranks are the tasks of a Slurm step, followed by the files that the ranks write."""

from __future__ import annotations

import json
import signal
import subprocess
import time
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from vdbg_env.adapters.placement.ending_rule import EndingRule
from vdbg_env.adapters.placement.rank.orders import NODE, STOP
from vdbg_env.adapters.placement.records import SILENT_S, RankRecords
from vdbg_env.adapters.placement.slurm.commands import SlurmCommands
from vdbg_env.common.errors import HostNotAble
from vdbg_env.evidence.observation import EndedBy, Observation

POLL_S = 0.1
ASK_S = 2.0  # how often the controller is asked whether a step still runs that another program started
AFTER_STEP_S = 5.0  # for a file system to show what a rank wrote last
AFTER_CANCEL_S = 60.0  # a rank of a lost node cannot be asked to end, and is not waited for any longer
_SAID_LINES = 5


class SlurmAttempt:
    """A StartedAttempt; `process` is the srun that this program started, None where another one did."""

    def __init__(
        self,
        *,
        directory: Path,
        records: RankRecords,
        ranks: int,
        rule: EndingRule,
        slurm: SlurmCommands,
        job: str,
        name: str,
        process: subprocess.Popen[bytes] | None,
    ) -> None:
        self._directory = directory
        self._records = records
        self._ranks = ranks
        self._rule = rule
        self._slurm = slurm
        self._job = job
        self._name = name
        self._process = process
        self._seen: dict[int, Observation] = {}
        self._asked_at: float | None = None
        self._cancelled = False
        self._over_at: float | None = None
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="slurm")  # its programs wait for their controller
        self._question: Future[str | None] | None = None
        self._next_question = 0.0
        self._running = True
        self._asked = 0
        self._pending_ends = 0
        self._ending: Future[bool] | None = None
        self._ask_again_at = 0.0

    def wait(self, timeout_s: float | None = None) -> tuple[Observation, ...] | None:
        """Wait until every rank has written its end, or is known to be lost.

        Raises HostNotAble, with what srun said, when it started no rank.
        """
        until = None if timeout_s is None else time.monotonic() + timeout_s
        while not self._complete():
            if self._rule.due({rank: seen.went_well for rank, seen in self._seen.items()}, self._ranks):
                self._ask(1)
            self._end_step()
            left = POLL_S if until is None else min(POLL_S, until - time.monotonic())
            if left <= 0:
                return None
            time.sleep(left)
        self._pool.shutdown(wait=False)
        return tuple(self._meant(self._seen[rank]) for rank in range(self._ranks))

    def cancel(self, *, firmly: bool = False) -> None:
        """Have every rank ended: a second SIGTERM kills at once."""
        self._cancelled = True
        self._ask(2 if firmly else 1)
        self._end_step()

    # -- ends ---------------------------------------------------------------------------------------------------------

    def _ask(self, times: int) -> None:
        """Ask all ranks to end: by Slurm, and by a file, as a controller that was restarted may have lost the step."""
        if times > self._asked:
            self._pending_ends += times - self._asked
            self._asked = times
            (self._directory / STOP).write_text(str(times))

    def _end_step(self) -> None:
        """Have what was asked for sent to the step; a controller that is away is asked again, and never waited for."""
        if self._ending is not None and self._ending.done():
            sent, self._ending = self._ending, None
            self._ask_again_at = time.monotonic() + ASK_S
            if sent.exception() is None and sent.result():
                self._pending_ends = 0
                self._asked_at = self._asked_at or time.monotonic()
        if self._pending_ends and self._ending is None and time.monotonic() >= self._ask_again_at:
            self._ending = self._pool.submit(self._terminate, self._pending_ends)

    def _terminate(self, times: int) -> bool:
        """Send so many SIGTERM; returns False where the step does not run yet, or no longer."""
        step = self._step() or self._slurm.step(self._job, self._name)
        for _ in range(times if step else 0):
            self._slurm.terminate(step or "")
        return step is not None

    def _step(self) -> str | None:
        """Return JOB.STEP, which the first rank that started has written down."""
        for path in self._directory.glob(f"*/{NODE}"):
            with suppress(OSError, ValueError, KeyError):
                return f"{self._job}.{json.loads(path.read_bytes())['step']}"
        return None

    def _meant(self, seen: Observation) -> Observation:
        """Return what a rank's end means: scancel reaches the workload too, which may be faster than its supervisor."""
        ended = seen.ended
        ours = self._asked_at is not None and ended.by in {EndedBy.EXIT, EndedBy.SIGNAL}
        if ours and (ended.signal == signal.SIGTERM or ended.code == 128 + signal.SIGTERM):
            seen = replace(seen, ended=replace(ended, by=EndedBy.CANCEL))
        return seen if self._cancelled else self._rule.meant(seen)

    # -- what the ranks wrote -----------------------------------------------------------------------------------------

    def _complete(self) -> bool:
        self._records.read_ends(self._seen)
        if len(self._seen) == self._ranks:
            self._reap()
            return True
        if self._launcher_runs():
            self._over_at = None
            return False
        if self._process and self._process.returncode and not self._seen and not self._records.any_started():
            raise self._never_started()
        now = time.monotonic()
        self._over_at = self._over_at or now
        if now < self._over_at + AFTER_STEP_S:
            return False
        for rank in range(self._ranks):
            if rank not in self._seen and (found := self._without_end(rank, now)) is not None:
                self._seen[rank] = found
        return len(self._seen) == self._ranks

    def _without_end(self, rank: int, now: float) -> Observation | None:
        """Return what is known of a rank whose step is over; None while it lives on, on a node that Slurm lost."""
        folder = self._records.folder(rank)
        if folder is None:
            if not self._seen and not self._records.any_started():
                raise self._never_started()
            why = "no record of it was found: its node was lost before it started, or does not share the run's folder"
            return self._records.lost(rank, why)
        if found := self._records.half_written(folder):
            return found
        given_up = self._asked_at is not None and now > self._asked_at + AFTER_CANCEL_S
        if self._records.silent_for(folder) < SILENT_S and not given_up:
            return None
        return self._records.lost(rank, "its node was lost: Slurm ended the step without it")

    # -- the launcher -------------------------------------------------------------------------------------------------

    def _launcher_runs(self) -> bool:
        if self._process is not None:
            return self._process.poll() is None
        if self._question is None and time.monotonic() >= self._next_question:
            self._question = self._pool.submit(self._slurm.step, self._job, self._name)
        if self._question is not None and self._question.done():
            answered, self._question = self._question, None
            self._next_question = time.monotonic() + ASK_S
            # A controller that is away will be back with its state.
            self._running = answered.exception() is not None or answered.result() is not None
        return self._running

    def _reap(self) -> None:
        """Take srun's status, which says only whether the supervisors ran; every rank has ended."""
        if self._process is not None:
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(AFTER_STEP_S)

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
        return path.read_text(errors="replace").splitlines()
    except FileNotFoundError:
        return []
