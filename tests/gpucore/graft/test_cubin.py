"""Line tables are added to a cubin that was compiled without them; everything else of it stays."""

import random

import pytest

from gpucore.code_identity import identify
from gpucore.code_map import CodeMap
from gpucore.cubin import read_cubin, read_cubin_start
from gpucore.dwarf import Chain, Place
from gpucore.elf import SHT_NOBITS, Elf
from gpucore.errors import UnreadableBinary
from gpucore.graft import add_line_tables, rewrite_library
from gpucore.lineinfo import read_coverage
from tests.support.cubins import cubin

# The same source, compiled with and without -lineinfo.
STOCK, BUILT = cubin("no_lines_sm90"), cubin("inline_chain_sm90")


def chains(data: bytes) -> list[Chain]:
    code = CodeMap(data)
    return [
        code.locate(Place(section=f.section, offset=f.start + offset)).chain
        for f in code.functions
        for offset in range(0, f.size, 16)
    ]


def test_every_instruction_has_the_chain_of_the_build() -> None:
    made = add_line_tables(STOCK, BUILT, {})
    assert chains(made) == chains(BUILT)
    assert max(map(len, chains(made))) > 3
    assert read_coverage(made).complete


def test_every_section_of_the_stock_cubin_is_as_it_was() -> None:
    stock, made = Elf(STOCK), Elf(add_line_tables(STOCK, BUILT, {}))
    for section in stock.sections:
        other = made.sections[section.number]
        name = stock.name(section)
        assert made.name(other) == name
        assert other._replace(offset=0, size=0) == section._replace(offset=0, size=0)
        if name != ".shstrtab" and section.type != SHT_NOBITS:
            assert bytes(made.contents(other)) == bytes(stock.contents(section)), name
    added = [made.name(section) for section in made.sections[len(stock.sections) :]]
    assert added == [
        ".debug_line", ".debug_str", ".nv_debug_line_sass", ".nv_debug_ptx_txt", ".rela.debug_line",
        ".rela.nv_debug_line_sass",
    ]  # fmt: skip
    assert [i.hash for i in identify(CodeMap(made.data))] == [i.hash for i in identify(CodeMap(STOCK))]


def test_the_quick_look_at_its_start_does_not_conclude_that_it_has_no_lines() -> None:
    assert read_cubin_start([STOCK]) is not None
    made = add_line_tables(STOCK, BUILT, {})
    assert read_cubin_start([made]) is None
    assert read_cubin(made).has_debug_line


def test_a_cubin_with_lines_is_left_alone() -> None:
    with pytest.raises(UnreadableBinary, match="has a line table already"):
        add_line_tables(BUILT, BUILT, {})


def test_a_table_for_a_function_that_is_not_there_is_refused() -> None:
    with pytest.raises(UnreadableBinary, match="which the stock cubin lacks"):
        add_line_tables(STOCK, cubin("shared_leaf_sm90"), {})


def test_names_of_the_build_are_translated() -> None:
    with pytest.raises(UnreadableBinary, match="which the stock cubin lacks"):
        add_line_tables(STOCK, BUILT, {"_Z4kernIfEvPT_iS0_": "_Z4kernIfEvPT_iS1_"})


@pytest.mark.parametrize("seed", range(60))
def test_damage_is_an_error_of_ours(seed: int) -> None:
    chosen = random.Random(seed)
    stock, built = bytearray(STOCK), bytearray(BUILT)
    for data in (stock, built):
        for _ in range(8):
            data[chosen.randrange(len(data))] = chosen.randrange(256)
        if seed % 3 == 0:
            del data[chosen.randrange(len(data)) :]
    try:
        add_line_tables(bytes(stock), bytes(built), {})
    except UnreadableBinary:
        return


def test_what_is_not_a_library_of_nvcc_s_is_refused() -> None:
    with pytest.raises(UnreadableBinary, match=r"without exactly one \.nv_fatbin section"):
        rewrite_library(STOCK, {})
