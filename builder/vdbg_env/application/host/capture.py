"""What a capture of a server's requests is asked for, and what it has."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, kw_only=True)
class CaptureSettings:
    """Where to listen, where to pass requests on to, and what to keep; sizes in bytes.

    `upstream` is a URL without a path. Of more than `max_count` requests or `max_bytes` the newest are kept, at least
    the newer half.
    """

    host: str
    port: int
    upstream: str
    output: Path
    redact_bodies: bool = False
    max_bytes: int = 256 << 20
    max_count: int = 100_000
    max_body: int = 16 << 20


@dataclass(slots=True)
class CaptureReport:
    """How many requests were passed on and recorded, and why others were not."""

    file: Path
    passed_on: int = 0
    recorded: int = 0
    reads: int = 0
    too_large: int = 0
    not_redactable: int = 0
    dropped: int = 0
    unanswered: int = 0
    size: int = 0
    seconds: float = 0.0
    problem: str | None = None

    @property
    def kept(self) -> int:
        """How many requests the file has."""
        return self.recorded - self.dropped
