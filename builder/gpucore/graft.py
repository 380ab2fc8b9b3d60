"""Adds the line tables of a rebuilt cubin to the stock one, whose every other section stays as it is.

A cubin, as ptxas writes it, is: header, section names, all other contents, section headers, program headers. The new
names go to the end of the first, the new sections behind the second, so everything keeps its order. Instructions,
constants, symbols and their names remain the stock cubin's: only relocations of the new tables are rewritten to it.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import zstandard

from gpucore import fatbin
from gpucore.elf import HEADER_SIZE, SHT_SYMTAB, Buffer, Elf, Section
from gpucore.errors import UnreadableBinary
from gpucore.fatbin import Container, Entry, EntryFlag

_TABLES: Final = (".debug_line", ".debug_str", ".nv_debug_line_sass", ".nv_debug_ptx_txt")
_RELOCATED: Final = (".debug_line", ".nv_debug_line_sass")
_RELOCATIONS: Final = {4: struct.Struct("<QQq"), 9: struct.Struct("<QQ")}
_HEADER: Final = struct.Struct("<16sHHIQQQIHHHHHH")
_E_PHOFF, _E_SHOFF, _E_PHNUM, _E_SHNUM, _P_OFFSET = 5, 6, 10, 12, 2
_SECTION: Final = struct.Struct("<IIQQQQIIQQ")
_SEGMENT: Final = struct.Struct("<IIQQQQQQ")
_SHIFT: Final = 128  # what ptxas aligns code to
_ALIGNED: Final = 8


@dataclass(frozen=True)
class _New:
    name: str
    section: Section
    data: bytes


def add_line_tables(stock: Buffer, built: Buffer, names: Mapping[str, str]) -> bytes:
    """Return the stock cubin with the line tables of `built`; `names` are built name -> stock name, where they differ.

    That both hold the same instructions is the caller's to know. Raises UnreadableBinary when either has a layout that
    ptxas does not write, or when a table speaks of a function that the stock cubin lacks.
    """
    ours, theirs = Elf(stock), Elf(built)
    if any(True for _ in ours.sections_named(".debug_line")):
        raise UnreadableBinary("the cubin has a line table already")
    return _written(ours, tuple(_new_sections(ours, theirs, names)))


def _new_sections(ours: Elf, theirs: Elf, names: Mapping[str, str]) -> Iterator[_New]:
    place = _symbol_numbers(ours)
    for name in _TABLES:
        found = theirs.section(name)
        if found:
            yield _New(name, found, bytes(theirs.contents(found)))
    for name in _RELOCATED:
        table = theirs.section(name)
        for section in theirs.sections_of(frozenset(_RELOCATIONS)):
            if table and section.info == table.number:
                yield _New(theirs.name(section), section, _rewritten(theirs, section, place, names))


def _symbol_numbers(elf: Elf) -> dict[str, int]:
    return {elf.symbol_name(symbol): number for number, symbol in enumerate(elf.symbols)}


def _rewritten(elf: Elf, section: Section, place: Mapping[str, int], names: Mapping[str, str]) -> bytes:
    """Let relocations name the same functions by their numbers in the stock symbol table."""
    form = _RELOCATIONS[section.type]
    table, symbols = elf.contents(section), elf.symbols
    rows = []
    if len(table) % form.size:
        raise UnreadableBinary("a relocation table ends within a row", offset=section.offset)
    for offset, info, *addend in form.iter_unpack(table):
        if info >> 32 >= len(symbols):
            raise UnreadableBinary("a relocation names a symbol that is not there", offset=section.offset)
        name = elf.symbol_name(symbols[info >> 32])
        number = place.get(names.get(name, name))
        if number is None:
            raise UnreadableBinary(f"the line table speaks of {name}, which the stock cubin lacks")
        rows.append(form.pack(offset, number << 32 | info & 0xFFFFFFFF, *addend))
    return b"".join(rows)


def _written(ours: Elf, added: tuple[_New, ...]) -> bytes:
    head = list(_HEADER.unpack_from(ours.data))
    segments_at, sections_at, segment_count = head[_E_PHOFF], head[_E_SHOFF], head[_E_PHNUM]
    names = next((s for s in ours.sections if ours.name(s) == ".shstrtab"), None)
    symbols = next((s for s in ours.sections if s.type == SHT_SYMTAB), None)
    if (
        names is None or symbols is None or names.offset != HEADER_SIZE
        or ours.contents_end > sections_at or not sections_at < segments_at
    ):  # fmt: skip
        raise UnreadableBinary("a cubin with another order of contents than ptxas writes")
    end = names.offset + names.size
    more = b"".join(new.name.encode() + b"\0" for new in added)
    shift = -(-len(more) // _SHIFT) * _SHIFT
    body = bytearray(ours.data[:end])
    body += more + bytes(shift - len(more)) + ours.data[end:sections_at]
    headers = [_shifted(section, end, shift) for section in ours.sections]
    headers[names.number] = names._replace(size=names.size + len(more))
    numbers = {new.section.number: len(headers) + i for i, new in enumerate(added)}
    name_at = names.size
    for new in added:
        body += bytes(-len(body) % _ALIGNED)
        target = numbers[new.section.info] if new.section.type in _RELOCATIONS else new.section.info
        link = symbols.number if new.section.type in _RELOCATIONS else new.section.link
        headers.append(
            new.section._replace(
                name_offset=name_at, offset=len(body), size=len(new.data), link=link, info=target,
            )
        )  # fmt: skip
        name_at += len(new.name) + 1
        body += new.data
    body += bytes(-len(body) % _ALIGNED)
    head[_E_SHOFF], head[_E_SHNUM] = len(body), len(headers)
    body += b"".join(_SECTION.pack(*header[1:]) for header in headers)
    head[_E_PHOFF] = len(body)
    body += b"".join(_segments(ours.data, head[_E_PHOFF], segments_at, segment_count, shift))
    body[:HEADER_SIZE] = _HEADER.pack(*head)
    return bytes(body)


def _shifted(section: Section, end: int, shift: int) -> Section:
    return section._replace(offset=section.offset + shift) if section.offset >= end else section


def _segments(data: memoryview, now_at: int, were_at: int, count: int, shift: int) -> Iterator[bytes]:
    if were_at + count * _SEGMENT.size > len(data):
        raise UnreadableBinary("the program headers lie outside the cubin", offset=were_at)
    for number in range(count):
        segment = list(_SEGMENT.unpack_from(data, were_at + number * _SEGMENT.size))
        own = segment[_P_OFFSET] == were_at  # the segment of the program headers themselves
        segment[_P_OFFSET] = now_at if own else segment[_P_OFFSET] + shift
        yield _SEGMENT.pack(*segment)


# Writes containers of a fat binary with some of their cubins replaced; whatever is not replaced stays as it is.


_CONTAINER: Final = struct.Struct("<IHHQ")

_STORED_SIZE, _COMPRESSED_SIZE, _FLAGS, _EXPANDED_SIZE = 8, 16, 40, 56  # offsets in an entry's header
_LEVEL: Final = 10


def rewrite_container(data: Buffer, container: Container, cubins: Mapping[str, bytes]) -> bytes:
    """Return a container, given with the bytes that it is in, with new cubins by their target.

    A cubin that was stored as a zstd frame is again; one that was raw, or an LZ4 block, is stored raw.
    """
    view = memoryview(data)
    header_size = _CONTAINER.unpack_from(view, container.offset)[2]
    header = bytearray(view[container.offset : container.offset + header_size])
    body = bytearray()
    for number, entry in enumerate(container.entries):
        end = container.entries[number + 1].offset if number + 1 < len(container.entries) else container.end
        new = cubins.get(entry.target)
        body += view[entry.offset : end] if new is None else _entry(view, entry, new)
    struct.pack_into("<Q", header, 8, len(body))
    return bytes(header + body)


def _entry(view: memoryview, entry: Entry, cubin: bytes) -> bytes:
    size = struct.unpack_from("<I", view, entry.offset + 4)[0]
    header = bytearray(view[entry.offset : entry.offset + size])
    flags = entry.flags & ~EntryFlag.LZ4
    stored = cubin
    compressed = expanded = 0
    if flags & EntryFlag.ZSTD:
        stored = zstandard.ZstdCompressor(level=_LEVEL).compress(cubin)
        compressed, expanded = len(stored), len(cubin)
    stored += bytes(-len(stored) % _ALIGNED)
    struct.pack_into("<Q", header, _STORED_SIZE, len(stored))
    struct.pack_into("<I", header, _COMPRESSED_SIZE, compressed)
    struct.pack_into("<Q", header, _FLAGS, flags)
    struct.pack_into("<Q", header, _EXPANDED_SIZE, expanded)
    return bytes(header) + stored


# Writes a host library with another fat binary; its host code, data and symbols stay byte for byte what they were.
#
# A larger fat binary does not fit where the old one is. So all of it goes to the end of the file, into a segment of its
# own, and the pointers in `.nvFatBinSegment`, which the loader fills in by relocations, are moved there. Where the old
# one was there are zeros.


_E_SHENTSIZE = 11

_WRAPPER: Final = struct.Struct("<IIQQ")  # __fatBinC_Wrapper_t: magic, version, container, file name
_WRAPPER_MAGIC: Final = 0x466243B1
_RELA: Final = struct.Struct("<QQq")
_RELATIVE: Final = {62: 8, 183: 1027}  # machine -> R_X86_64_RELATIVE, R_AARCH64_RELATIVE
_PT_LOAD, _PT_PHDR, _READABLE = 1, 6, 4
_SHT_RELA: Final = 4
_PAGE: Final = 0x10000  # the largest page of the machines that CUDA has
_TABLE_ALIGNED: Final = 16


def rewrite_library(data: Buffer, cubins: Mapping[int, Mapping[str, bytes]]) -> bytes:
    """Return the library with new cubins, by the number of their container and their target.

    Raises UnreadableBinary for a library of another make than nvcc's: no `.nvFatBinSegment`, or pointers there that no
    relocation fills in.
    """
    elf = Elf(data)
    section = elf.section(".nv_fatbin")
    if section is None or len(list(elf.sections_named(".nv_fatbin"))) != 1:
        raise UnreadableBinary("a library without exactly one .nv_fatbin section")
    old = elf.contents(section)
    containers = tuple(fatbin.containers(old))
    head = list(_HEADER.unpack_from(elf.data))
    segments = _segments_of(elf, head)
    at, address = _free_place(elf, segments)
    table_size = -(-(len(segments) + 1) * _SEGMENT.size // _TABLE_ALIGNED) * _TABLE_ALIGNED
    body, places = _new_fatbin(old, containers, cubins)
    moved = {
        section.address + container.offset: address + table_size + place
        for container, place in zip(containers, places, strict=True)
    }
    out = bytearray(elf.data)
    out[section.offset : section.offset + section.size] = bytes(section.size)
    _move_pointers(elf, out, moved)
    out += bytes(at - len(out))
    loaded = (_PT_LOAD, _READABLE, at, address, address, table_size + len(body), table_size + len(body), _PAGE)
    out += _segment_table(segments, loaded, at, address, table_size) + body
    _move_section(elf, out, section, at + table_size, address + table_size, len(body))
    head[_E_PHOFF], head[_E_PHNUM] = at, len(segments) + 1
    out[:HEADER_SIZE] = _HEADER.pack(*head)
    return bytes(out)


def _segments_of(elf: Elf, head: list[int]) -> list[tuple[int, ...]]:
    start = head[_E_PHOFF]
    end = start + head[_E_PHNUM] * _SEGMENT.size
    if not start or end > len(elf.data):
        raise UnreadableBinary("a library without program headers")
    return list(_SEGMENT.iter_unpack(elf.data[start:end]))


def _free_place(elf: Elf, segments: Sequence[tuple[int, ...]]) -> tuple[int, int]:
    """Return an offset in the file and an address in memory behind all others, both at the start of a page."""
    at = -(-len(elf.data) // _PAGE) * _PAGE
    last = max((s[3] + s[6] for s in segments if s[0] == _PT_LOAD), default=0)
    return at, -(-last // _PAGE) * _PAGE


def _new_fatbin(
    old: memoryview, containers: Sequence[fatbin.Container], cubins: Mapping[int, Mapping[str, bytes]]
) -> tuple[bytes, list[int]]:
    body = bytearray()
    places = []
    for number, container in enumerate(containers):
        body += bytes(-len(body) % _TABLE_ALIGNED)
        places.append(len(body))
        body += rewrite_container(old, container, cubins.get(number, {}))
    return bytes(body), places


def _move_pointers(elf: Elf, out: bytearray, moved: Mapping[int, int]) -> None:
    """Let each wrapper point to its container's new place: in the relocation, and in the bytes where they say it."""
    wrappers = elf.section(".nvFatBinSegment")
    kind = _RELATIVE.get(elf.machine)
    if wrappers is None or kind is None:
        raise UnreadableBinary("a library without .nvFatBinSegment, or for another machine than x86-64 and arm64")
    left = set()
    for start in range(0, wrappers.size, _WRAPPER.size):
        magic, _, held, _ = _WRAPPER.unpack_from(elf.data, wrappers.offset + start)
        if magic != _WRAPPER_MAGIC:
            raise UnreadableBinary(".nvFatBinSegment holds something else", offset=wrappers.offset + start)
        left.add(wrappers.address + start + 8)
        if held in moved:
            struct.pack_into("<Q", out, wrappers.offset + start + 8, moved[held])
    for table in elf.sections_of(frozenset({_SHT_RELA})):
        for number, (place, info, addend) in enumerate(_RELA.iter_unpack(elf.contents(table))):
            if place in left and info == kind and addend in moved:
                _RELA.pack_into(out, table.offset + number * _RELA.size, place, info, moved[addend])
                left.discard(place)
    if left:
        raise UnreadableBinary(
            f"{len(left)} pointers to the fat binary are filled in by no relocation",
            cause="a linker that packs relocations (RELR), or a program rather than a library",
        )


def _segment_table(
    segments: Sequence[tuple[int, ...]], loaded: tuple[int, ...], at: int, address: int, room: int
) -> bytes:
    """Return the program headers with one more, behind the last that is loaded: they are in order of address."""
    rows = [_own(row, at, address, room) if row[0] == _PT_PHDR else row for row in segments]
    last = max(number for number, row in enumerate(rows) if row[0] == _PT_LOAD)
    rows.insert(last + 1, loaded)
    return b"".join(_SEGMENT.pack(*row) for row in rows).ljust(room, b"\0")


def _own(row: tuple[int, ...], at: int, address: int, room: int) -> tuple[int, ...]:
    return (row[0], row[1], at, address, address, room, room, row[7])


def _move_section(elf: Elf, out: bytearray, section: Section, offset: int, address: int, size: int) -> None:
    head = _HEADER.unpack_from(elf.data)
    at = head[_E_SHOFF] + section.number * head[_E_SHENTSIZE]
    struct.pack_into("<QQQ", out, at + 16, address, offset, size)
