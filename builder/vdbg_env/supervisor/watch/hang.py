"""What counts as a hang.

A server that hangs is not silent: vLLM prints that no shared memory block was found, and its throughput of zero, again
and again. So output counts as long as it shows progress.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Iterable

from vdbg_env.supervisor.job import Job
from vdbg_env.supervisor.processes.proc import Process, processor_s

_LINE_SHOWN = 200  # bytes
_REMEMBERED = 64  # different lines that said that something waits
_QUIET_S = 5.0  # without progress, before processor time is counted; less where the limit is short
_MOST_LOOKED_AT = 4096  # bytes; who prints more at once makes progress
# Nothing was computed, whatever else the line counts; and a client that asks whether the server lives.
_IDLE = re.compile(
    rb"(?:throughput:? 0\.0+ tokens/s\D*){2}|throughput \(token/s\): 0\.0+|\"GET /(?:health|metrics|ping)\b"
)
_WAITS = re.compile(
    rb"(?i)\bwait|no available|\bstill\b|time[ds]? ?out|stuck|not respond|heartbeat|retry|retries|\bstall"
)
# What a workload in production says when work waits in vain; silence, or a heartbeat, may be a night without requests.
_IN_VAIN = re.compile(
    rb"(?i)no available shared memory broadcast block|not respond|\bstuck\b|no progress|watchdog.*time[ds]? ?out"
    rb"|throughput:? 0\.0+ tokens/s.*throughput:? 0\.0+ tokens/s.*Running: [1-9]"
)
_CLOCK = re.compile(rb"(?:\d{2,4}[-/]\d\d(?:[-/]\d\d)?[ T])?\d\d:\d\d:\d\d(?:[.,]\d+)?Z?|\x1b\[[0-9;]*m")


class Progress:
    """Tells output that shows progress from lines that only say, again, that something waits."""

    def __init__(self) -> None:
        self._seen: deque[bytes] = deque(maxlen=_REMEMBERED)

    def shown_by(self, data: bytes) -> bool:
        """Return whether one of the lines is new, or says anything but that it waits."""
        if len(data) > _MOST_LOOKED_AT:
            return True
        lines = [line for line in data.replace(b"\r", b"\n").splitlines() if line.strip()]
        new = [self._is_new(line) for line in lines]  # every line is remembered
        return any(new)

    def _is_new(self, line: bytes) -> bool:
        if _IDLE.search(line):
            return False
        if not _WAITS.search(line):
            return True
        line = _CLOCK.sub(b"", line)
        if line in self._seen:
            return False
        self._seen.append(line)
        return True


class ProcessorTime:
    """How much processor time each process has used since the last progress.

    One that spins and one that waits are alike otherwise. A first reading is taken when it has been quiet for a while,
    as each takes some ms.
    """

    def __init__(self, quiet_s: float) -> None:
        self._quiet_s = quiet_s
        self._at = float("-inf")
        self._before: dict[tuple[int, int], float] = {}

    def look(self, now: float, last_progress: float, processes: Callable[[], Iterable[Process]]) -> None:
        """Take the first reading once there has been no progress for the quiet time."""
        if self._at < last_progress and now >= last_progress + self._quiet_s:
            self._at = now
            self._before = {(one.pid, one.start): processor_s(one.pid) for one in processes()}

    def used(self, now: float, one: Process) -> tuple[float, float] | None:
        """Return the seconds a process has used since the first reading, and how long ago that was."""
        before, span = self._before.get((one.pid, one.start)), now - self._at
        return None if before is None or span < 1 else (processor_s(one.pid) - before, span)


class HangWatch:
    """Says when the workload hangs: no progress, idle GPUs, or GPUs that stay at full load without progress."""

    def __init__(self, job: Job, now: Callable[[], float]) -> None:
        self._job = job
        self._now = now
        began = now()
        self.last_progress = began
        self._progress = Progress()
        self._waiting = b""  # the last line that only says that it waits
        self._in_vain = False  # one of them said that work waits
        self._gpu_busy = began
        self._gpu_free = began
        self._seen_gpu = False
        self._rest = b""
        limit = min((s for s in (job.output_idle_s, job.gpu_idle_s, job.gpu_pinned_s) if s is not None), default=0.0)
        self.processor_time = ProcessorTime(min(_QUIET_S, limit / 4))

    def output(self, data: bytes) -> None:
        """Take what was printed."""
        if self._progress.shown_by(data):
            self.progress()
        else:
            self._waiting = data.strip().rpartition(b"\n")[2]
            self._in_vain = self._in_vain or bool(_IN_VAIN.search(data))

    def progress(self) -> None:
        """Take note of progress that is known otherwise than by output."""
        self.last_progress, self._waiting, self._in_vain = self._now(), b"", False

    def gpu(self, data: bytes) -> None:
        """Take what the probe printed: one line per GPU, its last number the load in percent."""
        *lines, self._rest = (self._rest + data).split(b"\n")
        loads = [float(x) for x in (line.split(b",")[-1].strip() for line in lines) if x.replace(b".", b"").isdigit()]
        if not loads:
            return
        now, self._seen_gpu = self._now(), True
        if max(loads) > 0:
            self._gpu_busy = now
        if max(loads) < 99:
            self._gpu_free = now

    def verdict(self, now: float) -> str | None:
        """Return one sentence when the workload hangs by now."""
        # Sums, as in `next_deadline`: a difference of times is rounded otherwise, and may be less than the limit then.
        idle, gpu_idle, pinned = self._job.output_idle_s, self._job.gpu_idle_s, self._job.gpu_pinned_s
        if idle is not None and not self._may_be_silent and now >= self.last_progress + idle:
            return f"no {self._missing} for {idle:g} s{self._last_line}"
        if self._seen_gpu and gpu_idle is not None and now >= self._gpu_busy + gpu_idle:
            return f"every GPU idle for {gpu_idle:g} s"
        # A GPU at full load is what inference looks like; only without any progress is it a spinning kernel.
        stuck_since = max(self._gpu_free, self.last_progress)
        if self._seen_gpu and pinned is not None and now >= stuck_since + pinned:
            return f"a GPU at 100 % and no {self._missing} for {pinned:g} s{self._last_line}"
        return None

    @property
    def _may_be_silent(self) -> bool:
        """Whether silence says nothing: a guarded server has no requests at night."""
        return bool(self._job.guard) and not self._in_vain

    @property
    def _missing(self) -> str:
        return "progress" if self._waiting else "output"

    @property
    def _last_line(self) -> str:
        return f"; it prints: {self._waiting[:_LINE_SHOWN].decode('utf-8', 'replace')}" if self._waiting else ""

    def next_deadline(self) -> float:
        """Return the time at which `verdict` should be asked again; from then on it has an answer."""
        job, limits = self._job, []
        if job.output_idle_s is not None and not self._may_be_silent:
            limits.append(self.last_progress + job.output_idle_s)
        if self._seen_gpu and job.gpu_idle_s is not None:
            limits.append(self._gpu_busy + job.gpu_idle_s)
        if self._seen_gpu and job.gpu_pinned_s is not None:
            limits.append(max(self._gpu_free, self.last_progress) + job.gpu_pinned_s)
        return min(limits, default=float("inf"))
