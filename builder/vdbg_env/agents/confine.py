"""Confine this process to some folders by Landlock, for what `folders` cannot see.

A link may take the place of a file after its name was admitted, and a reader may open more than it was given. Alone,
because it speaks to the kernel.
"""

from __future__ import annotations

import ctypes
import os
import stat
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

from vdbg_env.common.resources import PACKAGE, SHIPPED_DATA

# include/uapi/linux/landlock.h; the numbers of the calls are the same on all architectures
_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_BENEATH: Final = 1  # LANDLOCK_RULE_PATH_BENEATH
_READ_FILE, _READ_DIR, _REMOVE_DIR = 1 << 2, 1 << 3, 1 << 4
_EVERYTHING: Final = (1 << 13) - 1  # all that version 1 knows: to run, read, write, make and remove
_OF_A_FILE: Final = 0b111  # to run, write and read
_NO_NEW_PRIVILEGES: Final = 38  # PR_SET_NO_NEW_PRIVS
_SYSTEM: Final = (
    "/usr", "/lib", "/lib64", "/etc/ld.so.cache", "/etc/localtime", "/dev/null", "/dev/urandom",
    "/proc/self/maps",  # crash/files.py asks it what was mapped where a file was cut short
)  # fmt: skip


class _Beneath(ctypes.Structure):
    _pack_ = 1
    _fields_ = (("allowed", ctypes.c_uint64), ("folder", ctypes.c_int32))


def confine(readable: Iterable[str | Path], scratch: Path) -> bool:
    """Let this thread, and those that it starts, read only below `readable` and Python's own folders from now on.

    It writes below `scratch` alone and starts no program. Returns False where the kernel has no Landlock (before
    Linux 5.13, or switched off): nothing is confined then.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    handled = ctypes.c_uint64(_EVERYTHING)
    rules = libc.syscall(_CREATE_RULESET, ctypes.byref(handled), ctypes.c_size_t(ctypes.sizeof(handled)), 0)
    if rules < 0:
        return False
    try:
        for path in (*readable, *_own()):
            _allow(libc, rules, path, _READ_FILE | _READ_DIR)
        _allow(libc, rules, scratch, _EVERYTHING)
        _allow(libc, rules, scratch.parent, _REMOVE_DIR)  # of `scratch` itself, at the end
        return not (libc.prctl(_NO_NEW_PRIVILEGES, 1, 0, 0, 0) or libc.syscall(_RESTRICT_SELF, rules, 0))
    finally:
        os.close(rules)


def _own() -> Iterator[str | Path]:
    """Yield what Python and this package load while they run; the current folder is none, though `-m` puts it there."""
    yield from (sys.prefix, sys.exec_prefix, sys.base_prefix, PACKAGE.parent, *_SYSTEM)
    yield from (SHIPPED_DATA / name for name in ("runbooks", "images", "templates", "docs"))
    yield from (path for path in sys.path if path and path != os.getcwd())  # noqa: PTH109 - compared as text


def _allow(libc: ctypes.CDLL, rules: int, path: str | Path, rights: int) -> None:
    try:
        descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError:  # not every system has each
        return
    try:
        folder = stat.S_ISDIR(os.fstat(descriptor).st_mode)
        rule = _Beneath(allowed=rights if folder else rights & _OF_A_FILE, folder=descriptor)
        libc.syscall(_ADD_RULE, rules, _BENEATH, ctypes.byref(rule), 0)
    finally:
        os.close(descriptor)
