"""Expands of a compressed cubin only what a check of its line table needs, in memory of that size.

Over half of a cubin with line info is the PTX text that ptxas embeds, and most of the rest is code and its constants.
The section headers are at the end, so the payload is expanded twice: once to find them, once to keep some sections.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable
from typing import Final

from vdbg_env.common.errors import UnreadableBinary
from vdbg_env.cuda.binary.elf import HEADER_SIZE, SHT_NOBITS, Buffer

Pieces = Callable[[], Iterable[Buffer]]

_KEPT: Final = (
    b".shstrtab", b".strtab", b".symtab", b".debug_line", b".rel.debug_line", b".rela.debug_line", b".note.nv.tkinfo",
)  # fmt: skip
_TABLE: Final = struct.Struct("<40xQ10xHHH")  # e_shoff, e_shentsize, e_shnum, e_shstrndx
_ROW: Final = struct.Struct("<IIQQQQIIQQ")
_LARGEST_TABLE: Final = 64 << 20


def thin(pieces: Pieces, size: int) -> bytearray | None:
    """Return a cubin of `size` bytes whose other sections have their headers but no contents.

    `pieces` starts the expansion anew. Returns None for a layout that nvcc does not write; such a cubin is read whole.
    Raises UnreadableBinary when the payload is damaged.
    """
    head = _range(pieces(), 0, HEADER_SIZE)
    if len(head) < HEADER_SIZE or head[4:6] != b"\2\1":
        return None
    at, stride, count, names = _TABLE.unpack_from(head)
    if stride != _ROW.size or not 0 < names < count or not HEADER_SIZE <= at <= size - stride * count:
        return None
    table = _range(pieces(), at, at + stride * count)
    rows = [list(row) for row in _ROW.iter_unpack(table)] if len(table) == stride * count else []
    if not rows or rows[names][5] > _LARGEST_TABLE:
        return None
    strings = _range(pieces(), rows[names][4], rows[names][4] + rows[names][5])
    kept = [row for row in rows if _name(strings, row[0]) in _KEPT and row[1] != SHT_NOBITS and row[5]]
    kept.sort(key=lambda row: row[4])
    if any(row[4] + row[5] > size for row in kept):
        raise UnreadableBinary("a section of a cubin ends behind the cubin", offset=at)
    if sum(row[5] for row in kept) > size:
        return None  # they overlap
    body = bytearray(head)
    ranges = []
    for row in kept:
        ranges.append((row[4], row[4] + row[5], len(body)))
        row[4] = len(body)
        body += bytes(row[5])
    if not _fill(body, pieces(), ranges):
        raise UnreadableBinary("a cubin ends before its sections do", offset=at)
    for row in rows:
        if row not in kept:
            row[1], row[4] = (SHT_NOBITS if row[1] else 0), 0
    body[40:48] = len(body).to_bytes(8, "little")
    for row in rows:
        body += _ROW.pack(*row)
    return body


def _range(pieces: Iterable[Buffer], start: int, end: int) -> bytearray:
    """Return the bytes of a range; none where the payload ends before."""
    found = bytearray(end - start)
    return found if _fill(found, pieces, [(start, end, 0)]) else bytearray()


def _fill(body: bytearray, pieces: Iterable[Buffer], ranges: list[tuple[int, int, int]]) -> bool:
    """Write ranges of the payload, each to its place in `body`; returns whether the payload has them all.

    They are written where they stay: a copy of the largest line table would double the memory that all of this takes.
    """
    last = max((end for _, end, _ in ranges), default=0)
    at = 0
    for piece in pieces:
        view = memoryview(piece)
        for start, end, target in ranges:
            first, behind = max(start, at), min(end, at + len(view))
            if first < behind:
                body[target + first - start : target + behind - start] = view[first - at : behind - at]
        at += len(view)
        if at >= last:
            break
    return at >= last


def _name(strings: bytearray, at: int) -> bytes:
    return bytes(strings[at : strings.find(b"\0", at)])
