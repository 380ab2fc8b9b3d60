"""From an instruction of a real cubin to its kernel, function and inline chain."""

import pytest

from gpucore.code_map import CodeMap
from gpucore.dwarf import Chain
from gpucore.errors import UnreadableBinary
from tests.support.cubins import cubin, place


def lines(chain: Chain) -> list[int]:
    return [frame.line for frame in chain]


@pytest.mark.parametrize("arch", ["sm80", "sm90", "sm100"])
def test_the_first_instruction_of_each_kernel_is_its_opening_line(arch: str) -> None:
    code = CodeMap(cubin(f"inline_chain_{arch}"))
    for function in code.kernels:
        found = code.locate(place(code, function.demangled, 0))
        assert lines(found.chain) == [17]
        assert found.chain[0].function == function.demangled


def test_the_whole_chain_is_given_leaf_first_with_names() -> None:
    code = CodeMap(cubin("inline_chain_sm90"))
    found = code.locate(place(code, "void kern<double>", 0x100))
    assert [(frame.function, frame.line) for frame in found.chain] == [
        ("void store_leaf<double, 0>(double*, int, double)", 3),
        ("Layer<double, 2>::run(double*, int, double)", 13),
        ("Layer<double, 3>::run(double*, int, double)", 8),
        ("void kern<double>(double*, int, double)", 19),
    ]
    assert {frame.file for frame in found.chain} == {"/src/kernels/inline_chain.cu"}
    assert found.ptx_line == 297


def test_a_callee_inside_its_kernels_section_is_told_apart() -> None:
    code = CodeMap(cubin("inline_chain_sm90"))
    found = code.locate(place(code, "void kern<double>", 0x1A0))
    assert found.kernel and found.kernel.demangled == "void kern<double>(double*, int, double)"
    assert found.function and found.function.demangled == "slow(float)"
    assert (found.offset, found.function_offset) == (0x1A0, 0x10)
    assert lines(found.chain) == [16]


def test_the_right_caller_is_named_where_nvdisasm_repeats_the_last_one() -> None:
    code = CodeMap(cubin("shared_leaf_sm90"))
    chain = code.locate(place(code, "pick_both", 0x40)).chain
    assert [frame.function for frame in chain] == [
        "ld(float const*, int)", "right(float const*, int)", "pick_both(float*, float const*, float const*)",
    ]  # fmt: skip


def test_another_path_to_the_same_leaf_is_told() -> None:
    code = CodeMap(cubin("shared_leaf_sm90"))
    found = code.locate(place(code, "pick_both", 0x40))
    assert [lines(chain) for chain in found.siblings] == [[2, 5, 13]]
    assert code.locate(place(code, "pick_both", 0)).siblings == ()


def test_device_debug_code_has_plain_lines() -> None:
    code = CodeMap(cubin("device_debug_sm90"))
    assert code.device_debug
    assert lines(code.locate(place(code, "pick_both", 0)).chain) == [10]


def test_a_cubin_without_line_info_still_gives_function_and_offset() -> None:
    code = CodeMap(cubin("no_lines_sm90"))
    found = code.locate(place(code, "void kern<float>", 0x160))
    assert (found.chain, found.offset, found.function_offset) == ((), 0x160, 0)
    assert found.function and found.function.demangled == "slow(float)"


def test_past_the_code_there_is_no_chain() -> None:
    code = CodeMap(cubin("inline_chain_sm90"))
    assert code.locate(place(code, "void kern<double>", 0x800)).chain == ()


def test_a_cubin_that_is_not_relocated_has_no_addresses() -> None:
    assert CodeMap(cubin("inline_chain_sm90")).place(0x100) is None


def test_a_host_elf_is_refused() -> None:
    host = bytearray(cubin("inline_chain_sm90"))
    host[18:20] = (62).to_bytes(2, "little")
    with pytest.raises(UnreadableBinary, match="not of a CUDA device"):
        CodeMap(bytes(host))
