"""Where the lines of a pack are from: one entry for each binary that was packed."""

from __future__ import annotations

import json
import re
from array import array
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sized
from dataclasses import asdict, dataclass, field, fields, replace
from functools import cached_property
from itertools import count, pairwise
from typing import Final, TypeVar

from gpucore import line_pack
from gpucore.code_identity import HASH_SIZE, CodeIdentity, code_hash, code_of, identify, stable_name
from gpucore.code_map import CodeMap, Function
from gpucore.dwarf import UNKNOWN, LineTable, OtherHeaders, Rows, Unit
from gpucore.elf import Buffer, read_parameter_table
from gpucore.errors import UnreadableBinary
from gpucore.line_pack import (
    CODE_ROW,
    FIRST_NAME,
    FRAME_ROW,
    NAME_OF_FUNCTION,
    NAME_ROW,
    NAME_UNKNOWN,
    ColumnReader,
    ColumnWriter,
    InlineTree,
    InnerFunction,
    Kind,
    LineRecord,
    Sections,
    decode,
    encode,
)

_LONGEST: Final = 4096
_MOST: Final = 100_000
_MOST_HEADERS: Final = 64

# Where builds have CUTLASS: the folder that CMake fetches into, and that of earlier `lines build`s.
_CUTLASS: Final = re.compile(
    r"(?:^|/)[\w.-]*cutlass(?:-(?P<release>\d+\.\d+\.\d+)[\d.]*)?[^/]*/(?:tools/util/)?include/"
)


@dataclass(frozen=True, kw_only=True)
class PackedHeaders:
    """Sources of another project that a build took: those below `folder`, of the release `used`.

    `wanted` is the release that the code with the same instructions was built with, as its sources pin it.
    """

    folder: str
    project: str
    used: str
    wanted: str

    @property
    def other(self) -> OtherHeaders | None:
        """What to say of a line of these headers; None where they are of the release that the code was built with."""
        if self.used != UNKNOWN and self.used.removeprefix("v") == self.wanted.removeprefix("v"):
            return None
        return OtherHeaders(project=self.project, used=self.used, wanted=self.wanted)


@dataclass(frozen=True, kw_only=True)
class Provenance:
    """A binary that lines were packed from; what is not known is empty.

    `digest` is the sha256 of the binary. `release` is what the user calls the build, such as `vllm 0.33.0`; `compiler`
    and `options` are what ptxas noted. `plan` is the digest of the build plan. `verdict` is the proof of line info over
    the whole binary, with how many functions have code and how many of those have lines. `headers` are the other
    projects whose sources the build took, None where the pack does not say.
    """

    digest: str
    binary: str
    release: str = ""
    compiler: str = ""
    options: str = ""
    plan: str = ""
    verdict: str = ""
    functions: int = 0
    with_lines: int = 0
    headers: tuple[PackedHeaders, ...] | None = None

    def headers_of(self, file: str) -> OtherHeaders | None:
        """Return what to say of a line of a file, where it is of another project's release than the code is."""
        if self.headers is None:
            found = _CUTLASS.search(file)
            if found is None:
                return None
            return OtherHeaders(project="CUTLASS", used=found["release"] or UNKNOWN, wanted=UNKNOWN)
        return next((headers.other for headers in self.headers if file.startswith(headers.folder)), None)

    @property
    def build(self) -> str:
        """The build in a few words."""
        return ", ".join(
            part for part in (self.release or self.binary, self.compiler and f"nvcc {self.compiler}") if part
        )


def dump(entries: Iterable[Provenance]) -> bytes:
    """Return the entries as JSON, by digest."""
    ordered = sorted(entries, key=lambda entry: entry.digest)
    rows = [{key: value for key, value in asdict(entry).items() if value is not None} for entry in ordered]
    return json.dumps(rows, sort_keys=True, separators=(",", ":")).encode()


