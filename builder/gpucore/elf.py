"""Reads 64-bit little-endian ELF: sections and symbols of host libraries, cubins and GPU core dumps alike.

Also what ptxas notes of a kernel in a section: its parameters, and where its indirect branches lead.

Layout: System V gABI chapter 4. A GPU core has one section per register file of each lane, easily 275,000 of them, and
a wheel holds thousands of cubins, so headers are unpacked in one sweep and names are decoded only when asked for.
Every offset is from the file and is checked against it; what does not fit raises UnreadableBinary.
"""

from __future__ import annotations

import itertools
import operator
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Final, NamedTuple

from gpucore.errors import UnreadableBinary

Buffer = bytes | bytearray | memoryview

ELF_MAGIC: Final = b"\x7fELF"
EM_CUDA: Final = 190
ET_REL: Final = 1
ET_EXEC: Final = 2
ET_CORE: Final = 4
SHT_SYMTAB: Final = 2
SHT_STRTAB: Final = 3
SHT_NOBITS: Final = 8
SHF_EXECINSTR: Final = 0x4
STT_FUNC: Final = 2
SHN_XINDEX: Final = 0xFFFF

HEADER_SIZE: Final = 64
_HEADER: Final = struct.Struct("<4s5B7xHHIQQQIHHHHHH")
_SECTION: Final = struct.Struct("<IIQQQQIIQQ")
_SEGMENT: Final = struct.Struct("<I4xQ16xQ16x")  # p_type, p_offset, p_filesz
_MANY_SEGMENTS: Final = 0xFFFF  # PN_XNUM
_SYMBOL: Final = struct.Struct("<IBBHQQ")
_NAME_OFFSET: Final = struct.Struct("<I60x")
_NUL: Final = b"\0"


class Section(NamedTuple):
    """One section header (gABI figure 4-10), with its number; `name_offset` points into the section name table."""

    number: int
    name_offset: int
    type: int
    flags: int
    address: int
    offset: int
    size: int
    link: int
    info: int
    alignment: int
    entry_size: int


class Symbol(NamedTuple):
    """One symbol (gABI figure 4-15); `section` is the raw index, which may be a reserved one such as SHN_ABS."""

    name_offset: int
    info: int
    other: int
    section: int
    value: int
    size: int

    @property
    def type(self) -> int:
        """The symbol's type, such as STT_FUNC."""
        return self.info & 0xF


@dataclass(frozen=True, kw_only=True)
class Identity:
    """The two bytes by which CUDA marks the layout of its ELF files."""

    os_abi: int
    abi_version: int

    @property
    def known(self) -> bool:
        """Whether this is one of the two identities seen from NVIDIA: 0x33/7 (to 12.x, and cores) and 0x41/8 (13.x)."""
        return self in (CUDA_12, CUDA_13)

    def __str__(self) -> str:
        return f"{self.os_abi:#04x}/{self.abi_version}"


CUDA_12: Final = Identity(os_abi=0x33, abi_version=7)
CUDA_13: Final = Identity(os_abi=0x41, abi_version=8)


