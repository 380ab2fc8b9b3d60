"""Keep hold of the processes of one attempt, and end them, also after their supervisor was killed.

Three means, the surest first. A cgroup of the attempt, where this place allows one: a process is born in the cgroup of
its parent and cannot leave it by fork, setsid, an empty environment or a new name. A list of the processes that were
seen, each by process ID and start time, in a file next to the lock. The mark in the environment, which a process loses
that renames itself (setproctitle overwrites it) or was started with another environment.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from vdbg_env.common.files import open_file, write_whole
from vdbg_env.supervisor.proc import Process, below, boot_id, marked, process, processes, send

V2, FREEZER = "cgroup v2", "freezer cgroup"
KINDS = (V2, FREEZER)  # the surer first
PREFIX = "vdbg-env-"
_REMOVE_LIMIT_S = 1.0
_ABANDONED_S = 600.0


class Cgroup(NamedTuple):
    """Our cgroup: its kind and its folder."""

    kind: str
    path: str

    def enter(self) -> None:
        """Move this process in; raises OSError where the kernel refuses.

        The kernel waits for every CPU: 6 to 30 ms where no process was moved shortly before.
        """
        _write(f"{self.path}/cgroup.procs", b"0")

    def pids(self) -> list[int]:
        """Return the members, those of cgroups that a member made below included; none when it is gone."""
        return [int(pid) for folder in self._folders() for pid in _read(f"{folder}/cgroup.procs").split() if int(pid)]

    def kill(self) -> None:
        """Send SIGKILL to every member; one that waits in the kernel may outlive it for a while."""
        try:
            _write(f"{self.path}/cgroup.kill", b"1")
            return
        except OSError:
            pass  # version 1, or a kernel older than 5.14
        self._freeze(True)
        for pid in self.pids():
            try:
                os.kill(pid, signal.SIGKILL)
            except (ProcessLookupError, PermissionError):
                continue
        self._freeze(False)

    def remove(self) -> bool:
        """Remove it; returns False while it has members. A dead member leaves a moment after it was reaped."""
        until = time.monotonic() + _REMOVE_LIMIT_S
        while True:
            for folder in reversed(list(self._folders())):
                try:
                    os.rmdir(folder)  # noqa: PTH106 - pathlib would cost the scribe 3 ms of its start
                except OSError:
                    continue
            if not os.path.isdir(self.path):  # noqa: PTH112
                return True
            if self.pids() or time.monotonic() > until:
                return False
            time.sleep(0.005)

    def _folders(self) -> Iterator[str]:
        return (folder for folder, _, _ in os.walk(self.path))

    def _freeze(self, frozen: bool) -> None:
        name, value = ("cgroup.freeze", b"01"[frozen : frozen + 1])
        if self.kind == FREEZER:
            name, value = "freezer.state", b"FROZEN" if frozen else b"THAWED"
        try:
            _write(f"{self.path}/{name}", value)
        except OSError:
            return  # older than 5.2, or gone: the caller looks again until no member is left


def make_cgroup(name: str, kinds: tuple[str, ...] = KINDS) -> Cgroup | None:
    """Make the cgroup `name` below that of this process; None where no kind allows it.

    One that is there was left by an engine that was killed; `name` names the attempt, so its members are ended.
    Others' that are empty are removed.
    """
    for one in cgroup_places(name, kinds):
        _remove_abandoned(os.path.dirname(one.path))  # noqa: PTH120
        try:
            os.mkdir(one.path, 0o755)  # noqa: PTH102
        except FileExistsError:
            one.kill()
        except OSError:
            continue
        if os.access(f"{one.path}/cgroup.procs", os.W_OK):
            return one
        one.remove()
    return None


def _remove_abandoned(folder: str) -> None:
    """Remove what killed supervisors left: our cgroups that have no member and can get none.

    Only a new one is empty and not yet used, by a supervisor that is about to start its workload.
    """
    try:
        left = [entry for entry in os.scandir(folder) if entry.name.startswith(PREFIX)]
    except OSError:
        return
    for entry in left:
        try:
            if time.time() - entry.stat().st_mtime > _ABANDONED_S:
                os.rmdir(entry.path)  # noqa: PTH106 - the kernel refuses it where there is a member
        except OSError:
            continue


def cgroup_places(name: str, kinds: tuple[str, ...] = KINDS) -> list[Cgroup]:
    """Return where a cgroup `name` would be below that of this process, the surer kind first."""
    found: dict[str, Cgroup] = {}
    own = dict(_own())
    for kind, root, mount in _mounts():
        path = own.get(kind)
        if path is not None and (path == root or root == "/" or path.startswith(f"{root}/")):
            inside = path[len(root.rstrip("/")) :].rstrip("/")
            found.setdefault(kind, Cgroup(kind, f"{mount}{inside}/{name}"))
    return [found[kind] for kind in kinds if kind in found]


def existing_cgroups(name: str, recorded: Iterable[str]) -> list[Cgroup]:
    """Return the cgroups `name` that are there: below that of this process, or where a supervisor wrote it made one.

    The workload could have written the name of another's cgroup in its place: only `name` in a cgroup hierarchy counts.
    """
    found = {one.path: one for one in cgroup_places(name)}
    for path in recorded:
        for kind, _, mount in _mounts():
            if path == os.path.normpath(path) and path.startswith(f"{mount}/") and path.endswith(f"/{name}"):
                found[path] = Cgroup(kind, path)
    return [one for one in found.values() if os.path.isdir(one.path)]  # noqa: PTH112


def _own() -> Iterator[tuple[str, str]]:
    """Yield the kind and path of this process's cgroups (cgroups(7), /proc/[pid]/cgroup)."""
    for line in _read("/proc/self/cgroup").decode("utf-8", "surrogateescape").splitlines():
        number, controllers, path = line.split(":", 2)
        if number == "0":
            yield V2, path
        elif "freezer" in controllers.split(","):
            yield FREEZER, path


