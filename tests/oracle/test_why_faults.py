"""A share of `make accept-why`: what the answer about a planted fault says as a fact is true, in damaged cores too."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpucore import CodeMap
from gpucore.explain import Program, explain_place, why_text
from gpucore.sass import decode
from tests.support.sass.programs import compile_unit, write_source
from tests.support.sass.proofs import prove_faults
from tests.support.toolchain import cuda_tool


@pytest.mark.nvcc
@pytest.mark.slow
@pytest.mark.parametrize(("arch", "first"), [(80, 0), (90, 10), (120, 20)])
def test_nothing_is_said_as_a_fact_that_is_none(arch: int, first: int, tmp_path: Path) -> None:
    tools = cuda_tool("nvcc"), cuda_tool("nvdisasm")
    outcome = prove_faults(*tools, tmp_path, arch, range(first, first + 10), faults=4, mutations=3)
    assert outcome.faults == outcome.explained == outcome.argument == 4
    assert outcome.lies == []
    assert outcome.mutations == 12 and outcome.other_answers == []


@pytest.mark.nvcc
@pytest.mark.slow
@pytest.mark.parametrize("arch", [75, 120])
def test_threads_that_load_what_others_changed_contradict_nothing(arch: int, tmp_path: Path) -> None:
    tools = cuda_tool("nvcc"), cuda_tool("nvdisasm")  # the kernel of seed 211 adds to a table that it then reads
    outcome = prove_faults(*tools, tmp_path, arch, range(211, 212), faults=8, mutations=4)
    assert outcome.faults == 8 and outcome.index + outcome.weak_index == 8
    assert outcome.lies == [] and outcome.other_answers == []


@pytest.mark.nvcc
@pytest.mark.slow
def test_a_register_that_a_guard_may_not_have_written_counts_where_the_guard_holds(tmp_path: Path) -> None:
    tools = cuda_tool("nvcc"), cuda_tool("nvdisasm")  # seed 1 loads an index under the guard of the access
    outcome = prove_faults(*tools, tmp_path, 80, range(1, 2), faults=6)
    assert outcome.faults == 6 and outcome.lies == [] and outcome.index == 6


@pytest.mark.nvcc
@pytest.mark.slow
def test_where_the_pc_is_too_far_no_register_that_was_not_written_yet_makes_a_fact(tmp_path: Path) -> None:
    tools = cuda_tool("nvcc"), cuda_tool("nvdisasm")  # seed 5028 loads a pointer into two registers after the access
    outcome = prove_faults(*tools, tmp_path, 90, range(5028, 5029), faults=6, mutations=10)
    assert outcome.mutations == 60 and outcome.other_answers == []


@pytest.mark.nvcc
@pytest.mark.slow
def test_an_equation_that_tells_only_a_part_of_a_pair_ends_no_answer(tmp_path: Path) -> None:
    tools = cuda_tool("nvcc"), cuda_tool("nvdisasm")
    outcome = prove_faults(*tools, tmp_path, 90, range(51, 52), faults=2)
    assert outcome.faults == outcome.explained == 2 and outcome.lies == []


@pytest.mark.nvcc
@pytest.mark.slow
def test_an_index_that_the_formula_cannot_give_is_held_to_the_address(tmp_path: Path) -> None:
    tools = cuda_tool("nvcc"), cuda_tool("nvdisasm")  # seed 222 divides by way of F2I, which the notation leaves open
    outcome = prove_faults(*tools, tmp_path, 100, range(222, 223), faults=2)
    assert outcome.faults == 2 and outcome.lies == [] and outcome.index + outcome.weak_index == 2


RANK = """
#include <cooperative_groups.h>
__global__ void spread(float* out, int a, int b, int c) {
  out[a * b * c * cooperative_groups::this_grid().thread_rank()] = 1.f;
}
"""


@pytest.mark.nvcc
@pytest.mark.parametrize("arch", [80, 100])
def test_a_rank_in_a_cooperative_grid_times_three_arguments_is_explained(arch: int, tmp_path: Path) -> None:
    """It is a product of six words of the launch by itself."""
    write_source(tmp_path / "rank.cu", RANK)
    code = CodeMap(compile_unit(cuda_tool("nvcc"), tmp_path / "rank.cu", arch).read_bytes())
    (section,) = code.code_sections
    instructions = decode(code.elf.contents(section), arch)
    (store,) = (i for i in instructions if i.opcode == "STG")
    why = explain_place(Program(code, section.number, instructions), store.offset)
    assert why is not None and why_text(why)[1].startswith("= argument1 (argument 1, float*) + 4 * (")
