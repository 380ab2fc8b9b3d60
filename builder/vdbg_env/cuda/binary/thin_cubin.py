"""Expands of a compressed cubin only what a check of its line table needs, in memory of that size.

Over half of a cubin with line info is the PTX text that ptxas embeds, and most of the rest is code and its constants.
The section headers are at the end, so the payload is expanded twice: once to find them, once to keep some sections.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator
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


def thin(pieces: Pieces, size: int) -> bytes | None:
    """Return a cubin of `size` bytes whose other sections have their headers but no contents.

    `pieces` starts the expansion anew. Returns None for a layout that nvcc does not write; such a cubin is read whole.
    Raises UnreadableBinary when the payload is damaged.
    """
    (head,) = _ranges(pieces(), [(0, HEADER_SIZE)])
    if len(head) < HEADER_SIZE or head[4:6] != b"\2\1":
        return None
    at, stride, count, names = _TABLE.unpack_from(head)
    if stride != _ROW.size or not 0 < names < count or not HEADER_SIZE <= at <= size - stride * count:
        return None
    (table,) = _ranges(pieces(), [(at, at + stride * count)])
    rows = [list(row) for row in _ROW.iter_unpack(table)] if len(table) == stride * count else []
    if not rows or rows[names][5] > _LARGEST_TABLE:
        return None
    (strings,) = _ranges(pieces(), [(rows[names][4], rows[names][4] + rows[names][5])])
    kept = [row for row in rows if _name(strings, row[0]) in _KEPT and row[1] != SHT_NOBITS and row[5]]
    kept.sort(key=lambda row: row[4])
    if any(row[4] + row[5] > size for row in kept):
        raise UnreadableBinary("a section of a cubin ends behind the cubin", offset=at)
    body = bytearray(head)
    for row, contents in zip(kept, _ranges(pieces(), [(row[4], row[4] + row[5]) for row in kept]), strict=True):
        row[4] = len(body)
        body += contents
    for row in rows:
        if row not in kept:
            row[1], row[4] = (SHT_NOBITS if row[1] else 0), 0
    body[40:48] = len(body).to_bytes(8, "little")
    return bytes(body) + b"".join(_ROW.pack(*row) for row in rows)


def _ranges(pieces: Iterable[Buffer], wanted: list[tuple[int, int]]) -> Iterator[bytes]:
    """Yield the bytes of ranges that are in order, and stop expanding behind the last."""
    found = [bytearray() for _ in wanted]
    last = max((end for _, end in wanted), default=0)
    at = 0
    for piece in pieces:
        view = memoryview(piece)
        for held, (start, end) in zip(found, wanted, strict=True):
            if start < at + len(view) and end > at:
                held += view[max(start - at, 0) : end - at]
        at += len(view)
        if at >= last:
            break
    return iter([bytes(held) for held in found])


def _name(strings: bytes, at: int) -> bytes:
    return strings[at : strings.find(b"\0", at)]
