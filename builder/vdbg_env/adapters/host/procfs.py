"""Reads of a process what Linux tells under /proc, also of one in a container."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

_PROC: Final = Path("/proc")


def descendants(pid: int) -> tuple[int, ...]:
    """Return a process and all below it, parents before children."""
    children: dict[int, list[int]] = {}
    for entry in _PROC.iterdir():
        if entry.name.isdigit():
            parent = _parent(int(entry.name))
            if parent is not None:
                children.setdefault(parent, []).append(int(entry.name))
    found, i = [pid], 0
    while i < len(found):
        found += sorted(children.get(found[i], ()))
        i += 1
    return tuple(found)


def exists(pid: int) -> bool:
    """Return whether the process is there and is not a zombie, which can do nothing any more."""
    try:
        stat = (_PROC / str(pid) / "stat").read_text(errors="replace")
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[:1] != ["Z"]


def name(pid: int) -> str:
    """Return the process's short name; `?` when it is gone."""
    try:
        return (_PROC / str(pid) / "comm").read_text(errors="replace").rstrip("\n")
    except OSError:
        return "?"


def environment(pid: int) -> dict[str, str]:
    """Return the environment the process was started with; raises OSError when it may not be read.

    What a process sets in itself later (`os.environ` in Python) does not show here.
    """
    raw = (_PROC / str(pid) / "environ").read_bytes()
    pairs = (entry.decode(errors="surrogateescape").partition("=") for entry in raw.split(b"\0") if entry)
    return {key: value for key, _, value in pairs}


def namespace_pid(pid: int) -> int:
    """Return the process's number inside its innermost PID namespace; its own number where that is not told."""
    try:
        for line in (_PROC / str(pid) / "status").read_text(errors="replace").splitlines():
            if line.startswith("NSpid:"):
                return int(line.split()[-1])
    except OSError:
        pass
    return pid


def open_files(pid: int) -> dict[int, str]:
    """Return the process's descriptors and what each leads to; raises OSError when they may not be read."""
    found = {}
    folder = _PROC / str(pid) / "fd"
    for entry in folder.iterdir():
        try:
            found[int(entry.name)] = str(entry.readlink())
        except OSError:
            continue  # it was closed meanwhile
    return found


def opened_for_reading(pid: int, descriptor: int) -> bool:
    """Return whether a descriptor may be read from."""
    try:
        info = (_PROC / str(pid) / "fdinfo" / str(descriptor)).read_text()
    except OSError:
        return False
    flags = next((int(line.split()[1], 8) for line in info.splitlines() if line.startswith("flags:")), os.O_WRONLY)
    return flags & os.O_ACCMODE in {os.O_RDONLY, os.O_RDWR}


def inside(pid: int, path: str) -> Path:
    """Return how this program reaches a path of the process: relative ones lie in its working directory."""
    if not path.startswith("/"):
        try:
            path = f"{(_PROC / str(pid) / 'cwd').readlink()}/{path}"
        except OSError:
            return _PROC / str(pid) / "cwd" / path
    return Path(path) if _same_files(pid) else Path(f"/proc/{pid}/root{path}")


def _same_files(pid: int) -> bool:
    """Return whether the process sees the same files under the same names as this one."""
    try:
        own, its = _PROC / "self", _PROC / str(pid)
        same_mounts = (own / "ns" / "mnt").readlink() == (its / "ns" / "mnt").readlink()
        return same_mounts and (own / "root").readlink() == (its / "root").readlink()
    except OSError:
        return False


def _parent(pid: int) -> int | None:
    try:
        stat = (_PROC / str(pid) / "stat").read_text(errors="replace")
    except OSError:
        return None
    fields = stat.rpartition(")")[2].split()
    return int(fields[1]) if len(fields) > 1 else None
