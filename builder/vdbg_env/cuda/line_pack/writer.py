"""Writes a line pack: the same functions and binaries give the same bytes, in whatever order they are added."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from itertools import count
from typing import Final

from vdbg_env.cuda.line_pack import layout, provenance
from vdbg_env.cuda.line_pack.columns import ColumnWriter
from vdbg_env.cuda.line_pack.identity import stable_name
from vdbg_env.cuda.line_pack.layout import CODE_ROW, FRAME_ROW, NAME_ROW, Kind
from vdbg_env.cuda.line_pack.provenance import Provenance
from vdbg_env.cuda.line_pack.record import InnerFunction, LineRecord
from vdbg_env.cuda.line_pack.record_bytes import encode

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
        blocks = _Frames(_BLOCK)
        code: list[tuple[bytes, bytes, int, int]] = []
        for (stable, hashed), records in sorted(self._records.items()):
            encoded = sorted(encode(r, numbers.__getitem__, sources.__getitem__) for r in records)
            places = [blocks.add(len(data).to_bytes(4, "little") + data) for data in encoded]
            code += [(hashed, layout.name_hash(stable), *place) for place in places]
        code.sort()
        names = sorted((row[1], number) for number, row in enumerate(code))
        block_table, block_data = blocks.finish()
        string_table, string_data = _string_frames(strings)
        return layout.assemble(
            {
                Kind.PROVENANCE: _sized(provenance.dump(self._binaries.values())),
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


class _Frames:
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
        frame = layout.compress(bytes(self._piece))
        self._table += FRAME_ROW.pack(
            len(self._data), len(frame), len(self._piece), self._first, layout.checksum(frame, 8)
        )
        self._data += frame
        self._first += self._texts
        self._texts = 0
        self._piece.clear()


def _string_frames(strings: Iterable[str]) -> tuple[bytes, bytes]:
    """Return the texts in frames: the lengths of those of a frame as a column, then the texts."""
    frames = _Frames(0)
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
    return len(data).to_bytes(4, "little") + layout.compress(data)


def _texts(record: LineRecord) -> Iterator[str]:
    yield record.name
    yield from record.archs
    yield from record.tree.strings
    yield from (function.name for function in record.inner)


def _content(binary: Provenance) -> bytes:
    return provenance.dump([binary])
