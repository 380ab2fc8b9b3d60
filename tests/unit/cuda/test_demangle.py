"""Names as the source has them, and names that fit on a line."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vdbg_env.cuda.demangle import demangle, short_name


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


def test_a_long_name_of_identifiers_is_demangled() -> None:
    part = "a" * 200
    assert demangle("_ZN" + f"200{part}" * 400 + "E").endswith(f"{part}::{part}")


@given(st.text(alphabet="_ZN0123456789abIEPKS$v<>()", max_size=60))
def test_any_name_comes_back_as_some_text(name: str) -> None:
    assert isinstance(short_name(demangle(name)), str)