def load(data: bytes) -> tuple[Provenance, ...]:
    """Return the entries, without fields of later versions; raises UnreadableBinary when they are not such a list."""
    try:
        rows = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise UnreadableBinary(f"the provenance of a line pack is damaged: {error}") from error
    if not isinstance(rows, list) or len(rows) > _MOST:
        raise UnreadableBinary("the provenance of a line pack is not a list")
    return tuple(_entry(row) for row in rows)


def _entry(row: object) -> Provenance:
    kinds = {field.name: int if field.type == "int" else str for field in fields(Provenance) if field.name != "headers"}
    if not isinstance(row, dict) or not {"digest", "binary"} <= row.keys():
        raise UnreadableBinary("the provenance of a line pack has an entry without digest or binary")
    known = {name: row[name] for name in kinds if name in row}
    for name, value in known.items():
        if type(value) is not kinds[name] or (isinstance(value, str) and len(value) > _LONGEST):
            raise UnreadableBinary(f"the provenance of a line pack has a {name} of another type")
    return Provenance(**known, headers=_headers(row["headers"]) if "headers" in row else None)


def _headers(rows: object) -> tuple[PackedHeaders, ...]:
    if not isinstance(rows, list) or len(rows) > _MOST_HEADERS:
        raise UnreadableBinary("the provenance of a line pack has headers of another type")
    found = []
    for row in rows:
        values = [row.get(field.name) if isinstance(row, dict) else None for field in fields(PackedHeaders)]
        texts = [value for value in values if isinstance(value, str) and len(value) <= _LONGEST]
        if len(texts) != len(values):
            raise UnreadableBinary("the provenance of a line pack has headers of another type")
        found.append(PackedHeaders(**dict(zip((field.name for field in fields(PackedHeaders)), texts, strict=True))))
    return tuple(found)


# Reads a line pack that is mapped: a look-up takes a binary search and expands one block and a few texts.
#
# The bytes may be from anywhere. Whatever is read is checked first, by its checksum and by its own bounds; what does
# not hold raises UnreadableBinary, and no line is returned.


_KEPT: Final = 16  # frames expanded: a chain needs the texts of several
_KEPT_SIZE: Final = 32 << 20  # bytes of them
_KEPT_TEXTS: Final = 1 << 18
_MOST_ALIKE: Final = 1 << 12  # records of one function: one for each build with other code or lines
_MOST_PROVENANCE: Final = 8 << 20

T = TypeVar("T", bound=Sized)


