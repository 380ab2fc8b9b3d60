"""Names as the source has them, and names that fit on a line."""

import time

import pydemumble
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpucore.mangling import CUT, LONGEST, demangle, short_name


@pytest.mark.parametrize(
    ("mangled", "long", "short"),
    [
        ("_Z4kernIfEvPT_iS0_", "void kern<float>(float*, int, float)", "kern<float>"),
        ("$_Z4kernIfEvPT_iS0_$_Z4slowf", "slow(float)", "slow"),
        ("$__internal_0_$__cuda_sm20_div_u64", "__cuda_sm20_div_u64", "__cuda_sm20_div_u64"),
        ("saxpy", "saxpy", "saxpy"),
        ("_ZN12_GLOBAL__N_14kernEPf", "(anonymous namespace)::kern(float*)", "(anonymous namespace)::kern"),
        ("_ZZN3fooEvENKUlvE_clEv", "foo()::'lambda'()::operator()() const", "foo()::'lambda'()::operator()"),
        ("_ZlsRSoRKSs", "operator<<(std::ostream&, std::string const&)", "operator<<"),
        ("_Zbroken", "_Zbroken", "_Zbroken"),
        ("", "", ""),
    ],
)
def test_names(mangled: str, long: str, short: str) -> None:
    assert demangle(mangled) == long
    assert short_name(long) == short


def test_long_template_arguments_are_folded() -> None:
    name = "void at::native::kernel<4, at::native::CUDAFunctor_add<float>, std::array<char*, 3ul>>(int, char*)"
    assert short_name(name) == "at::native::kernel<...>"


@pytest.mark.parametrize("construct", ["P", "N", "I", "L", "K", "X", "F", "S", "St", "1aI", "cl", "sc"])
@pytest.mark.parametrize("opening", ["_Z", "_Z1f", "_Z1fI", "_ZN", "_Z1fIX"])
@pytest.mark.parametrize("times", [100, 3_900, 100_000])
def test_a_name_nested_without_end_does_not_end_the_process(opening: str, construct: str, times: int) -> None:
    name = opening + construct * times
    assert demangle(name)


@pytest.mark.parametrize("hidden", ["P", "F", "1aI", "N1aI", "KP", "A_", "Dp", "sr1aI"])
@pytest.mark.parametrize(
    "opening", ["_Z1fILi{}EEv", "_Z1fILN1aE{}EEv", "_Z1fIA{}_1aI", "_Z1fv9{}", "_Z1fN1aC1{}", "_Z1fIXfL{}p_E"]
)
def test_nothing_hides_behind_a_number_that_looks_like_a_length(opening: str, hidden: str) -> None:
    """The demangler would end the process; 64 KiB is the longest name that is read from a file."""
    body = hidden * (65_000 // len(hidden))
    for length in (len(body), 60_000, 6_000):
        name = opening.format(length) + body
        assert demangle(name) == name


def test_a_long_name_of_identifiers_is_demangled() -> None:
    part = "a" * 200
    assert demangle("_ZN" + f"200{part}" * 300 + "E").endswith(f"{part}::{part}")


@given(st.text(alphabet="_ZN0123456789abIEPKS$v<>()", max_size=60))
def test_any_name_comes_back_as_some_text(name: str) -> None:
    assert isinstance(short_name(demangle(name)), str)


def reference(index: int) -> str:
    """Return the substitution of a number: `S_`, `S0_` ... `SZ_`, `S10_` ..."""
    if index == 0:
        return "S_"
    high, low = divmod(index - 1, 36)
    digits = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ"
    return f"S{digits[high] if high else ''}{digits[low]}_"


def doubling(times: int, width: int = 2) -> str:
    """Return `void f(p<a>, p<p<a>, ...>, ...)`, each argument the one before `width` times over."""
    arguments = (f"S_I{reference(2 + level) * width}E" for level in range(times))
    return "_Z1f1pI1aE" + "".join(arguments)


def nested_locals(depth: int) -> str:
    """Return a name whose template argument is a function of the same kind, said once and meant three times."""
    name = "i"
    for _ in range(depth):
        name = f"XL_Z1fI{name}EvT_T_EE"
    return f"_Z1fI{name}EvT_T_"


@pytest.mark.parametrize(
    "name",
    [
        doubling(20),
        doubling(60),
        doubling(400, width=5),
        doubling(60).replace("S0_", "S" + "0" * 12 + "_").replace("S1_", "S" + "0" * 12 + "1_"),
        nested_locals(40),
        "_Z60000" + "S" * 60_000 + "v",
        "_Z60000" + "9" * 60_000 + "v",
        "_Z1fIJ" + "i" * 3_000 + "EEvDpPT_" + "DpPS1_" * 500,
        "_ZN1acvPFvT_T_T_EI" + "1bI" * 900 + "i" + "E" * 900 + "EEv",
    ],
)
def test_a_name_that_repeats_itself_without_bound_is_cut_in_no_time(name: str) -> None:
    start = time.process_time()
    text = demangle.__wrapped__(name)
    assert time.process_time() - start < 1
    assert len(text) <= LONGEST + len(CUT)


def test_a_cut_name_says_so_and_starts_as_the_whole_one() -> None:
    whole, cut = demangle(doubling(10)), demangle(doubling(60))
    assert whole.startswith("f(p<a>, p<p<a>, p<a>>, ")
    assert cut.endswith(CUT)
    assert cut.startswith(whole[:2_000])
    assert short_name(cut) == "f"


def test_a_name_of_the_most_characters_is_not_cut() -> None:
    for length in (LONGEST, LONGEST + 1):
        text = demangle(f"_ZN{length - 3}{'a' * (length - 3)}1bE")
        assert len(text) == length + (0 if length == LONGEST else len(CUT) - 1)


@given(
    st.lists(
        st.sampled_from(
            ["S_", "S0_", "S1_", "S2_", "T_", "T0_", "1a", "1bI", "N", "E", "P", "i", "Dp", "J", "X", "L_Z"]
        ),
        max_size=300,
    )
)
@settings(max_examples=300)
def test_no_name_of_back_references_is_expensive(parts: list[str]) -> None:
    start = time.process_time()
    assert len(demangle.__wrapped__("_Z1fI" + "".join(parts))) <= LONGEST + len(CUT)
    assert time.process_time() - start < 1


@given(st.lists(st.integers(0, 9), min_size=1, max_size=60), st.integers(1, 4))
@settings(max_examples=200)
def test_growing_names_are_bounded(steps: list[int], width: int) -> None:
    """Each argument repeats `width` earlier ones, so that some of these names stay small and others explode."""
    arguments = (f"S_I{reference(max(1, 2 + n - step)) * width}E" for n, step in enumerate(steps))
    name = "_Z1f1pI1aE" + "".join(arguments)
    text = demangle.__wrapped__(name)
    assert text.startswith("f(p<a>")
    assert len(text) <= LONGEST + len(CUT)
    if not text.endswith(CUT):
        assert text == pydemumble.demangle(name)
