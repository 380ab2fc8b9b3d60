"""Looks at, signals and ends the tree of processes under one process, by /proc alone.

A process group is not enough: a child that calls setsid leaves it, and one that forks twice loses its parent. As
subreaper (prctl(2), PR_SET_CHILD_SUBREAPER) the supervisor becomes the parent of every orphan below it, so that
"no child left" is proof that nothing is left.
"""

from __future__ import annotations

import ctypes
import os
import signal
from collections.abc import Iterable
from typing import NamedTuple

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_libc = ctypes.CDLL(None, use_errno=True)


class Process(NamedTuple):
    """One process: `start` in clock ticks since boot, which together with the pid names it for good."""

    pid: int
    parent: int
    name: str
    state: str
    start: int


class Environment(NamedTuple):
    """A reading of /proc/[pid]/environ: `variables` is None when unknown, `image` names the exec that they are of."""

    image: tuple[int, ...]
    variables: dict[bytes, bytes] | None


def become_subreaper() -> None:
    """Make this process the parent of every orphan below it; raises OSError where the kernel refuses."""
    if _libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER) failed")


def die_with_parent() -> None:
    """Have this process killed when its parent dies; called in a child between fork and exec."""
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def process(pid: int) -> Process | None:
    """Return what /proc says of `pid`, or None when it is gone (proc(5), /proc/[pid]/stat)."""
    text = _read(f"/proc/{pid}/stat")
    if not text:
        return None
    # The name may hold blanks and brackets, so the fields are counted from the last bracket.
    head, _, tail = text.rpartition(b")")
    fields = tail.split()
    return Process(
        pid, int(fields[1]), head.partition(b"(")[2].decode("utf-8", "replace"), fields[0].decode(), int(fields[19])
    )


def processes() -> list[Process]:
    """Return every process that /proc shows."""
    names = os.listdir("/proc")  # noqa: PTH208 - a Path per process would cost more than the look itself
    return [found for name in names if name.isdigit() and (found := process(int(name)))]


def descendants(root: int, *, without: Iterable[int] = ()) -> list[Process]:
    """Return every living process below `root`, parents before children; subtrees of `without` are left out."""
    return below((root,), processes(), without=without)


def below(roots: Iterable[int], among: Iterable[Process], *, without: Iterable[int] = ()) -> list[Process]:
    """Return the living ones of `among` below any of `roots`, parents before children; see `descendants`."""
    children: dict[int, list[Process]] = {}
    for one in among:
        children.setdefault(one.parent, []).append(one)
    queue = list(roots)
    passed, found = {*queue, *without}, []
    while queue:
        for child in children.get(queue.pop(), ()):
            if child.pid not in passed:
                passed.add(child.pid)
                queue.append(child.pid)
                if child.state not in "ZX":
                    found.append(child)
    return found


def send(processes: Iterable[Process], number: int) -> list[Process]:
    """Send a signal to each; returns those it could not be sent to for lack of rights."""
    refused = []
    for target in processes:
        try:
            os.kill(target.pid, number)
            if number != signal.SIGKILL:
                os.kill(target.pid, signal.SIGCONT)  # a stopped process would never see the signal
        except ProcessLookupError:
            continue
        except PermissionError:
            refused.append(target)
    return refused


def environment(pid: int) -> Environment | None:
    """Return what can be read of the environment `pid` was started with; None when it has no memory, or none yet.

    A process that renames itself (setproctitle, which vLLM calls in each of its processes) overwrites the place with
    zeros or with its title: what was there is then unknown, and must not be taken for unset.
    """
    image = _image(pid)
    if image is None:
        return None
    text = _read(f"/proc/{pid}/environ")
    if image != _image(pid):
        return None  # it called exec in between; the next look reads the new program
    start, end = image[-2:]
    if not text:
        # Not permitted is unknown; a program that was given no variable at all has an empty place.
        return Environment(image, {} if start == end and start else None)
    entries = text[:-1].split(b"\0")
    if not text.endswith(b"\0") or not all(b"=" in entry for entry in entries):
        return Environment(image, None)
    return Environment(image, {name: value for name, _, value in (entry.partition(b"=") for entry in entries)})


def _image(pid: int) -> tuple[int, ...] | None:
    """Return what an exec gives anew and a fork passes on: where code, stack and environment are (proc(5), stat)."""
    fields = _read(f"/proc/{pid}/stat").rpartition(b")")[2].split()
    if not fields or fields[23] == b"0":
        return None  # gone, or a zombie
    return tuple(int(fields[number]) for number in (23, 24, 25, 47, 48))


def executable(pid: int) -> str:
    """Return the path of the program `pid` runs, or an empty text."""
    try:
        return os.readlink(f"/proc/{pid}/exe")  # noqa: PTH115 - pathlib would cost the scribe 3 ms of its start
    except OSError:
        return ""


def uses_cuda(pid: int) -> bool:
    """Whether the driver's library is mapped into `pid`."""
    return b"/libcuda.so" in _read(f"/proc/{pid}/maps")


def stack(pid: int) -> str:
    """Return what the kernel tells of where each thread of `pid` waits."""
    lines = []
    try:
        threads = sorted(os.listdir(f"/proc/{pid}/task"), key=int)  # noqa: PTH208
    except OSError:
        return ""
    for thread in threads:
        base = f"/proc/{pid}/task/{thread}"
        name, where = _read(f"{base}/comm").decode("utf-8", "replace").strip(), _read(f"{base}/wchan").decode()
        state = next(
            (x.split()[1] for x in _read(f"{base}/status").decode().splitlines() if x.startswith("State")), "?"
        )
        lines.append(f"  thread {thread} {name}: state {state}, waits in {where if where not in {'', '0'} else '-'}")
        lines += [f"      {x}" for x in _read(f"{base}/stack").decode("utf-8", "replace").splitlines()[:20]]
    return "\n".join(lines)


def marked(name: bytes, value: bytes) -> list[Process]:
    """Return every process of this machine whose environment holds `name=value`, this one left out."""
    found = []
    for entry in os.listdir("/proc"):  # noqa: PTH208
        if not entry.isdigit() or int(entry) == os.getpid():
            continue
        if name + b"=" + value in _read(f"/proc/{entry}/environ").split(b"\0"):
            one = process(int(entry))
            if one and one.state not in "ZX":
                found.append(one)
    return found


def _read(path: str) -> bytes:
    try:
        with open(path, "rb") as file:  # noqa: PTH123
            return file.read()
    except OSError:
        return b""
