"""The file `supervisor.json`: its lock says that a supervisor lives, its lines say who that is and how far it has come.

The lock is the kernel's and dies with its holder, so that no pid can be mistaken for another.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import stat
import time
from typing import Any

from vdbg_env.supervisor.processes.proc import process
from vdbg_env.supervisor.state.ownership import give_back
from vdbg_env.supervisor.writing import write_whole

NAME = "supervisor.json"
_MOST_SAID = 64 << 10  # bytes; a supervisor writes a few short lines
_NO_FILE = {errno.ENOENT, errno.ELOOP, errno.EISDIR, errno.ENXIO, errno.ENODEV}


def take(directory: str) -> int:
    """Take the lock of a step's directory, write who holds it, and return the descriptor; waits for another holder."""
    lock = os.open(f"{directory}/{NAME}", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    fcntl.flock(lock, fcntl.LOCK_EX)
    give_back(directory)
    os.ftruncate(lock, 0)
    me = process(os.getpid())
    say(lock, {"state": "waiting", "pid": os.getpid(), "start": me.start if me else 0})
    return lock


def say(lock: int, state: dict[str, Any], *, durably: bool = False) -> None:
    """Append one line: how far the supervisor that holds this lock has come.

    Only what must outlast a cut power is said `durably`: that a start is at hand, and so must not be made again.
    """
    write_whole(lock, json.dumps(state).encode() + b"\n")
    if durably:
        os.fsync(lock)


def is_held(directory: str) -> bool:
    """Whether a supervisor lives: it alone holds the lock, and a lock dies with its holder."""
    lock = _opened(directory)
    if lock is None:
        return False
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(lock)
    return False


def holder(directory: str) -> int | None:
    """Return the pid of the last supervisor that took the lock; None when there never was one."""
    pids = [int(pid) for pid in values(directory, "pid") if pid is not None]
    return pids[-1] if pids else None


def values(directory: str, name: str) -> list[str | int | None]:
    """Return what supervisors wrote under `name`, the oldest first."""
    return [state[name] for state in _said(directory) if name in state]


def was_started(directory: str) -> bool:
    """Whether the workload was ever started here.

    A supervisor that waits for its orders still has them to read when its engine died right after sending them: only
    when it has gone on, or has gone away, is there an answer.
    """
    while True:
        supervised = is_held(directory)
        if any(state["state"] != "waiting" for state in _said(directory)):
            return True
        if not supervised:
            return False
        time.sleep(0.01)


def _said(directory: str) -> list[dict[str, str | int | None]]:
    """Return the lines a supervisor wrote of itself; none when there never was one."""
    lock = _opened(directory)
    if lock is None:
        return []
    try:
        text = os.read(lock, _MOST_SAID).decode("utf-8", "replace")
    finally:
        os.close(lock)
    return [json.loads(line) for line in text.splitlines() if line.endswith("}")]


def _opened(directory: str) -> int | None:
    """Open the file where it is one: a workload may have put a link, a pipe or a folder in its place, or nothing."""
    try:
        lock = os.open(f"{directory}/{NAME}", os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError as error:
        if error.errno in _NO_FILE:
            return None
        raise
    if stat.S_ISREG(os.fstat(lock).st_mode):
        return lock
    os.close(lock)
    return None
