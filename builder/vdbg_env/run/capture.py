"""Record the requests of a server: the file that keeps them, and the summary at the end."""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from pathlib import Path

from vdbg_env.common.console import json_text, printable, size_text
from vdbg_env.common.errors import BadInput, quoted
from vdbg_env.common.files import write_whole
from vdbg_env.common.flags import flag


@dataclass(frozen=True, kw_only=True)
class CaptureSettings:
    """Where to listen, where to pass requests on to, and what to keep; sizes in MiB.

    `upstream` becomes a URL without a path. Of more than `max_count` requests or `max_size` the newest are kept, at
    least the newer half.
    """

    port: int = flag(default=8001, show_default=True, between=(0, 65535), help="Port to listen on; 0 picks a free one.")
    host: str = flag(default="127.0.0.1", show_default=True, help="The address to listen on.")
    upstream: str = flag("--to", required=True, metavar="HOST:PORT|URL", help="The server to forward to.")
    output: Path = flag(
        "-o", "--output", default=Path("requests.jsonl"), show_default=True, path={"dir_okay": False},
        help="The recording to write.",
    )  # fmt: skip
    redact_bodies: bool = flag(default=False, help="Record x for each letter and 0 for each digit of a text.")
    max_size: int = flag(
        default=256, show_default=True, between=(1, None), help="Keep the newest requests, up to this many MiB."
    )
    max_count: int = flag(
        default=100_000, show_default=True, between=(2, None), help="Keep at most this many requests."
    )
    max_body: int = flag(
        default=16, show_default=True, between=(1, None), help="Do not record bodies larger than this many MiB."
    )


@dataclass(slots=True)
class CaptureReport:
    """How many requests were passed on and recorded, and why others were not."""

    file: Path
    passed_on: int = 0
    recorded: int = 0
    reads: int = 0
    too_large: int = 0
    not_redactable: int = 0
    unrecordable: int = 0
    websockets: int = 0
    dropped: int = 0
    unanswered: int = 0
    size: int = 0
    seconds: float = 0.0
    problem: str | None = None

    @property
    def kept(self) -> int:
        """How many requests the file has."""
        return self.recorded - self.dropped


# A file of recorded requests that stays within its bounds: the oldest half goes when it is full.


class RequestFile:
    """Lines in two files of half the bounds each: `FILE.1` has the older ones, until `close` puts both into FILE.

    A line is with the system when `append` returns: the request that ends a server is in the file, whatever becomes of
    this process. Only the owner may read it, because requests are what people wrote.
    """

    def __init__(self, path: Path, *, max_bytes: int, max_count: int) -> None:
        self._path = path
        self._older = path.with_name(path.name + ".1")
        self._half_bytes, self._half_count = max_bytes // 2, max(1, max_count // 2)
        for one in (path, self._older):
            if one.exists():
                raise BadInput(
                    f"{one} exists already",
                    cause="an earlier capture, and nothing is written over",
                    next_step="give another name with -o, or move it away",
                )
        self._file = self._open()
        self._size = self._count = self._older_size = self._older_count = 0
        self.dropped = 0

    def append(self, line: bytes) -> None:
        """Write a line; raises OSError."""
        if self._count and (self._size + len(line) > self._half_bytes or self._count >= self._half_count):
            self._begin_new_half()
        write_whole(self._file, line)
        self._size += len(line)
        self._count += 1

    @property
    def size(self) -> int:
        """How many bytes are kept."""
        return self._size + self._older_size

    def close(self) -> None:
        """Put the older half before the newer one, in one file."""
        os.close(self._file)
        if not self._older_count:
            return
        with self._older.open("ab") as older, self._path.open("rb") as newer:
            shutil.copyfileobj(newer, older)
        self._older.replace(self._path)

    def _begin_new_half(self) -> None:
        os.close(self._file)
        self.dropped += self._older_count
        self._path.replace(self._older)
        self._older_size, self._older_count = self._size, self._count
        self._file = self._open()
        self._size = self._count = 0

    def _open(self) -> int:
        return os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC, 0o600)


# Write what a capture recorded: as text and as JSON.


def as_json(report: CaptureReport) -> str:
    """Return how many requests were recorded, as docs/schemas/capture-v1.schema.json describes it."""
    return json_text(
        {
            "schema": "vdbg-env/capture/v1",
            "file": str(report.file),
            "kept": report.kept,
            "size": report.size,
            "passed_on": report.passed_on,
            "recorded": report.recorded,
            "reads": report.reads,
            "too_large": report.too_large,
            "not_redactable": report.not_redactable,
            "unrecordable": report.unrecordable,
            "websockets": report.websockets,
            "dropped": report.dropped,
            "unanswered": report.unanswered,
            "seconds": report.seconds,
            "problem": report.problem,
        }
    )


def as_text(report: CaptureReport) -> str:
    """Return what is kept, what is not and why, and the command that replays it."""
    lines = [f"{report.kept} requests in {report.file} ({size_text(report.size)})"]
    for count, what in (
        (report.dropped, "older ones dropped: --max-count, --max-size"),
        (report.too_large, "too large to keep: --max-body"),
        (report.not_redactable, "not kept: their bodies are not text or packed in an unknown way: not redactable"),
        (report.unrecordable, "not kept: they could not be written down (VDBG_LOG=info says why)"),
        (report.websockets, "WebSockets passed on, which no recording holds"),
        (report.unanswered, "without an answer from the server"),
    ):
        lines += [f"  {count} {what}"] if count else []
    lines += [f"  the recording ended early: {report.problem}"] if report.problem else []
    lines += [f"replay: vdbg-env runbook NAME -i request={quoted(report.file)} -- COMMAND"] if report.kept else []
    return "".join(printable(line) + "\n" for line in lines)
