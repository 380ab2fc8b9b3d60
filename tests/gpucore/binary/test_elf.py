"""The ELF reader: exact names, both CUDA identities, extended numbering, and no trust in any offset."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpucore.elf import CUDA_12, CUDA_13, ET_CORE, SHT_NOBITS, Elf, Identity
from gpucore.errors import UnreadableBinary
from tests.builders.elf import ElfSpec, SectionSpec, SymbolSpec, build_elf

KERNEL = ElfSpec(
    sections=[
        SectionSpec(name=".text._Z1kv", data=b"sass"),
        SectionSpec(name=".rela.debug_line", data=b"rela"),
        SectionSpec(name=".debug_line", data=b"lines"),
    ],
    symbols=[SymbolSpec(name="_Z1kv", section=1, size=0x80)],
)

section_names = st.text(st.characters(codec="ascii", exclude_characters="\0"), min_size=1, max_size=40)


def test_a_section_is_found_by_its_exact_name() -> None:
    elf = Elf(build_elf(KERNEL))
    found = elf.section(".debug_line")
    assert found is not None
    assert bytes(elf.contents(found)) == b"lines"
    assert elf.name(found) == ".debug_line"
    assert elf.section(".debug_lin") is None


def test_a_name_in_the_table_without_a_section_proves_nothing() -> None:
    elf = Elf(build_elf(ElfSpec(extra_names=[".debug_line"])))
    assert b".debug_line\0" in elf.section_names
    assert elf.section(".debug_line") is None


def test_a_shared_tail_is_not_the_section() -> None:
    elf = Elf(build_elf(ElfSpec(sections=[SectionSpec(name=".rela.debug_line")])))
    assert elf.section(".debug_line") is None


def test_sections_of_one_name_are_all_yielded_in_file_order() -> None:
    twins = [SectionSpec(name=".cudbg.relfimg.dev0.ctx0", data=data) for data in (b"one", b"two")]
    elf = Elf(build_elf(ElfSpec(sections=twins)))
    assert [bytes(elf.contents(s)) for s in elf.sections_named(".cudbg.relfimg.dev0.ctx0")] == [b"one", b"two"]


def test_sections_starting_with_a_prefix() -> None:
    elf = Elf(build_elf(KERNEL))
    assert [elf.name(s) for s in elf.sections_starting(".text.")] == [".text._Z1kv"]


@pytest.mark.parametrize(
    ("identity", "flags", "arch"),
    [(CUDA_13, 0x0A005A04, 90), (CUDA_13, 0x06007802, 120), (CUDA_12, 0x005A055A, 90), (CUDA_12, 0x00500550, 80)],
)
def test_the_architecture_is_read_in_both_layouts(identity: Identity, flags: int, arch: int) -> None:
    elf = Elf(build_elf(ElfSpec(identity=identity, flags=flags)))
    assert (elf.identity.known, elf.arch) == (True, arch)


def test_a_host_file_and_a_core_have_no_architecture() -> None:
    assert Elf(build_elf(ElfSpec(machine=62))).arch is None
    assert Elf(build_elf(ElfSpec(type=ET_CORE, identity=CUDA_12, flags=0))).arch is None


def test_symbols_keep_their_numbers() -> None:
    elf = Elf(build_elf(KERNEL))
    assert [elf.symbol_name(s) for s in elf.symbols] == ["", "_Z1kv"]
    assert elf.symbols[1].size == 0x80
    assert Elf(build_elf(ElfSpec())).symbols == ()


def test_a_section_without_file_contents_gives_no_bytes() -> None:
    elf = Elf(build_elf(ElfSpec(sections=[SectionSpec(name=".nv.shared", type=SHT_NOBITS, size=1 << 40)])))
    assert len(elf.contents(elf.sections[1])) == 0


def test_a_file_may_have_no_sections_at_all() -> None:
    header = bytearray(build_elf(ElfSpec())[:64])
    header[40:48] = bytes(8)
    assert Elf(bytes(header)).sections == ()


@given(st.lists(section_names, max_size=20), st.booleans())
def test_every_section_written_is_read_back(names: list[str], extended: bool) -> None:
    spec = ElfSpec(sections=[SectionSpec(name=n, data=n.encode()) for n in names], extended_numbering=extended)
    elf = Elf(build_elf(spec))
    assert [elf.name(s) for s in elf.sections[1:-1]] == names
    assert [bytes(elf.contents(s)).decode() for s in elf.sections[1:-1]] == names
    assert all(elf.section(name) is not None for name in names)


@pytest.mark.parametrize("length", [0, 3, 63])
def test_less_than_a_header_is_refused(length: int) -> None:
    with pytest.raises(UnreadableBinary):
        Elf(build_elf(KERNEL)[:length])


def test_a_truncated_file_says_where_it_should_have_ended() -> None:
    with pytest.raises(UnreadableBinary, match=r"section table ends at .* the file at") as caught:
        Elf(build_elf(KERNEL)[:-1])
    assert caught.value.offset is not None


def test_a_section_outside_the_file_is_refused_when_read() -> None:
    elf = Elf(build_elf(ElfSpec(sections=[SectionSpec(name=".debug_line", data=b"x", size=1 << 50)])))
    with pytest.raises(UnreadableBinary, match="section 1 ends at"):
        elf.contents(elf.sections[1])


@given(st.data())
def test_damaged_bytes_end_in_an_answer_or_a_typed_error(data: st.DataObject) -> None:
    damaged = bytearray(build_elf(KERNEL))
    for place in data.draw(st.lists(st.integers(0, len(damaged) - 1), min_size=1, max_size=12)):
        damaged[place] = data.draw(st.integers(0, 255))
    try:
        elf = Elf(bytes(damaged))
        for section in elf.sections:
            elf.name(section)
            elf.contents(section)
        for symbol in elf.symbols:
            elf.symbol_name(symbol)
    except UnreadableBinary:
        pass


def test_the_sections_of_a_full_gpu_are_read_in_seconds() -> None:
    """A core of a full GPU has 275,000: half a second, or minutes where all of them are looked through for each."""
    count = 275_000
    lanes = [SectionSpec(name=f".cudbg.regs.dev0.sm{i % 132}", type=0x80000005, link=i) for i in range(count)]
    data = build_elf(ElfSpec(sections=lanes, extended_numbering=True))
    before = time.process_time()
    assert Elf(data).sections[count].link == count - 1
    assert time.process_time() - before < 30