class LinePack:
    """A line pack over bytes that stay the caller's.

    Raises UnreadableBinary from the constructor when the header is damaged, and from every look-up where the part that
    it needs is.
    """

    def __init__(self, data: Buffer) -> None:
        self._sections: Final = Sections(data)
        self._blocks: Final = _FrameReader(self._sections, Kind.BLOCK_TABLE, Kind.BLOCKS)
        self._strings: Final = _FrameReader(self._sections, Kind.STRING_TABLE, Kind.STRINGS)
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
        return load(bytes(line_pack.expand(data[4:], size)))

    @cached_property
    def by_digest(self) -> dict[str, Provenance]:
        """The binaries that were packed."""
        return {binary.digest: binary for binary in self.binaries}

    def find(self, code_hash: bytes, name: str) -> tuple[LineRecord, ...]:
        """Return the functions of this code and name, one for each build that disagrees with the others on lines."""
        stable = stable_name(name)
        key = code_hash + line_pack.name_hash(stable)
        table = self._sections[Kind.CODE]
        rows = _rows_with(table, CODE_ROW.size, key)
        return self._sound((self._record(number) for number in rows), stable, code_hash)

    def named(self, name: str) -> tuple[LineRecord, ...]:
        """Return the functions of this mangled name, whatever their code."""
        stable = stable_name(name)
        table = self._sections[Kind.NAMES]
        rows = _rows_with(table, NAME_ROW.size, line_pack.name_hash(stable))
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
        if any(before > after for before, after in pairwise(self.keys())):
            raise UnreadableBinary("the index of a line pack is not in order")
        self._check_names()
        code = self._sections[Kind.CODE]
        for number in self._by_block():
            record = self._record(number)
            key = CODE_ROW.unpack_from(code, number * CODE_ROW.size)[:2]
            if (record.hash, line_pack.name_hash(stable_name(record.name))) != key:
                raise UnreadableBinary("the index of a line pack does not fit its records")
            if not known.keys() >= set(record.sources):
                raise UnreadableBinary(f"{record.name} is from a binary that the line pack does not list")
        for number in range(len(self._strings)):
            self._chunk(number)

    def _check_names(self) -> None:
        """Raise UnreadableBinary unless the names list every function once, in order: then they are sorted codes."""
        code, rows = self._sections[Kind.CODE], NAME_ROW.iter_unpack(self._sections[Kind.NAMES])
        before, count = (b"", -1), 0
        for name, number in rows:
            fits = number < len(self) and CODE_ROW.unpack_from(code, number * CODE_ROW.size)[1] == name
            if not fits or (name, number) <= before:
                raise UnreadableBinary("the names of a line pack do not fit its records")
            before, count = (name, number), count + 1
        if count != len(self):
            raise UnreadableBinary("the names of a line pack do not fit its records")

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
        places = array("Q", (block << 32 | at for *_, block, at in CODE_ROW.iter_unpack(self._sections[Kind.CODE])))
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
                texts = tuple(reader.raw(size).decode() for size in reader.column(line_pack.MOST_TEXTS))
            except UnicodeDecodeError as error:
                raise UnreadableBinary("a text of a line pack is not UTF-8") from error
            if not reader.at_end:
                raise UnreadableBinary("a frame of a line pack has bytes behind its texts")
            return texts

        return _kept(self._texts, number, read, _KEPT_TEXTS)


class _FrameReader:
    """The frames of a section, expanded when asked for; the last few are kept."""

    def __init__(self, sections: Sections, table: Kind, data: Kind) -> None:
        self._sections: Final = sections
        self._kinds: Final = table, data
        self._expanded: Final[OrderedDict[int, memoryview]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._sections[self._kinds[0]]) // FRAME_ROW.size

    def __getitem__(self, number: int) -> memoryview:
        """Return the contents of a frame; raises UnreadableBinary when it is damaged."""
        return _kept(self._expanded, number, lambda: self._read(number), _KEPT_SIZE)

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
        if len(frame) != stored or line_pack.checksum(frame, 8) != expected:
            raise UnreadableBinary("a frame of a line pack is damaged: its checksum differs", offset=start)
        return line_pack.expand(frame, size)


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
        if end - low > _MOST_ALIKE:
            raise UnreadableBinary(f"the index of a line pack lists one function more than {_MOST_ALIKE:,} times")
    return range(low, end)


def _kept(cache: OrderedDict[int, T], number: int, read: Callable[[], T], most: int) -> T:
    """Return a value of the cache, or read it; the last used are kept, with at most so many bytes or texts together."""
    if number in cache:
        cache.move_to_end(number)
        return cache[number]
    value = read()
    cache[number] = value
    while len(cache) > 1 and (len(cache) > _KEPT or sum(map(len, cache.values())) > most):
        cache.popitem(last=False)
    return value


# Writes a line pack: the same functions and binaries give the same bytes, in whatever order they are added.


_BLOCK: Final = 256 << 10  # bytes before compression: one is expanded for each function that is looked up
_CHUNK: Final = 128 << 10

_Key = tuple[str, bytes]


