"""How much of a cubin's code its line table covers, what is counted apart, and the cause that is named."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpucore.code_map import CodeMap
from gpucore.elf import SHF_EXECINSTR
from gpucore.errors import UnreadableBinary
from gpucore.lineinfo import BOUND, FUNCTIONS_NAMED, Cause, FunctionCoverage, function_coverage, read_coverage
from tests.builders.cubin import CODE_SIZE, EMPTY_TABLE, cubin
from tests.builders.elf import ElfSpec, SectionSpec, SymbolSpec, build_elf
from tests.builders.line_program import RowSpec, build_line_section

INSTRUCTIONS = CODE_SIZE // 16


def test_every_instruction_of_every_function() -> None:
    found = read_coverage(cubin("_Z1aPf", "_Z1bPf", lines=True))
    assert found.complete
    assert (found.functions, found.instructions, found.covered) == (2, 2 * INSTRUCTIONS, 2 * INSTRUCTIONS)
    assert (found.lowest, found.cause, found.below) == (1.0, None, ())


def test_an_empty_table_covers_nothing() -> None:
    assert len(EMPTY_TABLE) == 26
    found = read_coverage(cubin("_Z1kPf", lines=True, table=EMPTY_TABLE))
    assert (found.complete, found.covered, found.cause) == (False, 0, Cause.EMPTY_TABLE)
    assert found.below == (FunctionCoverage(name="_Z1kPf", kernel=True, instructions=INSTRUCTIONS, covered=0),)


@pytest.mark.parametrize(("linked", "cause"), [(True, Cause.LINKED_WITHOUT), (False, Cause.ROWS_MISSING)])
def test_a_function_without_rows_next_to_one_that_has_them(linked: bool, cause: Cause) -> None:
    found = read_coverage(cubin("_Z4withPf", "_Z7withoutPf", lines=True, covered=["_Z4withPf"], linked=linked))
    assert (found.complete, found.lowest, found.cause) == (False, 0.0, cause)
    assert [f.name for f in found.below] == ["_Z7withoutPf"]


@pytest.mark.parametrize(
    "name",
    [
        "__cuda_sm20_div_s64", "__internal_accurate_pow", "__iAtomicAdd", "cudaStreamCreateWithFlags", "sincospif",
        "_Z24cnprtCnpv2TranslateError13CNPerror_enum",
    ],
)  # fmt: skip
def test_what_cuda_adds_is_counted_apart(name: str) -> None:
    found = read_coverage(of_functions(("_Z4minePf", True, 64), (name, False, 0)))
    assert (found.complete, found.functions, found.compiler_made, found.covered) == (True, 2, 1, 4)


@pytest.mark.parametrize(
    ("name", "kernel"),
    [
        ("_Z5helpff", False), ("helper", False), ("__global_kernel", True), ("sqrtf", True),
        ("__nv_static_30__a_9_user_cu_b__Z4minePf", True), ("__nv_static_30__a_9_user_cu_b__Z4minePf", False),
    ],
)  # fmt: skip
def test_what_a_user_may_have_written_is_not(name: str, kernel: bool) -> None:
    assert read_coverage(of_functions(("_Z4minePf", True, 64), (name, kernel, 0))).below_count == 1


def test_a_cubin_of_nothing_but_cudas_own_functions_is_judged_like_any_other() -> None:
    found = read_coverage(of_functions(("__cuda_sm20_div_s64", False, 0)))
    assert (found.complete, found.below_count, found.compiler_made) == (False, 1, 0)


def test_the_bound() -> None:
    """Of 1600 bytes, 100 instructions."""
    at_bound, under = int(1600 * BOUND), int(1600 * BOUND) - 16
    assert read_coverage(of_functions(("_Z1kPf", True, at_bound), size=1600)).complete
    found = read_coverage(of_functions(("_Z1kPf", True, under), size=1600))
    assert (found.complete, found.covered, found.below[0].share) == (False, 94, 0.94)


def test_of_many_functions_below_the_bound_the_first_are_named_and_all_are_counted() -> None:
    names = [f"_Z{i}" for i in range(40)]
    found = read_coverage(cubin(*names, lines=True, covered=["_Z0"]))
    assert ([f.name for f in found.below], found.below_count) == (names[1 : 1 + FUNCTIONS_NAMED], 39)


def test_a_callee_in_its_kernels_section_counts_by_itself_and_unnamed_code_under_the_section() -> None:
    symbols = [SymbolSpec(name="outer", section=1, size=96), SymbolSpec(name="inner", section=1, value=32, size=32)]
    data = build_elf(ElfSpec(sections=[code_section("section", 160), code_section("nameless", 32)], symbols=symbols))
    found = list(function_coverage(CodeMap(data), {1: [(0, 48), (96, 112)]}))
    assert [(f.name, f.instructions, f.covered) for f in found if f.instructions] == [
        ("outer", 4, 2),
        ("inner", 2, 1),
        ("section", 4, 1),
        ("nameless", 2, 0),
    ]


def test_instructions_before_volta_take_eight_bytes() -> None:
    assert read_coverage(cubin("_Z1kPf", lines=True, arch=61)).instructions == CODE_SIZE // 8


def test_a_damaged_table_is_named_as_the_cause() -> None:
    found = read_coverage(cubin("_Z1kPf", lines=True, table=b"\xff" * 40))
    assert (found.complete, found.cause) == (False, Cause.DAMAGED_TABLE)


@given(st.integers(0, 1 << 32), st.booleans())
def test_a_mutated_cubin_ends_in_an_answer_or_a_typed_error(seed: int, linked: bool) -> None:
    chance = random.Random(seed)
    data = bytearray(cubin("_Z1aPf", "_Z1bPf", "_Z1cPf", lines=True, linked=linked))
    for _ in range(chance.randint(1, 8)):
        data[chance.randrange(len(data))] = chance.randrange(256)
    try:
        found = read_coverage(bytes(data))
    except UnreadableBinary:
        return
    assert 0 <= found.covered <= found.instructions
    assert found.complete or found.cause is not None or found.instructions == 0


@given(st.integers(0, 1 << 32))
def test_a_mutated_line_table_is_never_more_than_the_code(seed: int) -> None:
    chance = random.Random(seed)
    table = bytearray(build_line_section([[RowSpec(address=i * 16, line=i + 1) for i in range(8)]]))
    for _ in range(chance.randint(1, 4)):
        table[chance.randrange(len(table))] = chance.randrange(256)
    found = read_coverage(cubin("_Z1aPf", lines=True, table=bytes(table)))
    assert 0 <= found.covered <= found.instructions == INSTRUCTIONS


def of_functions(*functions: tuple[str, bool, int], size: int = 64) -> bytes:
    """Return a cubin of functions (name, kernel, bytes that rows cover), each `size` bytes in its own section."""
    tables = [(number, covered) for number, (_, _, covered) in enumerate(functions, 1) if covered]
    table = b"".join(build_line_section([[RowSpec(address=0, line=1)]], tail=covered) for _, covered in tables)
    relocations, at = b"", 0
    for number, _ in tables:
        at = table.find(b"\0\x09\x02", at) + 3
        relocations += at.to_bytes(8, "little") + (number << 32 | 2).to_bytes(8, "little") + bytes(8)
    return build_elf(
        ElfSpec(
            sections=[
                *(code_section(name, size) for name, _, _ in functions),
                SectionSpec(name=".debug_line", data=table or EMPTY_TABLE),
                SectionSpec(name=".rela.debug_line", type=4, data=relocations),
            ],
            symbols=[
                SymbolSpec(name=name, section=number, size=size, other=0x10 if kernel else 0)
                for number, (name, kernel, _) in enumerate(functions, 1)
            ],
        )
    )


def code_section(name: str, size: int) -> SectionSpec:
    return SectionSpec(name=f".text.{name}", data=bytes(size), flags=SHF_EXECINSTR)
