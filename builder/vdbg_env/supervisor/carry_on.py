"""Carry a guarded command to its end after a fault in this program: its output, its signals, its status.

It opens no file, starts no process and imports nothing: the fault may be that there is no room for any of that.
"""

from __future__ import annotations

import os
import select
import signal
import time
from collections.abc import Iterable
from typing import Protocol

from vdbg_env.supervisor.proc import send_to

_PIECE = 4096  # bytes that a pipe with any room takes at once (pipe(7), PIPE_BUF)
_LOOK_S = 0.2
_KILL_AFTER_S = 30.0  # as in an orderly end of a command whose guard was killed


class Signals(Protocol):
    """What passes signals on, and knows whether the guard lives: `watch.Guard`."""

    def pass_on(self, root: int | None) -> bool:
        """Send what was received to the first process, None once it has ended."""
        ...

    def is_gone(self) -> bool:
        """Return whether the guard has died."""
        ...


class Output:
    """One stream of the command on its way to `target`; `left` was read before, and not passed on yet.

    `passed` counts the bytes since then, `lost` says why some were lost of which the command does not know.
    """

    def __init__(self, source: int, target: int, left: bytes) -> None:
        self._source, self._target, self._left = source, target, left
        self.is_open = True
        self.passed = 0
        self.lost = ""

    @property
    def waits_for(self) -> tuple[int, int]:
        """The descriptor to wait on, and for which event."""
        return (self._target, select.POLLOUT) if self._left else (self._source, select.POLLIN)

    def step(self) -> None:
        """Read or write one piece."""
        if not self._left:
            try:
                self._left = os.read(self._source, _PIECE)
            except BlockingIOError:
                return
            if not self._left:
                self.close()
            return
        try:
            count = os.write(self._target, self._left[:_PIECE])
        except BlockingIOError:
            return
        except BrokenPipeError:
            self.close()  # the command gets the error that it would get without us
            return
        except OSError as error:  # a full disk below a redirection: the command is not told, and continues
            self.lost, count = error.strerror or str(error), len(self._left)
        self.passed += count
        self._left = self._left[count:]

    def close(self) -> None:
        """Read no more."""
        if self.is_open:
            os.close(self._source)
        self.is_open = False


def carry_on(root: int, status: int | None, guard: Signals, outputs: Iterable[Output], grace_s: float) -> int:
    """Pass on output and signals until the first process has ended and its output is over; return its wait status.

    `status` is that of the process `root` where it has ended already. What it left has `grace_s` seconds to close the
    output. A command whose guard was killed is ended.
    """
    until = kill_at = float("inf")
    poll = select.poll()
    while status is None or (time.monotonic() < until and any(one.is_open for one in outputs)):
        guard.pass_on(root if status is None else None)
        if status is None and guard.is_gone():
            send_to(root, signal.SIGKILL if time.monotonic() >= kill_at else signal.SIGTERM)
            kill_at = min(kill_at, time.monotonic() + _KILL_AFTER_S)
        waits = {one.waits_for[0]: one for one in outputs if one.is_open}
        for one in waits.values():
            poll.register(*one.waits_for)
        for descriptor, _ in poll.poll(_LOOK_S * 1000):
            waits[descriptor].step()
        for descriptor in waits:
            poll.unregister(descriptor)
        if status is None and (ended := os.waitpid(root, os.WNOHANG))[0]:
            status, until = ended[1], time.monotonic() + grace_s
    for one in outputs:
        one.close()
    return status
