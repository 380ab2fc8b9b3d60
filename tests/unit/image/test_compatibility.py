"""What the tables rule out is refused with the nearest good choice; what they do not know is only warned of."""

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.image_library import planned, shipped
from vdbg_env.common.errors import BadInput
from vdbg_env.image.knowledge import Combination, judge, read_knowledge, require_compatible, version_key
from vdbg_env.image.profile import BuildRequest

GOOD = Combination(
    cuda="13.0", arch=("9.0",), gcc="14.2", python="3.13", torch="2.14.0", vllm="0.33.0", driver="580.95.05"
)


def test_a_good_combination_says_nothing() -> None:
    assert require_compatible(GOOD, shipped().knowledge) == ()


@pytest.mark.parametrize(
    ("change", "told", "instead"),
    [
        ({"gcc": "12.2"}, "vLLM 0.33.0 needs GCC 13 or newer, and the base image has 12.2", "GCC 13 or newer"),
        ({"gcc": "16.1"}, "nvcc of CUDA 13.0 takes GCC up to 15, and the base image has 16.1", "GCC 15 or older"),
        ({"python": "3.10"}, "vLLM 0.33.0 needs Python 3.11 or newer", "Python 3.11"),
        (
            {"arch": ("7.0",)},
            "CUDA 13.0 does not build for architecture 7.0",
            "a profile with CUDA 12.9, or --arch 7.5",
        ),
        ({"arch": ("99.9",)}, "CUDA 13.0 does not build for architecture 99.9", "--arch 12.1; known are 7.5"),
        ({"arch": ("5.0",)}, "CUDA 13.0 does not build for architecture 5.0", "a profile with CUDA 12.9"),
        (
            {"driver": "535.183.01"},
            "driver 535.183.01 cannot run CUDA 13.0",
            "580.65.06 or newer, or a profile with CUDA 12",
        ),
        ({"driver": "470.82.01"}, "driver 470.82.01 cannot run CUDA 13.0", "install driver 580.65.06 or newer"),
    ],
)
def test_known_bad_is_refused_with_the_nearest_good(change: dict[str, object], told: str, instead: str) -> None:
    with pytest.raises(BadInput) as caught:
        require_compatible(dataclasses.replace(GOOD, **change), shipped().knowledge)  # type: ignore[arg-type]
    assert caught.value.what.startswith(told)
    assert caught.value.next_step and instead in caught.value.next_step
    assert caught.value.cause and shipped().knowledge.as_of in caught.value.cause


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"cuda": "13.9"}, "CUDA 13.9 is not in the tables; the nearest known is 13.0"),
        ({"vllm": "0.40.0"}, "vLLM 0.40.0 is not in the tables; the nearest known is 0.33.0"),
        ({"torch": "2.15.0"}, "vLLM 0.33.0 is built for torch 2.14.0, not 2.15.0"),
        ({"arch": ("12.1",)}, "vLLM 0.33.0 does not list architecture 12.1; it may build the kernels of 12.0"),
        ({"cuda": "12.9", "driver": "535.183.01"}, "driver 535.183.01 is older than 575.51.03"),
    ],
)
def test_what_nobody_knows_is_warned_of(change: dict[str, object], told: str) -> None:
    warnings = require_compatible(dataclasses.replace(GOOD, **change), shipped().knowledge)  # type: ignore[arg-type]
    assert any(w.startswith(told) for w in warnings), warnings


def test_an_architecture_that_an_unknown_toolkit_may_know_is_warned_of() -> None:
    combination = dataclasses.replace(GOOD, cuda="13.9", arch=("13.0",))
    warnings = require_compatible(combination, shipped().knowledge)
    assert "CUDA 13.9 is not in the tables; the nearest known is 13.0" in warnings


def test_every_reason_is_told_at_once() -> None:
    with pytest.raises(BadInput) as caught:
        require_compatible(dataclasses.replace(GOOD, gcc="9.4", python="3.8"), shipped().knowledge)
    assert len(caught.value.details) == 1


def test_a_base_of_the_users_own_is_not_judged_by_the_profiles_compiler() -> None:
    request = BuildRequest(profile="pypi-cu130", base="example.org/old:1")
    assert planned(request).base == "example.org/old:1"


def test_a_later_row_wins_over_an_earlier_one() -> None:
    def file(most: str) -> bytes:
        row = f'driver: {{least: "1", own: "1"}}, arch: ["9.0"], gcc: {{most: "{most}"}}, source: mine'
        return f'schema: vdbg-env/knowledge/v1\nas_of: "2026-01-01"\ncuda: [{{version: "13.0", {row}}}]\n'.encode()

    knowledge = read_knowledge([("a.yaml", file("14")), ("b.yaml", file("16"))])
    assert knowledge.cuda["13.0"].gcc.most == "16"
    assert list(judge(Combination(cuda="13.0", arch=("9.0",), gcc="16.2"), knowledge)) == []


@given(st.lists(st.integers(0, 999), min_size=1, max_size=4), st.lists(st.integers(0, 999), min_size=1, max_size=4))
def test_versions_compare_as_numbers(one: list[int], other: list[int]) -> None:
    texts = (".".join(map(str, one)), ".".join(map(str, other)))
    assert (version_key(texts[0]) < version_key(texts[1])) == (one < other)
