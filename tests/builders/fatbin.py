"""Writes fat binaries: containers of entries, stored raw or compressed as nvcc does, and hosts that carry them."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass

import lz4.block
import zstandard

from gpucore.fatbin import Compression, EntryFlag, EntryKind
from tests.builders.elf import ElfSpec, SectionSpec, build_elf

EM_X86_64 = 62


@dataclass(frozen=True, kw_only=True)
class EntrySpec:
    """An entry to write. `flags` are added to those that `how` calls for; `claimed_size` is a lie about the payload."""

    payload: bytes
    kind: int = EntryKind.ELF
    arch: int = 90
    how: Compression = Compression.RAW
    flags: int = EntryFlag.BITS_64 | EntryFlag.LINUX
    identifier: str = ""
    claimed_size: int | None = None


def container(*entries: EntrySpec) -> bytes:
    """Return one container of the entries."""
    body = b"".join(_entry(e) for e in entries)
    return struct.pack("<IHHQ", 0xBA55ED50, 1, 16, len(body)) + body


def host_library(*containers: bytes, relocatable: Sequence[bytes] = ()) -> bytes:
    """Return a host ELF file with the containers in `.nv_fatbin`, `relocatable` ones in `__nv_relfatbin`."""
    sections = [SectionSpec(name=".text", data=b"\xc3")]
    if containers:
        sections.append(SectionSpec(name=".nv_fatbin", data=b"".join(containers)))
    if relocatable:
        sections.append(SectionSpec(name="__nv_relfatbin", data=b"".join(relocatable)))
    return build_elf(ElfSpec(sections=sections, machine=EM_X86_64, flags=0))


def archive(*members: tuple[str, bytes]) -> bytes:
    """Return a GNU archive, with a name table for names of more than 15 characters."""
    long_names = b"".join(name.encode() + b"/\n" for name, _ in members if len(name) > 15)
    out = b"!<arch>\n" + (_member("//", long_names) if long_names else b"")
    for name, data in members:
        shown = f"/{long_names.index(name.encode() + b'/')}" if len(name) > 15 else f"{name}/"
        out += _member(shown, data)
    return out


def _entry(spec: EntrySpec) -> bytes:
    match spec.how:
        case Compression.RAW:
            stored, flag = spec.payload, 0
        case Compression.LZ4:
            stored, flag = lz4.block.compress(spec.payload, store_size=False), EntryFlag.LZ4
        case Compression.ZSTD:
            stored, flag = zstandard.ZstdCompressor().compress(spec.payload), EntryFlag.ZSTD
    compressed_size = len(stored) if flag else 0
    size = (len(spec.payload) if flag else 0) if spec.claimed_size is None else spec.claimed_size
    stored += bytes(-len(stored) % 8)
    name = spec.identifier.encode()
    header_size = 64 + len(name) + -len(name) % 8
    header = struct.pack(
        "<HHIQIIHHIIIQQQ", spec.kind, 0x101, header_size, len(stored), compressed_size, 0, 8, 1,
        spec.arch, 64 if name else 0, len(name), spec.flags | flag, 0, size,
    )  # fmt: skip
    return (header + name).ljust(header_size, b"\0") + stored


def _member(name: str, data: bytes) -> bytes:
    return f"{name:<16}{0:<12}{0:<6}{0:<6}{644:<8}{len(data):<10}`\n".encode() + data + b"\n" * (len(data) % 2)


def dll(*sections: tuple[str, bytes]) -> bytes:
    """Return a Windows DLL of nothing but its headers and the sections, whose names are cut to eight letters."""
    start = 0x40 + 4 + 20 + 40 * len(sections)
    headers, body = b"", b""
    for name, data in sections:
        at = start + len(body)
        headers += struct.pack("<8sIIIIIIHHI", name[:8].encode(), len(data), 0, len(data), at, 0, 0, 0, 0, 0)
        body += data
    coff = struct.pack("<HHIIIHH", 0x8664, len(sections), 0, 0, 0, 0, 0x2022)
    return b"MZ".ljust(0x3C, b"\0") + struct.pack("<I", 0x40) + b"PE\0\0" + coff + headers + body
