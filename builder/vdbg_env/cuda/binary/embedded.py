"""Finds device code outside the sections that nvcc writes: fat binaries and cubins in any bytes of a file.

NVIDIA's libraries keep cubins in `.data` (libcufft), `.cask_resource` (libcublasLt) and `.rodata` (CUPTI); a DLL has
its sections in a PE file. What starts as a container or a cubin is read by its header. Headers that no code follows,
as programs that write such files hold them, are passed over.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Final

from ahocorasick_rs import BytesAhoCorasick

from vdbg_env.common.errors import UnreadableBinary
from vdbg_env.cuda.binary import fatbin
from vdbg_env.cuda.binary.cubin_names import TABLES_START
from vdbg_env.cuda.binary.elf import EM_CUDA, ET_CORE, ET_EXEC, ET_REL, HEADER_SIZE, MAGIC, Elf
from vdbg_env.cuda.binary.fatbin import Entry

Span = tuple[int, int]
Searched = Callable[[], None]

_CONTAINER: Final = struct.pack("<IHH", fatbin.MAGIC, 1, 16)
_CUBIN: Final = MAGIC + b"\2\1\1"
# A searcher of one string takes the processor's vector instructions: 10 GB/s, where one of both takes them at 1 GB/s.
_SEARCHERS: Final = (BytesAhoCorasick([_CONTAINER]), BytesAhoCorasick([_CUBIN]))
_CUDA: Final = EM_CUDA.to_bytes(2, "little")
_PIECE: Final = 1 << 20  # bounds how many hits are kept at once
_PIECES_A_TIME: Final = 8
_OVERLAP: Final = max(len(_CONTAINER), len(_CUBIN)) - 1
_MOST_IN_VAIN: Final = 1 << 22  # section headers of what turns out not to be a cubin: half a second


def find_embedded(
    data: memoryview, known: Iterable[Span], searched: Searched = lambda: None
) -> Iterator[tuple[int, Entry | memoryview]]:
    """Yield the entries of fat binaries, and bare cubins, that start outside the `known` ranges, with their offsets.

    `searched` is called each time some megabytes were searched.

    Raises UnreadableBinary when a container starts as one and is damaged further on.
    """
    at = 0
    cubins = _Cubins(data)
    for start, end in sorted([*known, (len(data), len(data))]):
        yield from _between(data, at, start, cubins, searched)
        at = max(at, end)


def _between(
    data: memoryview, at: int, end: int, cubins: _Cubins, searched: Searched
) -> Iterator[tuple[int, Entry | memoryview]]:
    for number, start in enumerate(range(at, end, _PIECE), 1):
        piece_end = min(start + _PIECE, end)
        if piece_end <= at:
            continue  # inside what was read already
        for found in _starts(data, start, min(piece_end + _OVERLAP, end)):
            if not at <= found < piece_end:
                continue
            size = 0
            if bytes(data[found : found + len(_CONTAINER)]) == _CONTAINER:
                size = _container_size(data, found, end)
                for entry in fatbin.entries(data[found : found + size]) if size else ():
                    yield found + entry.offset, replace(entry, offset=found + entry.offset)
            elif size := cubins.size_at(found, end):
                yield found, data[found : found + size]
            at = found + (size or len(_CUBIN))
        if number % _PIECES_A_TIME == 0 or piece_end == end:
            searched()


def _starts(data: memoryview, start: int, end: int) -> list[int]:
    """Return where the first bytes of containers and cubins are, in order."""
    piece = data[start:end]
    return sorted(start + at for search in _SEARCHERS for _, at, _ in search.find_matches_as_indexes(piece))


def _container_size(data: memoryview, at: int, end: int) -> int:
    """Return the size of a container with its header; 0 for a header that no entry follows.

    Raises UnreadableBinary where an entry follows and the container does not end in these bytes.
    """
    first = at + len(_CONTAINER) + 8
    if first + 4 > end or not fatbin.looks_like_entry(data[first:end]):
        return 0
    (size,) = struct.unpack_from("<Q", data, at + 8)
    if not 0 < size <= end - first:
        raise UnreadableBinary(f"a fat binary container of {size:,} bytes runs past the end", offset=at)
    return 16 + int(size)


class _Cubins:
    """Measures cubins by their headers, and keeps count of headers that were read in vain."""

    def __init__(self, data: memoryview) -> None:
        self._data: Final = data
        self._in_vain = 0

    def size_at(self, at: int, end: int) -> int:
        """Return the size of a cubin; 0 for another machine's code, and for a header that no cubin follows.

        Raises UnreadableBinary for a damaged cubin, and for headers without number that lead nowhere.
        """
        if end - at < HEADER_SIZE:
            return 0
        names_follow = bytes(self._data[at + HEADER_SIZE : end][: len(TABLES_START)]) == TABLES_START
        try:
            elf = Elf(self._data[at:end])
        except UnreadableBinary as error:
            if names_follow:
                raise UnreadableBinary(f"a damaged cubin: {error.what}", offset=at) from error
            return 0
        if not elf.is_cuda or elf.type not in (ET_REL, ET_EXEC) or not elf.section_count:
            if names_follow and elf.type != ET_CORE:
                raise UnreadableBinary("a cubin whose ELF header is damaged", offset=at)
            return 0
        size = max(elf.table_end, elf.contents_end)
        if size <= end - at:
            self._check_that_it_ends(at, size)
            return size
        if names_follow or not any(elf.sections[0][1:]):  # a whole table of sections starts with an empty row
            raise UnreadableBinary(f"a damaged cubin: a section ends at {size:#x} of {end - at:#x} bytes", offset=at)
        self._in_vain += elf.section_count
        if self._in_vain > _MOST_IN_VAIN:
            raise UnreadableBinary("these bytes are full of headers of cubins that are not there", offset=at)
        return 0

    def _check_that_it_ends(self, at: int, size: int) -> None:
        """Refuse a cubin that reaches over the next one: a damaged size would hide that."""
        for start in _starts(self._data, at + HEADER_SIZE, at + size):
            head = bytes(self._data[start : start + 20])
            if head.startswith(_CUBIN) and head.endswith(_CUDA):
                raise UnreadableBinary(f"a damaged cubin: it reaches over the one at {start:#x}", offset=at)
