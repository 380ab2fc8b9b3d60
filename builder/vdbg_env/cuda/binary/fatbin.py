"""Reads fat binaries: containers of PTX and cubins, one entry per architecture, each raw or compressed.

The format is not published. Layout and flags as nvcc 11 to 13 write them: magic 0xBA55ED50, a 16-byte container header,
then entries whose header says its own size. A cubin whose storage this reader cannot explain is an error, never a skip:
a skipped cubin would be counted as proven.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum, IntFlag
from typing import Final

from vdbg_env.common.errors import UnreadableBinary
from vdbg_env.cuda.binary.decompression import Compression, expand, expand_in_pieces
from vdbg_env.cuda.binary.elf import Buffer, looks_like_elf

MAGIC: Final = 0xBA55ED50

_CONTAINER: Final = struct.Struct("<IHHQ")
_ENTRY: Final = struct.Struct("<HHIQIIHHIIIQQQ")
_PADDING_STEP: Final = 4096


class EntryKind(IntEnum):
    """What an entry holds. Other numbers are kept as they are: only cubins are judged."""

    PTX = 1
    ELF = 2
    LTO_IR = 8  # `code=lto_90`: compiled at link time, stored in a form of NVIDIA's own


class EntryFlag(IntFlag):
    """The flags of an entry that have been seen and explained."""

    BITS_64 = 0x1
    DEVICE_DEBUG = 0x2  # nvcc -G
    LINUX = 0x10
    LZ4 = 0x2000
    ZSTD = 0x8000
    ARCH_SPECIFIC = 0x100000  # sm_90a
    FAMILY_SPECIFIC = 0x200000  # sm_100f
    CAPABILITIES = 0x1000000  # a capability table stands in the header (sm_100 and later)


_ZSTD: Final = int(EntryFlag.ZSTD)  # an enum's own operators take twenty times as long, and there are thousands
_LZ4: Final = int(EntryFlag.LZ4)


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One entry of a fat binary.

    `identifier` is the source path that nvcc notes with -lineinfo or -G, else empty. `size` is the payload's size in
    bytes once expanded, `offset` that of the entry from the start of the bytes given.
    """

    kind: int
    arch: int
    flags: int
    identifier: str
    stored: memoryview
    compressed_size: int
    size: int
    offset: int

    @property
    def target(self) -> str:
        """The architecture as nvcc names it: `sm_90a` for a cubin, `compute_90` for PTX."""
        flags = self.flags
        suffix = "a" if flags & EntryFlag.ARCH_SPECIFIC else "f" if flags & EntryFlag.FAMILY_SPECIFIC else ""
        return f"{'sm' if self.kind == EntryKind.ELF else 'compute'}_{self.arch}{suffix}"

    @property
    def compression(self) -> Compression:
        """How the payload is stored; raises UnreadableBinary, naming the flags, when they do not explain it."""
        match bool(self.flags & _ZSTD), bool(self.flags & _LZ4):
            case True, False:
                return Compression.ZSTD
            case False, True:
                return Compression.LZ4
            case False, False if self.compressed_size == 0:
                return Compression.RAW
        raise self._unexplained()

    def payload(self) -> Buffer:
        """Return the whole payload; raises UnreadableBinary when it is damaged or stored in an unknown way."""
        data = expand(self.stored, self.compression, self.size)
        if self.kind == EntryKind.ELF and not looks_like_elf(data):
            raise self._unexplained()
        return data

    def payload_in_pieces(self) -> Iterator[Buffer]:
        """Yield the payload from its start, piece by piece; raises as `payload` does, but for wrong first bytes."""
        return expand_in_pieces(self.stored, self.compression, self.size)

    def starts_as_elf(self) -> bool:
        """Return whether the payload is an ELF file by its first bytes, whatever the entry says that it is."""
        try:
            return looks_like_elf(next(self.payload_in_pieces(), b""))
        except UnreadableBinary:
            return False  # link-time code is stored in a form that only NVIDIA knows

    def _unexplained(self) -> UnreadableBinary:
        unknown = self.flags & ~sum(EntryFlag)
        named = f"unknown flags {unknown:#x} of {self.flags:#x}" if unknown else f"flags {self.flags:#x}"
        return UnreadableBinary(
            f"a {self.target} entry is stored in a way this reader does not know: {named}",
            offset=self.offset,
            cause="a CUDA toolkit newer than this program with another compression, or a damaged file",
            next_step="update vdbg-env; `cuobjdump -all -lelf FILE` says whether NVIDIA's own tool reads it",
        )


