"""Keep hold of the processes of one attempt, to end them also after their supervisor was killed.

Three means, the surest first. A cgroup of the attempt, where this place allows one. A list of the processes that were
seen, each by pid and start time, in a file next to the lock. The mark in the environment, which a process loses that
renames itself (setproctitle overwrites it) or was started with another environment.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterable
from typing import Any

from vdbg_env.common.writing import open_file, write_whole
from vdbg_env.supervisor.processes import cgroups
from vdbg_env.supervisor.processes.proc import Process, below, boot_id, marked, process, processes
from vdbg_env.supervisor.processes.signals import send

LISTED = "processes.txt"
LIST = "process list"  # what is said to hold the tree where no cgroup does
_MOST_LINES = 4096
_PAUSE_S = 0.01


def cgroup_name(mark: str) -> str:
    """Return the name of an attempt's cgroup, `mark` being what names the attempt on this machine."""
    import hashlib  # not at start-up

    return cgroups.PREFIX + hashlib.sha256(mark.encode("utf-8", "surrogateescape")).hexdigest()[:24]


class AttemptTree:
    """The processes of one attempt, as its supervisor holds them; `kinds` are the cgroups that may be tried."""

    def __init__(self, mark: str, directory: str, kinds: tuple[str, ...]) -> None:
        self._file = open_file(f"{directory}/{LISTED}", os.O_RDWR | os.O_CREAT | os.O_TRUNC)
        self.cgroup = cgroups.make_cgroup(cgroup_name(mark), kinds)  # last: what fails before leaves none behind
        self._write([])
        self._lines = 0
        self._noted: set[tuple[int, int]] = set()
        self._members: set[int] = set()

    @property
    def held_by(self) -> str:
        """What holds the tree should the supervisor be killed."""
        return self.cgroup.kind if self.cgroup else LIST

    @property
    def pids(self) -> set[int]:
        """The numbers of all processes that were seen, ended ones too."""
        return {pid for pid, _ in self._noted}

    def described(self) -> dict[str, Any]:
        """Return what another engine needs to know of it."""
        return {"held_by": self.held_by, "cgroup": self.cgroup.path if self.cgroup else None}

    def not_entered(self) -> None:
        """Do without the cgroup, which the kernel did not let the workload in."""
        if self.cgroup:
            self.cgroup.remove()
            self.cgroup = None

    def new_members(self) -> list[Process]:
        """Return the members of the cgroup that were not there at the last call; one short read where there is none."""
        if self.cgroup is None:
            return []
        members = set(self.cgroup.pids())
        new, self._members = members - self._members, members
        return self.note(one for pid in sorted(new) if (one := process(pid)))

    def note(self, seen: Iterable[Process]) -> list[Process]:
        """Write down the new ones, which another engine may have to end, and return all."""
        seen = list(seen)
        new = [one for one in seen if (one.pid, one.start) not in self._noted]
        if new and self._lines + len(new) > _MOST_LINES:
            # A workload of many short processes (a compiler) would let the file grow for ever.
            living = [one for pid, start in self._noted if (one := process(pid)) and one.start == start]
            os.ftruncate(self._file, 0)
            os.lseek(self._file, 0, os.SEEK_SET)
            self._noted, self._lines, new = set(), 0, [*living, *new]
            self._write([])
        if new:
            self._noted |= {(one.pid, one.start) for one in new}
            self._lines += len(new)
            self._write([f"{one.pid} {one.start}" for one in new])
        return seen

    def kill(self) -> None:
        """Kill the members of the cgroup at once; who forks faster than it is signalled cannot outrun that."""
        if self.cgroup:
            self.cgroup.kill()

    def close(self) -> None:
        """Remove the cgroup, whose members are gone; one that could not be killed keeps it there."""
        if self.cgroup:
            self.cgroup.remove()
        os.close(self._file)

    def _write(self, lines: list[str]) -> None:
        text = "".join(f"{line}\n" for line in (lines or [boot_id()]))
        try:
            write_whole(self._file, text.encode())
        except OSError:
            return  # a full disk: the floor of free space ends the step, and the other means still hold the tree


def end(
    directory: str, mark_name: str, mark: str, *, recorded: Iterable[str] = (), limit_s: float = 10.0
) -> list[Process]:
    """Kill what a lost supervisor left, by every available means, and return what outlived the limit.

    `recorded` are the cgroups that the supervisor wrote it had made.
    """
    groups = cgroups.existing_cgroups(cgroup_name(mark), recorded)
    until = time.monotonic() + limit_s
    while True:
        for group in groups:
            group.kill()
        left = _left(directory, mark_name, mark, groups)
        if not left:
            break
        send(left, signal.SIGKILL)
        if time.monotonic() > until:
            break
        time.sleep(_PAUSE_S)
    for group in groups:
        group.remove()
    return left


def _left(directory: str, mark_name: str, mark: str, groups: list[cgroups.Cgroup]) -> list[Process]:
    """Return every living process of an attempt: members, listed ones, those with the mark, and all below them."""
    found = {one.pid: one for one in processes()}
    wanted = {pid for group in groups for pid in group.pids()}
    wanted |= {pid for pid, start in _listed(directory) if pid in found and found[pid].start == start}
    wanted |= {one.pid for one in marked(mark_name.encode(), os.fsencode(mark))}
    wanted -= {0, 1, os.getpid()}
    mine = [found[pid] for pid in wanted if pid in found]
    whole = {one.pid: one for one in (*mine, *below(wanted, found.values()))}
    return [one for one in whole.values() if one.state not in "ZX" and one.pid != os.getpid()]


def _listed(directory: str) -> list[tuple[int, int]]:
    """Return pid and start time of what a supervisor saw; nothing of what it saw before the machine's last start."""
    try:
        descriptor = open_file(f"{directory}/{LISTED}", os.O_RDONLY)
    except OSError:
        return []
    with os.fdopen(descriptor, "rb") as file:
        boot, *lines = file.read(1 << 20).decode("ascii", "replace").splitlines() or [""]
    pairs = [line.split() for line in lines] if boot == boot_id() else []
    return [(int(x[0]), int(x[1])) for x in pairs if len(x) == 2 and x[0].isdecimal() and x[1].isdecimal()]
