"""What a sequence covers, compared with its decoded rows, on any bytes."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpucore.dwarf import CoverageReader, Span, decode, merged, read_units
from tests.builders.line_program import COUNTS, LINE_BASE, LINE_RANGE, OPCODE_BASE, RowSpec, build_line_section, uleb

opcodes = st.one_of(
    st.integers(OPCODE_BASE, 255).map(lambda opcode: bytes([opcode])),
    st.just(b"\x01"),
    st.sampled_from([b"\x06", b"\x07", b"\x08", b"\0\x03\x91\x05\x02", b"\0\x05\x90\x01\x80\x80\x01", b"\0\x01\x04"]),
    st.tuples(st.sampled_from([b"\x02", b"\x04", b"\x05"]), st.integers(0, 300)).map(lambda o: o[0] + uleb(o[1])),
    st.tuples(st.just(b"\x04"), st.integers(0, 3)).map(lambda o: o[0] + uleb(o[1])),
    st.integers(0, 127).map(lambda byte: b"\x03" + bytes([byte])),
    st.integers(0, 127).map(lambda byte: b"\x03\x80" + bytes([byte])),
    st.binary(min_size=2, max_size=2).map(lambda low_high: b"\x09" + low_high),
    st.integers(0, 1 << 64).map(lambda value: b"\0\x09\x02" + struct.pack("<Q", value & (1 << 64) - 1)),
)


def section_of(program: bytes, *, counts: bytes = COUNTS, files: bytes = b"a.cu\0\0\0\0b.cu\0\0\0\0") -> bytes:
    """Return a line section of one unit with exactly this program."""
    fixed = struct.pack("<BBbBB", 1, 1, LINE_BASE, LINE_RANGE, len(counts) + 1) + counts
    tables = b"\0" + files + b"\0"
    body = struct.pack("<HI", 2, len(fixed) + len(tables)) + fixed + tables + program
    return struct.pack("<I", len(body)) + body


def spans(section: bytes, address_of: int | None = None) -> list[list[Span]]:
    """What is covered, by the reader under test."""
    (unit,) = read_units(section).units
    reader = CoverageReader(section, unit, lambda _, value: value if address_of is None else address_of)
    return [reader.spans(sequence) for sequence in unit.sequences]


def by_rows(section: bytes) -> list[list[Span]]:
    """What is covered, from the rows that `decode` makes."""
    (unit,) = read_units(section).units
    found = []
    for sequence in unit.sequences:
        rows = decode(section, unit, sequence, lambda _, value: value)
        ends = [*list(rows.addresses)[1:], rows.end_address or 0]
        pieces = zip(rows.addresses, ends, rows.files, rows.lines, strict=False)
        found.append(merged((a, b) for a, b, file, line in pieces if line and 1 <= file <= len(unit.files)))
    return found


@given(st.lists(opcodes, max_size=30), st.booleans())
def test_it_is_what_the_decoded_rows_say(program: list[bytes], ended: bool) -> None:
    start = b"\0\x09\x02" + bytes(8)
    section = section_of(start + b"".join(program) + (b"\0\x01\x01" if ended else b""))
    assert spans(section) == by_rows(section)


@given(st.binary(max_size=60))
def test_it_is_what_the_decoded_rows_say_of_any_bytes(noise: bytes) -> None:
    section = section_of(b"\0\x09\x02" + bytes(8) + noise + b"\0\x01\x01")
    assert spans(section) == by_rows(section)


@given(st.lists(opcodes, max_size=20))
def test_a_header_of_another_form_is_read_row_by_row(program: list[bytes]) -> None:
    section = section_of(b"\0\x09\x02" + bytes(8) + b"".join(program) + b"\0\x01\x01", counts=bytes([0, 1, 1, 1, 2]))
    assert spans(section) == by_rows(section)


def test_rows_cover_from_the_first_to_the_end_of_the_sequence() -> None:
    rows = [RowSpec(address=0x20, line=3), RowSpec(address=0x400, line=900), RowSpec(address=0x410, line=2)]
    assert spans(build_line_section([rows, []], tail=0x30)) == [[(0x20, 0x440)], []]


@pytest.mark.parametrize("bad", [RowSpec(address=0x10, line=0), RowSpec(address=0x10, line=5, file=2)])
def test_rows_without_a_source_line_leave_a_hole(bad: RowSpec) -> None:
    rows = [RowSpec(address=0, line=3), bad, RowSpec(address=0x40, line=4)]
    assert spans(build_line_section([rows])) == [[(0, 0x10), (0x40, 0x50)]]


def test_code_before_the_first_row_is_not_covered() -> None:
    advance_then_row = b"\0\x09\x02" + bytes(8) + b"\x02\x10\0\x03\x91\x01\x02\x01\x02\x20\0\x01\x01"
    assert spans(section_of(advance_then_row)) == [[(0x10, 0x30)]]


def test_a_table_without_files_covers_nothing() -> None:
    assert spans(section_of(b"\0\x09\x02" + bytes(8) + b"\x01\x02\x20\0\x01\x01", files=b"")) == [[]]


def test_addresses_are_where_the_caller_places_them() -> None:
    assert spans(build_line_section([[RowSpec(address=0, line=1)]]), address_of=0x700) == [[(0x700, 0x710)]]


def test_spans_that_touch_or_overlap_are_one() -> None:
    assert merged([(8, 9), (0, 4), (4, 6), (5, 7), (3, 3)]) == [(0, 7), (8, 9)]
