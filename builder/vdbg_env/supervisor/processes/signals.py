"""Signal processes and groups, and tie the life of a process to its parent's."""

from __future__ import annotations

import ctypes
import os
import signal
from collections.abc import Iterable

from vdbg_env.supervisor.processes.proc import Process

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_libc = ctypes.CDLL(None, use_errno=True)


def become_subreaper() -> None:
    """Make this process the parent of every orphan below it; raises OSError where the kernel refuses."""
    if _libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER) failed")


def die_with_parent() -> None:
    """Have this process killed when its parent dies; called in a child between fork and exec."""
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def send(processes: Iterable[Process], number: int) -> list[Process]:
    """Send a signal to each; return those that may not be signalled."""
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


def send_to(pid: int, number: int) -> None:
    """Send a signal to one process; one that is gone, or of another user, is left alone."""
    try:
        os.kill(pid, number)
    except (ProcessLookupError, PermissionError):
        return


def send_to_group(leader: int, number: int) -> None:
    """Send a signal to the process group of `leader`; a group that is gone, or of another user, is left alone."""
    try:
        os.killpg(leader, number)
    except (ProcessLookupError, PermissionError):
        return
