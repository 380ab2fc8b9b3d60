"""Makes, lists, kills and removes a cgroup of one attempt, where the place allows one.

A process is born in the cgroup of its parent and cannot leave it by fork, setsid, an empty environment or a new name.
Version 2 kills all members at once (cgroup.kill, Linux 5.14). The freezer of version 1 stops them first: none
can then fork away from the signal.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterable, Iterator
from typing import NamedTuple

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
