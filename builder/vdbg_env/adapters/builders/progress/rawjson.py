"""Read what `docker buildx build --progress=rawjson` writes: JSON documents, with plain text mixed in.

buildx 0.13 pretty-prints each document over many lines, newer ones write one to a line, and warnings and the closing
`ERROR:` are in the same stream as text (docker/buildx#2967). So documents are decoded from a buffer, and what cannot
start one is returned as text.
"""

from __future__ import annotations

import base64
import codecs
import json
from collections.abc import Iterator
from datetime import datetime
from typing import Any

from vdbg_env.adapters.builders.progress.events import LogChunk, Progress, Vertex


class RawJsonReader:
    """Takes the stream in pieces of any size; gives `Progress` for each document and `str` for each line of text."""

    # A document is a few hundred bytes to some tens of kilobytes; what opens with a brace and is still no document
    # after this many characters is text.
    _LONGEST = 4 << 20

    def __init__(self) -> None:
        self._text = codecs.getincrementaldecoder("utf-8")("replace")
        self._held = ""
        self._decoder = json.JSONDecoder()

    def feed(self, data: bytes, *, final: bool = False) -> Iterator[Progress | str]:
        """Yield what the bytes so far complete; with `final`, also the text of a document that was cut off."""
        self._held += self._text.decode(data, final)
        while held := self._held.lstrip():
            self._held = held
            if not held.startswith("{"):
                line, end, rest = held.partition("\n")
                if not end and not final:
                    return
                self._held = rest
                yield line.rstrip()
                continue
            try:
                document, length = self._decoder.raw_decode(held)
            except json.JSONDecodeError:
                if not final and len(held) < self._LONGEST:
                    return
                line, _, self._held = held.partition("\n")
                yield line.rstrip()
                continue
            self._held = held[length:]
            yield _progress(document)


def _progress(document: dict[str, Any]) -> Progress:
    return Progress(
        vertexes=tuple(map(_vertex, _entries(document, "vertexes"))),
        logs=tuple(map(_log, _entries(document, "logs"))),
        warnings=tuple(map(_warning, _entries(document, "warnings"))),
    )


def _entries(document: dict[str, Any], name: str) -> Iterator[dict[str, Any]]:
    found = document.get(name)
    yield from (entry for entry in found if isinstance(entry, dict)) if isinstance(found, list) else ()


def _vertex(v: dict[str, Any]) -> Vertex:
    return Vertex(
        digest=str(v.get("digest", "")),
        name=str(v.get("name", "")),
        cached=bool(v.get("cached", False)),
        started=_seconds(v.get("started")),
        completed=_seconds(v.get("completed")),
        error=str(v.get("error") or ""),
    )


def _log(entry: dict[str, Any]) -> LogChunk:
    return LogChunk(
        vertex=str(entry.get("vertex", "")),
        stream="stderr" if entry.get("stream") == 2 else "stdout",
        data=_bytes(entry.get("data")),
    )


def _warning(entry: dict[str, Any]) -> str:
    return _bytes(entry.get("short")).decode("utf-8", "replace")


def _bytes(value: object) -> bytes:
    try:
        return base64.b64decode(value) if isinstance(value, str) else b""
    except ValueError:
        return b""


def _seconds(stamp: object) -> float | None:
    try:
        return datetime.fromisoformat(stamp).timestamp() if isinstance(stamp, str) else None
    except ValueError:
        return None
