"""Pass a stream on as it is read, unchanged, without ever waiting for its reader.

A reader that is slow must slow the workload and nothing else: while bytes are left over, the workload's pipe is not
read. A reader that is gone is passed on too: its writer gets the error that it would get without us.
"""

from __future__ import annotations

import errno
import os
import socket
import stat


class Live:
    """One stream on its way to `descriptor`, an inherited one that may be shared with other processes.

    That one is never made non-blocking, as its other holders would be too: a pipe or a terminal is opened once more.
    """

    def __init__(self, descriptor: int) -> None:
        self._socket: socket.socket | None = None
        self._descriptor = self._given = descriptor
        self._left = memoryview(b"")
        self.broken = False
        kind = os.fstat(descriptor).st_mode
        if stat.S_ISSOCK(kind):
            self._socket = socket.socket(fileno=os.dup(descriptor))
        elif stat.S_ISFIFO(kind) or os.isatty(descriptor):
            try:
                self._descriptor = os.open(f"/proc/self/fd/{descriptor}", os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            except OSError:
                return  # a terminal of another mount namespace: writing to it may wait

    @property
    def waits(self) -> bool:
        """Whether bytes are left over for which the reader has no room."""
        return bool(self._left)

    def fileno(self) -> int:
        """Return what to wait on until there is room."""
        return self._descriptor if self._socket is None else self._socket.fileno()

    def write(self, data: bytes) -> None:
        """Pass on what there is room for, and keep the rest; `waits` must be False."""
        self._left = memoryview(data)
        self.flush()

    def flush(self) -> None:
        """Pass on more of what is left over."""
        while self._left and not self.broken:
            try:
                if self._socket is None:
                    self._left = self._left[os.write(self._descriptor, self._left) :]
                else:
                    self._left = self._left[self._socket.send(self._left, socket.MSG_DONTWAIT) :]
            except BlockingIOError:
                return
            except OSError as error:
                if error.errno in {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}:
                    self.drop()  # a full disk below a redirection: the workload's own write would fail, and pass
                    return
                self.broken = True
                self.drop()

    def drop(self) -> None:
        """Give up what is left over."""
        self._left = memoryview(b"")

    def close(self) -> None:
        """Close what was opened here; the descriptor that was given stays open."""
        if self._socket is not None:
            self._socket.close()
        elif self._descriptor != self._given:
            os.close(self._descriptor)
            self._descriptor = self._given
