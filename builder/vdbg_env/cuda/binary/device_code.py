"""Finds the device code of one file: host ELF or PE file, static library, bare fat binary or bare cubin.

In a host ELF file, nvcc keeps final code in `.nv_fatbin` and relocatable code (`-rdc=true`) in `__nv_relfatbin`; a
linked library may have both. All other bytes of a file are searched too (`embedded`). Not seen is code that is stored
encrypted, in a library's private compression, or in a separate file.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final

from vdbg_env.common.errors import UnreadableBinary
from vdbg_env.cuda.binary import ar, fatbin, pe
from vdbg_env.cuda.binary.elf import ET_CORE, SHT_NOBITS, Buffer, Elf, looks_like_elf
from vdbg_env.cuda.binary.embedded import Searched, Span, find_embedded
from vdbg_env.cuda.binary.fatbin import Entry, EntryFlag, EntryKind
from vdbg_env.cuda.binary.kernel_info import is_for_one_architecture

_SECTIONS: Final = (".nv_fatbin", "__nv_relfatbin")
_PE_SECTIONS: Final = tuple(name[:8] for name in _SECTIONS)
NO_SECTION: Final = "(no section)"
# Tables of symbols, strings, relocations and hashes have a form that leaves no room for code.
_TABLES: Final = frozenset({2, 3, 4, 5, 6, 9, 11, 0x6FFFFFF6, 0x6FFFFFFE, 0x6FFFFFFF})
_ARCH_OPTION: Final = re.compile(rb"-(?:arch|gpu-name)[ =]+sm_\d+([af])\b")


@dataclass(frozen=True, kw_only=True)
class DeviceCode:
    """One entry of device code, with the member of a static library that it is in (else empty).

    `section` is empty for code where nvcc puts it, else the name of the section in which it was found, or NO_SECTION.
    """

    entry: Entry
    member: str = ""
    section: str = ""


def may_hold_device_code(start: Buffer) -> bool:
    """Judge a file by its first eight bytes: ELF, PE, archive or fat binary."""
    looks = (looks_like_elf, pe.looks_like_pe, ar.looks_like_archive, fatbin.looks_like_fatbin)
    return any(look(memoryview(start)) for look in looks)


def find_device_code(data: Buffer, searched: Searched = lambda: None) -> Iterator[DeviceCode]:
    """Yield the device code of a file, first what is where nvcc puts it; a bare cubin counts as one raw entry.

    `searched` is called each time some megabytes were searched for code that is elsewhere.

    Raises UnreadableBinary when the file is damaged, is a GPU core dump, or is none of the kinds named above.
    """
    view = memoryview(data)
    if not ar.looks_like_archive(view):
        yield from _in_file(view, searched)
        return
    for member in ar.members(view):
        if may_hold_device_code(member.data) and not ar.looks_like_archive(member.data):
            found = _in_file(member.data, searched)
        else:
            found = _elsewhere(member.data, [], [], searched)
        yield from (replace(code, member=member.name) for code in found)


def _in_file(view: memoryview, searched: Searched) -> Iterator[DeviceCode]:
    if fatbin.looks_like_fatbin(view):
        yield from (DeviceCode(entry=entry) for entry in fatbin.entries(view))
    elif pe.looks_like_pe(view):
        places = [(s.name, (s.start, s.end)) for s in pe.read_sections(view)]
        yield from _in_sections(view, places, _PE_SECTIONS, [], searched)
    elif not looks_like_elf(view):
        raise UnreadableBinary(
            "neither ELF, nor a DLL, nor a static library, nor a fat binary",
            next_step="name a library, object file, archive, wheel, .cubin, .fatbin, a folder of these, or an image",
        )
    elif bytes(view[4:6]) != b"\x02\x01":
        yield from _elsewhere(view, [], [], searched)  # 32-bit or big-endian: nvcc no longer has such hosts
    else:
        elf = Elf(view)
        if elf.is_cuda:
            yield DeviceCode(entry=_bare_cubin(elf))
            return
        sections = [s for s in elf.sections if s.size and s.type != SHT_NOBITS]
        for name in _SECTIONS:
            for section in elf.sections_named(name):
                elf.contents(section)  # raises where the file is cut off
        places = [(elf.name(s), (s.offset, s.offset + s.size)) for s in sections]
        tables = [(s.offset, s.offset + s.size) for s in sections if s.type in _TABLES]
        yield from _in_sections(view, places, _SECTIONS, tables, searched)


def _in_sections(
    view: memoryview, places: list[tuple[str, Span]], known: tuple[str, ...], tables: list[Span], searched: Searched
) -> Iterator[DeviceCode]:
    """Yield what is in the sections called as nvcc does, then what is anywhere else but in `tables`."""
    own = [span for name in known for other, span in places if other == name]
    for start, end in own:
        yield from (DeviceCode(entry=entry) for entry in fatbin.entries(view[start:end]))
    yield from _elsewhere(view, [*own, *tables], places, searched)


def _elsewhere(
    view: memoryview, skipped: list[Span], places: list[tuple[str, Span]], searched: Searched
) -> Iterator[DeviceCode]:
    for offset, found in find_embedded(view, skipped, searched):
        section = next((name for name, (start, end) in places if start <= offset < end), "") or NO_SECTION
        entry = found if isinstance(found, Entry) else replace(_bare_cubin(Elf(found)), offset=offset)
        yield DeviceCode(entry=entry, section=section)


def _bare_cubin(elf: Elf) -> Entry:
    if elf.type == ET_CORE:
        raise UnreadableBinary("a GPU core dump, not a library", next_step="vdbg-env core FILE")
    return Entry(
        kind=EntryKind.ELF,
        arch=elf.arch or 0,
        flags=EntryFlag.BITS_64 | _suffix_flag(elf),
        identifier="",
        stored=elf.data,
        compressed_size=0,
        size=len(elf.data),
        offset=0,
    )


def _suffix_flag(elf: Elf) -> int:
    """Return the flag of sm_90a or sm_100f.

    The options in `.note.nv.tkinfo` have either letter; compilers that call ptxas as a library write none. Then an `a`
    is in `.nv.compat` or in e_flags, where an `f` is not.
    """
    note = elf.section(".note.nv.tkinfo")
    option = _ARCH_OPTION.search(elf.contents(note)) if note else None
    match option and option[1]:
        case b"f":
            return EntryFlag.FAMILY_SPECIFIC
        case b"a":
            return EntryFlag.ARCH_SPECIFIC
        case _:
            return EntryFlag.ARCH_SPECIFIC if elf.accelerated or is_for_one_architecture(elf) else 0
