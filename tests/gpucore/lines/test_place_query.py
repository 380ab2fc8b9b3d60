"""Places as tools print them, and the functions a name may mean."""

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpucore.code_map import CodeMap, PlaceQuery, identifier_in, mangled_stem, matching, may_mean, parse_place
from gpucore.errors import BadArgument
from tests.support.cubins import cubin

FUNCTIONS = CodeMap(cubin("inline_chain_sm90")).functions


@pytest.mark.parametrize("name", ["kern", "kern<float>", "void kern<double>(double*, int, double)", "slow", "kernel"])
def test_a_name_alone_says_whether_it_may_be_meant(name: str) -> None:
    assert any(may_mean(function.name, name) for function in FUNCTIONS) == bool(matching(FUNCTIONS, name))


@pytest.mark.parametrize(
    ("mangled", "stem"),
    [
        ("_Z4kernIfEvPT_iS0_", "_Z4kern"),
        ("_ZN5xmma14gemm4kernIfEEvv", "_ZN5xmma14gemm4kern"),
        ("_ZNK1a1bEv", "_ZNK1a1b"),
        ("plain", "plain"),
        ("_Z99999x", "_Z99999x"),
    ],
)
def test_instances_of_a_template_have_one_stem(mangled: str, stem: str) -> None:
    assert mangled_stem(mangled) == stem


@pytest.mark.parametrize(
    ("text", "name", "value", "file"),
    [
        ("0x7fffd9001140", None, 0x7FFFD9001140, None),
        ("7fffd9001140", None, 0x7FFFD9001140, None),
        ("320", None, 320, None),
        ("kern+0x140", "kern", 0x140, None),
        ("kern<inline_chain.cu>+0x140", "kern", 0x140, "inline_chain.cu"),
        ("kern<float>+0x140", "kern<float>", 0x140, None),
        (
            "0x7fffd9001140 <void kern<float>(float*, int, float)+320>",
            "void kern<float>(float*, int, float)",
            320,
            None,
        ),
        ("<_Z4kernIfEvPT_iS0_+320>", "_Z4kernIfEvPT_iS0_", 320, None),
        ("unaligned_kernel():0x160 in memcheck_demo.cu:6", "unaligned_kernel()", 0x160, None),
        ("bulk_copy(unsigned char *, int)+0x120 [in file.cu:6]", "bulk_copy(unsigned char *, int)", 0x120, None),
        ("kernel+0x1190 in app.cu:98", "kernel", 0x1190, None),
        ("void kern<float>(float*) + 320 in section .text._Z4", "void kern<float>(float*)", 320, None),
        ("at::native::f(int)+0x20", "at::native::f(int)", 0x20, None),
        ("kern", "kern", 0, None),
        ("_Z4kernIfEvPT_", "_Z4kernIfEvPT_", 0, None),
        ("void kern<float>(float*, int)", "void kern<float>(float*, int)", 0, None),
        ("kern<file.cu>", "kern", 0, "file.cu"),
    ],
)
def test_places_as_tools_print_them(text: str, name: str | None, value: int, file: str | None) -> None:
    assert parse_place(text) == PlaceQuery(name=name, value=value, file=file)


def test_a_bare_number_counts_from_the_kernel_that_is_given() -> None:
    assert parse_place("0x140", "kern<float>") == PlaceQuery(name="kern<float>", value=0x140)
    assert parse_place("+320", "kern<a.cu>") == PlaceQuery(name="kern", value=320, file="a.cu")


def test_a_place_in_one_function_is_none_in_another() -> None:
    for kernel in ("_Z4kernIfEvPT_iS0_", "kern<float>", "void kern<float>(float*, int, float)"):
        assert parse_place("kern<float>+0x140", kernel) == PlaceQuery(name=kernel, value=0x140)
    with pytest.raises(BadArgument, match="the place is in a, and the kernel given is b"):
        parse_place("a+0x10", "b")


def test_a_number_of_more_than_64_bits_is_no_address() -> None:
    assert parse_place("0xffffffffffffffff").value == (1 << 64) - 1
    with pytest.raises(BadArgument, match="more than 64 bits"):
        parse_place("0x1ffffffffffffffff")


@pytest.mark.parametrize("text", ["", "lib.so", "./kern", "kern+", "+", "0x", "kern+zz", "<>"])
def test_what_is_no_place_is_refused(text: str) -> None:
    with pytest.raises(BadArgument, match="neither an address, an offset, nor a function"):
        parse_place(text)


@given(st.text(max_size=60))
def test_any_text_is_a_place_or_bad_input(text: str) -> None:
    with contextlib.suppress(BadArgument):
        assert parse_place(text).value >= 0


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("_Z4kernIfEvPT_iS0_", ["_Z4kernIfEvPT_iS0_"]),
        ("void kern<float>(float*, int, float)", ["_Z4kernIfEvPT_iS0_"]),
        ("kern<float>(float *, int, float)", ["_Z4kernIfEvPT_iS0_"]),
        ("kern<float>", ["_Z4kernIfEvPT_iS0_"]),
        ("kern", ["_Z4kernIdEvPT_iS0_", "_Z4kernIfEvPT_iS0_"]),
        ("slow", ["$_Z4kernIdEvPT_iS0_$_Z4slowf", "$_Z4kernIfEvPT_iS0_$_Z4slowf"]),
        ("$_Z4kernIfEvPT_iS0_$_Z4slowf", ["$_Z4kernIfEvPT_iS0_$_Z4slowf"]),
        ("ker", []),
        ("kern<int>", []),
    ],
)
def test_the_closest_way_of_naming_wins(name: str, found: list[str]) -> None:
    assert [function.name for function in matching(FUNCTIONS, name)] == found


@pytest.mark.parametrize(
    ("name", "part"),
    [
        ("_Z4kernIfEvPT_iS0_", "_Z4kernIfEvPT_iS0_"),
        ("void at::native::kern<float, 4>(int)", "kern"),
        ("ns::kern", "kern"),
        ("operator<<(a, b)", ""),
    ],
)
def test_the_part_that_the_mangled_name_must_hold(name: str, part: str) -> None:
    assert identifier_in(name) == part
