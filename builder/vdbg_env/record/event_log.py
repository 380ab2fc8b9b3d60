"""The truth of a run: an append-only log, one JSON object a line, on disk before anything follows from it.

Readers drop a torn last line (a full disk or a cut power leaves one); other damage is an error. Order is by sequence
number and durations are by a monotonic clock: the wall clock is a label that may jump.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any

from vdbg_env.common.errors import BadInput, HostNotAble
from vdbg_env.common.files import NotAFile, open_file, opened, parse_json, read_whole, refusal_cause, write_whole
from vdbg_env.record.redactor import Redactor

RESERVED = 64 << 10  # bytes: on a full disk some 90 events still fit
_AT_ONCE = 16 << 20  # bytes of a log that are read at once
_HEAD = re.compile(rb'^\{"seq": (\d+), "at": "[^"\n]*", "elapsed_s": [-+.0-9e]+, "kind": "(\w+)"', re.MULTILINE)


@dataclass(frozen=True, kw_only=True)
class Event:
    """One state change; `elapsed_s` counts the time that an engine was at work on the run, not the time between two."""

    seq: int
    kind: str
    at: str
    elapsed_s: float
    data: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class LogSummary:
    """What a list of runs shows of a log: how many steps were finished, and the last event, None in an empty log."""

    steps: int
    last: Event | None


def read_events(path: Path) -> Iterator[Event]:
    """Yield the events of a log one by one, none where there is no log, without a torn last one.

    Raises BadInput for a log that is damaged elsewhere.
    """
    try:
        with opened(path) as file:
            yield from (event for event, _ in _whole(path, file))
    except FileNotFoundError:
        return
    except OSError as error:
        raise _unreadable(path, error) from error


def summarize(path: Path) -> LogSummary:
    """Return the summary of a log: of all lines but the last, only the beginning is looked at.

    Raises BadInput for a log that is damaged.
    """
    try:
        size = path.stat().st_size
        data = read_whole(path, _AT_ONCE) if size <= _AT_ONCE else b""
    except FileNotFoundError:
        return LogSummary(steps=0, last=None)
    except OSError as error:
        raise _unreadable(path, error) from error
    heads = _HEAD.findall(data)
    last = _event(data[data.rfind(b"\n", 0, -1) + 1 :])
    numbered = [int(seq) for seq, _ in heads] == list(range(1, data.count(b"\n") + 1))
    if last is not None and numbered and data.endswith(b"\n"):
        return LogSummary(steps=sum(kind == b"step_finished" for _, kind in heads), last=last)
    steps = 0
    last = None
    for event in read_events(path):
        steps += event.kind == "step_finished"
        last = event
    return LogSummary(steps=steps, last=last)


def _unreadable(path: Path, error: OSError) -> BadInput:
    return BadInput(f"{path} cannot be read: {error.strerror}", cause="another program, or its disk, put that there")


def damaged(what: str) -> BadInput:
    """Return the error for a log that can be read, line by line, and makes no sense."""
    return BadInput(
        f"the record is damaged: {what} does not say what such an event says",
        cause="the log was edited, or its disk lost data",
        next_step="begin a new run without --resume; report.md, where there is one, says what was found until then",
    )


@contextlib.contextmanager
def well_formed(what: str) -> Iterator[None]:
    """Raise BadInput in place of what reading a document raises that has other types than ours; `what` names it."""
    try:
        yield
    except (KeyError, TypeError, AttributeError, IndexError, ValueError) as error:
        raise BadInput(
            f"the record is damaged: {what} does not say what such a file says",
            cause="it was edited, another program wrote it, or its disk lost data",
            next_step="vdbg-env runs report RUN --write makes a report anew from the record",
        ) from error


class EventLog:
    """Appends events to a log and makes each durable before it returns; one writer at a time, by the run's lock.

    No event is kept in memory: `recorded` yields those that are on disk, `count` says how many there are.
    """

    def __init__(
        self, path: Path, redactor: Redactor, monotonic: Callable[[], float], wall: Callable[[], float]
    ) -> None:
        self._path = path
        self._redactor = redactor
        self._monotonic = monotonic
        self._wall = wall
        self._began = monotonic()
        self._reserve = path.with_suffix(".reserve")
        try:
            self._file = open_file(path)
        except NotAFile as error:
            raise _unreadable(path, error) from error
        _make_reserve(self._reserve)
        self._size: int | None = None
        self._before_s = self._read_s = 0.0
        self._read_at = float("inf")  # the wall clock at the last event of earlier engines
        self.count = 0
        self.last_s = 0.0
        _sync_folder(path.parent)

    def recorded(self) -> Iterator[Event]:
        """Yield the events that are on disk, and cut a torn last one off; raises BadInput for a damaged log."""
        size = 0
        at = None
        with os.fdopen(os.dup(self._file), "rb") as file:
            file.seek(0)
            for event, length in _whole(self._path, file):
                self.count, self.last_s = event.seq, event.elapsed_s
                size += length
                at = event.at
                yield event
        os.ftruncate(self._file, size)
        self._size = size
        self._before_s = self._read_s = self.last_s
        if at is not None:
            with contextlib.suppress(ValueError):  # a label, which decides nothing else
                self._read_at = datetime.fromisoformat(at).timestamp()

    def append(self, kind: str, **data: Any) -> Event:
        """Write one event, redacted, and wait until it is on disk; raises HostNotAble when the disk refuses it."""
        if self._size is None:
            for _ in self.recorded():
                pass
        event = Event(
            seq=self.count + 1,
            kind=kind,
            at=datetime.fromtimestamp(self._wall(), UTC).isoformat(timespec="milliseconds"),
            elapsed_s=round(self.elapsed_s(), 6),
            data=self._redactor.document(data),  # type: ignore[arg-type]
        )
        line = json.dumps({"seq": event.seq, "at": event.at, "elapsed_s": event.elapsed_s, "kind": kind, **event.data})
        self._write(line.encode() + b"\n")
        self.count, self.last_s = event.seq, event.elapsed_s
        return event

    def elapsed_s(self) -> float:
        """Return how long engines have been at work on this run, this one included."""
        return self._before_s + self._monotonic() - self._began

    def count_work(self, seconds: float) -> None:
        """Count the time of an engine that was killed: what it began with its last event took so long.

        A workload may have written that number: it is at most what the wall clock has counted since.
        """
        worked = min(seconds, self._wall() - self._read_at)
        self._before_s += max(0.0, self._read_s + worked - self.elapsed_s())

    def close(self) -> None:
        """Close the log and give the reserved space back."""
        os.close(self._file)
        with contextlib.suppress(OSError):  # it is gone, or another program's folder
            self._reserve.unlink()

    def _write(self, line: bytes) -> None:
        try:
            self._put(line)
        except OSError as error:
            if error.errno not in {errno.ENOSPC, errno.EDQUOT} or not self._reserve.is_file():
                raise HostNotAble(
                    f"{self._path} cannot be written: {error.strerror}",
                    cause=refusal_cause(error),
                    next_step="when that is over, continue with --resume",
                ) from error
            self._reserve.unlink()
            self._put(line)

    def _put(self, line: bytes) -> None:
        """Write a line whole or not at all."""
        assert self._size is not None, "the log was read before it is written"
        try:
            os.lseek(self._file, self._size, os.SEEK_SET)
            write_whole(self._file, line)
            os.fdatasync(self._file)
        except OSError:
            os.ftruncate(self._file, self._size)
            raise
        self._size += len(line)


def _whole(path: Path, file: IO[bytes]) -> Iterator[tuple[Event, int]]:
    """Yield the whole events of a log, each with the length of its line."""
    seq = 0
    while line := file.readline(_LONGEST):
        event = _event(line) if line.endswith(b"\n") else None
        if event is None:
            if file.read(1):
                raise BadInput(
                    f"{path}: line {seq + 1} is damaged, and lines follow it",
                    cause="the log was edited, or its disk lost data",
                )
            return
        seq += 1
        if event.seq != seq:
            raise BadInput(f"{path}: event {event.seq} is where event {seq} should be")
        yield event, len(line)


_LONGEST = 256 << 20  # bytes of one event: a log of zeros has no line ends


def _event(line: bytes) -> Event | None:
    try:
        document = parse_json(line)
        return Event(
            seq=document.pop("seq"),
            kind=document.pop("kind"),
            at=document.pop("at"),
            elapsed_s=document.pop("elapsed_s"),
            data=document,
        )
    except (ValueError, KeyError, AttributeError, TypeError, RecursionError):
        return None


def _make_reserve(path: Path) -> None:
    """Set space aside for a full disk; a disk already too full for that is no reason not to log."""
    with contextlib.suppress(OSError):
        descriptor = open_file(path)
        try:
            os.posix_fallocate(descriptor, 0, RESERVED)
        finally:
            os.close(descriptor)


def _sync_folder(path: Path) -> None:
    """Make the names in a folder durable; some file systems cannot, and need not."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        with contextlib.suppress(OSError):
            os.fsync(descriptor)
    finally:
        os.close(descriptor)
