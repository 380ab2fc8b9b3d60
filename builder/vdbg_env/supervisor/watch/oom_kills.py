"""Whether the kernel OOM-killed processes while a step ran, by the kernel's own counters.

They can be read without any right, but they count, and name no process. The kernel's log names each; where it can be
read and has this process's numbers, those of the workload are picked out.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Collection, Iterator
from typing import Any

_KILLED = "ut of memory: Killed process "  # `Out of` or `Memory cgroup out of` (mm/oom_kill.c, Linux 4.19 and later)
_INITIAL_PIDS = "pid:[4026531836]"  # PROC_PID_INIT_INO (include/linux/proc_ns.h): the numbers that the kernel prints
_LARGEST_RECORD = 8192  # CONSOLE_EXT_LOG_MAX: a smaller buffer gives EINVAL


class MemoryKills:
    """The counters at the time when this was made; `root` is where /proc and /sys are."""

    def __init__(self, root: str = "") -> None:
        self._cgroup_file = next((f for f in _cgroup_files(root) if _count(f) is not None), "")
        self._machine_file = f"{root}/proc/vmstat"
        self._before = self._counts()
        self._log = _end_of_log(root)

    def since(self, pids: Collection[int]) -> dict[str, Any]:
        """Return how many were ended since then: in the cgroup of this process, and on the whole machine.

        `processes` are those among `pids` that the kernel's log names, each as `NAME (PID)`; left out where it cannot
        be read.
        """
        now = self._counts()
        kills = {name: now[name] - before for name, before in self._before.items() if now.get(name, before) > before}
        if not kills or self._log is None:
            return kills
        return {**kills, "processes": [f"{name} ({pid})" for pid, name in _killed(self._log) if pid in pids]}

    def _counts(self) -> dict[str, int]:
        counts = {"cgroup": _count(self._cgroup_file), "machine": _count(self._machine_file)}
        return {name: count for name, count in counts.items() if count is not None}


def _cgroup_files(root: str) -> Iterator[str]:
    """Yield where this process's cgroup may count (cgroups(7)): version 2, version 1, version 1 seen in a container."""
    for line in _content(f"{root}/proc/self/cgroup").splitlines():
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if number == "0":
            yield f"{root}/sys/fs/cgroup{path.rstrip('/')}/memory.events"
        elif "memory" in controllers.split(","):
            yield f"{root}/sys/fs/cgroup/memory{path.rstrip('/')}/memory.oom_control"
            yield f"{root}/sys/fs/cgroup/memory/memory.oom_control"


def _count(path: str) -> int | None:
    """Return the number after `oom_kill`, None where there is no such file or line (the kernel is older than 4.13)."""
    fields = (line.split() for line in _content(path).splitlines())
    return next((int(words[1]) for words in fields if len(words) == 2 and words[0] == "oom_kill"), None)


def _end_of_log(root: str) -> int | None:
    """Return the kernel's log, opened at its end; None where it cannot be read or counts processes otherwise."""
    try:
        if os.readlink(f"{root}/proc/self/ns/pid") != _INITIAL_PIDS:  # noqa: PTH115
            return None
        log = os.open(f"{root}/dev/kmsg", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        os.lseek(log, 0, os.SEEK_END)
    except OSError:
        return None
    return log


def _killed(log: int) -> Iterator[tuple[int, str]]:
    """Yield number and name of each process that the kernel says it killed, from where the log was opened."""
    while True:
        try:
            record = os.read(log, _LARGEST_RECORD)
        except OSError as error:
            if error.errno == errno.EPIPE:  # older records were overwritten: the next read gives the oldest left
                continue
            return
        if not record:
            return
        for line in record.decode("utf-8", "replace").splitlines():
            pid, _, rest = line.partition(_KILLED)[2].partition(" (")  # `4711 (VLLM::Worker) total-vm:...`
            if pid.isdecimal():
                yield int(pid), rest.partition(")")[0]


def _content(path: str) -> str:
    try:
        with open(path, encoding="ascii", errors="replace") as file:  # noqa: PTH123 - pathlib would cost the start
            return file.read()
    except OSError:
        return ""
