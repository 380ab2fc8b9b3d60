"""Expand what gzip, zstd, xz or bzip2 packed, piece by piece: no size that a stream claims is believed."""

from __future__ import annotations

import bz2
import lzma
import zlib
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from typing import Final, Protocol

from vdbg_env.common.errors import BadInput, quoted
from vdbg_env.common.files import START, packing_of

_PIECE: Final = 1 << 20  # bytes that one step expands to at the most
_FEW: Final = 4 << 10  # bytes of zstd's: four of them may expand to 128 KiB
_XZ_MEMORY: Final = 256 << 20  # xz -9 needs 65 MiB, as zstd without --long needs 8


class DamagedStream(EOFError):
    """Packed bytes that are not cut short, but cannot be expanded further."""


class TrailingBytes(DamagedStream):
    """What follows the last part of a sound stream is of another kind."""


class _Part(Protocol):
    """What expands one of the parts that a packed file is: a member, frame or stream."""

    def decompress(self, data: bytes, most: int, /) -> bytes:
        """Return what is expanded next, `most` bytes of it; raises its library's error."""

    @property
    def held(self) -> bool:
        """Whether more can be expanded without further bytes."""

    @property
    def eof(self) -> bool:
        """Whether the part has ended."""

    @property
    def unused_data(self) -> bytes:
        """The bytes behind its end."""


class _Gzip:
    def __init__(self) -> None:
        self._stream = zlib.decompressobj(wbits=31)
        self.held = False

    def decompress(self, data: bytes, most: int, /) -> bytes:
        expanded = self._stream.decompress(self._stream.unconsumed_tail + data, most)
        self.held = not self.eof and (bool(self._stream.unconsumed_tail) or len(expanded) == most)
        return expanded

    @property
    def eof(self) -> bool:
        return self._stream.eof

    @property
    def unused_data(self) -> bytes:
        return self._stream.unused_data


class _Standard:
    """A decompressor of `lzma` or `bz2`."""

    def __init__(self, stream: lzma.LZMADecompressor | bz2.BZ2Decompressor) -> None:
        self._stream: Final = stream

    def decompress(self, data: bytes, most: int, /) -> bytes:
        return self._stream.decompress(data, most)

    @property
    def held(self) -> bool:
        return not self._stream.eof and not self._stream.needs_input

    @property
    def eof(self) -> bool:
        return self._stream.eof

    @property
    def unused_data(self) -> bytes:
        return self._stream.unused_data


class _Zstd:
    """zstd has no limit: so few bytes are given at once that they expand to little."""

    def __init__(self) -> None:
        from zstandard import ZstdDecompressor  # what reads cores in an image has the standard library alone

        self._stream = ZstdDecompressor().decompressobj()
        self._rest = b""
        self.held = False

    def decompress(self, data: bytes, most: int, /) -> bytes:
        data = self._rest + data
        expanded = self._stream.decompress(data[:_FEW])
        self._rest = data[_FEW:]
        self.held = not self.eof and bool(self._rest)
        return expanded

    @property
    def eof(self) -> bool:
        return self._stream.eof

    @property
    def unused_data(self) -> bytes:
        return self._stream.unused_data + self._rest


def _zstd_errors() -> tuple[type[Exception], ...]:
    from zstandard import ZstdError

    return (ZstdError,)


@dataclass(frozen=True)
class _Packing:
    """How a kind is expanded; `padded`: zeros may be between and behind its parts."""

    start: Callable[[], _Part]
    errors: Callable[[], tuple[type[Exception], ...]]
    padded: bool = False
    too_large: str = ""
    """What the library says about a stream that needs more memory than it is given."""
    needs: str = ""
    cause: str = ""
    next_step: str = ""


_PACKINGS: Final = {
    "gzip": _Packing(_Gzip, lambda: (zlib.error,), padded=True),
    "bzip2": _Packing(lambda: _Standard(bz2.BZ2Decompressor()), lambda: (OSError,)),
    "xz": _Packing(
        lambda: _Standard(lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=_XZ_MEMORY)),
        lambda: (lzma.LZMAError,),
        padded=True,
        too_large="Memory usage limit exceeded",
        needs=f"its xz stream needs more than {_XZ_MEMORY >> 20} MiB of memory",
        cause="it was packed with a larger dictionary than those of `xz -9`",
        next_step="xz --decompress --keep {}, and give the file that this writes",
    ),
    "zstd": _Packing(
        _Zstd,
        _zstd_errors,
        too_large="too much memory",
        needs="its zstd stream has a window of more than 128 MiB",
        cause="it was packed by zstd --long",
        next_step="zstd --decompress --long=31 {}, and give the file that this writes",
    ),
}


def expanded(raw: Iterator[bytes], head: bytes, name: str) -> Iterator[bytes]:
    """Yield what packed bytes expand to, all parts of them; `head` is how they begin.

    Raises EOFError where the last part breaks off, DamagedStream where one is damaged, TrailingBytes for what is behind
    them and of another kind. Raises BadInput for a part that needs more memory than it is given.
    """
    kind = str(packing_of(head))
    packing, rest = _PACKINGS[kind], b""
    while True:
        rest = yield from _of_part(packing, rest, raw, name)
        while len(rest := rest.lstrip(b"\0") if packing.padded else rest) < START and (more := next(raw, b"")):
            rest += more
        if not rest:
            return
        if packing_of(rest) != kind:
            raise TrailingBytes(f"bytes that are no {kind} follow its {kind} stream")


def _of_part(packing: _Packing, data: bytes, raw: Iterator[bytes], name: str) -> Generator[bytes, None, bytes]:
    """Yield what the next part expands to; returns the bytes behind it that were read."""
    part = packing.start()
    while True:
        try:
            piece = part.decompress(data, _PIECE)
        except packing.errors() as error:
            raise _as_damage(str(error), packing, name) from None
        if piece:
            yield piece
        if part.eof:
            return part.unused_data
        if not part.held and not (data := next(raw, b"")):
            raise EOFError("it ends in the middle of its compressed data")
        if part.held:
            data = b""


def _as_damage(error: str, packing: _Packing, name: str) -> Exception:
    if packing.too_large and packing.too_large in error:
        step = packing.next_step.format(quoted(name))
        return BadInput(f"{name} cannot be expanded: {packing.needs}", cause=packing.cause, next_step=step)
    return DamagedStream(error.removeprefix("zstd decompressor error: "))
