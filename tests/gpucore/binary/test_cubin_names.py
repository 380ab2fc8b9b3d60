"""The names of a cubin are read from its first bytes, in the layouts of ptxas and of NVIDIA's own assembler."""

import struct
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpucore.code_map import CodeMap
from gpucore.cubin import read_names, read_section_names
from gpucore.elf import SHT_NOBITS, Elf

CUBINS = Path(__file__).parents[2] / "data" / "cubins"
KERNELS = {"_Z4kernIdEvPT_iS0_", "_Z4kernIfEvPT_iS0_"}
NAMES = ["inline_chain_sm80", "inline_chain_sm90", "inline_chain_sm100", "no_lines_sm90"]


def pieces(data: bytes, size: int = 4096) -> Iterator[bytes]:
    return (data[i : i + size] for i in range(0, len(data), size))


def headers_first(data: bytes) -> bytes:
    """Return a cubin in the order of NVIDIA's own assembler: headers, symbols, names, then everything else."""
    elf = Elf(data)
    first = {".symtab": 0, ".shstrtab": 1, ".strtab": 2}
    rows: dict[int, bytes] = {}
    contents = b""
    start = 64 + 64 * elf.section_count
    for section in sorted(elf.sections, key=lambda s: first.get(elf.name(s), 3)):
        rows[section.number] = struct.pack(
            "<IIQQQQIIQQ", section.name_offset, section.type, section.flags, section.address, start + len(contents),
            section.size, section.link, section.info, section.alignment, section.entry_size,
        )  # fmt: skip
        contents += bytes(elf.contents(section)) if section.type != SHT_NOBITS else b""
    header = bytearray(data[:64])
    header[40:48] = (64).to_bytes(8, "little")
    return bytes(header) + b"".join(rows[number] for number in range(elf.section_count)) + contents


@pytest.mark.parametrize("layout", [bytes, headers_first], ids=["ptxas", "headers first"])
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("size", [256, 1 << 20])
def test_names_are_read_from_the_first_bytes(name: str, layout: type[bytes], size: int) -> None:
    data = layout((CUBINS / f"{name}.cubin").read_bytes())
    names = read_names(pieces(data, size))
    assert names and set(names.functions()) == KERNELS
    functions = {function.name for function in CodeMap(data).functions}
    assert functions > KERNELS
    assert names.holding(b"kern") == functions
    assert names.holding(b"4slow") == {one for one in functions if "slow" in one} != set()
    assert names.holding(b"absent") == set()


@pytest.mark.parametrize("layout", [bytes, headers_first], ids=["ptxas", "headers first"])
def test_no_more_is_expanded_than_the_names_take(layout: type[bytes]) -> None:
    data = layout((CUBINS / "inline_chain_sm90.cubin").read_bytes())
    rest = pieces(data, 256)
    assert read_names(rest)
    assert len(b"".join(rest)) > len(data) // 2


def test_names_of_another_layout_are_not_guessed() -> None:
    data = (CUBINS / "inline_chain_sm90.cubin").read_bytes()
    assert read_names(pieces(data.replace(b"\0.shstrtab\0", b"\0.shstrtaB\0"))) is None
    assert read_names(pieces(data[:200])) is None
    assert read_names(pieces(b"\x7fELF")) is None
    assert read_names(pieces(b"")) is None


@pytest.mark.parametrize("length", [64, 100, 2000])
def test_names_behind_headers_that_are_cut_off_are_not_guessed(length: int) -> None:
    assert read_names(pieces(headers_first((CUBINS / "inline_chain_sm90.cubin").read_bytes())[:length])) is None


def test_a_table_of_names_far_away_is_not_expanded() -> None:
    data = bytearray(headers_first((CUBINS / "inline_chain_sm90.cubin").read_bytes()))
    (row,) = (s.number for s in Elf(bytes(data)).sections_named(".strtab"))
    data[64 + 64 * row + 24 : 64 + 64 * row + 32] = (1 << 40).to_bytes(8, "little")
    assert read_names(pieces(bytes(data))) is None


def test_the_names_of_sections_end_before_those_of_symbols() -> None:
    data = (CUBINS / "inline_chain_sm80.cubin").read_bytes()
    sections, all_names = read_section_names(pieces(data)), read_names(pieces(data))
    assert sections and all_names
    assert sections.count(".text.") == 2 < all_names.count(".text.")  # ptxas repeats them up to sm_89


@given(st.binary(max_size=300), st.integers(0, 4000), st.sampled_from(NAMES), st.booleans())
def test_any_damage_ends_in_an_answer(noise: bytes, at: int, name: str, first: bool) -> None:
    data = bytearray((CUBINS / f"{name}.cubin").read_bytes())
    data = bytearray(headers_first(bytes(data))) if first else data
    data[at : at + len(noise)] = noise
    for read in (read_names, read_section_names):
        names = read(pieces(bytes(data)))
        if names:
            assert all("\0" not in one for one in names.functions())
            names.holding(b"kern")
