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
import sys
from array import array
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from hashlib import blake2b
from itertools import accumulate, pairwise
from typing import Final

import zstandard

from gpucore.code_identity import HASH_SIZE, INSTRUCTION, PatchedField, stable_name
from gpucore.dwarf import Chain, SourceFrame
from gpucore.elf import Buffer, ParameterPlace
from gpucore.errors import UnreadableBinary
from gpucore.mangling import demangle

PACK_MAGIC: Final = b"VDBGLINE"
VERSION: Final = 1

HEADER: Final = struct.Struct("<8sHHIQ16s")
SECTION: Final = struct.Struct("<IIQQ16s")
CODE_ROW: Final = struct.Struct("<16s8sII")
NAME_ROW: Final = struct.Struct("<8sI")
FRAME_ROW: Final = struct.Struct("<QIII8s")  # offset, stored size, size, number of the first text, checksum

NAME_HASH_SIZE: Final = 8
KEY_SIZE: Final = 8
LARGEST_FRAME: Final = 16 << 20  # a function of a million instructions has fewer bytes
MOST_TEXTS: Final = 1 << 17  # of a frame: the writer begins another after as many characters
_MOST_ROWS: Final = 1 << 18  # of a table of a record: each becomes an object
_MOST_NUMBERS: Final = 1 << 12  # of the architectures of a record

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


MOST_FUNCTIONS: Final = 1 << 20  # the wheels of ten releases have half of that
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
    bare = HEADER.pack(PACK_MAGIC, VERSION, len(sections), 0, size, _NO_CHECKSUM)
    return HEADER.pack(PACK_MAGIC, VERSION, len(sections), 0, size, checksum(bare + table)) + table + body


def _checksum_of(kind: Kind, data: Buffer) -> bytes:
    return _NO_CHECKSUM if kind in _IN_FRAMES else checksum(data)


class Sections:
    """The sections of a file; each is checked when it is first asked for.

    Raises UnreadableBinary from the constructor when header or table are damaged, or the file is cut short.
    """

    def __init__(self, data: Buffer) -> None:
        self._data: Final = memoryview(data)
        if bytes(self._data[: len(PACK_MAGIC)]) != PACK_MAGIC:
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
        bare = HEADER.pack(PACK_MAGIC, version, count, reserved, size, _NO_CHECKSUM)
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
            if found[kind][1] // row > MOST_FUNCTIONS:
                raise UnreadableBinary(f"the {kind.name} of a line pack has more than {MOST_FUNCTIONS:,} rows")
        return found


_TRUNCATED: Final = "an interrupted copy or download, or a full disk"


# Columns of 32-bit numbers as bytes: one plane for each byte of the numbers, the highest first left out when zero.
#
# Planes compress better than numbers of varying length, and both ways run at the speed of slices. A column of n numbers
# takes n bytes at least: no count can claim more memory than four times the bytes that are there.


_MASK: Final = 0xFFFFFFFF


