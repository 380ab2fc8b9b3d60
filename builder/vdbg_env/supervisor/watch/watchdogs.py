"""What counts as a hang, what the workers really have in their environment, and whether a dump is still growing."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from typing import NamedTuple

from vdbg_env.supervisor.job import Orders
from vdbg_env.supervisor.processes.proc import Process, environment, executable, uses_cuda

_WORKERS_KEPT = 512


class HangWatch:
    """Says when the workload hangs: silence, idle GPUs, or GPUs that stay at full load while nothing is printed."""

    def __init__(self, orders: Orders) -> None:
        self._orders = orders
        now = time.monotonic()
        self.last_output = now
        self._gpu_busy = now
        self._gpu_free = now
        self._seen_gpu = False
        self._rest = b""

    def output(self) -> None:
        """Take note that something was printed."""
        self.last_output = time.monotonic()

    def gpu(self, data: bytes) -> None:
        """Take what the probe printed: one line per GPU, its last number the load in percent."""
        *lines, self._rest = (self._rest + data).split(b"\n")
        loads = [float(x) for x in (line.split(b",")[-1].strip() for line in lines) if x.replace(b".", b"").isdigit()]
        if not loads:
            return
        now, self._seen_gpu = time.monotonic(), True
        if max(loads) > 0:
            self._gpu_busy = now
        if max(loads) < 99:
            self._gpu_free = now

    def verdict(self, now: float) -> str | None:
        """Return one sentence when the workload hangs by now."""
        idle, gpu_idle, pinned = self._orders.output_idle_s, self._orders.gpu_idle_s, self._orders.gpu_pinned_s
        if idle is not None and now - self.last_output >= idle:
            return f"no output for {idle:g} s"
        if self._seen_gpu and gpu_idle is not None and now - self._gpu_busy >= gpu_idle:
            return f"every GPU idle for {gpu_idle:g} s"
        # A GPU at full load is what inference looks like; only together with silence is it a spinning kernel.
        stuck = min(now - self._gpu_free, now - self.last_output)
        if self._seen_gpu and pinned is not None and stuck >= pinned:
            return f"a GPU at 100 % and no output for {pinned:g} s"
        return None

    def next_deadline(self) -> float:
        """Return the monotonic time at which `verdict` should be asked again at the latest."""
        limits = [
            start + limit
            for start, limit in (
                (self.last_output, self._orders.output_idle_s),
                (self._gpu_busy, self._orders.gpu_idle_s),
                (max(self._gpu_free, self.last_output), self._orders.gpu_pinned_s),
            )
            if limit is not None
        ]
        return min(limits, default=float("inf"))


class Worker(NamedTuple):
    """A process as it was last seen; `seen` is None when its environment was overwritten before it could be read."""

    name: str
    seen: dict[str, str | None] | None
    cuda: bool
    counts: bool
    image: tuple[int, ...]


class WorkerCensus:
    """Reads what each process of the tree really has of the variables the step changes.

    Launchers drop variables (Ray: whatever was exported after `ray start`), so asking is not enough. Workers are the
    processes that have the CUDA driver mapped; where none has, those that run the same program as the first.

    The last good reading since a process's exec is what counts: one that renames itself overwrites its environment. A
    fork that has not called exec was given what its parent was started with.
    """

    def __init__(self, overlay: dict[str, str | None], root: int) -> None:
        self._overlay = overlay
        self._root = root
        self._program = executable(root)
        self._seen: dict[tuple[int, int], Worker] = {}
        self._readings: dict[tuple[int, ...], dict[str, str | None]] = {}

    def look(self, processes: Iterable[Process]) -> None:
        """Read the environment of each process."""
        if not self._overlay:
            return
        self._program = (
            executable(self._root) or self._program
        )  # a script of the shell's that execs is Python only later
        for one in processes:
            key = (one.pid, one.start)
            before = self._seen.get(key)
            if before is None and not self._has_room():
                continue
            reading = environment(one.pid)
            if reading is None:
                continue
            if reading.variables is not None:
                had = {n: _text(reading.variables.get(os.fsencode(n))) for n in self._overlay}
                self._readings[reading.image] = had
            cuda = (before is not None and before.cuda) or uses_cuda(one.pid)
            counts = cuda or one.pid == self._root or executable(one.pid) == self._program
            seen = self._readings.get(reading.image)
            self._seen[key] = Worker(one.name, seen, cuda, counts, reading.image)

    def _has_room(self) -> bool:
        """Forget what is no worker when there is much of it (a compiler's processes); living ones are read again."""
        if len(self._seen) >= _WORKERS_KEPT:
            self._seen = {key: seen for key, seen in self._seen.items() if seen.counts}
            kept = {seen.image for seen in self._seen.values()}
            self._readings = {image: had for image, had in self._readings.items() if image in kept}
        return len(self._seen) < _WORKERS_KEPT

    def workers(self) -> list[tuple[int, Worker]]:
        """Return pid and worker, in the order they were first seen."""
        cuda = [(key[0], seen) for key, seen in self._seen.items() if seen.cuda]
        return cuda or [(key[0], seen) for key, seen in self._seen.items() if seen.counts]


class GrowingFiles:
    """Says whether a file that the step is to leave behind is still being written."""

    def __init__(self, directory: str, patterns: tuple[str, ...]) -> None:
        self._directory = directory
        self._patterns = patterns
        self._size = -1
        self._changed = 0.0

    def growing(self, now: float, *, quiet_s: float = 2.0) -> bool:
        """Whether any of them changed its size in the last `quiet_s` seconds."""
        if not self._patterns:
            return False
        size = self._total()
        if size != self._size:
            grew = size > max(self._size, 0)
            self._size = size
            if grew:
                self._changed = now
        return size > 0 and now - self._changed < quiet_s

    def _total(self) -> int:
        from glob import iglob  # not at start-up: most steps end without ever asking

        total = 0
        for pattern in self._patterns:
            for name in iglob(pattern, root_dir=self._directory, recursive=True):  # noqa: PTH207
                try:
                    total += os.stat(f"{self._directory}/{name}").st_size  # noqa: PTH116
                except OSError:
                    continue
        return total


def _text(value: bytes | None) -> str | None:
    return None if value is None else os.fsdecode(value)
