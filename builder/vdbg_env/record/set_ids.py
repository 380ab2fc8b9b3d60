"""Take from files of a container what would give rights on this machine: set-uid bits, capabilities, device nodes."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

_CAPABILITIES = "security.capability"  # capabilities(7): a set-uid bit in parts; to change a mode keeps it
_SET_IDS = stat.S_ISUID | stat.S_ISGID


def disarm(folder: Path, *, since_ns: int = 0, check: Callable[[], None] = lambda: None) -> int:
    """Strip set-uid and set-gid bits and capabilities, and remove device nodes; return how many files had one.

    Root in a container is root on this machine: a set-uid file that it leaves in a folder of this machine would work
    for every user who reaches it. Only files that changed since `since_ns` are looked at; links are not followed.
    `check` is called for each file and may raise.
    """
    changed = 0
    with suppress(FileNotFoundError):  # the folder itself has been removed: what reads it next reports that
        for _, _, names, opened in os.fwalk(folder):
            for name in names:
                check()
                with suppress(OSError):  # removed since, or the file of another user, where only root could have set it
                    changed += _disarm(name, opened, since_ns)
    return changed


def _disarm(name: str, folder: int, since_ns: int) -> bool:
    found = os.stat(name, dir_fd=folder, follow_symlinks=False)
    if found.st_ctime_ns < since_ns:
        return False
    if stat.S_ISCHR(found.st_mode) or stat.S_ISBLK(found.st_mode):
        os.unlink(name, dir_fd=folder)
        return True
    if not stat.S_ISREG(found.st_mode):
        return False
    armed = False
    with suppress(OSError):  # it has none, as a rule
        os.removexattr(f"/proc/self/fd/{folder}/{name}", _CAPABILITIES, follow_symlinks=False)
        armed = True
    if not found.st_mode & _SET_IDS:
        return armed
    opened = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=folder)
    try:
        os.fchmod(opened, stat.S_IMODE(found.st_mode) & ~_SET_IDS)
    finally:
        os.close(opened)
    return True