def _mounts() -> Iterator[tuple[str, str, str]]:
    """Yield kind, root and mount point of each hierarchy that is mounted (proc(5), /proc/[pid]/mountinfo)."""
    for line in _read("/proc/self/mountinfo").decode("utf-8", "surrogateescape").splitlines():
        head, _, tail = line.partition(" - ")
        kind, _, options = tail.split(" ", 2)
        root, mount = head.split(" ")[3:5]
        if kind == "cgroup2":
            yield V2, root, mount
        elif kind == "cgroup" and "freezer" in options.split(","):
            yield FREEZER, root, mount


def _read(path: str) -> bytes:
    try:
        with open(path, "rb") as file:  # noqa: PTH123
            return file.read()
    except OSError:
        return b""


def _write(path: str, data: bytes) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(descriptor, data)
    finally:
        os.close(descriptor)


# -- All processes of an attempt ---------------------------------------------------------------------------------------

LISTED = "processes.txt"
LIST = "process list"  # what is said to hold the tree where no cgroup does
_MOST_LINES = 4096
_PAUSE_S = 0.01


def cgroup_name(mark: str) -> str:
    """Return the name of an attempt's cgroup, `mark` being what names the attempt on this machine."""
    import hashlib  # not at start-up

    return PREFIX + hashlib.sha256(mark.encode("utf-8", "surrogateescape")).hexdigest()[:24]


class AttemptTree:
    """The processes of one attempt, as its supervisor holds them; `kinds` are the cgroups that may be tried."""

    def __init__(self, mark: str, directory: str, kinds: tuple[str, ...]) -> None:
        self._file = open_file(f"{directory}/{LISTED}", os.O_RDWR | os.O_CREAT | os.O_TRUNC)
        self.cgroup = make_cgroup(cgroup_name(mark), kinds)  # last: what fails before leaves none behind
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
        group = self.cgroup.path if self.cgroup else None
        return {"held_by": self.held_by, "cgroup": group, "pid_namespace": _pid_namespace()}

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
    groups = existing_cgroups(cgroup_name(mark), recorded)
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


def _left(directory: str, mark_name: str, mark: str, groups: list[Cgroup]) -> list[Process]:
    """Return every living process of an attempt: members, listed ones, those with the mark, and all below them."""
    found = {one.pid: one for one in processes()}
    wanted = {pid for group in groups for pid in group.pids()}
    wanted |= {pid for pid, start in listed(directory) if pid in found and found[pid].start == start}
    wanted |= {one.pid for one in marked(mark_name.encode(), os.fsencode(mark))}
    wanted -= {0, 1, os.getpid()}
    mine = [found[pid] for pid in wanted if pid in found]
    whole = {one.pid: one for one in (*mine, *below(wanted, found.values()))}
    return [one for one in whole.values() if one.state not in "ZX" and one.pid != os.getpid()]


def _pid_namespace() -> int | None:
    try:
        return os.stat("/proc/self/ns/pid").st_ino  # noqa: PTH116
    except OSError:
        return None


def listed(directory: str) -> list[tuple[int, int]]:
    """Return pid and start time of what a supervisor saw; nothing of what it saw before the machine's last start."""
    try:
        descriptor = open_file(f"{directory}/{LISTED}", os.O_RDONLY)
    except OSError:
        return []
    with os.fdopen(descriptor, "rb") as file:
        boot, *lines = file.read(1 << 20).decode("ascii", "replace").splitlines() or [""]
    pairs = [line.split() for line in lines] if boot == boot_id() else []
    return [(int(x[0]), int(x[1])) for x in pairs if len(x) == 2 and x[0].isdecimal() and x[1].isdecimal()]


# -- A polite end: the root is asked first, and the others only when the root did not see to it ------------------------
# A launcher ends what it has started in order, and a signal to all at once takes its children from it. But the root may
# lose the signal (`vllm serve` 0.32.0 does so while it starts: it becomes ready, and never ends), so it is asked once
# more. A shell passes nothing on, so in the end each process is asked.

AGAIN_S = 5.0  # a ready `vllm serve` ends within 2.5 s
ALL_S = 12.0
ORPHANED_S = 2.0  # for those whose root has ended


class PoliteEnd:
    """The polite signal, from the root outwards, within a grace."""

    def __init__(self, number: int) -> None:
        self._number = number
        self._root = 0
        self._asked_root = 0
        self._asked: set[int] = set()
        self._again_at = self._all_at = self._orphaned_s = 0.0

    def begin(self, root: int, now: float, grace: float) -> None:
        """Begin: the shorter the grace, the sooner the next one is asked."""
        self._root = root
        self._again_at = now + min(AGAIN_S, grace / 4)
        self._all_at = now + min(ALL_S, grace / 2)
        self._orphaned_s = min(ORPHANED_S, grace / 4)

    def step(self, found: Iterable[Process], now: float) -> None:
        """Ask those of the tree whose turn it is."""
        tree = list(found)
        root = [one for one in tree if one.pid == self._root]
        if not root:
            # One that had ended before it was asked has had its time.
            self._all_at = min(self._all_at, now + (self._orphaned_s if self._asked_root else 0.0))
        elif self._asked_root == 0 or (self._asked_root == 1 and now >= self._again_at):
            send(root, self._number)
            self._asked_root += 1
        if now >= self._all_at:
            others = [one for one in tree if one.pid != self._root and one.pid not in self._asked]
            send(others, self._number)
            self._asked |= {one.pid for one in others}