@dataclass(frozen=True, kw_only=True)
class Container:
    """One container: the entries of one translation unit; `offset` and `end` are where it is in the bytes given."""

    offset: int
    end: int
    entries: tuple[Entry, ...]


def looks_like_fatbin(data: Buffer) -> bool:
    """Return whether the bytes start with a fat binary container."""
    return bytes(data[:4]) == MAGIC.to_bytes(4, "little")


def looks_like_entry(data: Buffer) -> bool:
    """Return whether the bytes start with the header of an entry, by its kind and version."""
    return len(data) >= _ENTRY.size and data[0] != 0 and bytes(data[1:4]) == b"\0\1\1"


def entries(data: Buffer) -> Iterator[Entry]:
    """Yield every entry of a run of containers, as in `.nv_fatbin`, `__nv_relfatbin` or a `.fatbin` file.

    Nothing is expanded yet. Zero padding between containers is passed over; anything else there, and any size that
    leaves its container, raises UnreadableBinary.
    """
    for container in containers(data):
        yield from container.entries


def containers(data: Buffer) -> Iterator[Container]:
    """Yield every container of a run of them: in a linked library, one for each translation unit, in link order.

    Raises UnreadableBinary as `entries` does.
    """
    view = memoryview(data)
    place = _skip_zeros(view, 0)
    while place < len(view):
        start, end = _container(view, place)
        yield Container(offset=place, end=end, entries=tuple(_entries_of(view, start, end)))
        place = _skip_zeros(view, end)


def _container(view: memoryview, place: int) -> tuple[int, int]:
    """Return where the entries of the container at `place` start and end."""
    if place + _CONTAINER.size > len(view):
        raise UnreadableBinary("a fat binary container is cut short", offset=place)
    magic, version, header_size, size = _CONTAINER.unpack_from(view, place)
    if magic != MAGIC:
        raise UnreadableBinary(f"no fat binary container here: {magic:#010x} is not its magic number", offset=place)
    if version != 1 or header_size < _CONTAINER.size:
        raise UnreadableBinary(
            f"a fat binary container of version {version} with a header of {header_size} bytes; version 1 is known",
            offset=place,
            cause="a CUDA toolkit newer than this program, or a damaged file",
        )
    start = place + header_size
    if size > len(view) - start:
        raise UnreadableBinary(f"a fat binary container of {size:,} bytes runs past the end", offset=place)
    return start, start + size


def _entries_of(view: memoryview, place: int, end: int) -> Iterator[Entry]:
    while place < end:
        if place + _ENTRY.size > end:
            if not any(view[place:end]):
                return
            raise UnreadableBinary("a fat binary entry is cut short", offset=place)
        (
            kind, _version, header_size, stored_size, compressed_size, _options, _minor, _major,
            arch, name_offset, name_length, flags, _reserved, expanded_size,
        ) = _ENTRY.unpack_from(view, place)  # fmt: skip
        payload = place + header_size
        if header_size < _ENTRY.size or stored_size > end - payload or compressed_size > stored_size:
            raise UnreadableBinary("a fat binary entry does not lie within its container", offset=place)
        length = compressed_size or stored_size
        yield Entry(
            kind=kind,
            arch=arch,
            flags=flags,
            identifier=_identifier(view[place:payload], name_offset, name_length, place),
            stored=view[payload : payload + length],
            compressed_size=compressed_size,
            size=expanded_size if compressed_size else length,
            offset=place,
        )
        place = payload + stored_size


def _identifier(header: memoryview, offset: int, length: int, place: int) -> str:
    if length == 0:
        return ""
    if offset < _ENTRY.size or offset + length > len(header):
        raise UnreadableBinary("a fat binary entry's identifier lies outside its header", offset=place)
    # A device-link stub bears its source's name with a blank behind it.
    return bytes(header[offset : offset + length]).rstrip(b"\0 ").decode("utf-8", "backslashreplace")


def _skip_zeros(view: memoryview, place: int) -> int:
    """Return the next place that is not zero, or the end; in steps, since padding is a claim too."""
    while place < len(view):
        chunk = bytes(view[place : place + _PADDING_STEP])
        rest = chunk.lstrip(b"\0")
        if rest:
            return place + len(chunk) - len(rest)
        place += len(chunk)
    return place
