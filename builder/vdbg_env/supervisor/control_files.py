"""The files in an attempt's folder through which a supervisor and its engine agree: lock, alarm and result.

The workload can write there too, so none of them is believed against the kernel: a lock dies with its holder, and no
process ID can be mistaken for another.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import time
from contextlib import suppress
from typing import Any

from vdbg_env.common.files import NotAFile, open_file, write_whole
from vdbg_env.record.redactor import Redactor
from vdbg_env.supervisor.proc import Process, open_files, process


def give_back(directory: str) -> None:
    """Give all below `directory` to its owner; does nothing unless this process is root and another user owns it.

    Links are given themselves and never followed. What is gone by then, or on a file system without owners, is left
    as it is.
    """
    owner = os.stat(directory)  # noqa: PTH116 - pathlib would cost the scribe 3 ms of its start
    if os.geteuid() != 0 or owner.st_uid == 0:
        return
    for folder, folders, files in os.walk(directory):
        for name in (*folders, *files):
            try:
                os.lchown(f"{folder}/{name}", owner.st_uid, owner.st_gid)
            except OSError:
                continue


# -- The lock: `supervisor.json` ---------------------------------------------------------------------------------------
# It is held by the supervisor; its lines say which process that is and what it did.

LOCK = "supervisor.json"
BEAT_S = 10
_NO_LOCKS = {errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP}  # NFSv3 without its lock daemon, Lustre without -o flock
_MOST_SAID = 64 << 10  # bytes; a supervisor writes a few short lines


def take_lock(directory: str) -> int:
    """Take the lock of a step's directory, write who holds it, and return the descriptor; waits for another holder."""
    lock = open_file(f"{directory}/{LOCK}")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise
    give_back(directory)
    os.ftruncate(lock, 0)
    me = process(os.getpid())
    say(lock, {"state": "waiting", "pid": os.getpid(), "start": me.start if me else 0})
    return lock


def say(lock: int, state: dict[str, Any], *, durably: bool = False) -> None:
    """Append one line: what the supervisor that holds this lock has done.

    Only what must outlast a power cut is written `durably`: that a start is about to happen, and must not be repeated.
    """
    write_whole(lock, json.dumps(state).encode() + b"\n")
    if durably:
        os.fsync(lock)


def beat(lock: int, stop: str) -> int:
    """Touch the file: where no lock is seen, on another node, its age says whether its holder lives.

    Returns how often the end was asked for by the file `stop`, 0 where there is none.
    """
    with suppress(OSError):  # a network file system that has lost the file is no reason to end the workload
        os.utime(lock)
    try:
        with os.fdopen(open_file(stop, os.O_RDONLY)) as file:
            return int(file.read(8) or 1)
    except (OSError, ValueError):
        return 0


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


def lock_holder(directory: str) -> Process | None:
    """Return the supervisor that has the lock; None where none is known to.

    The workload can write the file. So a process counts only when it was started when the line says, and has this very
    file open: nothing else may be signalled for what is written here.
    """
    lock = _opened(directory)
    if lock is None:
        return None
    try:
        file = os.fstat(lock)
        for state in reversed(_lines(lock)):
            pid, start = state.get("pid"), state.get("start")
            if isinstance(pid, int) and pid > 1 and (found := process(pid)) and found.start == start:
                return found if _has_open(pid, file) else None
    finally:
        os.close(lock)
    return None


def recorded_values(directory: str, name: str) -> list[str]:
    """Return the texts that supervisors wrote under `name`, the oldest first; the workload may have written others."""
    return [text for state in _said(directory) if isinstance(text := state.get(name), str)]


def was_started(directory: str, *, limit_s: float = 30.0) -> bool:
    """Return whether the workload was ever started here.

    A supervisor that waits for its job still has it to read when its engine died right after sending it: only
    when it has continued, or has gone away, is there an answer. After `limit_s` it counts as started.
    """
    until = time.monotonic() + limit_s
    while True:
        supervised = is_held(directory)
        if any(state != "waiting" for state in recorded_values(directory, "state")):
            return True
        if not supervised:
            return False
        if time.monotonic() >= until:
            return True
        time.sleep(0.01)


def _said(directory: str) -> list[dict[str, Any]]:
    lock = _opened(directory)
    if lock is None:
        return []
    try:
        return _lines(lock)
    finally:
        os.close(lock)


def _lines(lock: int) -> list[dict[str, Any]]:
    """Return the lines of the file that are JSON objects, as a supervisor's are."""
    found = []
    for line in os.pread(lock, _MOST_SAID, 0).splitlines():
        try:
            state = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(state, dict):
            found.append(state)
    return found


def _has_open(pid: int, file: os.stat_result) -> bool:
    for descriptor in open_files(pid):
        try:
            if os.path.samestat(os.stat(f"/proc/{pid}/fd/{descriptor}"), file):  # noqa: PTH116
                return True
        except OSError:
            continue
    return False


def _opened(directory: str) -> int | None:
    """Open the file where it is one: a workload may have put a link, a pipe or a folder in its place, or nothing."""
    for flags in (os.O_RDWR, os.O_RDONLY):  # NFS locks only what is open for writing
        try:
            return open_file(f"{directory}/{LOCK}", flags)
        except (FileNotFoundError, NotAFile):
            break
        except OSError as error:
            if error.errno != errno.EROFS:  # a disk that failed takes no writer, and its locks are there
                raise
    return None


# -- The alarm, by which a rank that hangs has all ranks take their stacks before any of them is ended -----------------

HEARD_S = BEAT_S + 5.0  # after so long every rank has looked, and has taken most of its stacks


def sound(path: str) -> None:
    """Raise the alarm; where the disk takes no file, the other ranks are ended without their stacks."""
    with suppress(OSError):
        os.close(open_file(path))


def heard(path: str) -> bool:
    """Return whether a rank raised it."""
    return os.path.exists(path)  # noqa: PTH110


# -- The result, written once and by rename, on a disk that may be full ------------------------------------------------

RESERVED = 256 << 10  # bytes set aside at the start: the end can be written when nothing else can
ENDED = "ended.json"


class Ending:
    """The file `ended.json`: its space is reserved at the start, its content is written at the end."""

    def __init__(self, directory: str, redactor: Redactor) -> None:
        self._path = f"{directory}/{ENDED}"
        self._redactor = redactor
        self._file = open_file(f"{self._path}.tmp", os.O_RDWR | os.O_CREAT | os.O_TRUNC)
        os.posix_fallocate(self._file, 0, RESERVED)
        self.started = time.time()
        self._began = time.monotonic()

    def write(self, document: dict[str, Any]) -> None:
        """Write the document with its times; what does not fit into the reserved space loses its lists first."""
        document = {
            "schema": "vdbg-env/ended/v1",
            "started": self.started,
            "duration_s": round(time.monotonic() - self._began, 6),
            **document,
        }
        data = self._encoded(document)
        if len(data) > RESERVED:
            matched = {name: found[-10:] for name, found in document.get("matched", {}).items()}
            data = self._encoded({**document, "matched": matched, "workers": document.get("workers", [])[:50]})
        os.lseek(self._file, 0, os.SEEK_SET)
        write_whole(self._file, data)
        os.ftruncate(self._file, len(data))
        os.fsync(self._file)
        os.rename(f"{self._path}.tmp", self._path)  # noqa: PTH104
        os.close(self._file)

    def _encoded(self, document: dict[str, Any]) -> bytes:
        return json.dumps(self._redactor.document(document), ensure_ascii=True).encode() + b"\n"
