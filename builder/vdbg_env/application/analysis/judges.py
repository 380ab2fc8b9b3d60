"""Judge the entries of a file on all cores: threads for what their first bytes settle, processes for line tables.

Whether rows cover the code is worked out in Python, which runs on one core whatever the number of threads. A process
takes a quarter of a second to start and 35 MiB, so they are started for large files only; below that, cubins with line
tables are read one after the other, which holds one of them at a time.
"""

from __future__ import annotations

import multiprocessing
import signal
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import ExitStack
from itertools import islice
from types import TracebackType
from typing import Final, NamedTuple, Self

from gpucore.cubin import thin
from gpucore.errors import UnreadableBinary
from gpucore.fatbin import Compression, DeviceCode, Entry
from gpucore.lineinfo import EntryReport, Read, judge_start, judge_whole, read_stored

_BATCH: Final = 8  # entries a thread takes at once: a task for each would cost more than a small cubin
_PROCESSES_FROM: Final = 1 << 30  # bytes of cubins with line tables, expanded: some ten seconds of work

_Stored = tuple[bytes, Compression, int]


class _Refused(NamedTuple):
    """An UnreadableBinary of another process."""

    what: str
    cause: str | None
    next_step: str | None


class Judges:
    """Threads, and processes once a file needs them; used as a context, which ends both."""

    def __init__(self, count: int) -> None:
        self._count: Final = count
        self._stack: Final = ExitStack()
        self._threads: Final = self._stack.enter_context(
            ThreadPoolExecutor(max_workers=count, thread_name_prefix="verify")
        )
        self._started: ProcessPoolExecutor | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._started:
            self._started.shutdown(cancel_futures=True)
        self._stack.close()

    def judge_all(
        self, codes: Iterator[DeviceCode], forget: Callable[[], None], told: Callable[[float], None] = lambda _: None
    ) -> Iterable[EntryReport]:
        """Judge entries, in order; raises UnreadableBinary for the first that is damaged.

        `forget` is called when some were read, whose bytes are not needed again, and `told` with the share of line
        tables that were read.
        """
        found: list[tuple[DeviceCode, EntryReport | None]] = []
        for batch in self._threads.map(_starts, _batches(codes)):
            found += batch
            forget()
        left = [code for code, judged in found if judged is None]
        alone = self._count < 2 or sum(code.entry.size for code in left) < _PROCESSES_FROM
        rest = _each(left, forget) if alone else self._in_processes(left)
        rest = _counted(rest, len(left), told)
        return (judged or next(rest) for _, judged in found)

    def _in_processes(self, codes: list[DeviceCode]) -> Iterator[EntryReport]:
        if self._started is None:
            fresh = multiprocessing.get_context("spawn")  # threads run here: a fork could copy a lock that is held
            self._started = ProcessPoolExecutor(self._count, fresh, initializer=_leave_interrupts)
        stored = (_stored(code.entry) for code in codes)
        for code, read in zip(codes, self._started.map(_read, stored), strict=True):
            if isinstance(read, _Refused):
                raise UnreadableBinary(read.what, cause=read.cause, next_step=read.next_step)
            yield EntryReport(code=code, cubin=read[0], coverage=read[1])


def _counted(reports: Iterator[EntryReport], count: int, told: Callable[[float], None]) -> Iterator[EntryReport]:
    for number, report in enumerate(reports, 1):
        told(number / count)
        yield report


def _each(codes: list[DeviceCode], forget: Callable[[], None]) -> Iterator[EntryReport]:
    for code in codes:
        yield judge_whole(code)
        forget()


def _batches(codes: Iterator[DeviceCode]) -> Iterator[tuple[DeviceCode, ...]]:
    while batch := tuple(islice(codes, _BATCH)):
        yield batch


def _starts(codes: tuple[DeviceCode, ...]) -> list[tuple[DeviceCode, EntryReport | None]]:
    return [(code, judge_start(code)) for code in codes]


def _stored(entry: Entry) -> _Stored:
    """Return what another process needs of an entry; of a cubin that is stored as it is, its tables are enough."""
    if entry.compression is Compression.RAW:
        small = thin(lambda: (entry.stored,), entry.size)
        if small is not None:
            return bytes(small), Compression.RAW, len(small)
    return bytes(entry.stored), entry.compression, entry.size


def _read(stored: _Stored) -> Read | _Refused:
    """Read a cubin in another process; an error is returned as its words, since it cannot be sent."""
    data, how, size = stored
    try:
        return read_stored(memoryview(data), how, size)
    except UnreadableBinary as error:
        return _Refused(error.what, error.cause, error.next_step)


def _leave_interrupts() -> None:
    """Leave an interrupt of the terminal to the process that was started by hand: it ends the others."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
