"""Adds the line tables of a rebuilt cubin to the stock one, whose every other section stays as it is.

A cubin, as ptxas writes it, is: header, section names, all other contents, section headers, program headers. The new
names go to the end of the first, the new sections behind the second, so everything keeps its order. Instructions,
constants, symbols and their names remain the stock cubin's: only relocations of the new tables are rewritten to it.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from vdbg_env.common.errors import UnreadableBinary
from vdbg_env.cuda.binary.elf import HEADER_SIZE, SHT_SYMTAB, Buffer, Elf, Section

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
