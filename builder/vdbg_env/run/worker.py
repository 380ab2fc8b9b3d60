"""Do work in a forked process, which can be ended when its time is over, with all that it has started."""

from __future__ import annotations

import os
import select
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

from vdbg_env.common.errors import HostNotAble
from vdbg_env.common.writing import write_whole
from vdbg_env.supervisor.proc import descendants, die_with_parent, send

_CHECK_S = 0.25  # how long a signal to this program may wait to be seen
_FAILED = 1


class ForkedWorker:
    """Does a piece of this program's work where it can be ended: it may hang, or take all memory.

    For a program of one thread. The work sees all that this process had when it began. It may change files, but not
    the memory of this process.
    """

    def do(self, work: Callable[[], bytes], *, timeout_s: float | None, check: Callable[[], None]) -> bytes:
        """Do the work and return its result; `check` is called during the work, and ends it by raising.

        Raises HostNotAble when it dies, or takes longer than `timeout_s` seconds.
        """
        engine = os.getpid()
        try:
            read, write = os.pipe2(os.O_CLOEXEC)
            pid = os.fork()
        except OSError as error:
            raise HostNotAble(
                f"no process for it can be started: {error.strerror}", cause="this machine has no room for one more"
            ) from error
        if pid == 0:
            _work(work, write, engine)
        os.close(write)
        status: int | None = None
        try:
            given = _all_of(read, None if timeout_s is None else time.monotonic() + timeout_s, check)
            if given is not None:
                status = os.waitpid(pid, 0)[1]
        finally:
            os.close(read)
            if status is None:
                _end(pid)
        if given is None:
            raise HostNotAble(f"it was not done within {timeout_s:g} s", cause="the step's timeout is over")
        if status:
            code = os.waitstatus_to_exitcode(status)
            how = given.decode("utf-8", "replace") if code == _FAILED else f"it was ended by signal {-code}"
            raise HostNotAble(f"the work failed: {how}", cause="a fault of this program, or a lack of memory")
        return given


def _work(work: Callable[[], bytes], write: int, engine: int) -> NoReturn:
    """Do the work in the child and give what it returned, or why it could not, to the pipe."""
    try:
        os.setsid()  # a Ctrl-C is the parent's to answer: it ends this process when it sees fit
        die_with_parent()
        if os.getppid() != engine:
            os._exit(_FAILED)  # it died before that could be asked for
        _let_go(write)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_DFL)
        write_whole(write, work())
        os._exit(0)
    except BaseException as error:
        with suppress(OSError):
            write_whole(write, f"{type(error).__name__}: {error}".encode("utf-8", "replace"))
    finally:
        os._exit(_FAILED)


def _let_go(kept: int) -> None:
    """Close what was open in the engine: the lock of its run, held here too, would outlive it for a moment."""
    for descriptor in [int(path.name) for path in Path("/proc/self/fd").iterdir()]:
        if descriptor > 2 and descriptor != kept:
            with suppress(OSError):
                os.close(descriptor)


def _all_of(read: int, until: float | None, check: Callable[[], None]) -> bytes | None:
    """Return what is written to a pipe up to its end; None when that was not reached in time."""
    given = bytearray()
    while True:
        left = _CHECK_S if until is None else min(_CHECK_S, until - time.monotonic())
        if left <= 0:
            return None
        if not select.select([read], [], [], left)[0]:
            check()
            continue
        data = os.read(read, 1 << 16)
        if not data:
            return bytes(given)
        given += data


def _end(pid: int) -> None:
    """Kill a process and all below it, children first seen: an orphan could no longer be found."""
    below = descendants(pid)
    os.kill(pid, signal.SIGKILL)
    send(below, signal.SIGKILL)
    os.waitpid(pid, 0)
