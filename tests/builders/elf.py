"""Writes 64-bit little-endian ELF files from a list of sections and symbols."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass, field

from gpucore.elf import CUDA_13, EM_CUDA, ET_EXEC, SHT_SYMTAB, STT_FUNC, Identity

SHT_PROGBITS = 1
SHT_STRTAB = 3
STO_ENTRY = 0x10  # CUDA: the symbol is a kernel


@dataclass(frozen=True, kw_only=True)
class SectionSpec:
    """A section to write; `link` and `info` are raw numbers (index of the first one given here is 1)."""

    name: str
    data: bytes = b""
    type: int = SHT_PROGBITS
    flags: int = 0
    address: int = 0
    link: int = 0
    info: int = 0
    entry_size: int = 0
    size: int | None = None  # claim another size than len(data)


@dataclass(frozen=True, kw_only=True)
class SymbolSpec:
    """A symbol to write; by default a kernel."""

    name: str
    section: int = 0
    value: int = 0
    size: int = 0
    type: int = STT_FUNC
    other: int = STO_ENTRY


@dataclass(frozen=True, kw_only=True)
class ElfSpec:
    """A whole ELF file to write."""

    sections: Sequence[SectionSpec] = ()
    symbols: Sequence[SymbolSpec] = ()
    identity: Identity = CUDA_13
    type: int = ET_EXEC
    machine: int = EM_CUDA
    flags: int = 0x0A005A04  # sm_90 as nvcc 13.0 writes it
    extended_numbering: bool = False
    extra_names: Sequence[str] = field(default=())  # in the name table, but no section has them


def build_elf(spec: ElfSpec) -> bytes:
    """Return the file: header, name table first (as in cubins), section contents, then the section table."""
    sections = [*spec.sections, *_symbol_sections(spec)]
    names, offsets = string_table([*(s.name for s in sections), ".shstrtab", *spec.extra_names])
    body = bytearray(64)
    rows = [b""]  # section 0, whose contents depend on the count
    for section in [*sections, SectionSpec(name=".shstrtab", data=names, type=SHT_STRTAB)]:
        body += bytes(-len(body) % 8)
        size = len(section.data) if section.size is None else section.size
        rows.append(_row(section, offsets[section.name], len(body), size))
        body += section.data
    body += bytes(-len(body) % 8)
    count, last = len(rows), len(rows) - 1
    rows[0] = struct.pack(
        "<IIQQQQIIQQ", 0, 0, 0, 0, 0, *((count, last) if spec.extended_numbering else (0, 0)), 0, 0, 0
    )
    shown = (0, 0xFFFF) if spec.extended_numbering else (count, last)
    ident = b"\x7fELF" + bytes([2, 1, 1, spec.identity.os_abi, spec.identity.abi_version]) + bytes(7)
    fixed = (spec.type, spec.machine, 1, 0, 0, len(body), spec.flags, 64, 56, 0, 64, *shown)
    body[:64] = ident + struct.pack("<HHIQQQIHHHHHH", *fixed)
    return bytes(body) + b"".join(rows)


def string_table(names: Sequence[str]) -> tuple[bytes, dict[str, int]]:
    """Return a string table of the names and the offset of each."""
    table, offsets = bytearray(1), {"": 0}
    for name in names:
        if name not in offsets:
            offsets[name] = len(table)
            table += name.encode() + b"\0"
    return bytes(table), offsets


def _symbol_sections(spec: ElfSpec) -> list[SectionSpec]:
    if not spec.symbols:
        return []
    strings, offsets = string_table([s.name for s in spec.symbols])
    rows = bytes(24) + b"".join(
        struct.pack("<IBBHQQ", offsets[s.name], 0x10 | s.type, s.other, s.section, s.value, s.size)
        for s in spec.symbols
    )
    strings_index = len(spec.sections) + 1
    return [
        SectionSpec(name=".strtab", data=strings, type=SHT_STRTAB),
        SectionSpec(name=".symtab", data=rows, type=SHT_SYMTAB, link=strings_index, entry_size=24),
    ]


def _row(section: SectionSpec, name: int, offset: int, size: int) -> bytes:
    return struct.pack(
        "<IIQQQQIIQQ", name, section.type, section.flags, section.address, offset, size,
        section.link, section.info, 8, section.entry_size,
    )  # fmt: skip
