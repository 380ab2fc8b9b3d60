"""Signal processes and groups, and tie the life of a process to its parent's."""

from __future__ import annotations

import ctypes
import os
import signal
from collections.abc import Iterable

from vdbg_env.supervisor.processes.proc import Process, process

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
    """Send a signal to each; return those that may not be signalled.

    A number may have passed on to another process since it was read: what is signalled is the one that was seen.
    """
    refused = []
    for target in processes:
        try:
            _send(target, number)
            if number != signal.SIGKILL:
                _send(target, signal.SIGCONT)  # a stopped process would never see the signal
        except ProcessLookupError:
            continue
        except PermissionError:
            refused.append(target)
    return refused


def _send(target: Process, number: int) -> None:
    try:
        descriptor = os.pidfd_open(target.pid)
    except ProcessLookupError:
        raise
    except OSError:  # a kernel older than 5.3, or a seccomp filter
        _check_same(target)
        os.kill(target.pid, number)
        return
    try:
        _check_same(target)  # of the process that the descriptor holds: it no longer becomes another
        signal.pidfd_send_signal(descriptor, number)
    finally:
        os.close(descriptor)


def _check_same(target: Process) -> None:
    one = process(target.pid)
    if one is None or one.start != target.start:
        raise ProcessLookupError


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