class ColumnWriter:
    """Appends numbers and columns to a row of bytes."""

    def __init__(self) -> None:
        self.data: Final = bytearray()

    def number(self, value: int) -> None:
        """Append one unsigned number of 32 bits."""
        self.data.extend(value.to_bytes(4, "little"))

    def raw(self, value: bytes) -> None:
        """Append bytes whose length the reader knows."""
        self.data.extend(value)

    def column(self, values: Sequence[int]) -> None:
        """Append a column with its length."""
        self.number(len(values))
        if not values:
            return
        planes = max(1, (max(values).bit_length() + 7) // 8)
        column = array("I", values)
        if sys.byteorder == "big":
            column.byteswap()
        flat = column.tobytes()
        self.data.append(planes)
        for plane in range(planes):
            self.data.extend(flat[plane::4])

    def differences(self, values: Sequence[int]) -> None:
        """Append a column as the differences of neighbours, modulo 2**32 with the sign in the lowest bit."""
        self.column([_folded(b - a) for a, b in zip((0, *values[:-1]), values, strict=True)])


class ColumnReader:
    """Reads what ColumnWriter wrote; raises UnreadableBinary where the bytes end early."""

    def __init__(self, data: memoryview, at: int = 0) -> None:
        self._data: Final = data
        self._at = at

    @property
    def at_end(self) -> bool:
        """Whether every byte has been read."""
        return self._at == len(self._data)

    def number(self) -> int:
        """Read one number."""
        return int.from_bytes(self.raw(4), "little")

    def raw(self, size: int) -> bytes:
        """Read bytes of a known length."""
        start, self._at = self._at, self._at + size
        if self._at > len(self._data):
            raise UnreadableBinary("a record of a line pack is cut short", offset=start)
        return bytes(self._data[start : self._at])

    def column(self, most: int = LARGEST_FRAME) -> array[int]:
        """Read a column; raises UnreadableBinary where it claims more than so many numbers."""
        count = self.number()
        if count > most:
            raise UnreadableBinary(f"a column of a line pack claims {count:,} numbers, of at most {most:,}")
        column = array("I")
        if not count:
            return column
        planes = self.raw(1)[0]
        if not 1 <= planes <= 4:
            raise UnreadableBinary(f"a column of a line pack has {planes} planes", offset=self._at)
        stored = self.raw(count * planes)
        flat = bytearray(4 * count)
        for plane in range(planes):
            flat[plane::4] = stored[plane * count : (plane + 1) * count]
        column.frombytes(bytes(flat))
        if sys.byteorder == "big":
            column.byteswap()
        return column

    def differences(self) -> array[int]:
        """Read a column of differences; raises UnreadableBinary when a number leaves its 32 bits."""
        try:
            return array("I", accumulate(map(_unfolded, self.column())))
        except OverflowError:
            raise UnreadableBinary("a column of a line pack has a number beyond 32 bits", offset=self._at) from None


def _folded(difference: int) -> int:
    """Return a difference with its sign in the lowest bit; one that does not fit is taken modulo 2**32."""
    folded = difference << 1 if difference >= 0 else (-difference << 1) - 1
    if folded > _MASK:
        raise UnreadableBinary("two neighbours of a line table differ by 2 GiB or more")
    return folded


def _unfolded(folded: int) -> int:
    return -((folded + 1) >> 1) if folded & 1 else folded >> 1


def flattened(rows: Iterable[Sequence[int]]) -> list[int]:
    """Return rows of numbers as one list."""
    return [value for row in rows for value in row]


# The line table of one function, apart from its code: a tree of inlined places, and which instructions are at which.
#
# The rows of `.debug_line` repeat the callers of an inlined place whenever they return to it. Here each place is listed
# once: a function of 100,000 rows has a few thousand.


NAME_OF_FUNCTION: Final = 0
NAME_UNKNOWN: Final = 1
FIRST_NAME: Final = 2

_MOST_SIBLINGS: Final = 8
_DEEPEST_CHAIN: Final = 4096


@dataclass(frozen=True, kw_only=True, slots=True)
class InnerFunction:
    """A function that the compiler put inside another; `start` counts from the outer one's start."""

    name: str
    start: int
    size: int


@dataclass(frozen=True, kw_only=True, slots=True)
class InlineTree:
    """The source places of a function's instructions, in columns.

    `parents` are 1-based numbers of earlier places, those of the call; 0 for a place that is not inlined. `files` are
    numbers of `strings`; `names` are NAME_OF_FUNCTION, NAME_UNKNOWN, or a number of `strings` plus FIRST_NAME.
    """

    parents: array[int]
    files: array[int]
    lines: array[int]
    names: array[int]
    strings: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.parents)


