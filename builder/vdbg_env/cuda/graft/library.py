"""Writes a host library with another fat binary; its host code, data and symbols stay byte for byte what they were.

A larger fat binary does not fit where the old one is. So all of it goes to the end of the file, into a segment of its
own, and the pointers in `.nvFatBinSegment`, which the loader fills in by relocations, are moved there. Where the old
one was there are zeros.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from typing import Final

from vdbg_env.common.errors import UnreadableBinary
from vdbg_env.cuda.binary import fatbin
from vdbg_env.cuda.binary.elf import HEADER_SIZE, Buffer, Elf, Section
from vdbg_env.cuda.graft.fatbin import rewrite_container

_HEADER: Final = struct.Struct("<16sHHIQQQIHHHHHH")
_E_PHOFF, _E_SHOFF, _E_PHNUM, _E_SHENTSIZE = 5, 6, 10, 11
_SEGMENT: Final = struct.Struct("<IIQQQQQQ")
_WRAPPER: Final = struct.Struct("<IIQQ")  # __fatBinC_Wrapper_t: magic, version, container, file name
_WRAPPER_MAGIC: Final = 0x466243B1
_RELA: Final = struct.Struct("<QQq")
_RELATIVE: Final = {62: 8, 183: 1027}  # machine -> R_X86_64_RELATIVE, R_AARCH64_RELATIVE
_PT_LOAD, _PT_PHDR, _READABLE = 1, 6, 4
_SHT_RELA: Final = 4
_PAGE: Final = 0x10000  # the largest page of the machines that CUDA has
_ALIGNED: Final = 16


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
    segments = _segments(elf, head)
    at, address = _free_place(elf, segments)
    table_size = -(-(len(segments) + 1) * _SEGMENT.size // _ALIGNED) * _ALIGNED
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


def _segments(elf: Elf, head: list[int]) -> list[tuple[int, ...]]:
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
        body += bytes(-len(body) % _ALIGNED)
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
