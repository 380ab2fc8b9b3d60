"""Expands what a fat binary stores: raw, LZ4 block or zstd, never beyond a stated size.

`nvcc --compress-mode` of 13.x writes zstd frames (balance, size) or LZ4 blocks (speed); wheels of the CUDA 11 and 12
era hold LZ4. Sizes in fat binaries are claims: no more is ever produced than the claim, nor than `LARGEST`.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import StrEnum
from typing import Final

import lz4.block
import zstandard

from vdbg_env.common.errors import UnreadableBinary
from vdbg_env.cuda.binary.elf import Buffer

LARGEST: Final = 1 << 30
"""One GiB: ten times the largest cubin seen in a published wheel, and the most that one expansion may take."""

_FIRST_PIECE: Final = 16 << 10
_LARGEST_PIECE: Final = 64 << 10  # most of the last piece is expanded in vain


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
    """Yield the payload from its start, in pieces that grow from 16 to 64 KiB: for those who may stop early.

    Only zstd can be read in part; the others come in one piece. Raises UnreadableBinary as `expand` does.
    """
    if how is not Compression.ZSTD:
        yield expand(stored, how, size)
        return
    _check_claim(size)
    length = _FIRST_PIECE
    try:
        with zstandard.ZstdDecompressor(max_window_size=LARGEST).stream_reader(stored) as reader:
            while piece := reader.read(length):
                yield piece
                length = min(2 * length, _LARGEST_PIECE)
    except (zstandard.ZstdError, MemoryError) as error:
        raise UnreadableBinary(f"a payload does not decompress as {how}: {error}") from error


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
