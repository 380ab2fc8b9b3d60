"""Whether the kernel OOM-killed processes while a step ran, by the kernel's own counters.

They can be read without any right, where the kernel's log often cannot; but they count, and name no process.
"""

from __future__ import annotations

from collections.abc import Iterator


class MemoryKills:
    """The counters at the time when this was made; `root` is where /proc and /sys are."""

    def __init__(self, root: str = "") -> None:
        self._cgroup_file = next((f for f in _cgroup_files(root) if _count(f) is not None), "")
        self._machine_file = f"{root}/proc/vmstat"
        self._before = self._counts()

    def since(self) -> dict[str, int]:
        """Return how many were ended since then: in the cgroup of this process, and on the whole machine."""
        now = self._counts()
        return {name: now[name] - before for name, before in self._before.items() if now.get(name, before) > before}

    def _counts(self) -> dict[str, int]:
        counts = {"cgroup": _count(self._cgroup_file), "machine": _count(self._machine_file)}
        return {name: count for name, count in counts.items() if count is not None}


def _cgroup_files(root: str) -> Iterator[str]:
    """Yield where this process's cgroup may count (cgroups(7)): version 2, version 1, version 1 seen in a container."""
    for line in _text(f"{root}/proc/self/cgroup").splitlines():
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if number == "0":
            yield f"{root}/sys/fs/cgroup{path.rstrip('/')}/memory.events"
        elif "memory" in controllers.split(","):
            yield f"{root}/sys/fs/cgroup/memory{path.rstrip('/')}/memory.oom_control"
            yield f"{root}/sys/fs/cgroup/memory/memory.oom_control"


def _count(path: str) -> int | None:
    """Return the number after `oom_kill`, None where there is no such file or line (the kernel is older than 4.13)."""
    fields = (line.split() for line in _text(path).splitlines())
    return next((int(words[1]) for words in fields if len(words) == 2 and words[0] == "oom_kill"), None)


def _text(path: str) -> str:
    try:
        with open(path, encoding="ascii", errors="replace") as file:  # noqa: PTH123 - pathlib would cost the start
            return file.read()
    except OSError:
        return ""
