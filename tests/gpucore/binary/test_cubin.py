"""What counts as code, what counts as line info, and what only looks like it."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpucore.cubin import KERNELS_NAMED, read_cubin, read_cubin_start
from gpucore.elf import SHT_NOBITS
from gpucore.errors import UnreadableBinary
from tests.builders.cubin import cubin
from tests.builders.elf import ElfSpec, SectionSpec, build_elf

kernel_names = st.text("abcdefghij_Z0123456789", min_size=1, max_size=60)


def pieces(data: bytes, size: int = 4096) -> Iterator[bytes]:
    return (data[i : i + size] for i in range(0, len(data), size))


def test_a_cubin_with_line_info() -> None:
    read = read_cubin(cubin("_Z1kPf", lines=True))
    assert (read.has_code, read.has_debug_line, read.device_debug) == (True, True, False)
    assert (read.kernels, read.kernel_count) == (("_Z1kPf",), 1)


def test_device_debug_is_told_apart() -> None:
    read = read_cubin(cubin("_Z1kPf", debug=True))
    assert (read.has_debug_line, read.device_debug) == (True, True)


def test_a_stub_has_no_code_even_where_its_name_table_names_line_info() -> None:
    stub = cubin(unused_names=[".debug_line"])
    assert b".debug_line\0" in stub
    assert (read_cubin(stub).has_code, read_cubin(stub).has_debug_line) == (False, False)


@pytest.mark.parametrize("name", [".nv_debug_line_sass", ".rela.debug_line", ".debug_lines", ".nv.merc.debug_line"])
def test_a_section_whose_name_only_contains_it_is_no_line_info(name: str) -> None:
    assert not read_cubin(build_elf(ElfSpec(sections=[SectionSpec(name=name, data=b"x")]))).has_debug_line


@pytest.mark.parametrize(
    "section", [SectionSpec(name=".debug_line"), SectionSpec(name=".debug_line", type=SHT_NOBITS, size=9)]
)
def test_an_empty_line_table_is_no_line_info(section: SectionSpec) -> None:
    assert not read_cubin(build_elf(ElfSpec(sections=[section]))).has_debug_line


def test_a_host_file_is_not_a_cubin() -> None:
    with pytest.raises(UnreadableBinary, match="not a cubin"):
        read_cubin(build_elf(ElfSpec(machine=62)))


def test_of_many_kernels_the_first_are_named_and_all_are_counted() -> None:
    read = read_cubin(cubin(*(f"k{i}" for i in range(100))))
    assert (read.kernels, read.kernel_count) == (tuple(f"k{i}" for i in range(KERNELS_NAMED)), 100)


@given(st.lists(kernel_names, unique=True, max_size=40), st.integers(100, 5000))
def test_the_start_of_a_cubin_without_line_info_tells_what_the_whole_tells(names: list[str], size: int) -> None:
    data = cubin(*names)
    assert read_cubin_start(pieces(data, size)) == (read_cubin(data) if names else None)  # a stub is read whole


@given(st.lists(kernel_names, unique=True, max_size=40), st.booleans(), st.integers(100, 5000))
def test_the_start_of_a_cubin_never_concludes_that_line_info_is_there(names: list[str], debug: bool, size: int) -> None:
    assert read_cubin_start(pieces(cubin(*names, lines=True, debug=debug), size)) is None


def test_a_name_in_the_table_alone_leaves_the_start_undecided() -> None:
    assert read_cubin_start(pieces(cubin("k", unused_names=[".debug_line"]))) is None


def test_the_start_of_another_layout_is_left_undecided() -> None:
    other = build_elf(ElfSpec(sections=[SectionSpec(name=".text.k", data=b"sass")]))
    assert read_cubin_start(pieces(other)) is None
    assert read_cubin_start(iter(())) is None
    assert read_cubin_start(pieces(cubin("k")[:80])) is None


@given(st.binary(max_size=400), st.integers(0, 2000))
def test_damage_ends_in_an_answer_or_a_typed_error(noise: bytes, place: int) -> None:
    damaged = bytearray(cubin("_Z1kPf", "_Z2gPf", lines=True))
    damaged[place : place + len(noise)] = noise
    try:
        read_cubin_start(pieces(bytes(damaged)))
        read_cubin(bytes(damaged))
    except UnreadableBinary:
        pass


def test_a_cubin_that_lost_sections_is_not_a_stub() -> None:
    """A smaller e_shnum leaves the code out of the section table; the name of its section is still there."""
    data = (Path(__file__).parents[2] / "data" / "cubins" / "no_lines_sm90.cubin").read_bytes()
    with pytest.raises(UnreadableBinary, match="names code that it has no section of"):
        read_cubin(data[:60] + (3).to_bytes(2, "little") + data[62:])
