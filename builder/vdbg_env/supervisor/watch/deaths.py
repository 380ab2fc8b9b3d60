"""Which processes of the workload ended badly, in that order, and how.

The parent of a process takes its exit status, and a program of several processes rarely prints it: vLLM often looks
before it is there, and logs `exit code: None`. A pidfd is readable when its process has ended; the status is then in
/proc until the parent has taken it, and from the kernel (6.15 and later) afterwards.
"""

from __future__ import annotations

import fcntl
import os
import signal
import struct
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from vdbg_env.supervisor.processes.proc import Process, executable, exit_status, is_resource_tracker, title, uses_cuda

_WATCHED = 256  # descriptors
_KEPT = 16  # deaths: the first ones tell
_ORDERED = frozenset({signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGPIPE})  # by another process's wish
_INFO = struct.Struct("=QQ11Ii")  # struct pidfd_info (linux/pidfd.h)
_INFO_EXIT = 1 << 3
_GET_INFO = (3 << 30) | (_INFO.size << 16) | (0xFF << 8) | 11  # PIDFD_GET_INFO


class _Watched(NamedTuple):
    pid: int
    name: str
    parent: int


class Deaths:
    """Waits for the end of each process that it was shown; `wait_for` calls back when a descriptor is readable."""

    def __init__(
        self, root: int, now: Callable[[], float], wait_for: Callable[[int, Callable[[int], None] | None], None]
    ) -> None:
        self._root = root
        self._now = now
        self._wait_for = wait_for
        self._watched: dict[int, _Watched] = {}  # by descriptor
        self._descriptors: dict[tuple[int, int], int] = {}
        self._program = executable(root)
        self._over = False
        self.seen: list[dict[str, Any]] = []

    def look(self, processes: Iterable[Process]) -> None:
        """Wait for the end of each of these too, and take note of new names."""
        self._program = executable(self._root) or self._program  # a shell's script execs later
        for one in processes:
            if one.pid == self._root or self._over:
                continue
            name = title(one)
            descriptor = self._descriptors.get((one.pid, one.start))
            if descriptor is not None:
                self._watched[descriptor] = _Watched(one.pid, name, one.parent)
            elif len(self._watched) < _WATCHED and self._counts(one.pid):
                self._watch(one, name)

    def reaped(self, pid: int, status: int) -> None:
        """Take the end of a process that was our own child."""
        for descriptor, one in list(self._watched.items()):
            if one.pid == pid:
                self._take(descriptor, status)

    def stop(self) -> None:
        """Watch no longer: what ends from now on is ended by us."""
        self._over = True
        for descriptor in list(self._watched):
            self._forget(descriptor)

    def _counts(self, pid: int) -> bool:
        """Leave out a compiler, a shell, and what multiprocessing starts for itself."""
        return not is_resource_tracker(pid) and (executable(pid) == self._program or uses_cuda(pid))

    def _watch(self, one: Process, name: str) -> None:
        try:
            descriptor = os.pidfd_open(one.pid)
        except OSError:  # gone, or a kernel without it
            return
        self._watched[descriptor] = _Watched(one.pid, name, one.parent)
        self._descriptors[one.pid, one.start] = descriptor
        self._wait_for(descriptor, self._ended)

    def _ended(self, descriptor: int) -> None:
        one = self._watched.get(descriptor)
        if one:
            status = exit_status(one.pid)
            self._take(descriptor, _status_kept(descriptor) if status is None else status)

    def _take(self, descriptor: int, status: int | None) -> None:
        one = self._watched[descriptor]
        self._forget(descriptor)
        if not status or len(self.seen) >= _KEPT:
            return
        code = os.waitstatus_to_exitcode(status)
        if code < 0 and -code in _ORDERED:
            return
        self.seen.append(
            {
                "pid": one.pid,
                "name": one.name,
                "parent": one.parent,
                "code": code if code >= 0 else None,
                "signal": -code if code < 0 else None,
                "at_s": round(self._now(), 3),
            }
        )

    def _forget(self, descriptor: int) -> None:
        del self._watched[descriptor]
        self._descriptors = {key: kept for key, kept in self._descriptors.items() if kept != descriptor}
        self._wait_for(descriptor, None)
        os.close(descriptor)


def _status_kept(descriptor: int) -> int | None:
    """Return the wait status that the kernel keeps for a pidfd, None where it keeps none (before Linux 6.15)."""
    buffer = bytearray(_INFO.size)
    struct.pack_into("=Q", buffer, 0, _INFO_EXIT)
    try:
        fcntl.ioctl(descriptor, _GET_INFO, buffer)
    except OSError:
        return None
    mask, *_, status = _INFO.unpack(buffer)
    return int(status) if mask & _INFO_EXIT else None
