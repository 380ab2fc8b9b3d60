"""The file that holds line packs: a header, a table of sections, and the sections; numbers are little endian.

    header     magic, version, number of sections, size of the file, checksum of header and table
    table      kind, offset, size and checksum of each section
    PROVENANCE zstd of JSON: the binaries that were packed
    CODE       rows of 32 bytes by code hash and name hash: the block and offset of a record
    NAMES      rows of 12 bytes by name hash: the number of a row of CODE
    BLOCKS     zstd frames of records, each found and checked by its row in BLOCK_TABLE
    STRINGS    zstd frames of texts, sorted, each found and checked by its row in STRING_TABLE

The two that are large, BLOCKS and STRINGS, have a checksum for each frame: a look-up reads a few frames only.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from enum import IntEnum
from hashlib import blake2b
from typing import Final

import zstandard

from vdbg_env.common.errors import UnreadableBinary
from vdbg_env.cuda.binary.elf import Buffer
from vdbg_env.cuda.line_pack.identity import stable_name

MAGIC: Final = b"VDBGLINE"
VERSION: Final = 1

HEADER: Final = struct.Struct("<8sHHIQ16s")
SECTION: Final = struct.Struct("<IIQQ16s")
CODE_ROW: Final = struct.Struct("<16s8sII")
NAME_ROW: Final = struct.Struct("<8sI")
FRAME_ROW: Final = struct.Struct("<QIII8s")  # offset, stored size, size, number of the first text, checksum

NAME_HASH_SIZE: Final = 8
KEY_SIZE: Final = 8
LARGEST_FRAME: Final = 64 << 20

_LEVEL: Final = 12
_NO_CHECKSUM: Final = bytes(16)


class Kind(IntEnum):
    """What a section holds."""

    PROVENANCE = 1
    CODE = 2
    NAMES = 3
    BLOCK_TABLE = 4
    BLOCKS = 5
    STRING_TABLE = 6
    STRINGS = 7


_IN_FRAMES: Final = {Kind.BLOCKS, Kind.STRINGS}
_ROW_SIZES: Final = {
    Kind.CODE: CODE_ROW.size, Kind.NAMES: NAME_ROW.size, Kind.BLOCK_TABLE: FRAME_ROW.size,
    Kind.STRING_TABLE: FRAME_ROW.size,
}  # fmt: skip


def name_hash(stable_name: str) -> bytes:
    """Return what a function is found by when its code is not known."""
    return blake2b(stable_name.encode(), digest_size=NAME_HASH_SIZE, person=b"vdbg-env name 1").digest()


def pack_keys(code_hash: bytes | None, name: str) -> tuple[bytes, ...]:
    """Return the keys by which stores say which packs may have a function: its name's, and its code's where known."""
    named = name_hash(stable_name(name))
    return (named,) if code_hash is None else (code_hash[:KEY_SIZE], named)


def checksum(data: Buffer, size: int = 16) -> bytes:
    """Return the checksum of a section, or of a frame with a size of 8."""
    return blake2b(data, digest_size=size).digest()


def compress(data: Buffer) -> bytes:
    """Return a zstd frame that states its size."""
    return zstandard.ZstdCompressor(level=_LEVEL, write_content_size=True).compress(data)


def expand(frame: Buffer, size: int) -> memoryview:
    """Return the contents of a zstd frame; raises UnreadableBinary unless they are exactly `size` bytes."""
    if size > LARGEST_FRAME:
        raise UnreadableBinary(f"a line pack claims a frame of {size:,} bytes; the most read here is {LARGEST_FRAME:,}")
    try:
        if zstandard.frame_content_size(frame) != size:
            raise UnreadableBinary("a line pack has a frame of another size than its table says")
        data = zstandard.ZstdDecompressor(max_window_size=LARGEST_FRAME).decompress(frame, max_output_size=size)
    except (zstandard.ZstdError, MemoryError) as error:
        raise UnreadableBinary(f"a line pack has a frame that does not decompress: {error}") from error
    if len(data) != size:
        raise UnreadableBinary("a line pack has a frame of another size than its table says")
    return memoryview(data)


def assemble(sections: Mapping[Kind, bytes]) -> bytes:
    """Return a file of these sections."""
    at = HEADER.size + SECTION.size * len(sections)
    table, body = b"", bytearray()
    for kind, data in sorted(sections.items()):
        table += SECTION.pack(kind, 0, at + len(body), len(data), _checksum_of(kind, data))
        body += data
    size = at + len(body)
    bare = HEADER.pack(MAGIC, VERSION, len(sections), 0, size, _NO_CHECKSUM)
    return HEADER.pack(MAGIC, VERSION, len(sections), 0, size, checksum(bare + table)) + table + body


def _checksum_of(kind: Kind, data: Buffer) -> bytes:
    return _NO_CHECKSUM if kind in _IN_FRAMES else checksum(data)


class Sections:
    """The sections of a file; each is checked when it is first asked for.

    Raises UnreadableBinary from the constructor when header or table are damaged, or the file is cut short.
    """

    def __init__(self, data: Buffer) -> None:
        self._data: Final = memoryview(data)
        if bytes(self._data[: len(MAGIC)]) != MAGIC:
            raise UnreadableBinary(
                "not a line pack: the magic number is missing", offset=0,
                next_step="vdbg-env lines pack LIBRARY -o FILE.lines makes one",
            )  # fmt: skip
        if len(self._data) < HEADER.size:
            raise UnreadableBinary("a line pack is cut short within its header", cause=_TRUNCATED)
        _, version, count, reserved, size, expected = HEADER.unpack_from(self._data)
        if version != VERSION:
            raise UnreadableBinary(
                f"a line pack of version {version}; version {VERSION} is known",
                next_step="update vdbg-env, or pack the libraries again",
            )
        if size != len(self._data):
            raise UnreadableBinary(
                f"a line pack of {size:,} bytes of which {len(self._data):,} are there", cause=_TRUNCATED
            )
        end = HEADER.size + SECTION.size * count
        bare = HEADER.pack(MAGIC, version, count, reserved, size, _NO_CHECKSUM)
        if end > size or checksum(bare + bytes(self._data[HEADER.size : end])) != expected:
            raise UnreadableBinary("the header of a line pack is damaged: its checksum differs", offset=0)
        self._table: Final = self._read_table(end)
        self._checked: Final[dict[Kind, memoryview]] = {}

    def __getitem__(self, kind: Kind) -> memoryview:
        """Return a section; raises UnreadableBinary when its checksum differs."""
        if kind not in self._checked:
            start, size, expected = self._table[kind]
            data = self._data[start : start + size]
            if kind not in _IN_FRAMES and checksum(data) != expected:
                raise UnreadableBinary(f"the {kind.name} of a line pack is damaged: its checksum differs", offset=start)
            self._checked[kind] = data
        return self._checked[kind]

    def _read_table(self, end: int) -> dict[Kind, tuple[int, int, bytes]]:
        found: dict[Kind, tuple[int, int, bytes]] = {}
        for kind, _, start, size, expected in SECTION.iter_unpack(self._data[HEADER.size : end]):
            if not end <= start <= start + size <= len(self._data):
                raise UnreadableBinary("a section of a line pack is not within the file", offset=start)
            if kind in set(Kind):
                found[Kind(kind)] = (start, size, expected)
        missing = set(Kind) - found.keys()
        if missing:
            raise UnreadableBinary(f"a line pack has no section {min(missing).name}")
        for kind, row in _ROW_SIZES.items():
            if found[kind][1] % row:
                raise UnreadableBinary(f"the {kind.name} of a line pack has no whole number of rows")
        return found


_TRUNCATED: Final = "an interrupted copy or download, or a full disk"
