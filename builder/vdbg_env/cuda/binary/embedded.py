"""Finds device code outside the sections that nvcc writes: fat binaries and cubins in any bytes of a file.

NVIDIA's libraries keep cubins in `.data` (libcufft), `.cask_resource` (libcublasLt) and `.rodata` (CUPTI); a DLL has
its sections in a PE file. What starts as a container or a cubin is read by its header. Headers that no code follows,
as programs that write such files hold them, are passed over.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Final

from vdbg_env.common.errors import UnreadableBinary
from vdbg_env.cuda.binary import fatbin
from vdbg_env.cuda.binary.elf import ET_EXEC, ET_REL, HEADER_SIZE, MAGIC, Elf
from vdbg_env.cuda.binary.fatbin import Entry

Span = tuple[int, int]

# With more than their magic numbers, `bytes.find` looks at one byte of six to eight instead of at each.
_CONTAINER: Final = struct.pack("<IHH", fatbin.MAGIC, 1, 16)
_CUBIN: Final = MAGIC + b"\2\1\1"
_PIECE: Final = 1 << 16  # small enough for the processor's cache: both patterns are looked for in it


def find_embedded(data: memoryview, known: Iterable[Span]) -> Iterator[tuple[int, Entry | memoryview]]:
    """Yield the entries of fat binaries, and bare cubins, that start outside the `known` ranges, with their offsets.

    Raises UnreadableBinary when a container starts as one and is damaged further on.
    """
    at = 0
    for start, end in sorted([*known, (len(data), len(data))]):
        yield from _between(data, at, start)
        at = max(at, end)


def _between(data: memoryview, at: int, end: int) -> Iterator[tuple[int, Entry | memoryview]]:
    while at < end:
        found = _next(data, at, end)
        if found is None:
            return
        at = found
        if bytes(data[at : at + len(_CONTAINER)]) == _CONTAINER:
            size = _container_size(data, at, end)
            for entry in fatbin.entries(data[at : at + size]) if size else ():
                yield at + entry.offset, replace(entry, offset=at + entry.offset)
        else:
            size = _cubin_size(data, at, end)
            if size:
                yield at, data[at : at + size]
        at += size or len(_CUBIN)


def _next(data: memoryview, at: int, end: int) -> int | None:
    """Return where the next container or cubin starts, by its first bytes."""
    near = at + -at % 8
    if near < end and bytes(data[near : near + len(_CONTAINER)]) == _CONTAINER:  # they lie in rows
        return near
    while at < end:
        piece = bytes(data[at : min(at + _PIECE + len(_CONTAINER) - 1, end)])
        container = piece.find(_CONTAINER)
        cubin = piece.find(_CUBIN, 0, container if container >= 0 else len(piece))
        if cubin >= 0 or container >= 0:
            return at + (cubin if cubin >= 0 else container)
        at += _PIECE
    return None


def _container_size(data: memoryview, at: int, end: int) -> int:
    """Return the size of a container with its header; 0 for a header that no entry follows."""
    first = at + len(_CONTAINER) + 8
    (size,) = struct.unpack_from("<Q", data, at + 8) if first + 4 <= end else (0,)
    return 16 + int(size) if 0 < size <= end - first and fatbin.looks_like_entry(data[first:end]) else 0


def _cubin_size(data: memoryview, at: int, end: int) -> int:
    """Return the size of a cubin; 0 for another machine's code, or where its sections are not in these bytes."""
    if end - at < HEADER_SIZE:
        return 0
    try:
        elf = Elf(data[at:end])
    except UnreadableBinary:
        return 0
    size = max(elf.table_end, elf.contents_end)
    return size if elf.is_cuda and elf.type in (ET_REL, ET_EXEC) and elf.section_count and size <= end - at else 0