class PackWriter:
    """Collects records and the binaries that they are from; builds that have the same code and lines are one record."""

    def __init__(self) -> None:
        self._records: Final[dict[_Key, list[LineRecord]]] = {}
        self._binaries: Final[dict[str, Provenance]] = {}
        self._strings: Final[dict[str, str]] = {}

    def add_binary(self, binary: Provenance) -> None:
        """Add a binary that records name as their source; of two notes on one the later stays."""
        known = self._binaries.get(binary.digest)
        self._binaries[binary.digest] = binary if known is None else max(known, binary, key=_content)

    def add(self, record: LineRecord) -> None:
        """Add the lines of a function."""
        record = self._with_shared_strings(record)
        same_code = self._records.setdefault((stable_name(record.name), record.hash), [])
        for number, known in enumerate(same_code):
            if replace(known, archs=(), sources=()) == replace(record, archs=(), sources=()):
                same_code[number] = replace(
                    known,
                    archs=tuple(sorted({*known.archs, *record.archs})),
                    sources=tuple(sorted({*known.sources, *record.sources})),
                )
                return
        same_code.append(record)

    def __len__(self) -> int:
        return sum(map(len, self._records.values()))

    def build(self) -> bytes:
        """Return the pack as bytes."""
        strings = sorted({text for records in self._records.values() for r in records for text in _texts(r)})
        numbers = dict(zip(strings, count(), strict=False))
        sources = dict(zip(sorted(self._binaries), count(), strict=False))
        blocks = _FrameWriter(_BLOCK)
        code: list[tuple[bytes, bytes, int, int]] = []
        for (stable, hashed), records in sorted(self._records.items()):
            encoded = sorted(encode(r, numbers.__getitem__, sources.__getitem__) for r in records)
            places = [blocks.add(len(data).to_bytes(4, "little") + data) for data in encoded]
            code += [(hashed, line_pack.name_hash(stable), *place) for place in places]
        code.sort()
        names = sorted((row[1], number) for number, row in enumerate(code))
        block_table, block_data = blocks.finish()
        string_table, string_data = _string_frames(strings)
        return line_pack.assemble(
            {
                Kind.PROVENANCE: _sized(dump(self._binaries.values())),
                Kind.CODE: b"".join(CODE_ROW.pack(*row) for row in code),
                Kind.NAMES: b"".join(NAME_ROW.pack(*row) for row in names),
                Kind.BLOCK_TABLE: block_table,
                Kind.BLOCKS: block_data,
                Kind.STRING_TABLE: string_table,
                Kind.STRINGS: string_data,
            }
        )

    def _with_shared_strings(self, record: LineRecord) -> LineRecord:
        """Keep one copy of each text: those of inlined functions are long, and every function has them again."""
        share: Callable[[str], str] = lambda text: self._strings.setdefault(text, text)  # noqa: E731
        tree = replace(record.tree, strings=tuple(map(share, record.tree.strings)))
        inner = tuple(InnerFunction(name=share(f.name), start=f.start, size=f.size) for f in record.inner)
        return replace(record, name=share(record.name), tree=tree, inner=inner)


class _FrameWriter:
    """Puts pieces of bytes into frames of about one size; a piece is never in two."""

    def __init__(self, size: int) -> None:
        self._size: Final = size
        self._piece = bytearray()
        self._table = bytearray()
        self._data = bytearray()
        self._first = 0
        self._texts = 0

    def add(self, data: bytes, texts: int = 0) -> tuple[int, int]:
        """Add a piece, and return the number of its frame and its offset there."""
        if self._piece and len(self._piece) + len(data) > self._size:
            self._close()
        at = len(self._table) // FRAME_ROW.size, len(self._piece)
        self._piece += data
        self._texts += texts
        return at

    def finish(self) -> tuple[bytes, bytes]:
        """Return the table of the frames, and the frames."""
        if self._piece:
            self._close()
        return bytes(self._table), bytes(self._data)

    def _close(self) -> None:
        frame = line_pack.compress(bytes(self._piece))
        self._table += FRAME_ROW.pack(
            len(self._data), len(frame), len(self._piece), self._first, line_pack.checksum(frame, 8)
        )
        self._data += frame
        self._first += self._texts
        self._texts = 0
        self._piece.clear()


def _string_frames(strings: Iterable[str]) -> tuple[bytes, bytes]:
    """Return the texts in frames: the lengths of those of a frame as a column, then the texts."""
    frames = _FrameWriter(0)
    for texts in _chunks(strings):
        raw = [text.encode() for text in texts]
        out = ColumnWriter()
        out.column([len(text) for text in raw])
        out.raw(b"".join(raw))
        frames.add(bytes(out.data), len(raw))
    return frames.finish()