@dataclass(frozen=True, kw_only=True, slots=True)
class LineRecord:
    """One function of one build: what it is, and the lines of its instructions.

    `starts` are offsets in bytes from the function's start, ascending; from each on, up to the next, the instructions
    are at the 1-based place of the same number in `places`, or have no line where that is 0. `sources` are the digests
    of the binaries that it was packed from, `archs` the architectures that have the same code and lines. `name` is
    mangled.
    """

    name: str
    archs: tuple[str, ...]
    kernel: bool
    size: int
    hash: bytes
    fields: tuple[PatchedField, ...]
    inner: tuple[InnerFunction, ...]
    parameters: tuple[ParameterPlace, ...]
    tree: InlineTree
    starts: array[int]
    places: array[int]
    sources: tuple[str, ...]

    def function_at(self, offset: int) -> str:
        """Return the mangled name of the innermost function at an offset."""
        around = [f for f in self.inner if f.start <= offset < f.start + f.size]
        return min(around, key=lambda f: f.size).name if around else self.name

    def chain(self, offset: int) -> Chain:
        """Return the source frames of an instruction, leaf first; empty when no row covers it."""
        place = self._place(offset)
        return self._walk(place, demangle(self.function_at(offset))) if place else ()

    def siblings(self, offset: int) -> tuple[Chain, ...]:
        """Return the other chains of the function that end in the same leaf line, at most eight."""
        tree, place = self.tree, self._place(offset)
        if not place:
            return ()
        function = demangle(self.function_at(offset))
        leaf = self._leaf(place)
        own = self._walk(place, function)
        found: dict[Chain, None] = {}
        for other in range(1, len(tree) + 1):
            if tree.names[other - 1] != NAME_OF_FUNCTION and self._leaf(other) == leaf:
                chain = self._walk(other, function)
                if chain != own:
                    found[chain] = None
                if len(found) == _MOST_SIBLINGS:
                    break
        return tuple(found)

    @property
    def covered(self) -> int:
        """How many bytes of the function have a line."""
        ends = [*self.starts[1:], self.size]
        return sum(end - start for start, end, place in zip(self.starts, ends, self.places, strict=True) if place)

    def _leaf(self, place: int) -> tuple[int, int, int]:
        tree = self.tree
        return tree.files[place - 1], tree.lines[place - 1], tree.names[place - 1]

    def _place(self, offset: int) -> int:
        if not 0 <= offset < self.size:
            return 0
        at = bisect_right(self.starts, offset) - 1
        return self.places[at] if at >= 0 else 0

    def _walk(self, place: int, function: str) -> Chain:
        return tuple(self._frames(place, function))

    def _frames(self, place: int, function: str) -> Iterator[SourceFrame]:
        tree = self.tree
        for _ in range(_DEEPEST_CHAIN):
            file, line, name = self._leaf(place)
            named = function if name == NAME_OF_FUNCTION else None
            if name >= FIRST_NAME:
                named = demangle(tree.strings[name - FIRST_NAME])
            yield SourceFrame(function=named, file=tree.strings[file], line=line)
            place = tree.parents[place - 1]
            if not place:
                return


# A line record as bytes, and back; its strings are numbers of a table that many records share.


_KERNEL: Final = 1
_WHOLE_INSTRUCTIONS: Final = 2  # starts are counted in instructions
_KNOWN: Final = _KERNEL | _WHOLE_INSTRUCTIONS


