"""The line program: what is written is read back, and no bytes bring the reader down."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpucore.dwarf import LineProgram, Rows, decode, read_units
from tests.builders.line_program import RowSpec, build_line_section

row_specs = st.builds(
    RowSpec,
    address=st.integers(0, 1 << 40),
    line=st.integers(1, 1 << 30),
    file=st.integers(1, 300),
    context=st.integers(0, 1 << 20),
    name=st.integers(0, 1 << 24),
)
sequences = st.lists(st.lists(row_specs, min_size=1, max_size=20).map(lambda rows: in_order(rows)), max_size=4)


def in_order(rows: list[RowSpec]) -> list[RowSpec]:
    addresses = sorted(row.address for row in rows)
    return [replace(row, address=address) for row, address in zip(rows, addresses, strict=True)]


def all_rows(section: bytes) -> list[list[RowSpec]]:
    (unit,) = read_units(section).units
    return [rows_of(decode(section, unit, sequence)) for sequence in unit.sequences]


def rows_of(rows: Rows) -> list[RowSpec]:
    columns = zip(rows.addresses, rows.files, rows.lines, rows.contexts, rows.names, strict=True)
    return [RowSpec(address=a, file=f, line=n, context=c, name=m) for a, f, n, c, m in columns]


@given(sequences)
def test_what_is_written_is_read_back(written: list[list[RowSpec]]) -> None:
    assert all_rows(build_line_section(written)) == written


@given(sequences, st.integers(1, 1000))
def test_the_name_base_of_the_header_tail_is_added(written: list[list[RowSpec]], base: int) -> None:
    # A row before the first inlined-call opcode has no name yet, so there is nothing to add to.
    for rows, read in zip(written, all_rows(build_line_section(written, name_base=base)), strict=True):
        named = False
        for row, got in zip(rows, read, strict=True):
            named = named or (row.context, row.name) != (0, 0)
            assert got == replace(row, name=row.name + base if named else 0)


def test_a_header_without_tail_has_no_name_base() -> None:
    (unit,) = read_units(build_line_section([[RowSpec(address=0, line=1)]], name_base=None)).units
    assert unit.name_base is None


def test_files_carry_their_directory() -> None:
    section = build_line_section([], files=[("a.cu", 1), ("b.h", 0), ("/abs/c.h", 1)], directories=["/src"])
    (unit,) = read_units(section).units
    assert unit.files == ("/src/a.cu", "b.h", "/abs/c.h")
    assert unit.file(9) == "<file number 9>"


def test_the_end_of_a_sequence_is_one_past_its_code() -> None:
    section = build_line_section([[RowSpec(address=0x40, line=1)]], tail=0x30)
    (unit,) = read_units(section).units
    assert decode(section, unit, unit.sequences[0]).end_address == 0x70


def test_a_sequence_cut_short_keeps_its_rows() -> None:
    section = build_line_section([[RowSpec(address=0, line=5), RowSpec(address=16, line=6)]])[:-3]
    program = read_units(section)
    (unit,) = program.units
    assert [row.line for row in rows_of(decode(section, unit, unit.sequences[0]))] == [5, 6]
    assert len(program.notes) == 2  # the unit is longer than its section, and the sequence has no end


def test_an_unknown_version_is_told_and_the_next_unit_read() -> None:
    strange = bytearray(build_line_section([]))
    strange[4] = 5
    program = read_units(bytes(strange) + build_line_section([[RowSpec(address=0, line=1)]]))
    assert len(program.units) == 1
    assert program.notes == ("line table: DWARF version 5 is not one that CUDA's assembler writes (2) (at byte 0x0)",)


def read_everything(section: bytes) -> LineProgram:
    program = read_units(section)
    for unit in program.units:
        for sequence in unit.sequences:
            assert len(decode(section, unit, sequence)) <= len(section)
    return program


@given(st.binary(max_size=400))
def test_any_bytes_are_read_without_an_error(data: bytes) -> None:
    read_everything(data)


@given(sequences, st.integers(0, 10_000), st.integers(0, 255))
def test_any_damaged_byte_is_read_without_an_error(written: list[list[RowSpec]], at: int, value: int) -> None:
    section = bytearray(build_line_section(written))
    section[at % len(section)] = value
    read_everything(bytes(section))


@given(st.binary(max_size=300))
def test_skipping_and_decoding_agree_where_a_sequence_ends(program: bytes) -> None:
    """The pattern that skips sequences and the machine that runs them must not disagree by a byte."""
    section = bytearray(build_line_section([])) + program
    section[:4] = (len(section) - 4).to_bytes(4, "little")
    (unit,) = read_units(bytes(section)).units
    for sequence in unit.sequences[:-1]:
        assert decode(bytes(section), unit, sequence).end_address is not None


@pytest.mark.parametrize("length", [0, 3, 14, 20, 30])
def test_a_header_cut_anywhere_is_told(length: int) -> None:
    assert read_units(build_line_section([[RowSpec(address=0, line=1)]])[:length]).notes or length == 0
