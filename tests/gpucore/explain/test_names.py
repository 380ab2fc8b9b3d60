"""Names, places and indexes in the text about compiled kernels: each is what the source says, or is not there."""

from functools import cache
from pathlib import Path
from typing import Any

import pytest

from gpucore import CodeMap
from gpucore.explain import Program, Why, explain_place, why_json, why_text
from gpucore.explain.address import access_of
from gpucore.sass import decode

DATA = Path(__file__).parents[2] / "data" / "explain"


def source(file: str) -> list[str] | None:
    path = DATA / Path(file).name
    return path.read_text().splitlines() if path.exists() else None


@cache
def program(kernel: str) -> Program:
    cubin = "arguments_sm120.cubin" if kernel in {"chosen", "either"} else "names_sm90.cubin"
    code = CodeMap((DATA / cubin).read_bytes())
    (found,) = [k for k in code.kernels if k.demangled.startswith(f"{kernel}(")]
    instructions = decode(code.elf.contents(code.elf.sections[found.section]), code.elf.arch or 0)
    return Program(code, found.section, instructions, source)


def accesses(kernel: str) -> list[Why]:
    found = [explain_place(program(kernel), i.offset) for i in program(kernel).instructions if access_of(i) is not None]
    return [why for why in found if why is not None]


def the_read(kernel: str) -> Why:
    """The last access that is read from: the one that the others are for."""
    return [why for why in accesses(kernel) if why.address.direction != "write"][-1]


def line_of(why: Why, start: str) -> str:
    (line,) = [line for line in why_text(why) if line.startswith(start)]
    return line


@pytest.mark.parametrize(
    ("kernel", "names"),
    [("rows::copy", ["from", "to", "count", "stride"]), ("columns::copy", ["target", "data", "step", "limit"])],
)
def test_of_two_kernels_of_one_name_each_has_its_own_arguments(kernel: str, names: list[str]) -> None:
    assert [a.name for a in program(kernel).arguments] == names


@pytest.mark.parametrize("kernel", ["exact", "cached", "masked", "unchecked", "twice"])
def test_a_variable_that_is_the_element_gives_its_name(kernel: str) -> None:
    assert list(the_read(kernel).names.values()) == ["row"]


@pytest.mark.parametrize("kernel", ["inner", "sum", "pair", "moved", "narrowed", "member", "floating", "fields"])
def test_what_is_made_from_an_element_does_not(kernel: str) -> None:
    assert the_read(kernel).names == {}


def test_an_atomic_that_one_thread_made_for_its_warp_has_no_variable_s_value() -> None:
    assert accesses("slots")[-1].names == {}


@pytest.mark.parametrize(
    ("kernel", "start", "element"),
    [
        ("masked", "row was loaded", "table[(threadIdx.x & 3)]"),
        ("member", "loaded1 was loaded", "items, byte offset 16*threadIdx.x + 4"),
        ("exact", "row was loaded", "table[blockIdx.x]"),
        ("narrowed", "loaded1 was loaded", "table[blockIdx.x]"),
    ],
)
def test_the_index_of_a_load_is_the_one_of_the_source_or_is_said_to_be_in_bytes(
    kernel: str, start: str, element: str
) -> None:
    assert line_of(the_read(kernel), start).endswith(f": {element}")


def test_the_index_for_programs_counts_elements_too() -> None:
    index: Any = why_json(the_read("masked"))["loads"][0]["index"]  # type: ignore[index]
    assert index["scale"] == 4
    (masked,) = index["formula"]["args"]  # extended to 64 bits
    assert masked["op"] == "and"
    assert masked["args"][1]["constant"] == 3


@pytest.mark.parametrize("kernel", ["twice", "unchecked"])
def test_a_value_is_unchecked_where_neither_of_its_loads_is_tested(kernel: str) -> None:
    said = [line for line in why_text(the_read(kernel)) if "bounds-checked" in line]
    assert said == ([] if kernel == "twice" else ["row is never bounds-checked here"])


@pytest.mark.parametrize(("kernel", "line"), [("histogram", 93), ("slots", 89), ("cached", 25)])
def test_the_place_is_the_line_that_calls_a_header_of_cuda(kernel: str, line: int) -> None:
    text = (DATA / "names.cu").read_text().splitlines()[line - 1]
    assert "atomicAdd" in text or "__ldg" in text
    of_header = [i for i in program(kernel).instructions if len(program(kernel).chain(i.offset)) > 1]
    assert of_header
    assert {program(kernel).line(i.offset) for i in of_header} == {f"names.cu:{line}"}
    assert not any(".hpp" in text for why in accesses(kernel) for text in why_text(why))


def test_a_pointer_that_a_flag_chooses_among_the_arguments_is_one_of_them() -> None:
    line = line_of(the_read("either"), "= ")
    assert line == "= (2 < flag ? left : right) + 12*threadIdx.x; based on one of left, right"


def test_a_pointer_from_an_array_of_an_argument_is_that_argument_s() -> None:
    assert "(a pointer from the thread's copy of argument 2)" in line_of(the_read("chosen"), "= ")


def test_a_quotient_of_64_bits_is_one_and_not_the_ways_to_compute_it() -> None:
    line = line_of(the_read("shares"), "= ")
    assert line.endswith("+ 4 * ((blockIdx.x*large*blockDim.x + large*threadIdx.x) / parts)")


def test_a_field_of_bits_is_a_shift_and_a_mask() -> None:
    line = line_of(the_read("fields"), "= ")
    assert line.endswith("+ 4 * (((loaded1 & -65536) >> 18) + (32*loaded1 & 8387584))")


def test_a_number_made_of_floats_names_the_load_behind_it() -> None:
    text = why_text(the_read("floating"))
    assert "{F2I at names.cu:110} is made from loaded1, scale" in text
    assert "loaded1 was loaded at names.cu:110: position[threadIdx.x]" in text


def test_a_swizzle_divides_by_the_product() -> None:
    line = line_of(the_read("swizzle"), "= ")
    assert "(blockIdx.x / (columns*group))" in line
    assert "(blockIdx.x % (columns*group))" in line


def test_a_list_that_is_followed_far_is_said_in_a_few_lines() -> None:
    why = the_read("chained")
    assert len(why.legend.loads) == 8
    said = [line for line in why_text(why) if "loaded" in line]
    assert len(said) == 4
    assert said[0] == "= loaded1 (a loaded pointer) + 4"
    assert said[2] == "loaded2 to loaded7 are loaded alike, each through the pointer that the next one is"
    assert len(why_json(why)["loads"]) == 8  # type: ignore[arg-type]
