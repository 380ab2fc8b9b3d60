"""The input of a supervisor: the workload's streams, the kernel's log where a matcher reads it, and signals.

Each stream is redacted, matched, limited and written to the disk in constant memory; a guarded workload's streams are
also passed on as they are read.
"""

from __future__ import annotations

import contextlib
import errno
import os
import select
import selectors
import signal
import socket
import stat
from collections.abc import Callable, Iterable
from typing import Any

from vdbg_env.common.files import open_file, write_whole
from vdbg_env.common.patterns import LineMatcher, Matchers, SearchTimer
from vdbg_env.record.redactor import Redactor
from vdbg_env.supervisor.carry_on import Output
from vdbg_env.supervisor.job import Job
from vdbg_env.supervisor.launch import MOST_IN_PIPE

# -- One stream on its way to the disk ---------------------------------------------------------------------------------

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
        self.file.dropped += len(ready) if self.failure else 0
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


# -- One stream on its way to a reader, unchanged ----------------------------------------------------------------------
# A reader that is slow must slow the workload and nothing else: while bytes are left over, the workload's pipe is not
# read. A reader that is gone is passed on too: its writer gets the error that it would get without us.


class Live:
    """One stream on its way to `descriptor`, an inherited one that may be shared with other processes.

    That one is never made non-blocking, as its other holders would be too: a pipe or a terminal is opened once more.
    """

    def __init__(self, descriptor: int) -> None:
        self._socket: socket.socket | None = None
        self._descriptor = self._given = descriptor
        self._left = memoryview(b"")
        self.broken = False
        self.lost = ""  # why bytes were lost of which the workload does not know, empty where none were
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

    def rest(self, pipe: int) -> Output:
        """Return what is left over and what the workload still writes to its `pipe`."""
        return Output(pipe, self._descriptor, bytes(self._left))

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
                    self.lost = error.strerror or str(error)
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


# -- All input ---------------------------------------------------------------------------------------------------------

_CHUNK = 256 << 10
_KERNEL_LOG = "kernel.log"
_LAST_WORDS_S = 5.0  # for a reader that takes nothing while the workload has ended already


CANCELS = (signal.SIGTERM, signal.SIGINT)


