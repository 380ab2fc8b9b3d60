"""The truth of a run: an append-only log, one JSON object a line, on disk before anything follows from it.

Readers drop a torn last line (a full disk or a cut power leaves one); any other damage is told. Order is by sequence
number and durations are by a monotonic clock: the wall clock is a label that may jump.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from vdbg_env.common.errors import BadInput, HostNotAble
from vdbg_env.record.redaction.redaction import Redactor

RESERVED = 64 << 10  # bytes: on a full disk some 90 events still fit


@dataclass(frozen=True, kw_only=True)
class Event:
    """One state change; `elapsed_s` counts the time that an engine was at work on the run, not the time between two."""

    seq: int
    kind: str
    at: str
    elapsed_s: float
    data: Mapping[str, Any] = field(default_factory=dict)


def read_events(path: Path) -> tuple[Event, ...]:
    """Return the events of a log, none where there is no log, without a torn last one.

    Raises BadInput for a log that is damaged elsewhere.
    """
    try:
        return _parse(path, path.read_bytes())[0]
    except FileNotFoundError:
        return ()


def damaged(what: str) -> BadInput:
    """Return the error for a log that can be read, line by line, and makes no sense."""
    return BadInput(
        f"the record is damaged: {what} does not say what such an event says",
        cause="the log was edited, or its disk lost data",
        next_step="begin a new run without --resume; report.md, where there is one, says what was found until then",
    )


class EventLog:
    """Appends events to a log and makes each durable before it returns; one writer at a time, by the run's lock."""

    def __init__(
        self, path: Path, redactor: Redactor, monotonic: Callable[[], float], wall: Callable[[], float]
    ) -> None:
        self._path = path
        self._redactor = redactor
        self._monotonic = monotonic
        self._wall = wall
        self._began = monotonic()
        self._reserve = path.with_suffix(".reserve")
        _make_reserve(self._reserve)
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self.events, whole = _parse(path, path.read_bytes())
        os.ftruncate(self._file, whole)
        self._size = whole
        self._before_s = self.events[-1].elapsed_s if self.events else 0.0
        _sync_folder(path.parent)

    def append(self, kind: str, **data: Any) -> Event:
        """Write one event, redacted, and wait until it is on disk; raises HostNotAble when the disk takes no more."""
        event = Event(
            seq=len(self.events) + 1,
            kind=kind,
            at=datetime.fromtimestamp(self._wall(), UTC).isoformat(timespec="milliseconds"),
            elapsed_s=round(self.elapsed_s(), 6),
            data=self._redactor.document(data),  # type: ignore[arg-type]
        )
        line = json.dumps({"seq": event.seq, "at": event.at, "elapsed_s": event.elapsed_s, "kind": kind, **event.data})
        self._write(line.encode() + b"\n")
        self.events = (*self.events, event)
        return event

    def elapsed_s(self) -> float:
        """Return how long engines have been at work on this run, this one included."""
        return self._before_s + self._monotonic() - self._began

    def close(self) -> None:
        """Close the log and give the reserved space back."""
        os.close(self._file)
        with contextlib.suppress(FileNotFoundError):
            self._reserve.unlink()

    def _write(self, line: bytes) -> None:
        try:
            self._put(line)
        except OSError as error:
            if error.errno not in {errno.ENOSPC, errno.EDQUOT} or not self._reserve.exists():
                raise HostNotAble(
                    f"{self._path} cannot be written: {error.strerror}",
                    cause="the disk is full, or has become read-only",
                    next_step="free some space, then continue with --resume",
                ) from error
            self._reserve.unlink()
            self._put(line)

    def _put(self, line: bytes) -> None:
        """Write a line whole or not at all."""
        try:
            view = memoryview(line)
            while view:
                view = view[os.pwrite(self._file, view, self._size + len(line) - len(view)) :]
            os.fdatasync(self._file)
        except OSError:
            os.ftruncate(self._file, self._size)
            raise
        self._size += len(line)


def _parse(path: Path, data: bytes) -> tuple[tuple[Event, ...], int]:
    """Return the whole events and how many bytes they take."""
    events: list[Event] = []
    whole = 0
    for line in data.splitlines(keepends=True):
        try:
            document = json.loads(line)
            event = Event(
                seq=document.pop("seq"),
                kind=document.pop("kind"),
                at=document.pop("at"),
                elapsed_s=document.pop("elapsed_s"),
                data=document,
            )
        except (ValueError, KeyError, AttributeError, RecursionError):
            event = None
        if event is None or not line.endswith(b"\n"):
            if whole + len(line) < len(data):
                raise BadInput(
                    f"{path}: line {len(events) + 1} is damaged, and lines follow it",
                    cause="the log was edited, or its disk lost data",
                )
            break
        if event.seq != len(events) + 1:
            raise BadInput(f"{path}: event {event.seq} stands where event {len(events) + 1} should")
        events.append(event)
        whole += len(line)
    return tuple(events), whole


def _make_reserve(path: Path) -> None:
    """Set space aside for a full disk; a disk already too full for that is no reason not to log."""
    with contextlib.suppress(OSError):
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
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
