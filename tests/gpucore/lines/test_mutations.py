"""One flipped bit in device code gives no wrong name and no false proof without a word.

A subset with every run; 20,000 of each reader are marked `long`. An image has no checksum: a digit of a line, or a
letter of a file, an inlined function or a callee inside its kernel, has no second witness.
"""

import random
from collections.abc import Iterator

import pytest

from gpucore.code_map import CodeMap, find_contradictions
from gpucore.dwarf import Place
from gpucore.elf import Elf
from gpucore.errors import UnreadableBinary
from gpucore.lineinfo import Verdict, read_coverage, verify
from tests.builders.elf import ElfSpec, SectionSpec, build_elf
from tests.builders.fatbin import EM_X86_64, EntrySpec, container, host_library
from tests.support.cubins import cubin

KERNEL = "_Z4kernIfEvPT_iS0_"
AT = 0x140
Answer = tuple[str | None, tuple[str, ...]]


def mutations(data: bytes, count: int) -> Iterator[tuple[int, bytes]]:
    chance = random.Random(7)
    for _ in range(count):
        at = chance.randrange(len(data))
        yield at, data[:at] + bytes([data[at] ^ 1 << chance.randrange(8)]) + data[at + 1 :]


def located(data: bytes) -> tuple[Answer | None, bool]:
    """Return the function and the chain at a place, None where it is not found, and whether anything is said of it."""
    try:
        code = CodeMap(data)
        kernel = next((f for f in code.functions if f.name == KERNEL), None)
        if kernel is None:
            return None, True
        place = Place(section=kernel.section, offset=kernel.start + AT)
        found = code.locate(place)
        doubts = find_contradictions(code, place, found)
    except UnreadableBinary:
        return None, True
    said = bool(code.notes or doubts or not found.chain)
    return (found.function.name if found.function else None, tuple(map(str, found.chain))), said


@pytest.mark.parametrize("count", [300, pytest.param(20_000, marks=pytest.mark.long)])
@pytest.mark.parametrize("name", ["inline_chain_sm80", "inline_chain_sm90"])
def test_no_flipped_bit_names_another_function_silently(name: str, count: int) -> None:
    data = cubin(name)
    elf = Elf(data)
    tables = [elf.section(table) for table in (".debug_line", ".debug_str", ".rel.debug_line", ".rela.debug_line")]
    strings = elf.section(".strtab")  # the only place of a callee's own name
    right, said = located(data)
    assert right and not said
    chains, renamed = 0, []
    for at, mutated in mutations(data, count):
        answer, said = located(mutated)
        if answer is None or said or answer == right:
            continue
        if answer[0] != right[0] and not (strings and strings.offset <= at < strings.offset + strings.size):
            renamed.append((hex(at), answer[0]))
            continue
        if answer[1] == right[1] or answer[0] != right[0]:
            continue
        assert any(table and table.offset <= at < table.offset + table.size for table in tables), f"byte {at:#x}"
        chains += 1
    assert renamed == []
    assert chains <= count * 0.012, "only digits of lines, and letters of files and of inlined functions, are silent"


def test_a_callee_that_lost_its_symbol_or_moved_is_noted() -> None:
    data = cubin("inline_chain_sm90")
    elf = Elf(data)
    table = elf.section(".symtab")
    number = next(n for n, symbol in enumerate(elf.symbols) if elf.symbol_name(symbol) == f"${KERNEL}$_Z4slowf")
    assert table
    row = table.offset + 24 * number
    for at, bit in ((row + 4, 1), (row + 9, 4), (row + 17, 1), (row + 6, 1)):  # its type, start, size and section
        mutated = data[:at] + bytes([data[at] ^ bit]) + data[at + 1 :]
        assert located(data)[1] is False and located(mutated)[1] is True


@pytest.mark.parametrize("count", [300, pytest.param(20_000, marks=pytest.mark.long)])
def test_no_flipped_bit_makes_a_proof(count: int) -> None:
    library = host_library(container(EntrySpec(payload=cubin("no_lines_sm90"))))
    assert verify(library).verdict is Verdict.NONE
    for at, mutated in mutations(library, count):
        try:
            verdict = verify(mutated).verdict
        except UnreadableBinary:
            continue
        assert verdict in (Verdict.NONE, Verdict.NO_DEVICE_CODE), f"byte {at:#x}: {verdict}"


@pytest.mark.parametrize("count", [300, pytest.param(20_000, marks=pytest.mark.long)])
def test_a_proof_of_damaged_code_is_a_proof_of_the_same_code(count: int) -> None:
    library = host_library(container(EntrySpec(payload=cubin("inline_chain_sm90"))))
    right = verify(library)
    assert right.verdict is Verdict.FULL
    for at, mutated in mutations(library, count):
        try:
            read = verify(mutated)
        except UnreadableBinary:
            continue
        if read.verdict is Verdict.FULL:
            assert read.covered.instructions >= right.covered.instructions * 0.9, f"byte {at:#x}"


@pytest.mark.parametrize("count", [300, pytest.param(20_000, marks=pytest.mark.long)])
def test_no_flipped_bit_hides_a_cubin_outside_the_known_sections(count: int) -> None:
    """A cubin without its first bytes cannot be found; any other damage is an error, or leaves it a cubin."""
    lines = cubin("inline_chain_sm90")

    def host(data: bytes) -> bytes:
        held = b"\1" * 24 + data + b"\2" * 9 + lines + bytes(64)
        return build_elf(ElfSpec(sections=[SectionSpec(name=".data", data=held)], machine=EM_X86_64, flags=0))

    without = cubin("no_lines_sm90")
    assert verify(host(without)).verdict is Verdict.PARTIAL
    for at, mutated in mutations(without, count):
        try:
            read = verify(host(mutated))
        except UnreadableBinary:
            continue
        assert at < 7 or (read.total.cubins == 2 and read.verdict is not Verdict.FULL), f"byte {at:#x}"


def test_a_section_that_lost_its_size_or_its_flag_is_refused() -> None:
    data = cubin("inline_chain_sm90")
    elf = Elf(data)
    section = elf.section(f".text.{KERNEL}")
    assert section
    row = elf.table_end - 64 * (elf.section_count - section.number)
    for at, bit in ((row + 8, 4), (row + 33, 8)):
        mutated = data[:at] + bytes([data[at] ^ bit]) + data[at + 1 :]
        with pytest.raises(UnreadableBinary, match="damaged"):
            read_coverage(mutated)