class Streams:
    """The files of an attempt's output, each fed as its stream is read; `printed` gets all that is printed."""

    def __init__(
        self, job: Job, redactor: Redactor, printed: Callable[[bytes], None], hurry: Callable[[], bool]
    ) -> None:
        self._job = job
        self._redactor = redactor
        self._printed = printed
        self._selector = selectors.DefaultSelector()
        matchers = [LineMatcher(m) for m in job.matchers]
        self._timer = timer = SearchTimer(hurry)
        self._output, self._kernel = (
            Matchers([m for m in matchers if m.spec.source == source], timer) for source in ("output", "kernel-log")
        )
        self._streams: dict[str, Stream] = {}
        self._live = {name: Live(descriptor) for name, descriptor in zip(("stdout", "stderr"), job.live, strict=False)}
        self._held: dict[str, int] = {}  # the workload's pipes that are not read, as their reader has no room
        self.pipes: dict[str, int] = {}  # of the workload, as long as they are open
        self.stop_wanted = False  # a matcher that stops the step has matched
        self.decided_by = ""  # the first of the job's decisive matchers that has matched
        self.notes: list[str] = []

    @property
    def failure(self) -> OSError | None:
        """The reason why output can no longer be written, None while it can."""
        return next((s.failure for s in self._streams.values() if s.failure), None)

    @property
    def held(self) -> bool:
        """Whether the workload may wait for the reader of its output."""
        return bool(self._held)

    def record(self, wanted: bool) -> None:
        """Keep what is printed from now on, or leave it out of the record."""
        for stream in self._streams.values():
            stream.file.paused = not wanted

    def take_signals(self, received: Callable[[int], None], numbers: Iterable[int]) -> None:
        """Have SIGCHLD end a `wait`, and `numbers` reported; a terminal that goes away changes nothing."""
        wake_read, wake_write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        for number in numbers:
            signal.signal(number, lambda number, _: received(number))
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        self._selector.register(wake_read, selectors.EVENT_READ, None)

    def watch(self, descriptor: int, readable: Callable[[int], None] | None) -> None:
        """Have `wait` call back when a descriptor is readable; None ends that."""
        if readable is None:
            self._selector.unregister(descriptor)
        else:
            self._selector.register(descriptor, selectors.EVENT_READ, readable)

    def open(self) -> None:
        """Open a file for each stream, and for the kernel's log where a matcher reads it."""
        for name in ("stdout", "stderr"):
            self._open_stream(name, self.pipes.get(name), self._output)
        if self._kernel.all and self.pipes:
            try:
                log = os.open("/dev/kmsg", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
                os.lseek(log, 0, os.SEEK_END)
            except OSError as error:
                self.notes.append(f"the kernel's log cannot be read here ({error.strerror}): Xid lines are not seen")
            else:
                self._open_stream(_KERNEL_LOG, log, self._kernel)

    @property
    def unread(self) -> bool:
        """Whether the reader of a stream that is passed on has gone."""
        return any(live.broken for live in self._live.values())

    def rest(self) -> dict[str, Output]:
        """Return what is still to be passed on of each stream, by its reader alone from now on."""
        rest = {name: self._live[name].rest(pipe) for name, pipe in self.pipes.items()}
        self.pipes.clear()
        return rest

    def wait(self, timeout_s: float) -> None:
        """Read what arrives within `timeout_s` seconds, each stream once; a signal ends the wait."""
        for key, events in self._selector.select(timeout_s):
            if callable(key.data):
                key.data(key.fd)
            elif events & selectors.EVENT_WRITE:
                self._pass_on(key.data)
            else:
                self._read(key.fd, key.data)

    def drain(self) -> None:
        """Read what is still in the pipes; only a process that is not ours may still write, for ever."""
        for name in list(self._held):
            self._last_words(name)
        for key in list(self._selector.get_map().values()):
            if not key.data or callable(key.data):
                continue
            stream = self._streams[key.data]
            most = stream.bytes + MOST_IN_PIPE
            while stream.bytes < most and self._read(key.fd, key.data):
                self._last_words(key.data)

    def close(self) -> None:
        """Write what was held back, and close the files."""
        for stream in self._streams.values():
            stream.finish()
        for live in self._live.values():
            live.close()

    def summary(self) -> dict[str, Any]:
        """Return how much was printed, and what matched."""
        matchers = [*self._output.all, *self._kernel.all]
        self.notes += [*self._output.notes(), *self._kernel.notes()]
        return {
            "output": {
                name: {
                    "bytes": stream.bytes,
                    "dropped": stream.file.dropped,
                    "unfinished": stream.unfinished,
                    **({"lost": live.lost} if (live := self._live.get(name)) and live.lost else {}),
                }
                for name, stream in self._streams.items()
            },
            "matched": {m.spec.name: [f._asdict() for f in m.kept] for m in matchers if m.kept},
            "match_counts": {m.spec.name: m.count for m in matchers if m.count},
        }

    def _open_stream(self, name: str, descriptor: int | None, matchers: Matchers) -> None:
        path = f"{self._job.directory}/{name}"
        file = LimitedFile(path, max(2, self._job.output_limit), self._job.output_keep)
        self._streams[name] = Stream(name, file, self._redactor, matchers, self._timer)
        if descriptor is not None:
            self._selector.register(descriptor, selectors.EVENT_READ, name)

    def _read(self, descriptor: int, name: str | None) -> bool:
        """Read one chunk of a stream; returns whether there was one."""
        try:
            data = os.read(descriptor, _CHUNK)
        except BlockingIOError:
            return False
        except OSError as error:
            if error.errno == errno.EPIPE:  # the kernel's log was faster than we: some of its lines are gone
                return True
            data = b""
        if name is None:
            return False
        live = self._live.get(name)
        if live and data:
            live.write(data)
        if not data or (live and (live.broken or live.waits)):
            self._selector.unregister(descriptor)
        if not data:
            self._close(name, descriptor)
            return False
        if live and live.broken:
            self._close(name, descriptor)
        elif live and live.waits:
            self._held[name] = descriptor
            self._selector.register(live, selectors.EVENT_WRITE, name)
        if name == _KERNEL_LOG:
            data = data.partition(b";")[2] or data
        else:
            self._printed(data)
        matched = self._streams[name].feed(data)
        self.stop_wanted = self.stop_wanted or any(m.spec.stop for m in matched)
        self.decided_by = self.decided_by or next((m.spec.name for m in matched if m.spec.decisive), "")
        return not (live and live.broken)

    def _close(self, name: str, descriptor: int) -> None:
        self.pipes.pop(name, None)
        os.close(descriptor)

    def _pass_on(self, name: str) -> None:
        """Pass on what was left over, and read the workload's pipe again when all of it is gone."""
        live = self._live[name]
        live.flush()
        if live.waits:
            return
        self._selector.unregister(live)
        descriptor = self._held.pop(name)
        if live.broken:
            self._close(name, descriptor)
        else:
            self._selector.register(descriptor, selectors.EVENT_READ, name)

    def _last_words(self, name: str) -> None:
        """Wait until a stream's reader has taken what is left over, as long as it takes anything."""
        live = self._live.get(name)
        while live and live.waits and name in self._held:
            if not select.select([], [live], [], _LAST_WORDS_S)[1]:
                live.drop()
                self.notes.append(f"{name}: its reader took nothing for {_LAST_WORDS_S:g} s, the end was not passed on")
            self._pass_on(name)
