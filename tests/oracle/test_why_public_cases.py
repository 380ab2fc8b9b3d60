"""Public cases whose cause took days, rebuilt from their descriptions: what is said of a core of each.

The kernels are in `public_cases.cu`. An interpreter runs what nvcc makes of them, with the bad value of the case.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from gpucore.explain import Program as Explained
from gpucore.explain import explain_wait, wait_text, why_text
from gpucore.sass import decode
from tests.builders.core_builder import LaneSpec, WarpSpec
from tests.support.golden import assert_golden
from tests.support.sass.executed import Launched, run_to_fault
from tests.support.sass.programs import Program, compile_unit, load
from tests.support.sass.proofs import why_of
from tests.support.toolchain import cuda_tool

pytestmark = [pytest.mark.nvcc, pytest.mark.slow]

SOURCE = Path(__file__).parents[1] / "data" / "explain" / "public_cases.cu"
LINES = SOURCE.read_text().splitlines()
ONE, TWO, THREE = 0x7F2A4E000000, 0x7F2B60000000, 0x7F2C70000000
OUT_OF_RANGE, ILLEGAL = 5, 14


def source(file: str) -> list[str] | None:
    return LINES if Path(file).name == SOURCE.name else None


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Program:
    copy = tmp_path_factory.mktemp("cases") / SOURCE.name
    copy.write_text(SOURCE.read_text())
    return load(cuda_tool("nvdisasm"), compile_unit(cuda_tool("nvcc"), copy, 90), 90)


def said(
    program: Program, kernel: str, launch: Launched, exception: int = ILLEGAL, stop_at: str = "",
    damage: Callable[[WarpSpec], WarpSpec] = lambda warp: warp,
) -> str:  # fmt: skip
    """Return what is said of the fault of a launch, whose warp may be damaged first."""
    name = program.find(kernel)
    ran = run_to_fault(program, name, launch, exception=exception, stop_at=stop_at)
    core = ran.core(program.cubin, name, exception=exception, warp=damage(ran.stopped.warp))
    answer = why_of(program, name, core, source)
    assert answer is not None
    return "\n".join(why_text(answer[0])) + "\n"


def test_a_position_five_beyond_the_capacity_of_an_array_in_shared_memory(program: Program) -> None:
    stash, capacity, window = 0x1B70, 4096, 0x5B74
    scores = struct.pack("<128f", *[0.0] * 7, 1.0, *[0.0] * 120)  # one candidate: the interpreter has no votes
    launch = Launched(
        block=(32, 1, 1), parameters=struct.pack("<2Qfi", ONE, TWO, 0.5, 64), sizes={ONE: 512, TWO: 1 << 16},
        contents={ONE: scores}, shared={stash + 4 * capacity: struct.pack("<i", capacity + 5)}, shared_size=window,
    )  # fmt: skip
    text = said(program, "stash_candidates", launch, OUT_OF_RANGE, damage=standing_at_the_access)
    assert f"{stash + 4 * (capacity + 5):#x}" in text
    assert_golden("explain/case-shared-window.txt", text)


def standing_at_the_access(warp: WarpSpec) -> WarpSpec:
    """Return a warp that has not run on: of a store in a loop, nothing is said of one that has."""
    assert warp.error_offset is not None
    lanes = {n: replace(held, offset=warp.error_offset) for n, held in warp.lanes.items()}
    return replace(warp, offset=warp.error_offset, lanes=lanes)


def test_a_placeholder_in_a_block_table(program: Program) -> None:
    table = struct.pack("<16i", 7, 3, 9, 4, 1, 2, 5, 6, 8, -1, 10, 11, 12, 13, 14, 15)
    launch = Launched(
        grid=(8, 1, 1), block=(32, 1, 1), block_index=(2, 0, 0), contents={THREE: table},
        parameters=struct.pack("<3Qi4xqi", ONE, TWO, THREE, 4, 4096, 64),
        sizes={ONE: 1 << 16, TWO: 16 * 4096 * 4, THREE: 64},
    )  # fmt: skip
    text = said(program, "gather_blocks", launch)
    assert "the index is -4096" in text and "= -1" in text and "block_table[" in text
    assert_golden("explain/case-placeholder.txt", text)


def with_upper_word(lanes: frozenset[int]) -> Callable[[WarpSpec], WarpSpec]:
    """Return what puts a wrong upper word into the register of the address of some threads."""

    def wrong(held: LaneSpec) -> LaneSpec:
        words = list(held.registers or ())
        at = next(n for n, word in enumerate(words) if word == ONE >> 32)
        words[at] ^= 1 << 13
        return replace(held, registers=words)

    def damage(warp: WarpSpec) -> WarpSpec:
        return replace(warp, lanes={n: wrong(held) if n in lanes else held for n, held in warp.lanes.items()})

    return damage


@pytest.mark.parametrize(("who", "lanes"), [("one", frozenset({6})), ("all", frozenset(range(32)))])
def test_an_upper_word_that_the_operands_contradict(who: str, lanes: frozenset[int], program: Program) -> None:
    launch = Launched(
        block=(32, 1, 1), parameters=struct.pack("<3Qqi", ONE, TWO, THREE, 2, 32), contents={THREE: bytes([1] * 32)},
        sizes={ONE: 4096, TWO: 4096, THREE: 32},
    )  # fmt: skip
    text = said(program, "masked_copy", launch, stop_at="STG", damage=with_upper_word(lanes))
    assert_golden(f"explain/case-upper-word-{who}.txt", text)


def test_a_consumer_that_waits_for_a_phase(program: Program) -> None:
    name = program.find("consume")
    instructions = decode(program.words(name), program.arch)
    explained = Explained(program.code, program.symbol(name).section, instructions, source)
    waits = [explain_wait(explained, one.offset) for one in instructions if one.opcode.startswith("SYNCS")]
    text = "\n".join(line for wait in waits if wait for line in wait_text(wait))
    assert_golden("explain/case-phase.txt", text + "\n")