class Elf:
    """An ELF file over bytes that stay the caller's; sections and names are read on first use.

    Raises UnreadableBinary from the constructor when the header or the section table is not within the bytes.
    """

    type: int
    machine: int
    version: int
    entry: int
    flags: int

    def __init__(self, data: Buffer) -> None:
        self.data: Final = memoryview(data)
        if len(self.data) < HEADER_SIZE:
            raise UnreadableBinary(f"an ELF header takes {HEADER_SIZE} bytes, these are {len(self.data)}", offset=0)
        (
            magic, elf_class, encoding, _ident_version, os_abi, abi_version,
            self.type, self.machine, self.version, self.entry, self._segments_at, self._table, self.flags,
            _ehsize, self._segment_stride, self._segment_count, self._stride, count, names,
        ) = _HEADER.unpack_from(self.data)  # fmt: skip
        if magic != ELF_MAGIC:
            raise UnreadableBinary("not an ELF file: the magic number is missing", offset=0)
        if elf_class != 2 or encoding != 1:
            raise UnreadableBinary("not a 64-bit little-endian ELF file", offset=4)
        self.identity: Final = Identity(os_abi=os_abi, abi_version=abi_version)
        self.section_count, self._names_index = self._extended_numbering(count, names)
        self._check_table()

    def _extended_numbering(self, count: int, names: int) -> tuple[int, int]:
        """Return the section count and the name table's index; more than 65,279 of them are in section 0 (gABI)."""
        if self._table == 0 or (count != 0 and names != SHN_XINDEX):
            return (0 if self._table == 0 else count), names
        if self._stride < _SECTION.size or self._table + _SECTION.size > len(self.data):
            raise UnreadableBinary("section 0 lies outside the file", offset=self._table, cause=_TRUNCATED)
        zero = _SECTION.unpack_from(self.data, self._table)
        return (count or zero[5]), (zero[6] if names == SHN_XINDEX else names)

    def _check_table(self) -> None:
        if self.section_count == 0:
            return
        if self._stride < _SECTION.size:
            raise UnreadableBinary(f"section headers of {self._stride} bytes; they take {_SECTION.size}", offset=58)
        end = self._table + self.section_count * self._stride
        if end > len(self.data):
            what = f"the section table ends at {end:#x}, the file at {len(self.data):#x}"
            raise UnreadableBinary(what, offset=self._table, cause=_TRUNCATED)

    @property
    def is_cuda(self) -> bool:
        """Whether this is device code or a GPU core rather than a host file."""
        return self.machine == EM_CUDA

    @property
    def arch(self) -> int | None:
        """The SM architecture of a cubin, such as 90; None when the file is not CUDA's or does not say.

        OSABI 0x41 keeps it in bits 8 to 15 of e_flags, 0x33 in the low byte.
        """
        if not self.is_cuda or self.type == ET_CORE:
            return None
        number = (self.flags if self._is_of_cuda_12 else self.flags >> 8) & 0xFF
        return number or None

    @property
    def accelerated(self) -> bool:
        """Whether a cubin is for an architecture with a letter, such as sm_90a, by e_flags or `.nv.compat`.

        LLVM's ELF.h: EF_CUDA_ACCELERATORS_V1 with OSABI 0x33, EF_CUDA_ACCELERATORS with 0x41. Not every ptxas sets
        them.

        Raises UnreadableBinary when the section is not within the file.
        """
        if self.flags & (0x800 if self._is_of_cuda_12 else 0x8):
            return True
        section = self.section(".nv.compat")
        noted = _attributes(self.contents(section)) if section else ()
        return any(attribute == _ONE_ARCHITECTURE and value[:1] == b"\1" for attribute, value in noted)

    @property
    def _is_of_cuda_12(self) -> bool:
        return self.identity.os_abi == CUDA_12.os_abi

    @cached_property
    def sections(self) -> tuple[Section, ...]:
        """Every section header in file order, section 0 included."""
        return tuple([Section(number, *row) for number, row in enumerate(self._rows(_SECTION))])

    def _rows(self, layout: struct.Struct) -> Iterator[tuple[int, ...]]:
        """Unpack the same part of every section header."""
        table = self.data[self._table : self._table + self.section_count * self._stride]
        if self._stride == layout.size:
            return layout.iter_unpack(table)
        return (layout.unpack_from(table, number * self._stride) for number in range(self.section_count))

    def sections_of(self, types: frozenset[int]) -> tuple[Section, ...]:
        """Return the sections of some types and leave the others packed: a core has few tables among many registers."""
        wanted = map(types.__contains__, self.section_types)
        return tuple(map(self.header, itertools.compress(itertools.count(), wanted)))

    @cached_property
    def section_types(self) -> list[int]:
        """The type of every section, in file order."""
        if self._stride != _SECTION.size or not self.section_count:
            return [section.type for section in self.sections]
        return self._headers.cast("I")[1 :: _SECTION.size // 4].tolist()

    def numbers_of(self, kind: int) -> Iterator[int]:
        """Yield the number of every section of a type, in file order."""
        return itertools.compress(itertools.count(), map(kind.__eq__, self.section_types))

    def section_links(self, kind: int) -> list[int]:
        """Return the parent of every section of a type, in file order: `sh_info` above the 32 bits of `sh_link`."""
        wanted = map(kind.__eq__, self.section_types)
        if self._stride != _SECTION.size or not self.section_count:
            return [section.info << 32 | section.link for section in itertools.compress(self.sections, wanted)]
        return list(itertools.compress(self._column(5), wanted))

    def extents(self) -> tuple[list[int], list[int]]:
        """Return where contents start, and where they end, both in rising order; the section table counts as contents.

        Sections without contents are left out.
        """
        if self._stride != _SECTION.size or not self.section_count:
            starts, sizes = [s.offset for s in self.sections], [s.size for s in self.sections]
        else:
            starts, sizes = self._column(3), self._column(4)
        sizes[:1] = [0]  # of section 0 the size is the number of sections, where there are many
        ends = itertools.compress(map(operator.add, starts, sizes), sizes)
        return sorted([*itertools.compress(starts, sizes), self._table]), sorted([*ends, self.table_end])

    def _column(self, number: int) -> list[int]:
        """Return the eight bytes of that number of every section header."""
        return self._headers.cast("Q")[number :: _SECTION.size // 8].tolist()

    @property
    def table_end(self) -> int:
        """Where the section table ends, in bytes; 0 without one."""
        return self._table + self.section_count * self._stride if self.section_count else 0

    @cached_property
    def contents_end(self) -> int:
        """Where the last section's contents end, in bytes; beyond the file's own end when it was cut short."""
        if self._stride != _SECTION.size or not self.section_count:
            return max((s.offset + s.size for s in self.sections if s.type != SHT_NOBITS), default=0)
        ends = map(operator.add, self._column(3), self._column(4))
        return max(itertools.compress(ends, map(SHT_NOBITS.__ne__, self.section_types)), default=0)

    @cached_property
    def end(self) -> int:
        """Where the file ends by its own headers, in bytes: behind the last section, segment or table of headers.

        ptxas writes the program headers last. A segment whose header is not within the bytes counts by its header.
        """
        end = max(HEADER_SIZE, self.table_end, self.contents_end)
        count = self._segment_count
        if count == _MANY_SEGMENTS and self.section_count:
            count = self.header(0).info
        if not count or not self._segments_at or self._segment_stride < _SEGMENT.size:
            return end
        rows = self.data[self._segments_at : self._segments_at + count * self._segment_stride]
        whole = range(0, len(rows) - _SEGMENT.size + 1, self._segment_stride)
        segments = (_SEGMENT.unpack_from(rows, at) for at in whole)
        ends: list[int] = [offset + size for kind, offset, size in segments if kind and size]
        headers_end: int = self._segments_at + count * self._segment_stride
        return max(end, headers_end, *ends)

    @property
    def _headers(self) -> memoryview:
        return self.data[self._table : self._table + self.section_count * self._stride]

    @cached_property
    def section_names(self) -> bytes:
        """The section name table (`.shstrtab`) unchanged; empty when the file has none."""
        if self._names_index == 0 or not self.section_count:
            return b""
        if self._names_index >= self.section_count:
            what = f"the name table should be section {self._names_index} of {self.section_count}"
            raise UnreadableBinary(what, offset=62)
        return bytes(self.contents(self.header(self._names_index)))

    def header(self, index: int) -> Section:
        """Unpack one header without reading all the others."""
        return Section(index, *_SECTION.unpack_from(self.data, self._table + index * self._stride))

    def name(self, section: Section) -> str:
        """Return a section's name; empty when its offset is outside the name table."""
        return _string(self.section_names, section.name_offset)

    def section(self, name: str) -> Section | None:
        """Return the first section called exactly `name`, or None."""
        return next(self.sections_named(name), None)

    def sections_named(self, name: str) -> Iterator[Section]:
        """Yield the sections called exactly `name`; several GPU core sections may share one."""
        return self._at_names(name.encode() + _NUL)

    def sections_starting(self, prefix: str) -> Iterator[Section]:
        """Yield the sections whose names start with `prefix`."""
        return self._at_names(prefix.encode())

    def _at_names(self, needle: bytes) -> Iterator[Section]:
        # Strings may share tails (".rela.debug_line" holds ".debug_line"), so a hit in the table proves nothing by
        # itself: a section header must point at exactly that place.
        places = set(_occurrences(self.section_names, needle))
        if places:
            yield from (self.header(n) for n, offset in enumerate(self._name_offsets) if offset in places)

    @cached_property
    def _name_offsets(self) -> tuple[int, ...]:
        # Apart from `sections`: most cubins are asked for one section of hundreds, and thousands of cubins are.
        return tuple([offset for (offset,) in self._rows(_NAME_OFFSET)])

    def contents(self, section: Section) -> memoryview:
        """Return a section's bytes without copying; a section without file contents (SHT_NOBITS) gives none."""
        if section.type == SHT_NOBITS or section.size == 0:
            return self.data[:0]
        end = section.offset + section.size
        if end > len(self.data):
            what = f"section {section.number} ends at {end:#x}, the file at {len(self.data):#x}"
            raise UnreadableBinary(what, offset=section.offset, cause=_TRUNCATED)
        return self.data[section.offset : end]

    @cached_property
    def symbols(self) -> tuple[Symbol, ...]:
        """Every symbol in file order: a symbol's number is its place here; empty without a symbol table."""
        table = self._symbol_table
        if table is None:
            return ()
        rows = self.contents(table)
        whole = len(rows) - len(rows) % _SYMBOL.size
        return tuple([Symbol(*row) for row in _SYMBOL.iter_unpack(rows[:whole])])

    def symbol_name(self, symbol: Symbol) -> str:
        """Return a symbol's name, mangled as it is; empty when its offset is outside the string table."""
        return _string(self._symbol_strings, symbol.name_offset)

    def symbol_names_starting(self, prefix: str) -> Iterator[str]:
        """Yield the names of the symbols' string table that start with `prefix`, whether a symbol has them or not."""
        needle = _NUL + prefix.encode()
        yield from (_string(self._symbol_strings, at + 1) for at in _occurrences(self._symbol_strings, needle))

    @cached_property
    def _symbol_table(self) -> Section | None:
        return next((s for s in self.sections if s.type == SHT_SYMTAB), None)

    @cached_property
    def _symbol_strings(self) -> bytes:
        table = self._symbol_table
        if table is None:
            return b""
        if table.link >= self.section_count:
            where = self._table + table.number * self._stride
            raise UnreadableBinary(f"the symbols' names should be in section {table.link}", offset=where)
        return bytes(self.contents(self.sections[table.link]))


_TRUNCATED: Final = "the file was cut short: a full disk, an interrupted copy, a writer that was killed"
_LONGEST_NAME: Final = 1 << 16  # mangled template names reach tens of kilobytes; more is damage


def looks_like_elf(data: Buffer) -> bool:
    """Return whether the bytes start with ELF's magic number."""
    return bytes(data[:4]) == ELF_MAGIC


def is_core(data: Buffer) -> bool:
    """Return whether the bytes start as a core dump, of a GPU or of a process."""
    return looks_like_elf(data) and bytes(data[16:18]) == ET_CORE.to_bytes(2, "little")


def _string(table: bytes, offset: int) -> str:
    """Return the NUL-terminated string at `offset`, cut at 64 KiB; bytes that are no UTF-8 are shown escaped."""
    end = table.find(_NUL, offset, offset + _LONGEST_NAME)
    return table[offset : end if end >= 0 else offset + _LONGEST_NAME].decode(errors="backslashreplace")


def _occurrences(haystack: bytes, needle: bytes) -> Iterator[int]:
    place = haystack.find(needle)
    while place >= 0:
        yield place
        place = haystack.find(needle, place + 1)


# Reads what ptxas notes of a cubin and its kernels in `.nv.info.KERNEL` and `.nv.compat`.
#
# Both are rows of a format byte, an attribute byte, and a value: two bytes, or a 16-bit length and as many bytes. The
# format is not published; attributes and layouts were compared with `cuobjdump -elf` 13.x on cubins for sm_80 to
# sm_120.


_SIZED: Final = 4
_PARAMETERS_AT: Final = 0x0A  # EIATTR_PARAM_CBANK
_PARAMETER: Final = 0x17  # EIATTR_KPARAM_INFO: size in the upper 14 bits
_PARAMETER_V2: Final = 0x45  # EIATTR_KPARAM_INFO_V2, where a kernel has over 4 KiB of them: size in the lower 16 bits
_BRANCH_TARGETS: Final = 0x34  # EIATTR_INDIRECT_BRANCH_TARGETS: words: place, 0, how many, each
_ONE_ARCHITECTURE: Final = 0x09  # of .nv.compat: 1 for sm_90a and its like
_PARAMETER_ROW: Final = struct.Struct("<IHHI")
_BANK: Final = struct.Struct("<IHH")


@dataclass(frozen=True, kw_only=True, slots=True)
class ParameterPlace:
    """Where a kernel's parameter is: bytes from the start of all parameters, and its size in bytes."""

    ordinal: int
    offset: int
    size: int


@dataclass(frozen=True, kw_only=True)
class ParameterTable:
    """The parameters of a kernel, in order; `bank_offset` is where they start in constant bank 0."""

    parameters: tuple[ParameterPlace, ...]
    bank_offset: int | None
    size: int | None


def dimensions_at(bank_offset: int) -> tuple[int, int]:
    """Return where constant bank 0 has blockDim and gridDim, three words each, by where it has the parameters.

    The driver puts them there: behind other values from sm_100 on, whose parameters begin at 0x380.
    """
    return (0x360, 0x370) if bank_offset >= 0x380 else (0x0, 0xC)


def read_parameter_table(elf: Elf, kernel: str) -> ParameterTable | None:
    """Return the parameter table of a kernel, by its mangled name; None where the cubin has none for it.

    Raises UnreadableBinary when the section is not within the file.
    """
    section = elf.section(f".nv.info.{kernel}")
    if section is None:
        return None
    found: dict[int, ParameterPlace] = {}
    bank_offset = size = None
    for attribute, value in _attributes(elf.contents(section)):
        if attribute in (_PARAMETER, _PARAMETER_V2) and len(value) >= _PARAMETER_ROW.size:
            _index, ordinal, offset, packed = _PARAMETER_ROW.unpack_from(value)
            taken = packed >> 18 if attribute == _PARAMETER else packed & 0xFFFF
            found[ordinal] = ParameterPlace(ordinal=ordinal, offset=offset, size=taken)
        elif attribute == _PARAMETERS_AT and len(value) >= _BANK.size:
            _symbol, bank_offset, size = _BANK.unpack_from(value)
    places = tuple(found[ordinal] for ordinal in sorted(found))
    return ParameterTable(parameters=places, bank_offset=bank_offset, size=size)


def read_branch_targets(elf: Elf, function: str) -> dict[int, tuple[int, ...]]:
    """Return where each indirect branch (BRX, JMX) of a function's section may lead, by the branch's own offset.

    Offsets are in bytes from the start of the section. Empty where the cubin does not say.
    Raises UnreadableBinary when the section is not within the file.
    """
    section = elf.section(f".nv.info.{function}")
    found: dict[int, tuple[int, ...]] = {}
    for attribute, value in _attributes(elf.contents(section)) if section else ():
        if attribute == _BRANCH_TARGETS:
            words = struct.unpack_from(f"<{len(value) // 4}I", value)
            while len(words) >= 3 and 0 < words[2] <= len(words) - 3:
                found[words[0]] = words[3 : 3 + words[2]]
                words = words[3 + words[2] :]
    return found


def _attributes(data: Buffer) -> Iterator[tuple[int, bytes]]:
    """Yield attributes and their values up to the first that is not whole."""
    at = 0
    while at + 4 <= len(data):
        form, attribute, length = struct.unpack_from("<BBH", data, at)
        at += 4
        if form != _SIZED:
            yield attribute, bytes(data[at - 2 : at])
        elif at + length <= len(data):
            yield attribute, bytes(data[at : at + length])
            at += length
        else:
            return


# Reads `ar` archives (`.a`, static libraries): each member's name and bytes.
#
# Formats: the System V/GNU variant (long names in the member `//`) and the BSD one (`#1/`, long names before the
# contents), as in GNU binutils' `ar` and FreeBSD's ar(5).


AR_MAGIC: Final = b"!<arch>\n"
THIN_AR_MAGIC: Final = b"!<thin>\n"

_HEADER_SIZE: Final = 60
_LONGEST_MEMBER_NAME: Final = 4096  # of a path on Linux; a table without line breaks would be copied for each member
_INDEXES: Final = {"/", "/SYM64/", "__.SYMDEF", "__.SYMDEF SORTED"}  # symbol indexes of the linker, no members


@dataclass(frozen=True, kw_only=True)
class Member:
    """One file inside an archive."""

    name: str
    data: memoryview


def looks_like_archive(data: Buffer) -> bool:
    """Return whether the bytes start as an archive, thin ones included."""
    return bytes(data[:8]) in (AR_MAGIC, THIN_AR_MAGIC)


def members(data: Buffer) -> Iterator[Member]:
    """Yield the members of an archive without copying them.

    Raises UnreadableBinary on a damaged header, on a member that is not within the bytes, and on a thin archive,
    whose members are other files.
    """
    view = memoryview(data)
    if bytes(view[:8]) == THIN_AR_MAGIC:
        raise UnreadableBinary(
            "a thin archive names its members but does not hold them",
            offset=0,
            next_step="name the folder of the object files instead",
        )
    if bytes(view[:8]) != AR_MAGIC:
        raise UnreadableBinary("not an archive: the magic line is missing", offset=0)
    long_names = b""
    place = len(AR_MAGIC)
    while place < len(view):
        name, size = _header(view, place)
        start = place + _HEADER_SIZE
        place = start + size + size % 2
        contents = view[start : start + size]
        if name == "//":
            long_names = bytes(contents)
        elif name not in _INDEXES:
            member = _named(name, contents, long_names, start - _HEADER_SIZE)
            if member.name not in _INDEXES:
                yield member


def _header(view: memoryview, place: int) -> tuple[str, int]:
    """Return the raw name and the size of the member whose header starts at `place`."""
    header = bytes(view[place : place + _HEADER_SIZE])
    if len(header) < _HEADER_SIZE or header[58:] != b"`\n":
        raise UnreadableBinary("a damaged member header in an archive", offset=place)
    digits = header[48:58].strip()
    if not digits.isdigit():
        raise UnreadableBinary(f"an archive member of size {digits.decode('latin-1')!r}", offset=place + 48)
    size = int(digits)
    if place + _HEADER_SIZE + size > len(view):
        raise UnreadableBinary(f"an archive member of {size} bytes runs past the end of the file", offset=place)
    return header[:16].decode("utf-8", "backslashreplace").rstrip(), size


def _named(raw: str, contents: memoryview, long_names: bytes, place: int) -> Member:
    if raw.startswith("#1/") and raw[3:].isdecimal():
        length = int(raw[3:])
        name = bytes(contents[:length]).rstrip(b"\0")
        return Member(name=name.decode("utf-8", "backslashreplace"), data=contents[length:])
    if raw.startswith("/") and raw[1:].isdecimal():
        start = int(raw[1:])
        if start >= len(long_names):
            raise UnreadableBinary("an archive member's long name lies outside the name table", offset=place)
        name = long_names[start : start + _LONGEST_MEMBER_NAME].partition(b"\n")[0].removesuffix(b"/")
        return Member(name=name.decode("utf-8", "backslashreplace"), data=contents)
    return Member(name=raw.removesuffix("/"), data=contents)


# Reads the section table of a PE file (Windows DLLs and programs), as Microsoft's "PE Format" has it.


DOS_MAGIC: Final = b"MZ"

_POINTER_AT: Final = 0x3C
_SIGNATURE: Final = b"PE\0\0"
_COFF: Final = struct.Struct("<HHIIIHH")
_PE_SECTION: Final = struct.Struct("<8sIIIIIIHHI")


class PeSection(NamedTuple):
    """A section and where it is in the file; `name` has eight letters at most: `.nv_fatbin` is `.nv_fatb` here."""

    name: str
    start: int
    end: int


def looks_like_pe(data: memoryview | bytes) -> bool:
    """Return whether the bytes start as a program of DOS or Windows."""
    return bytes(data[:2]) == DOS_MAGIC


def read_sections(data: memoryview) -> tuple[PeSection, ...]:
    """Return the sections within the file; none where it is not a PE file or its table is cut off."""
    if len(data) < _POINTER_AT + 4:
        return ()
    (header,) = struct.unpack_from("<I", data, _POINTER_AT)
    table = header + len(_SIGNATURE) + _COFF.size
    if table > len(data) or bytes(data[header : header + 4]) != _SIGNATURE:
        return ()
    _, count, _, _, _, optional, _ = _COFF.unpack_from(data, header + len(_SIGNATURE))
    rows = data[table + optional : table + optional + count * _PE_SECTION.size]
    found = []
    for name, _, _, size, start, *_ in _PE_SECTION.iter_unpack(rows[: len(rows) - len(rows) % _PE_SECTION.size]):
        if start + size <= len(data):
            found.append(PeSection(name.rstrip(b"\0").decode("utf-8", "backslashreplace"), start, start + size))
    return tuple(found)
