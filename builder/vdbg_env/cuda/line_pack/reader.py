"""Reads a line pack that is mapped: a look-up takes a binary search and expands one block and a few texts.

The bytes may be from anywhere. Whatever is read is checked first, by its checksum and by its own bounds; what does not
hold raises UnreadableBinary, and no line is returned.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable, Iterator
from functools import cached_property
from typing import Final, TypeVar

from vdbg_env.common.errors import UnreadableBinary
from vdbg_env.cuda.binary.elf import Buffer
from vdbg_env.cuda.line_pack import layout, provenance
from vdbg_env.cuda.line_pack.columns import ColumnReader
from vdbg_env.cuda.line_pack.identity import HASH_SIZE, stable_name
from vdbg_env.cuda.line_pack.layout import CODE_ROW, FRAME_ROW, NAME_ROW, Kind, Sections
from vdbg_env.cuda.line_pack.provenance import Provenance
from vdbg_env.cuda.line_pack.record import LineRecord
from vdbg_env.cuda.line_pack.record_bytes import decode

_KEPT: Final = 16  # frames expanded: a chain needs the texts of several
_MOST_PROVENANCE: Final = 16 << 20

T = TypeVar("T")


class LinePack:
    """A line pack over bytes that stay the caller's.

    Raises UnreadableBinary from the constructor when the header is damaged, and from every look-up where the part that
    it needs is.
    """

    def __init__(self, data: Buffer) -> None:
        self._sections: Final = Sections(data)
        self._blocks: Final = _Frames(self._sections, Kind.BLOCK_TABLE, Kind.BLOCKS)
        self._strings: Final = _Frames(self._sections, Kind.STRING_TABLE, Kind.STRINGS)
        self._texts: Final[OrderedDict[int, tuple[str, ...]]] = OrderedDict()

    def __len__(self) -> int:
        """Return how many functions the pack has lines of."""
        return len(self._sections[Kind.CODE]) // CODE_ROW.size

    @cached_property
    def binaries(self) -> tuple[Provenance, ...]:
        """The binaries that were packed, by digest."""
        data = self._sections[Kind.PROVENANCE]
        size = int.from_bytes(data[:4], "little")
        if size > _MOST_PROVENANCE:
            raise UnreadableBinary(f"a line pack claims {size:,} bytes of provenance")
        return provenance.load(bytes(layout.expand(data[4:], size)))

    @cached_property
    def by_digest(self) -> dict[str, Provenance]:
        """The binaries that were packed."""
        return {binary.digest: binary for binary in self.binaries}

    def find(self, code_hash: bytes, name: str) -> tuple[LineRecord, ...]:
        """Return the functions of this code and name, one for each build that disagrees with the others on lines."""
        stable = stable_name(name)
        key = code_hash + layout.name_hash(stable)
        table = self._sections[Kind.CODE]
        rows = _rows_with(table, CODE_ROW.size, key)
        return self._sound((self._record(number) for number in rows), stable, code_hash)

    def named(self, name: str) -> tuple[LineRecord, ...]:
        """Return the functions of this mangled name, whatever their code."""
        stable = stable_name(name)
        table = self._sections[Kind.NAMES]
        rows = _rows_with(table, NAME_ROW.size, layout.name_hash(stable))
        numbers = [NAME_ROW.unpack_from(table, row * NAME_ROW.size)[1] for row in rows]
        return self._sound((self._record(number) for number in numbers), stable)

    def keys(self) -> Iterator[tuple[bytes, bytes]]:
        """Yield the code hash and the name hash of every function, by code hash."""
        for code, name, _, _ in CODE_ROW.iter_unpack(self._sections[Kind.CODE]):
            yield code, name

    def records(self) -> Iterator[LineRecord]:
        """Yield every function, in the order of the blocks: by name, then by code."""
        yield from map(self._record, self._by_block())

    def names(self) -> Iterator[tuple[int, str]]:
        """Yield number and mangled name of every function; no lines are read."""
        for number in self._by_block():
            read = ColumnReader(self._bytes(number))
            read.number()
            read.raw(HASH_SIZE)
            yield number, self._string(read.number())

    def record(self, number: int) -> LineRecord:
        """Return a function by its number."""
        return self._record(number)

    def check(self) -> None:
        """Read all of it; raises UnreadableBinary where a part is damaged, or its indexes lead elsewhere."""
        known = self.by_digest
        code = list(self.keys())
        for number in self._by_block():
            record = self._record(number)
            if (record.hash, layout.name_hash(stable_name(record.name))) != code[number]:
                raise UnreadableBinary("the index of a line pack does not fit its records")
            if not known.keys() >= set(record.sources):
                raise UnreadableBinary(f"{record.name} is from a binary that the line pack does not list")
        if code != sorted(code):
            raise UnreadableBinary("the index of a line pack is not in order")
        names = [(name, number) for name, number in NAME_ROW.iter_unpack(self._sections[Kind.NAMES])]
        if names != sorted((name, number) for number, (_, name) in enumerate(code)):
            raise UnreadableBinary("the names of a line pack do not fit its records")
        for number in range(len(self._strings)):
            self._chunk(number)

    def _sound(
        self, records: Iterator[LineRecord], stable: str, code_hash: bytes | None = None
    ) -> tuple[LineRecord, ...]:
        """Return the records that are what was asked for; another one in the place of it shows a damaged index."""
        found = tuple(record for record in records if stable_name(record.name) == stable)
        if code_hash is not None and any(record.hash != code_hash for record in found):
            raise UnreadableBinary("the index of a line pack does not fit its records")
        return found

    def _by_block(self) -> list[int]:
        """Return the numbers of the functions in the order of their records: each block is then expanded once."""
        places = [row[2:] for row in CODE_ROW.iter_unpack(self._sections[Kind.CODE])]
        return sorted(range(len(places)), key=places.__getitem__)

    def _record(self, number: int) -> LineRecord:
        if not 0 <= number < len(self):
            raise UnreadableBinary("the names of a line pack lead outside its index")
        return decode(self._bytes(number), self._string, self._source)

    def _bytes(self, number: int) -> memoryview:
        _, _, block, offset = CODE_ROW.unpack_from(self._sections[Kind.CODE], number * CODE_ROW.size)
        data = self._blocks[block]
        start = offset + 4
        end = start + int.from_bytes(data[offset:start], "little")
        if start > len(data) or end > len(data):
            raise UnreadableBinary("a record of a line pack is not within its block")
        return data[start:end]

    def _source(self, number: int) -> str:
        if number >= len(self.binaries):
            raise UnreadableBinary("a record of a line pack is from a binary that is not listed")
        return self.binaries[number].digest

    def _string(self, number: int) -> str:
        chunk = self._strings.holding(number)
        first, texts = self._strings.first(chunk), self._chunk(chunk)
        if number - first >= len(texts):
            raise UnreadableBinary("a record of a line pack names a text that is not there")
        return texts[number - first]

    def _chunk(self, number: int) -> tuple[str, ...]:
        def read() -> tuple[str, ...]:
            data = self._strings[number]
            reader = ColumnReader(data)
            try:
                texts = tuple(reader.raw(size).decode() for size in reader.column())
            except UnicodeDecodeError as error:
                raise UnreadableBinary("a text of a line pack is not UTF-8") from error
            if not reader.at_end:
                raise UnreadableBinary("a frame of a line pack has bytes behind its texts")
            return texts

        return _kept(self._texts, number, read)


class _Frames:
    """The frames of a section, expanded when asked for; the last few are kept."""

    def __init__(self, sections: Sections, table: Kind, data: Kind) -> None:
        self._sections: Final = sections
        self._kinds: Final = table, data
        self._expanded: Final[OrderedDict[int, memoryview]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._sections[self._kinds[0]]) // FRAME_ROW.size

    def __getitem__(self, number: int) -> memoryview:
        """Return the contents of a frame; raises UnreadableBinary when it is damaged."""
        return _kept(self._expanded, number, lambda: self._read(number))

    def holding(self, text: int) -> int:
        """Return the number of the frame that has a text."""
        return bisect_right(self._firsts, text) - 1

    def first(self, number: int) -> int:
        """Return the number of the first text of a frame."""
        return self._firsts[number] if 0 <= number < len(self._firsts) else 0

    @cached_property
    def _firsts(self) -> list[int]:
        return [row[3] for row in FRAME_ROW.iter_unpack(self._sections[self._kinds[0]])]

    def _read(self, number: int) -> memoryview:
        if not 0 <= number < len(self):
            raise UnreadableBinary("a line pack leads to a frame that is not there")
        start, stored, size, _, expected = FRAME_ROW.unpack_from(
            self._sections[self._kinds[0]], number * FRAME_ROW.size
        )
        data = self._sections[self._kinds[1]]
        frame = data[start : start + stored]
        if len(frame) != stored or layout.checksum(frame, 8) != expected:
            raise UnreadableBinary("a frame of a line pack is damaged: its checksum differs", offset=start)
        return layout.expand(frame, size)


def _rows_with(table: memoryview, width: int, key: bytes) -> range:
    """Return the numbers of the rows that start with a key, of a table of rows in order."""
    size = len(key)

    def at(row: int) -> bytes:
        return bytes(table[row * width : row * width + size])

    rows = range(len(table) // width)
    low, high = 0, len(rows)
    while low < high:
        middle = (low + high) // 2
        low, high = (middle + 1, high) if at(middle) < key else (low, middle)
    end = low
    while end < len(rows) and at(end) == key:
        end += 1
    return range(low, end)


def _kept(cache: OrderedDict[int, T], number: int, read: Callable[[], T]) -> T:
    if number in cache:
        cache.move_to_end(number)
        return cache[number]
    value = read()
    cache[number] = value
    if len(cache) > _KEPT:
        cache.popitem(last=False)
    return value
