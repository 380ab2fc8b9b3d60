"""A step changes what it says of a command line, and nothing else."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vdbg_env.runbook import workload
from vdbg_env.runbook.model import ArgvOverlay, Data
from vdbg_env.runbook.state import Invocation, placed
from vdbg_env.runbook.workload import overlaid_argv, overlaid_env, without_flags

WORDS = st.lists(st.text(min_size=1, max_size=6), max_size=8)


@pytest.mark.parametrize(
    ("argv", "flags", "expected"),
    [
        (["serve", "--port", "1", "M"], ["--port VALUE"], ["serve", "M"]),
        (["serve", "--port=1", "M"], ["--port VALUE"], ["serve", "M"]),
        (["serve", "--eager", "M"], ["--eager"], ["serve", "M"]),
        (["serve", "--eager=true", "M"], ["--eager"], ["serve", "M"]),
        (["serve", "--tensor_parallel_size", "2", "M"], ["--tensor-parallel-size VALUE"], ["serve", "M"]),
        (["x", "-cc.mode=0", "-cc.backend", "eager", "-ccx"], ["-cc. VALUE"], ["x", "-ccx"]),
        (["x", "--", "--port", "1"], ["--port VALUE"], ["x", "--", "--port", "1"]),
        (["x", "--port"], ["--port VALUE"], ["x"]),
        (["x", "--ports", "1"], ["--port VALUE"], ["x", "--ports", "1"]),
        (["x", "--port", "1", "--port=2"], ["--port VALUE"], ["x"]),
        (["a/--port", "1"], ["--port VALUE"], ["a/--port", "1"]),
    ],
)
def test_a_flag_goes_with_its_value(argv: list[str], flags: list[str], expected: list[str]) -> None:
    assert list(without_flags(argv, flags)) == expected


def test_wrap_goes_before_and_append_before_a_lone_double_dash() -> None:
    overlay = ArgvOverlay(wrap=("compute-sanitizer", "--tool=memcheck"), append=("--eager",), remove=("-v",))
    assert overlaid_argv(["run", "-v", "--", "-v"], overlay) == (
        "compute-sanitizer", "--tool=memcheck", "run", "--eager", "--", "-v",
    )  # fmt: skip


@given(WORDS)
def test_an_empty_overlay_changes_nothing(argv: list[str]) -> None:
    assert overlaid_argv(argv, ArgvOverlay()) == tuple(argv)


@given(WORDS, WORDS, WORDS)
def test_wrapping_and_appending_lose_no_word(argv: list[str], wrap: list[str], append: list[str]) -> None:
    result = overlaid_argv(argv, ArgvOverlay(wrap=tuple(wrap), append=tuple(append)))
    assert sorted(result) == sorted([*wrap, *argv, *append])
    assert list(result[: len(wrap)]) == wrap


@given(WORDS, st.sampled_from(["--flag", "--flag VALUE", "-x. VALUE"]))
def test_removing_twice_is_removing_once(argv: list[str], flag: str) -> None:
    once = without_flags(argv, [flag])
    assert without_flags(once, [flag]) == once


def test_the_later_delta_wins_and_null_unsets() -> None:
    assert overlaid_env({"A": "1", "B": "2"}, {"B": None, "C": "3"}) == {"A": "1", "B": None, "C": "3"}


@pytest.mark.parametrize(
    ("argv", "arguments", "expected"),
    [
        ("serve M", {"enforce_eager": True}, "serve M --enforce-eager"),
        ("serve M --no-enforce-eager", {"enforce_eager": True}, "serve M --enforce-eager"),
        ("serve --enforce-eager M", {"enforce_eager": False}, "serve M --no-enforce-eager"),
        ("serve M --kv-cache-dtype fp8", {"kv_cache_dtype": "auto"}, "serve M --kv-cache-dtype=auto"),
        ("serve M --kv-cache-dtype fp8", {"kv_cache_dtype": None}, "serve M"),
        ("serve M", {"compilation_config": {"cudagraph_mode": "NONE"}}, "serve M -cc.cudagraph_mode=NONE"),
        ("serve M", {"compilation_config": {"mode": 0}}, "serve M -cc.mode=0"),
        ("serve M --attention-backend FLASHINFER", {"attention_config": {"backend": "X"}}, "serve M -ac.backend=X"),
        ("serve M -- x", {"enforce_eager": True}, "serve M --enforce-eager -- x"),
    ],
)
def test_engine_arguments_become_vllms_flags(argv: str, arguments: dict[str, Data], expected: str) -> None:
    assert list(workload.as_flags(argv.split(), arguments)) == expected.split()


@pytest.mark.parametrize(
    "given_flags",
    [
        ["-cc", '{"mode": 3, "cudagraph_mode": "FULL"}'],
        ['--compilation-config={"mode": 3}'],
        ["--compilation_config", '{"mode": 3}'],
        ["-cc.mode=3", "-cc.cudagraph_mode", "FULL"],
        ["--compilation-config.mode", "3"],
    ],
)
def test_a_mapping_is_merged_into_what_the_user_gave(given_flags: list[str]) -> None:
    """vLLM would let the dotted flag replace the user's whole mapping, and so change more than the step says."""
    change: dict[str, Data] = {"compilation_config": {"cudagraph_mode": "NONE"}}
    result = workload.as_flags(["serve", *given_flags, "M"], change)
    assert result[:3] == ("serve", "M", "-cc")
    assert json.loads(result[3]) == {"mode": 3, "cudagraph_mode": "NONE"}


def test_dotted_flags_win_over_a_mapping_as_they_do_in_vllm() -> None:
    change: dict[str, Data] = {"compilation_config": {"mode": 0}}
    argv = workload.as_flags(["serve", "-cc.backend=eager", "-cc", '{"level": 1}'], change)
    assert json.loads(argv[-1]) == {"backend": "eager", "mode": 0}


def test_a_script_gets_the_plug_in_before_its_own_path() -> None:
    delta = workload.as_environment({"enforce_eager": True}, data_dir="/d", python_path="/mine")
    assert delta == {"PYTHONPATH": "/d/lib/vllm-overlay:/mine", "VDBG_VLLM_ENGINE_ARGS": '{"enforce_eager": true}'}


def test_ranks_are_filled_in_when_a_process_is_placed() -> None:
    invocation = Invocation(
        step="s", attempt=1, argv=("x", "--log=${{ rank.dir }}/%p"), env={"F": "${{ rank.host }}-${{ rank.number }}"}
    )
    there = placed(invocation, attempt=2, rank=3, host="n1", directory="/run/r3")
    assert (there.attempt, there.argv, there.env) == (2, ("x", "--log=/run/r3/%p"), {"F": "n1-3"})
