"""Writes containers of a fat binary with some of their cubins replaced; whatever is not replaced stays as it is."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Final

import zstandard

from vdbg_env.cuda.binary.elf import Buffer
from vdbg_env.cuda.binary.fatbin import Container, Entry, EntryFlag

_CONTAINER: Final = struct.Struct("<IHHQ")
_ALIGNED: Final = 8
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
