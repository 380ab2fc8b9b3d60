"""Turns a compiled cubin into the relocated image that a GPU core holds: addresses in sections, symbols and lines."""

from __future__ import annotations

import struct

from gpucore.elf import Elf

_EXECUTABLE = 0x4
_SHT_REL = 9
_PAGE = 0x1000


def relocate(cubin: bytes, base: int) -> bytes:
    """Return the cubin with its code sections laid out from `base` on, each on a page of its own."""
    elf = Elf(cubin)
    image = bytearray(cubin)
    table, stride = struct.unpack_from("<Q", cubin, 40)[0], struct.unpack_from("<H", cubin, 58)[0]
    addresses: dict[int, int] = {}
    at = base
    for section in elf.sections:
        if section.flags & _EXECUTABLE and section.size:
            addresses[section.number] = at
            struct.pack_into("<Q", image, table + section.number * stride + 16, at)
            at += -(-section.size // _PAGE) * _PAGE
    _move_symbols(elf, image, addresses)
    for name in (".debug_line", ".nv_debug_line_sass"):
        _apply_relocations(elf, image, name, addresses)
    return bytes(image)


def _move_symbols(elf: Elf, image: bytearray, addresses: dict[int, int]) -> None:
    symtab = elf.section(".symtab")
    if symtab is None:
        return
    for number, symbol in enumerate(elf.symbols):
        if symbol.section in addresses:
            struct.pack_into("<Q", image, symtab.offset + number * 24 + 8, symbol.value + addresses[symbol.section])


def _apply_relocations(elf: Elf, image: bytearray, name: str, addresses: dict[int, int]) -> None:
    target = elf.section(name)
    relocations = elf.section(".rela" + name) or elf.section(".rel" + name)
    if target is None or relocations is None:
        return
    in_place = relocations.type == _SHT_REL
    size = 16 if in_place else 24
    for at in range(0, relocations.size - size + 1, size):
        offset, info = struct.unpack_from("<QQ", image, relocations.offset + at)
        symbol = elf.symbols[info >> 32]
        place = target.offset + offset
        source = place if in_place else relocations.offset + at + 16
        (addend,) = struct.unpack_from("<Q", image, source)
        struct.pack_into("<Q", image, place, symbol.value + addresses[symbol.section] + addend)