def encode(record: LineRecord, string: Callable[[str], int], source: Callable[[str], int]) -> bytes:
    """Return a record as bytes; `string` and `source` give the numbers of its texts."""
    whole = all(start % INSTRUCTION == 0 for start in record.starts)
    out = ColumnWriter()
    out.number((_KERNEL if record.kernel else 0) | (_WHOLE_INSTRUCTIONS if whole else 0))
    out.raw(record.hash)
    out.number(string(record.name))
    out.number(record.size)
    out.column([string(arch) for arch in record.archs])
    out.column(sorted(source(digest) for digest in record.sources))
    out.column(flattened(record.fields))
    out.column(flattened((string(f.name), f.start, f.size) for f in record.inner))
    out.column(flattened((p.ordinal, p.offset, p.size) for p in record.parameters))
    tree = record.tree
    out.column([string(text) for text in tree.strings])
    out.column([number - parent if parent else 0 for number, parent in enumerate(tree.parents, 1)])
    out.column(tree.files)
    out.differences(tree.lines)
    out.column(tree.names)
    out.differences([start // INSTRUCTION if whole else start for start in record.starts])
    out.differences(record.places)
    return bytes(out.data)


def decode(data: memoryview, string: Callable[[int], str], source: Callable[[int], str]) -> LineRecord:
    """Return a record; raises UnreadableBinary when its numbers contradict each other."""
    read = ColumnReader(data)
    flags = read.number()
    code = read.raw(HASH_SIZE)
    name, size = string(read.number()), read.number()
    archs = tuple(string(number) for number in read.column(_MOST_NUMBERS))
    sources = tuple(source(number) for number in read.column(_MOST_ROWS))
    fields = tuple(PatchedField(*row) for row in _rows(read))
    inner = tuple(InnerFunction(name=string(n), start=start, size=length) for n, start, length in _rows(read))
    parameters = tuple(ParameterPlace(ordinal=ordinal, offset=at, size=length) for ordinal, at, length in _rows(read))
    strings = tuple(string(number) for number in read.column(4 * _MOST_ROWS))
    parents = read.column()
    for number, distance in enumerate(parents, 1):
        parents[number - 1] = number - distance if 0 < distance < number else 0 if not distance else number
    tree = InlineTree(
        parents=parents, files=read.column(), lines=read.differences(), names=read.column(), strings=strings
    )
    starts, places = read.differences(), read.differences()
    if flags & _WHOLE_INSTRUCTIONS:
        _check(not starts or max(starts) <= size // INSTRUCTION, "its lines begin outside its code")
        for at, start in enumerate(starts):
            starts[at] = start * INSTRUCTION
    record = LineRecord(
        name=name, archs=archs, kernel=bool(flags & _KERNEL), size=size, hash=code, fields=fields, inner=inner,
        parameters=parameters, tree=tree, starts=starts, places=places, sources=sources,
    )  # fmt: skip
    _check(read.at_end and not flags & ~_KNOWN, "it is of another form")
    _check_columns(record)
    return record


def _check_columns(record: LineRecord) -> None:
    tree, count = record.tree, len(record.tree)
    texts = len(tree.strings)
    _check(count == len(tree.files) == len(tree.lines) == len(tree.names), "its columns differ in length")
    _check(all(parent < number for number, parent in enumerate(tree.parents, 1)), "a place is inlined at a later one")
    _check(max(tree.files, default=-1) < texts, "it names a file that it does not list")
    _check(max(tree.names, default=-1) < texts + FIRST_NAME, "it names a function that it does not list")
    starts = record.starts
    _check(len(starts) == len(record.places), "its runs differ in length")
    _check(max(record.places, default=0) <= count, "it names a place that it does not list")
    _check(not starts or (starts[0] == 0 and starts[-1] < record.size), "its lines begin outside its code")
    _check(all(a < b for a, b in pairwise(starts)), "its lines are not in order")
    inside = all(f.offset < record.size and f.first_bit + f.bits <= 8 * INSTRUCTION for f in record.fields)
    _check(inside, "it leaves out fields outside its code")


def _check(sound: bool, what: str) -> None:
    if not sound:
        raise UnreadableBinary(f"a record of a line pack is damaged: {what}")


def _rows(read: ColumnReader) -> list[tuple[int, int, int]]:
    flat = read.column(3 * _MOST_ROWS)
    _check(len(flat) % 3 == 0, "a table has rows of another length")
    return list(zip(flat[::3], flat[1::3], flat[2::3], strict=True))
