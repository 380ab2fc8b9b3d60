"""One stream of the workload's output on its way to the disk: redacted, matched, and limited, in constant memory."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable

from vdbg_env.common.writing import open_file, write_whole
from vdbg_env.record.redactor import Redactor
from vdbg_env.supervisor.output.matching import LineMatcher, Matchers, SearchTimer

LINE_KEPT = 8192  # bytes of an endless line that are searched again with what follows them


class LimitedFile:
    """A file that keeps the first and the last bytes of what is written to it, `limit` in all.

    The end is kept in two segments written in turn: memory stays constant, and no byte is moved until `close` joins
    them. A crash leaves the segments readable next to the file.
    """

    def __init__(self, path: str, limit: int, keep: str) -> None:
        self.path = path
        self.dropped = 0
        self.paused = False  # what is written is dropped: there is no room on the disk
        self._head_left = {"head": limit, "tail": 0}.get(keep, limit // 2)
        self._segment_size = 0 if keep == "head" else max(1, (limit - self._head_left) // 2)
        self._file = _create(path)
        self._segments: list[int] = []  # descriptors: the older, then the newer
        self._sizes: list[int] = []
        self._next = 0

    def write(self, data: bytes) -> None:
        """Write bytes; raises OSError when the disk does."""
        if self.paused:
            self.dropped += len(data)
            return
        if self._head_left:
            head, data = data[: self._head_left], data[self._head_left :]
            write_whole(self._file, head)
            self._head_left -= len(head)
        if data and not self._segment_size:
            self.dropped += len(data)
            return
        while data:
            if not self._segments or self._sizes[-1] >= self._segment_size:
                self._turn()
            room = self._segment_size - self._sizes[-1]
            write_whole(self._segments[-1], data[:room])
            self._sizes[-1] += len(data[:room])
            data = data[room:]

    def close(self) -> None:
        """Join the segments to the file, with a line between that says how much is missing, and wait for the disk.

        What a disk did not take is known only then; without that, an attempt would be on record, and its output gone.
        """
        if self.dropped:
            write_whole(self._file, b"\n[... %d bytes dropped here by the output limit ...]\n" % self.dropped)
        for segment in self._segments:
            os.lseek(segment, 0, os.SEEK_SET)
            while data := os.read(segment, 1 << 20):
                write_whole(self._file, data)
            os.close(segment)
        os.fdatasync(self._file)
        with contextlib.suppress(OSError):  # who reads the record finds that it is missing, and says so
            self._put_back()
        os.close(self._file)
        for number in range(2):
            if os.path.exists(f"{self.path}.tail{number}"):  # noqa: PTH110
                os.unlink(f"{self.path}.tail{number}")  # noqa: PTH108

    def _put_back(self) -> None:
        """Write the file anew where it no longer has its name: a rotation of logs renamed or compressed it."""
        with contextlib.suppress(FileNotFoundError):
            if os.path.samestat(os.lstat(self.path), os.fstat(self._file)):
                return
        anew = _create(self.path)
        os.lseek(self._file, 0, os.SEEK_SET)
        while data := os.read(self._file, 1 << 20):
            write_whole(anew, data)
        os.close(anew)

    def _turn(self) -> None:
        """Begin a new segment; of two, the older one is forgotten."""
        if len(self._segments) == 2:
            os.close(self._segments.pop(0))
            self.dropped += self._sizes.pop(0)
        self._segments.append(_create(f"{self.path}.tail{self._next}"))
        self._sizes.append(0)
        self._next = 1 - self._next


class Stream:
    """One output stream: bytes in, redacted bytes to the file and to the matchers."""

    def __init__(
        self, name: str, file: LimitedFile, redactor: Redactor, matchers: Matchers, timer: SearchTimer
    ) -> None:
        self.name = name
        self.file = file
        self.bytes = 0
        self.unfinished = False  # whether its last line has no end
        self.failure: OSError | None = None
        self._redactor = redactor.stream()
        self._matchers = matchers
        self._timer = timer
        self._lines = 0
        self._offset = 0
        self._rest = b""  # the end of a line that had to be cut: a match may cross the cut

    def feed(self, data: bytes) -> list[LineMatcher]:
        """Take a chunk as it was read; returns the matchers that found something in it."""
        self.bytes += len(data)
        self.unfinished = not data.endswith(b"\n")
        with self._timer:  # what takes the redactor too long it withholds, as after any error
            ready = self._timer.search(self._redactor.feed, data)
        return self._pass_on(ready)

    def finish(self) -> list[LineMatcher]:
        """Take the end of the stream, close the file, and return the matchers that found something in the rest."""
        with self._timer:
            ready = self._timer.search(lambda _: self._redactor.finish(), b"")
        matched = self._pass_on(ready)
        self._try(self.file.close)
        return matched

    def _pass_on(self, ready: bytes) -> list[LineMatcher]:
        if not ready:
            return []
        self._try(lambda: self.file.write(ready))
        block = self._rest + ready
        offset = self._offset - len(self._rest)
        matched = self._matchers.look(block, self.name, self._lines, offset)
        self._lines += ready.count(b"\n")
        self._offset += len(ready)
        self._rest = b"" if matched or block.endswith(b"\n") else block[block.rfind(b"\n") + 1 :][-LINE_KEPT:]
        return matched

    def _try(self, act: Callable[[], None]) -> None:
        """Write, and remember the first failure: the workload is then ended, but its output is still drained."""
        if self.failure is None:
            try:
                act()
            except OSError as error:
                self.failure = error


def _create(path: str) -> int:
    return open_file(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC)
