"""From a place in device code to its source line and the whole inline chain.

Read the table, not nvdisasm's listing: the listing shows a new chain only when the leaf's file or line changes, so
where two call paths end in the same small inline function the second is shown under the first one's chain.
ptxas itself does the same on a smaller scale: it writes no row where only the call path changes and both paths have
been named before. `LineTable.siblings` shows when a chain may be such a neighbour's.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Final

from vdbg_env.cuda.lines.line_coverage import CoverageReader, Span
from vdbg_env.cuda.lines.line_program import Buffer, Rows, Sequence, Unit, decode, read_units
from vdbg_env.cuda.lines.source_frame import Chain, SourceFrame
from vdbg_env.cuda.symbols.demangling import demangle

_LONGEST_NAME: Final = 1 << 16
_MOST_SIBLINGS: Final = 64
_DEEPEST_CHAIN: Final = 4096  # a context may only name an earlier row, so this is a bound for hostile tables alone


@dataclass(frozen=True, kw_only=True, slots=True)
class Place:
    """A byte of code: an index into the section table, and an offset in that section in bytes."""

    section: int
    offset: int


@dataclass(frozen=True, kw_only=True, slots=True)
class LineRow:
    """One row as tools list them: where it starts, its file and 1-based line, the row it was inlined at (0: none)."""

    offset: int
    file: str
    line: int
    context: int
    function: str | None


@dataclass(frozen=True, slots=True)
class _Run:
    """One sequence, placed: it covers its section from `start` on."""

    start: int
    unit: Unit
    sequence: Sequence


class LineTable:
    """The rows of one line section, decoded a sequence at a time when a place in it is first asked for.

    `place` says where an address operand points: it is given the operand's offset in the section and the value that
    stands there. A sequence that points nowhere is left out, with a note in `notes`.
    """

    def __init__(self, section: Buffer, strings: Buffer, place: Callable[[int, int], Place | None]) -> None:
        program = read_units(section)
        self._section: Final = section
        self._strings: Final = strings
        self._place: Final = place
        self._runs: Final[dict[int, list[_Run]]] = {}
        self._decoded: Final[dict[int, Rows]] = {}
        notes = list(program.notes)
        for unit in program.units:
            lost = sum(not self._admit(unit, sequence) for sequence in unit.sequences)
            if lost:
                notes.append(f"line table: {lost} of the unit at byte {unit.offset:#x} name no section of code")
        for runs in self._runs.values():
            runs.sort(key=lambda run: run.start)
        self.notes: Final = tuple(notes)

    def _admit(self, unit: Unit, sequence: Sequence) -> bool:
        if sequence.operand is None or sequence.address is None:
            return False
        place = self._place(sequence.operand, sequence.address)
        if place is None:
            return False
        self._runs.setdefault(place.section, []).append(_Run(place.offset, unit, sequence))
        return True

    @property
    def sections(self) -> frozenset[int]:
        """The indexes of the sections that have line rows."""
        return frozenset(self._runs)

    def covered(self) -> Iterator[tuple[int, list[Span]]]:
        """Yield, for every sequence, its section and what of it has a source line, without decoding rows."""
        readers: dict[int, CoverageReader] = {}
        for section, runs in self._runs.items():
            for run in runs:
                reader = readers.get(run.unit.offset)
                if reader is None:
                    reader = readers[run.unit.offset] = CoverageReader(self._section, run.unit, self._offset)
                yield section, reader.spans(run.sequence)

    def chain(self, place: Place, function: str | None = None) -> Chain:
        """Return the source frames of an instruction, leaf first; empty when no row covers it.

        `function` is the demangled name of the function that the code belongs to: the table names only inlined ones.
        """
        found = self._find(place)
        return self._walk(*found, function) if found else ()

    def siblings(self, place: Place, function: str | None = None) -> tuple[Chain, ...]:
        """Return the other chains of the same sequence that end in the same leaf line, at most eight of them.

        With any of these, the chain of `place` is right to its leaf, and its callers are the likeliest of several.
        """
        found = self._find(place)
        if found is None:
            return ()
        unit, rows, row = found
        leaf = (rows.files[row], rows.lines[row], rows.names[row])
        contexts = {
            rows.contexts[i]: i
            for i in range(len(rows))
            if rows.contexts[i] and (rows.files[i], rows.lines[i], rows.names[i]) == leaf
        }
        own = self._walk(unit, rows, row, function)
        others = dict.fromkeys(self._walk(unit, rows, i, function) for i in islice(contexts.values(), _MOST_SIBLINGS))
        return tuple(chain for chain in others if chain != own)[:8]

    def contradictions(self, place: Place, section_size: int) -> tuple[str, ...]:
        """Return what shows that the rows of a place are damaged, in words.

        ptxas names each inlined function, and its rows end where the code does.
        """
        found = self._find(place)
        if found is None:
            return ()
        unit, rows, row = found
        doubts = []
        if rows.end_address not in (None, section_size) and len(self._runs[place.section]) == 1:
            doubts.append(f"the line table ends at {rows.end_address:#x} of code of {section_size:#x} bytes")
        for _ in range(_DEEPEST_CHAIN):
            name, context = rows.names[row], rows.contexts[row]
            if not 1 <= rows.files[row] <= len(unit.files) or rows.lines[row] == 0:
                doubts.append("the line table names a file that it does not list, or line 0")
            if context > row:
                doubts.append("the line table inlines code at a place further on")
            if not 0 < context <= row:
                break
            if unit.name_base is not None and not self._is_name(name):
                doubts.append("the line table has no sound name for an inlined function")
            row = context - 1
        return tuple(dict.fromkeys(doubts))

    def _is_name(self, start: int) -> bool:
        """Return whether a whole string is at an offset, and a mangled one is a name."""
        if start >= len(self._strings) or (start and self._strings[start - 1]):
            return False
        raw = bytes(self._strings[start : start + _LONGEST_NAME]).partition(b"\0")[0]
        return raw.isascii() and bool(raw) and not (raw.startswith(b"_Z") and demangle(raw.decode()) == raw.decode())

    def rows(self, section: int) -> Iterator[LineRow]:
        """Yield every row of a section in the order of the table."""
        for run in self._runs.get(section, ()):
            rows = self._rows(run)
            for i in range(len(rows)):
                yield LineRow(
                    offset=rows.addresses[i],
                    file=run.unit.file(rows.files[i]),
                    line=rows.lines[i],
                    context=rows.contexts[i],
                    function=self._name(rows, i) if rows.contexts[i] else None,
                )

    def sequences(self, section: int) -> Iterator[tuple[int, Unit, Rows]]:
        """Yield every sequence of a section by its start: that, its unit and its rows, which are not kept here."""
        for run in self._runs.get(section, ()):
            yield run.start, run.unit, decode(self._section, run.unit, run.sequence, self._offset)

    def mangled_name(self, start: int) -> str:
        """Return the name at an offset of the table's strings as it is there; empty where there is none."""
        return (
            bytes(self._strings[start : start + _LONGEST_NAME]).partition(b"\0")[0].decode("utf-8", "backslashreplace")
        )

    def _find(self, place: Place) -> tuple[Unit, Rows, int] | None:
        """Return the last row that begins at or before a place, with its sequence and unit."""
        for run in self._covering(place):
            rows = self._rows(run)
            if rows.end_address is not None and place.offset >= rows.end_address:
                continue
            last = bisect_right(rows.addresses, place.offset) - 1
            if last >= 0:
                return run.unit, rows, last
        return None

    def _covering(self, place: Place) -> Iterator[_Run]:
        """Yield the sequences that begin at or before a place, nearest first, so that of two the inner one wins."""
        runs = self._runs.get(place.section, [])
        for i in range(bisect_right(runs, place.offset, key=lambda run: run.start) - 1, -1, -1):
            yield runs[i]

    def _rows(self, run: _Run) -> Rows:
        rows = self._decoded.get(run.sequence.start)
        if rows is None:
            rows = decode(self._section, run.unit, run.sequence, self._offset)
            self._decoded[run.sequence.start] = rows
        return rows

    def _offset(self, operand: int, value: int) -> int:
        place = self._place(operand, value)
        return value if place is None else place.offset

    def _walk(self, unit: Unit, rows: Rows, row: int, function: str | None) -> Chain:
        frames: list[SourceFrame] = []
        while len(frames) < _DEEPEST_CHAIN:
            context = rows.contexts[row]
            name = self._name(rows, row) if context else function
            frames.append(SourceFrame(function=name, file=unit.file(rows.files[row]), line=rows.lines[row]))
            if not 0 < context <= row:
                break
            row = context - 1
        return tuple(frames)

    def _name(self, rows: Rows, row: int) -> str | None:
        name = self.mangled_name(rows.names[row])
        return demangle(name) if name else None
