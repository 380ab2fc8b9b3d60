"""Expands what a fat binary stores: raw, LZ4 block or zstd, never beyond a stated size.

`nvcc --compress-mode` of 13.x writes zstd frames (balance, size) or LZ4 blocks (speed); wheels of the CUDA 11 and 12
era hold LZ4. Sizes in fat binaries are claims: no more is ever produced than the claim, nor than `LARGEST`.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from enum import StrEnum
from functools import cache
from typing import Final

import lz4.block
import zstandard

from vdbg_env.common.errors import UnreadableBinary
from vdbg_env.cuda.binary.elf import Buffer

LARGEST: Final = 1 << 30
"""One GiB: ten times the largest cubin seen in a published wheel, and the most that one expansion may take."""

_FIRST_PIECE: Final = 16 << 10
_LARGEST_PIECE: Final = 64 << 10  # most of the last piece is expanded in vain
_LZ4_STEPS: Final = (16 << 10, 128 << 10, 1 << 20, 8 << 20)  # each starts anew: LZ4 blocks cannot be continued
_REUSED_UP_TO: Final = 1 << 20  # a decompressor keeps a window as large as the largest payload it has read
_idle: Final[list[zstandard.ZstdDecompressor]] = []  # to make one takes longer than to expand a small payload's start


class Compression(StrEnum):
    """How the payload of a fat binary entry is stored."""

    RAW = "raw"
    LZ4 = "lz4"
    ZSTD = "zstd"


def expand(stored: memoryview, how: Compression, size: int) -> Buffer:
    """Return the whole payload; `size` is the number of bytes it must come to.

    Raw payloads are returned as they lie, without a copy. Raises UnreadableBinary when the payload is damaged, comes to
    another size, or claims more than `LARGEST`.
    """
    if how is Compression.RAW:
        return stored
    _check_claim(size)
    try:
        data = _lz4(stored, size) if how is Compression.LZ4 else _zstd(stored, size)
    except (lz4.block.LZ4BlockError, zstandard.ZstdError, MemoryError) as error:
        raise UnreadableBinary(f"a payload does not decompress as {how}: {error}") from error
    if len(data) != size:
        raise UnreadableBinary(f"a payload decompresses to {len(data):,} bytes where {size:,} are claimed")
    return data


def expand_in_pieces(stored: memoryview, how: Compression, size: int) -> Iterator[Buffer]:
    """Yield the payload from its start, in pieces that grow from 16 KiB on: for those who may stop early.

    Raises UnreadableBinary as `expand` does, for what is damaged up to there.
    """
    match how:
        case Compression.RAW:
            yield from (stored[at : at + _LARGEST_PIECE] for at in range(0, len(stored), _LARGEST_PIECE))
        case Compression.LZ4:
            yield from _lz4_pieces(stored, size)
        case Compression.ZSTD:
            _check_claim(size)
            yield from _zstd_pieces(stored, reused=size <= _REUSED_UP_TO)


def _zstd_pieces(stored: memoryview, *, reused: bool) -> Iterator[Buffer]:
    length = _FIRST_PIECE
    try:
        decompressor = _idle.pop() if reused else zstandard.ZstdDecompressor(max_window_size=LARGEST)
    except IndexError:
        decompressor = zstandard.ZstdDecompressor(max_window_size=LARGEST)
    try:
        with decompressor.stream_reader(stored) as reader:
            while piece := reader.read(length):
                yield piece
                length = min(2 * length, _LARGEST_PIECE)
    except (zstandard.ZstdError, MemoryError) as error:
        raise UnreadableBinary(f"a payload does not decompress as {Compression.ZSTD}: {error}") from error
    finally:
        if reused:
            _idle.append(decompressor)


def _lz4_pieces(stored: memoryview, size: int) -> Iterator[Buffer]:
    _check_claim(size)
    done = 0
    for target in _LZ4_STEPS if lz4_start() else ():
        if target >= size:
            break
        piece = _lz4_up_to(target, stored)
        if piece is None:
            break  # damaged, as `expand` says in words
        yield memoryview(piece)[done:]
        done = target
    yield memoryview(expand(stored, Compression.LZ4, size))[done:]


def _lz4_up_to(target: int, stored: memoryview) -> bytearray | None:
    """Expand the first `target` bytes of a longer payload."""
    start = lz4_start()
    data = bytearray(target)
    room = (ctypes.c_char * target).from_buffer(data)
    # What these bytes need at the most, but for the length of a last match that is cut off.
    for taken in (stored[: target + (target >> 6) + 1024], stored):
        if start and start(bytes(taken), room, len(taken), target, target) == target:
            return data
    return None


@cache
def lz4_start() -> Callable[..., int] | None:
    """Return LZ4_decompress_safe_partial, which the Python module has in it and does not offer; None without it."""
    try:
        function = ctypes.CDLL(lz4.block._block.__file__).LZ4_decompress_safe_partial
    except (OSError, AttributeError):
        return None
    function.argtypes = [ctypes.c_char_p, ctypes.c_void_p, ctypes.c_int, ctypes.c_int, ctypes.c_int]
    function.restype = ctypes.c_int
    return function


def _check_claim(size: int) -> None:
    if size > LARGEST:
        raise UnreadableBinary(f"a payload claims {size:,} bytes; the most read here is {LARGEST:,}")


def _lz4(stored: memoryview, size: int) -> Buffer:
    data: bytes = lz4.block.decompress(stored, uncompressed_size=size)
    return data


def _zstd(stored: memoryview, size: int) -> Buffer:
    # The library allocates what the frame header claims before it looks at `max_output_size`.
    claimed = zstandard.frame_content_size(stored)
    if claimed > size:
        raise UnreadableBinary(f"a zstd frame claims {claimed:,} bytes where its entry claims {size:,}")
    return zstandard.ZstdDecompressor().decompress(stored, max_output_size=size)
