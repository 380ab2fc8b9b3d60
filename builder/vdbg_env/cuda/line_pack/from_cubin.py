"""Takes the line table of every function out of a cubin that was built with line info."""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from dataclasses import dataclass, field

from vdbg_env.common.errors import UnreadableBinary
from vdbg_env.cuda.binary.kernel_info import read_parameter_table
from vdbg_env.cuda.line_pack.identity import CodeIdentity, identify
from vdbg_env.cuda.line_pack.record import (
    FIRST_NAME,
    NAME_OF_FUNCTION,
    NAME_UNKNOWN,
    InlineTree,
    InnerFunction,
    LineRecord,
)
from vdbg_env.cuda.lines.code_map import CodeMap, Function
from vdbg_env.cuda.lines.line_program import Rows, Unit
from vdbg_env.cuda.lines.line_table import LineTable

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