def _chunks(strings: Iterable[str]) -> Iterator[list[str]]:
    chunk: list[str] = []
    size = 0
    for text in strings:
        chunk.append(text)
        size += len(text)
        if size >= _CHUNK:
            yield chunk
            chunk, size = [], 0
    if chunk:
        yield chunk


def _sized(data: bytes) -> bytes:
    return len(data).to_bytes(4, "little") + line_pack.compress(data)


def _texts(record: LineRecord) -> Iterator[str]:
    yield record.name
    yield from record.archs
    yield from record.tree.strings
    yield from (function.name for function in record.inner)


def _content(binary: Provenance) -> bytes:
    return dump([binary])


# Makes one line pack of several.


def merge(packs: Iterable[LinePack]) -> bytes:
    """Return a pack of all functions of several, in whatever order they are given.

    Builds that have the same code and lines become one; those that disagree on lines both stay. Raises
    UnreadableBinary when a pack is damaged.
    """
    writer = PackWriter()
    for pack in packs:
        for binary in pack.binaries:
            writer.add_binary(binary)
        for record in pack.records():
            writer.add(record)
    return writer.build()


# Whether a pack has lines for the code at a place: decided by the instructions, never by the name alone.


@dataclass(frozen=True, kw_only=True)
class Match:
    """What a pack has for a function: `same` has its very instructions, `other` its name only."""

    identity: CodeIdentity
    same: tuple[LineRecord, ...] = ()
    other: tuple[LineRecord, ...] = ()


def match(pack: LinePack, code: CodeMap, identity: CodeIdentity) -> Match:
    """Return what a pack has for a function; raises UnreadableBinary when the code or the pack is damaged.

    An image in a core has addresses in the fields that the linker left open, and may lack the relocations that name
    them: then the fields that the pack notes are left out of both.
    """
    name = identity.function.name
    same = pack.find(identity.hash, name)
    if same:
        return Match(identity=identity, same=same)
    named = pack.named(name)
    alike = tuple(record for record in named if _same_but_for_fields(record, code, identity))
    return Match(identity=identity, same=alike, other=() if alike else named)


def _same_but_for_fields(record: LineRecord, code: CodeMap, identity: CodeIdentity) -> bool:
    if not record.fields or record.size != identity.function.size:
        return False
    return code_hash(code_of(code, identity.function), record.fields) == record.hash


def distinct(records: Iterable[LineRecord], offset: int) -> tuple[LineRecord, ...]:
    """Return one record for each chain that builds give an instruction, those of the same chain in another folder once.

    Records without a line for it are left out.
    """
    found: dict[tuple[tuple[str | None, str, int], ...], LineRecord] = {}
    for record in records:
        chain = record.chain(offset)
        if chain:
            found.setdefault(tuple((f.function, f.file.rpartition("/")[2], f.line) for f in chain), record)
    return tuple(found.values())


# Takes the line table of every function out of a cubin that was built with line info.


Segment = tuple[int, int, int]
"""Start and end in bytes of a section, and the 1-based number of a place; 0 for none."""


def records_of(code: CodeMap, arch: str, source: str) -> Iterator[LineRecord]:
    """Yield the lines of every function of a cubin that has any; `source` is the digest of the file it is in.

    Raises UnreadableBinary when code, symbols or line table are damaged: what is packed must be sound.
    """
    table = code.read_lines()
    problems = (*code.notes, *(table.notes if table else ()))
    if problems:
        raise UnreadableBinary(f"a cubin's tables are damaged: {problems[0]}")
    if table is None:
        return
    for identity in identify(code):
        record = _record(code, table, identity, arch, source)
        if any(record.places):
            yield record


