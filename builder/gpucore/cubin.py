"""Reads the names in a cubin from its first bytes, before its code.

A large library has gigabytes of code to a megabyte of names: that makes a search by name, and the proof that
there is no line table, quick. ptxas writes the ELF header, the sections' names, the symbols' names, then the symbol
table, and the section headers at the very end; NVIDIA's own assembler writes headers, symbols and names first.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Final

from gpucore.elf import ELF_MAGIC, EM_CUDA, HEADER_SIZE, SHF_EXECINSTR, SHT_NOBITS, SHT_STRTAB, Buffer, Elf, Section
from gpucore.errors import UnreadableBinary

_CODE: Final = ".text."
_HEADER: Final = struct.Struct("<18xH20xQ10xHHH")  # e_machine, e_shoff, e_shentsize, e_shnum, e_shstrndx
_SECTION_ROW: Final = struct.Struct("<4xI16xQQ24x")  # sh_type, sh_offset, sh_size
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
    if table == HEADER_SIZE and stride == _SECTION_ROW.size:
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
        if not data.startswith(ELF_MAGIC) or not data.startswith(TABLES_START, HEADER_SIZE):
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
    end = HEADER_SIZE + count * _SECTION_ROW.size
    _expand_to(data, rest, end)
    rows = list(_SECTION_ROW.iter_unpack(data[HEADER_SIZE:end])) if len(data) >= end else []
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


# Says of a cubin what a proof of line info needs: its architecture, its kernels, and which debug sections it has.
#
# A cubin has line info when one of its *section headers* bears exactly the name `.debug_line`. The name alone proves
# nothing: nvcc leaves it in the name tables of cubins without the section, and `.nv_debug_line_sass` contains it.


KERNELS_NAMED: Final = 16
"""How many kernels of one cubin are named: libtorch_cuda.so alone holds 147,201, which say no more than the first."""

# Constant bank 0 holds the launch parameters: every kernel has one, a device function compiled apart has none.
_KERNEL: Final = ".nv.constant0."


@dataclass(frozen=True, kw_only=True)
class Cubin:
    """What one cubin holds.

    `device_debug` says that it was compiled with -G, which turns optimisation off. `kernels` are the mangled names of
    its first KERNELS_NAMED kernels, `kernel_count` counts them all; device functions compiled apart are not kernels.
    """

    has_code: bool
    has_debug_line: bool
    device_debug: bool
    kernels: tuple[str, ...]
    kernel_count: int


def read_cubin(data: Buffer) -> Cubin:
    """Read a cubin by its section headers; raises UnreadableBinary when it is damaged or not device code."""
    elf = Elf(data)
    if not elf.is_cuda:
        raise UnreadableBinary(f"not a cubin: the ELF file is for machine {elf.machine}, CUDA is {EM_CUDA}", offset=18)
    kernels = list(elf.sections_starting(_KERNEL))
    has_code = any(True for _ in elf.sections_starting(_CODE)) or any(map(_is_executable, elf.sections))
    if not has_code and f"\0{_CODE}".encode() in elf.section_names:
        raise UnreadableBinary("a cubin names code that it has no section of: its header is damaged", offset=60)
    return Cubin(
        has_code=has_code,
        has_debug_line=any(s.size and s.type != SHT_NOBITS for s in elf.sections_named(".debug_line")),
        device_debug=any(True for _ in elf.sections_named(".debug_info")),
        kernels=tuple(elf.name(s).removeprefix(_KERNEL) for s in kernels[:KERNELS_NAMED]),
        kernel_count=len(kernels),
    )


def _is_executable(section: Section) -> bool:
    """Return whether a section holds instructions, whatever its name."""
    return bool(section.flags & SHF_EXECINSTR and section.size)


def read_cubin_start(pieces: Iterable[Buffer]) -> Cubin | None:
    """Judge a cubin without line info by its first bytes, taken piece by piece; None when they do not settle it.

    Cubins carry their name table right behind the ELF header, then the symbols' names, then the symbol table, and their
    section headers at the very end. A section needs its name in the table, so tables without `.debug_line` prove there
    is none; that there is one is never concluded here. From any other layout nothing is concluded.
    """
    names = read_section_names(pieces)
    # Without a name of code it may be a stub, or damaged: only the section headers say that there is no code.
    if names is None or names.has(".debug_line") or not any(True for _ in names.behind(_CODE)):
        return None
    return Cubin(
        has_code=True,
        has_debug_line=False,
        device_debug=False,
        kernels=tuple(islice(names.behind(_KERNEL), KERNELS_NAMED)),
        kernel_count=names.count(_KERNEL),
    )


# Expands of a compressed cubin only what a check of its line table needs, in memory of that size.
#
# Over half of a cubin with line info is the PTX text that ptxas embeds, and most of the rest is code and its constants.
# The section headers are at the end, so the payload is expanded twice: once to find them, once to keep some sections.


Pieces = Callable[[], Iterable[Buffer]]

_KEPT: Final = (
    b".shstrtab", b".strtab", b".symtab", b".debug_line", b".rel.debug_line", b".rela.debug_line", b".note.nv.tkinfo",
)  # fmt: skip
_TABLE: Final = struct.Struct("<40xQ10xHHH")  # e_shoff, e_shentsize, e_shnum, e_shstrndx
_FULL_ROW: Final = struct.Struct("<IIQQQQIIQQ")
_LARGEST_TABLE: Final = 64 << 20
_LONGEST_KEPT: Final = max(map(len, _KEPT)) + 1
_MOST_KEPT: Final = 64  # each piece of the payload is compared with each of them


def thin(pieces: Pieces, size: int) -> bytearray | None:
    """Return a cubin of `size` bytes whose other sections have their headers but no contents.

    `pieces` starts the expansion anew. Returns None for a layout that nvcc does not write; such a cubin is read whole.
    Raises UnreadableBinary when the payload is damaged.
    """
    head = _range(pieces(), 0, HEADER_SIZE)
    if len(head) < HEADER_SIZE or head[4:6] != b"\2\1":
        return None
    at, stride, count, names = _TABLE.unpack_from(head)
    if stride != _FULL_ROW.size or not 0 < names < count or not HEADER_SIZE <= at <= size - stride * count:
        return None
    table = _range(pieces(), at, at + stride * count)
    rows = [list(row) for row in _FULL_ROW.iter_unpack(table)] if len(table) == stride * count else []
    if not rows or rows[names][5] > _LARGEST_TABLE:
        return None
    strings = _range(pieces(), rows[names][4], rows[names][4] + rows[names][5])
    kept = [row for row in rows if _name(strings, row[0]) in _KEPT and row[1] != SHT_NOBITS and row[5]]
    kept.sort(key=lambda row: row[4])
    if any(row[4] + row[5] > size for row in kept):
        raise UnreadableBinary("a section of a cubin ends behind the cubin", offset=at)
    if sum(row[5] for row in kept) > size or len(kept) > _MOST_KEPT:
        return None  # they overlap, or are not nvcc's
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
        body += _FULL_ROW.pack(*row)
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
    """Return a name as far as those that are kept go: a table without an end is as long as its file says."""
    return bytes(strings[at : at + _LONGEST_KEPT]).partition(b"\0")[0]
