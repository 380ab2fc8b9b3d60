"""Finds the device code of one file, whatever its kind: host ELF, static library, bare fat binary or bare cubin.

In a host ELF file, nvcc keeps final code in `.nv_fatbin` and relocatable code (`-rdc=true`) in `__nv_relfatbin`; a
linked library may have both. Device code that a program keeps elsewhere, as a string or in a file of its own, is not
seen.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from vdbg_env.common.errors import UnreadableBinary
from vdbg_env.cuda.binary import ar, fatbin
from vdbg_env.cuda.binary.elf import ET_CORE, Buffer, Elf, looks_like_elf
from vdbg_env.cuda.binary.fatbin import Entry, EntryFlag, EntryKind

_SECTIONS: Final = (".nv_fatbin", "__nv_relfatbin")
_ARCH_OPTION: Final = re.compile(rb"-arch[ =]sm_\d+([af])\b")


@dataclass(frozen=True, kw_only=True)
class DeviceCode:
    """One entry of device code and, for a static library, the member it lies in (else empty)."""

    entry: Entry
    member: str = ""


def may_hold_device_code(start: Buffer) -> bool:
    """Judge a file by its first eight bytes: ELF, archive or fat binary."""
    return looks_like_elf(start) or ar.looks_like_archive(start) or fatbin.looks_like_fatbin(start)


def find_device_code(data: Buffer) -> Iterator[DeviceCode]:
    """Yield the device code of a file in file order; a bare cubin counts as one raw entry.

    Raises UnreadableBinary when the file is damaged, is a GPU core dump, or is none of the kinds named above.
    """
    view = memoryview(data)
    if ar.looks_like_archive(view):
        for member in ar.members(view):
            if may_hold_device_code(member.data) and not ar.looks_like_archive(member.data):
                yield from (DeviceCode(entry=entry, member=member.name) for entry in _entries(member.data))
        return
    yield from (DeviceCode(entry=entry) for entry in _entries(view))


def _entries(view: memoryview) -> Iterator[Entry]:
    if fatbin.looks_like_fatbin(view):
        yield from fatbin.entries(view)
    elif looks_like_elf(view):
        if bytes(view[4:6]) != b"\x02\x01":
            return  # 32-bit or big-endian: CUDA has no such host any more
        elf = Elf(view)
        if elf.is_cuda:
            yield _bare_cubin(elf)
        else:
            for name in _SECTIONS:
                for section in elf.sections_named(name):
                    yield from fatbin.entries(elf.contents(section))
    else:
        raise UnreadableBinary(
            "neither ELF, nor a static library, nor a fat binary",
            next_step="name a library, object file, archive, wheel, .cubin, .fatbin, a folder of these, or an image",
        )


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
    """Only the options that ptxas notes in `.note.nv.tkinfo` tell sm_90a from sm_90 in a cubin by itself."""
    note = elf.section(".note.nv.tkinfo")
    option = _ARCH_OPTION.search(elf.contents(note)) if note else None
    match option and option[1]:
        case b"a":
            return EntryFlag.ARCH_SPECIFIC
        case b"f":
            return EntryFlag.FAMILY_SPECIFIC
        case _:
            return 0