def _record(code: CodeMap, table: LineTable, identity: CodeIdentity, arch: str, source: str) -> LineRecord:
    outer = identity.function
    launch = read_parameter_table(code.elf, outer.name) if outer.kernel else None
    tree = _TreeBuilder(table)
    segments: list[Segment] = []
    for _, unit, rows in table.sequences(outer.section):
        segments = _laid_over(segments, list(tree.segments(unit, rows, outer)))
    starts, places = _runs(segments, outer)
    return LineRecord(
        name=outer.name,
        archs=(arch,),
        kernel=outer.kernel,
        size=outer.size,
        hash=identity.hash,
        fields=identity.fields,
        inner=tuple(InnerFunction(name=f.name, start=f.start - outer.start, size=f.size) for f in identity.inner),
        parameters=launch.parameters if launch else (),
        tree=tree.build(),
        starts=starts,
        places=places,
        sources=(source,),
    )


@dataclass
class _TreeBuilder:
    """Gives every distinct place of a function a number, in the order in which they are first seen."""

    table: LineTable
    places: dict[tuple[int, int, int, int], int] = field(default_factory=dict)
    strings: dict[str, int] = field(default_factory=dict)

    def segments(self, unit: Unit, rows: Rows, function: Function) -> Iterator[Segment]:
        """Yield the segments of a function's code by the rows of a sequence; only the last row at an address counts."""
        if not len(rows) or rows.end_address is None:
            raise UnreadableBinary("a line table has a sequence without rows or end")
        start, end = function.start, function.start + function.size
        if rows.end_address <= start or rows.addresses[0] >= end:
            return
        files = {number: self._string(unit.file(number)) for number in dict.fromkeys(rows.files)}
        names = {number: self._name(number) for number in dict.fromkeys(rows.names)}
        numbers = array("I")
        at = rows.addresses[0]
        for i, (address, file, line, context, name) in enumerate(
            zip(rows.addresses, rows.files, rows.lines, rows.contexts, rows.names, strict=True)
        ):
            if address < at:
                raise UnreadableBinary("the rows of a line table are not in order")
            parent = numbers[context - 1] if 0 < context <= i else 0
            place = (parent, files[file], line, names[name] if context else NAME_OF_FUNCTION)
            numbers.append(self.places.setdefault(place, len(self.places) + 1))
            if address > at:
                if at < end and address > start:
                    yield max(at, start), min(address, end), numbers[i - 1]
                at = address
        if at < end and rows.end_address > start:
            yield max(at, start), min(rows.end_address, end), numbers[-1]

    def build(self) -> InlineTree:
        """Return the tree of all places seen."""
        columns = list(zip(*self.places, strict=True)) or [()] * 4
        parents, files, lines, names = (array("I", column) for column in columns)
        return InlineTree(parents=parents, files=files, lines=lines, names=names, strings=tuple(self.strings))

    def _string(self, text: str) -> int:
        return self.strings.setdefault(text, len(self.strings))

    def _name(self, start: int) -> int:
        name = self.table.mangled_name(start)
        return self._string(name) + FIRST_NAME if name else NAME_UNKNOWN


def _laid_over(under: list[Segment], over: list[Segment]) -> list[Segment]:
    """Return segments in order, those of `over` hiding what is under them: of two sequences the later start wins."""
    if not over or not under or under[-1][1] <= over[0][0]:
        return under + over
    first, last = over[0][0], over[-1][1]
    before = [(start, min(end, first), place) for start, end, place in under if start < first]
    after = [(max(start, last), end, place) for start, end, place in under if end > last]
    return before + over + after


def _runs(segments: list[Segment], function: Function) -> tuple[array[int], array[int]]:
    """Return starts and places from a function's start on; gaps have place 0, neighbours of one place are one run."""
    starts, places = array("I"), array("I")

    def begin(at: int, place: int) -> None:
        if not places or places[-1] != place:
            starts.append(at - function.start)
            places.append(place)

    at = function.start
    for start, end, place in segments:
        if start > at:
            begin(at, 0)
        begin(start, place)
        at = end
    if at < function.start + function.size:
        begin(at, 0)
    return starts, places
