"""Reads the names in a cubin from its first bytes, before its code.

A large library has gigabytes of code to a megabyte of names: that makes a search by name, and the proof that
there is no line table, quick. ptxas writes the ELF header, the sections' names, the symbols' names, then the symbol
table, and the section headers at the very end; NVIDIA's own assembler writes headers, symbols and names first.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Iterable, Iterator
from typing import Final

from vdbg_env.cuda.binary.elf import EM_CUDA, HEADER_SIZE, MAGIC, SHT_STRTAB, Buffer

_CODE: Final = ".text."
_HEADER: Final = struct.Struct("<18xH20xQ10xHHH")  # e_machine, e_shoff, e_shentsize, e_shnum, e_shstrndx
_ROW: Final = struct.Struct("<4xI16xQQ24x")  # sh_type, sh_offset, sh_size
TABLES_START: Final = b"\0.shstrtab\0.strtab\0.symtab\0"
_NULL_SYMBOL: Final = bytes(24)
_NOT_ZERO: Final = re.compile(rb"[^\0]")
_FUNCTION: Final = re.compile(rb"\0\.text\.([^\0]+)")  # at once: a loop over `behind` takes twice as long
_OVERLAP: Final = 32  # longer than anything searched for: nothing is lost between two pieces
_LARGEST_TABLES: Final = 64 << 20


class CubinNames:
    """Names of a cubin: tables of strings that end in a zero byte each, the first after one."""

    def __init__(self, tables: bytearray) -> None:
        self._tables: Final = tables

    @property
    def key(self) -> int:
        """What equal tables share; keyed by chance in each process, so no file can be written to collide."""
        return hash(bytes(self._tables))

    def has(self, name: str) -> bool:
        """Return whether some string is, or ends in, a name."""
        return name.encode() + b"\0" in self._tables

    def behind(self, prefix: str) -> Iterator[str]:
        """Yield the rest of each name that starts with `prefix`."""
        needle = b"\0" + prefix.encode()
        at = self._tables.find(needle)
        while at >= 0:
            start = at + len(needle)
            end = self._tables.find(b"\0", start)
            yield self._tables[start : end if end >= 0 else None].decode("utf-8", "backslashreplace")
            at = self._tables.find(needle, start)

    def count(self, prefix: str) -> int:
        """Return how many names start with `prefix`."""
        return self._tables.count(b"\0" + prefix.encode())

    def holding(self, part: bytes) -> set[str]:
        """Return every name that may be a function's and has some bytes in it."""
        found = set()
        at = self._tables.find(part)
        while at >= 0:
            start, end = self._tables.rfind(b"\0", 0, at) + 1, self._tables.find(b"\0", at)
            name = self._tables[start : end if end >= 0 else None].decode("utf-8", "backslashreplace")
            if not name.startswith(".") or name.startswith(_CODE):
                found.add(name.removeprefix(_CODE))
            at = self._tables.find(part, end) if end >= 0 else -1
        return found

    def functions(self) -> Iterator[str]:
        """Yield the mangled names of the functions that have a section for themselves, kernels among them."""
        return (name.decode("utf-8", "backslashreplace") for name in _FUNCTION.findall(self._tables))


def read_section_names(pieces: Iterable[Buffer]) -> CubinNames | None:
    """Read the names of a cubin's sections from its first bytes, piece by piece; None for another layout than ptxas's.

    A section needs its name in the table: what is not there, the cubin does not have.
    """
    data, end = _expand(pieces, _end_of_section_names)
    if end < 0:
        return None
    machine, _, _, count, _ = _HEADER.unpack_from(data)
    names = _cut(data, end)
    return CubinNames(names) if machine == EM_CUDA and 0 < count <= names.count(b"\0") else None


def read_names(pieces: Iterable[Buffer]) -> CubinNames | None:
    """Read the names of a cubin's sections and symbols from its first bytes; None for a layout that is not known."""
    rest = iter(pieces)
    data, end = _expand(rest, _end_of_all_names)
    if len(data) < HEADER_SIZE:
        return None
    machine, table, stride, count, _ = _HEADER.unpack_from(data)
    if machine != EM_CUDA or not count:
        return None
    if end >= 0:
        return CubinNames(_cut(data, end))
    if table == HEADER_SIZE and stride == _ROW.size:
        return _names_behind_headers(data, rest, count)
    return None


def _expand(pieces: Iterable[Buffer], find_end: Callable[[bytearray, int], tuple[int, int]]) -> tuple[bytearray, int]:
    """Expand up to the end of the names; returns what was expanded, and the end, -1 where the layout is another.

    `find_end` is given where to look from; it returns the end, or -1, and where to look from next.
    """
    data = bytearray()
    start = HEADER_SIZE
    for piece in pieces:
        data += piece
        if not data.startswith(MAGIC) or not data.startswith(TABLES_START, HEADER_SIZE):
            break
        end, start = find_end(data, start)
        if end >= 0:
            return data, end
    return data, -1


def _cut(data: bytearray, end: int) -> bytearray:
    """Drop the ELF header and what is behind the names, in place: there may be megabytes of names."""
    del data[end + 1 :]
    del data[:HEADER_SIZE]
    return data


def _end_of_section_names(data: bytearray, start: int) -> tuple[int, int]:
    # Up to sm_89 the symbols' names start with the whole name table once more; later, the null symbol ends both.
    end = data.find(TABLES_START, start + 1)
    return end if end >= 0 else data.find(_NULL_SYMBOL, start), max(HEADER_SIZE, len(data) - _OVERLAP)


def _end_of_all_names(data: bytearray, start: int) -> tuple[int, int]:
    while (end := data.find(_NULL_SYMBOL, start)) >= 0:
        following = _NOT_ZERO.search(data, end + len(_NULL_SYMBOL))
        if following is None or following.start() + 4 > len(data):
            return -1, end
        start = following.start()
        if 0 in data[start : start + 4]:  # a symbol's number of a name; else a gap, as ptxas leaves from sm_90 on
            return end, end
    return -1, max(start, len(data) - _OVERLAP)


def _names_behind_headers(data: bytearray, rest: Iterator[Buffer], count: int) -> CubinNames | None:
    """Read the tables of strings that headers at the start of a cubin name, as far as they come before the code."""
    end = HEADER_SIZE + count * _ROW.size
    _expand_to(data, rest, end)
    rows = list(_ROW.iter_unpack(data[HEADER_SIZE:end])) if len(data) >= end else []
    tables = [(start, start + size) for kind, start, size in rows if kind == SHT_STRTAB]
    last = max((end for _, end in tables), default=0)
    if not 0 < last <= _LARGEST_TABLES:
        return None
    _expand_to(data, rest, last)
    if len(data) < last:
        return None
    return CubinNames(bytearray(b"\0").join(data[start:end] for start, end in tables))


def _expand_to(data: bytearray, rest: Iterator[Buffer], end: int) -> None:
    while len(data) < end and (piece := next(rest, None)) is not None:
        data += piece
