"""What the worker processes of a step really have in their environment."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any, NamedTuple

from vdbg_env.record.redactor import Redactor
from vdbg_env.supervisor.processes.proc import Process, environment, executable, uses_cuda

_WORKERS_KEPT = 512


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
                had = {n: _decoded(reading.variables.get(os.fsencode(n))) for n in self._overlay}
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

    def described(self, redactor: Redactor) -> list[dict[str, Any]]:
        """Return what is kept of each: a secret it has as asked is left out, since redacted it would look wrong."""
        return [
            {"pid": pid, "name": one.name, "seen": self._kept(one, redactor), "known": one.seen is not None}
            for pid, one in self.workers()
        ]

    def _kept(self, worker: Worker, redactor: Redactor) -> dict[str, str | None]:
        return {
            variable: value
            for variable, value in (worker.seen or {}).items()
            if value != self._overlay[variable] or redactor.env({variable: value})[variable] == value
        }

    def workers(self) -> list[tuple[int, Worker]]:
        """Return pid and worker, in the order they were first seen."""
        cuda = [(key[0], seen) for key, seen in self._seen.items() if seen.cuda]
        return cuda or [(key[0], seen) for key, seen in self._seen.items() if seen.counts]


def _decoded(value: bytes | None) -> str | None:
    return None if value is None else os.fsdecode(value)
