"""Read the progress of the engine's own BuildKit: protobuf messages carried in the `aux` of a build's JSON stream.

The message is `StatusResponse` of github.com/moby/buildkit, api/services/control/control.proto. Only the fields that
a user needs are read; unknown ones are skipped, as protobuf requires of every reader.
"""

from __future__ import annotations

from collections.abc import Iterator

from gpucore.errors import UnreadableBinary
from vdbg_env.adapters.builders.progress.events import LogChunk, Progress, Vertex


def read_status_response(message: bytes) -> Progress:
    """Decode one `StatusResponse`; raises UnreadableBinary when the bytes are not protobuf."""
    vertexes: list[Vertex] = []
    logs: list[LogChunk] = []
    warnings: list[str] = []
    for number, value in _fields(message):
        match number, value:
            case 1, bytes():
                vertexes.append(_vertex(value))
            case 3, bytes():
                logs.append(_log(value))
            case 4, bytes():
                warnings.extend(_text(v) for n, v in _fields(value) if n == 3)
            case _:
                pass
    return Progress(vertexes=tuple(vertexes), logs=tuple(logs), warnings=tuple(warnings))


def _vertex(message: bytes) -> Vertex:
    found = dict(_fields(message))
    return Vertex(
        digest=_text(found.get(1)),
        name=_text(found.get(3)),
        cached=bool(found.get(4, 0)),
        started=_timestamp(found.get(5)),
        completed=_timestamp(found.get(6)),
        error=_text(found.get(7)),
    )


def _log(message: bytes) -> LogChunk:
    found = dict(_fields(message))
    stream, data = found.get(3, 1), found.get(4, b"")
    return LogChunk(
        vertex=_text(found.get(1)),
        stream="stderr" if stream == 2 else "stdout",
        data=data if isinstance(data, bytes) else b"",
    )


def _text(value: int | bytes | None) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else ""


def _timestamp(value: int | bytes | None) -> float | None:
    """Return a `google.protobuf.Timestamp` (seconds, nanoseconds) in seconds; its absence is None."""
    if not isinstance(value, bytes):
        return None
    found = dict(_fields(value))
    seconds, nanoseconds = found.get(1, 0), found.get(2, 0)
    return float(seconds) + nanoseconds / 1e9 if isinstance(seconds, int) and isinstance(nanoseconds, int) else None


def _fields(message: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Yield every field as its number and its value: a whole number, or the bytes of a string or inner message."""
    at = 0
    while at < len(message):
        tag, at = _varint(message, at)
        number, wire = tag >> 3, tag & 7
        if wire == 0:
            value, at = _varint(message, at)
            yield number, value
            continue
        match wire:
            case 1:
                size = 8
            case 5:
                size = 4
            case 2:
                size, at = _varint(message, at)
            case _:
                raise UnreadableBinary(f"the engine's progress has a field of unknown wire type {wire}", offset=at)
        if at + size > len(message):
            raise UnreadableBinary("the engine's progress ends within a field", offset=at)
        yield number, message[at : at + size]
        at += size


def _varint(message: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while at < len(message) and shift < 70:
        byte = message[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
    raise UnreadableBinary("the engine's progress ends within a number", offset=at)
