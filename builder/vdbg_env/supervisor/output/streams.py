"""The input of a supervisor: the workload's streams, the kernel's log where a matcher reads it, and signals."""

from __future__ import annotations

import errno
import os
import select
import selectors
import signal
from collections.abc import Callable, Iterable
from typing import Any

from vdbg_env.record.redactor import Redactor
from vdbg_env.supervisor.job import Job
from vdbg_env.supervisor.output.capture import LimitedFile, Stream
from vdbg_env.supervisor.output.live import Live
from vdbg_env.supervisor.output.matching import LineMatcher, Matchers, SearchTimer

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

    def open(self, stdout: int | None = None, stderr: int | None = None) -> None:
        """Open a file for each stream, and for the kernel's log where a matcher reads it."""
        for name, descriptor in (("stdout", stdout), ("stderr", stderr)):
            self._open_stream(name, descriptor, self._output)
        if self._kernel.all and stdout is not None:
            try:
                log = os.open("/dev/kmsg", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
                os.lseek(log, 0, os.SEEK_END)
            except OSError as error:
                self.notes.append(f"the kernel's log cannot be read here ({error.strerror}): Xid lines are not seen")
            else:
                self._open_stream(_KERNEL_LOG, log, self._kernel)

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
        """Read what is still in the pipes; only a process that is not ours may still write."""
        for name in list(self._held):
            self._last_words(name)
        for key in list(self._selector.get_map().values()):
            while key.data and not callable(key.data) and self._read(key.fd, key.data):
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
                name: {"bytes": stream.bytes, "dropped": stream.file.dropped, "unfinished": stream.unfinished}
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
            os.close(descriptor)
            return False
        if live and live.broken:
            os.close(descriptor)
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

    def _pass_on(self, name: str) -> None:
        """Pass on what was left over, and read the workload's pipe again when all of it is gone."""
        live = self._live[name]
        live.flush()
        if live.waits:
            return
        self._selector.unregister(live)
        descriptor = self._held.pop(name)
        if live.broken:
            os.close(descriptor)
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
