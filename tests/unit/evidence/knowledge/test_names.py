"""Names of flags and variables, judged by release."""

import ast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scripts.refresh_vllm_flags import Surface, is_wanted, read_surface, render_release_table, with_release
from tests.support.command_line import vdbg_env
from vdbg_env.evidence.knowledge import ReleaseTable, explain_name, read_release_table, shipped_knowledge, version_key


@pytest.mark.parametrize(
    ("name", "release", "status"),
    [
        ("--attention-backend", "0.33.0", "current"),
        ("--attention-backend", "0.12.0", "not-yet"),
        ("VLLM_ATTENTION_BACKEND", "0.14.1", "current"),
        ("VLLM_ATTENTION_BACKEND", "0.18.0", "gone"),
        ("--watchdog-config", "0.24.0", "not-yet"),
        ("--watchdog-config", "0.32.0", "not-yet"),
        ("--watchdog-config", "0.33.0", "current"),
        ("--swap-space", "0.14.1", "current"),
        ("VLLM_RAISE_ON_LOGIT_NANS", "0.33.0", "current"),
        ("VLLM_RAISE_ON_LOGIT_NANS", "0.24.0", "not-yet"),
        ("-cc.cudagraph_mode=NONE", "0.33.0", "current"),
        ("--compilation-config.mode=0", "0.33.0", "current"),
        ("--no-enable-prefix-caching", "0.33.0", "current"),
        ("--enforce_eager", "0.33.0", "current"),
        ("-O2", "0.33.0", "current"),
        ("VLLM_DISABLE_SCCACHE", "0.33.0", "build-time"),
        ("NVCC_PREPEND_FLAGS", None, "build-time"),
    ],
)
def test_a_name_is_judged_by_release(name: str, release: str | None, status: str) -> None:
    assert shipped_knowledge().judge_name(name, release).status == status


def test_a_misspelt_name_gets_the_nearest() -> None:
    said = shipped_knowledge().judge_name("VLLM_ATTENTION_BACKENDS")
    assert (said.status, said.level, said.replaced_by) == ("unknown", "error", "VLLM_ATTENTION_BACKEND")


def test_a_variable_of_another_program_is_no_error() -> None:
    assert shipped_knowledge().judge_name("MY_OWN_VARIABLE").level == "note"


def test_a_users_command_is_told_what_replaced_what() -> None:
    judged = shipped_knowledge().judge_command(
        ["vllm", "serve", "m", "--swap-space", "4", "--max-model-len", "100"],
        {"VLLM_DISABLE_CUDA_GRAPH": "1", "CUDA_LAUNCH_BLOCKING": "1", "VLLM_USE_V1": None},
    )
    assert {(j.name, j.level) for j in judged} == {("--swap-space", "error"), ("VLLM_DISABLE_CUDA_GRAPH", "error")}
    assert all(j.replaced_by for j in judged)


def test_a_variable_at_its_harmless_value_is_met_with_silence() -> None:
    def said(value: str) -> list[str]:
        judged = shipped_knowledge().judge_command([], {"TRITON_DISABLE_LINE_INFO": value})
        return [j.name for j in judged]

    assert (said("1"), said("0")) == (["TRITON_DISABLE_LINE_INFO"], [])


def test_a_scripts_own_flags_are_its_authors() -> None:
    assert shipped_knowledge().judge_command(["python", "train.py", "--swap-space", "4"], {}) == ()


def test_a_sound_command_is_met_with_silence() -> None:
    argv = ["vllm", "serve", "m", "--enforce-eager", "-tp", "2", "-cc.cudagraph_mode=NONE"]
    env = {
        "CUDA_COREDUMP_FILE": "/dumps/%h.%p.%t",
        "CUDA_ENABLE_COREDUMP_ON_EXCEPTION": "1",
    }
    assert [j for j in shipped_knowledge().judge_command(argv, env) if j.level == "error"] == []


def test_a_name_is_explained_in_words() -> None:
    text = explain_name("VLLM_ATTENTION_BACKEND")
    assert "use instead: --attention-backend" in text
    assert "gone" in text


def test_the_command_explains_variables_and_flags() -> None:
    ran = vdbg_env("runbooks", "explain", "--", "--swap-space")
    assert (ran.status, "--kv-offloading-size" in ran.stdout) == (0, True)
    assert "never existed" in vdbg_env("runbooks", "explain", "VLLM_DISABLE_CUDA_GRAPH").stdout


def test_names_are_read_without_importing_anything() -> None:
    surface = read_surface(
        {
            "vllm/envs.py": "environment_variables: dict = {'VLLM_A': lambda: 1, 'B': f}\n",
            "vllm/engine/arg_utils.py": "p.add_argument('--one-two', '-o')\np.add_argument('--three_four')\n",
            "vllm/entrypoints/x.py": "class FrontendArgs:\n    host: str = ''\n    ssl_keyfile: str = ''\n",
        }
    )
    assert surface == Surface(
        variables=frozenset({"VLLM_A", "B"}), flags=frozenset({"--one-two", "--three-four", "--host", "--ssl-keyfile"})
    )


def test_only_the_files_that_define_names_are_read() -> None:
    assert is_wanted("vllm/envs.py")
    assert not is_wanted("vllm/model_executor/models/llama.py")


def test_a_file_that_is_no_python_is_the_callers_to_mind() -> None:
    with pytest.raises(SyntaxError):
        read_surface({"vllm/envs.py": "def ("})
    assert ast.parse("")


versions = st.integers(0, 40).map(lambda n: f"0.{n}.0")


@given(st.lists(st.tuples(versions, st.frozensets(st.sampled_from(["A", "B", "C"]))), min_size=1, max_size=6))
def test_the_table_comes_back_as_it_was_written(releases: list[tuple[str, frozenset[str]]]) -> None:
    table = ReleaseTable()
    for version, names in releases:
        table = with_release(table, version, Surface(variables=names, flags=frozenset()))
    assert read_release_table(render_release_table(table, as_of="2026-01-01")) == table


def test_releases_are_ordered_as_numbers() -> None:
    assert sorted(["0.9.2", "0.10.0", "0.12.0"], key=version_key) == ["0.9.2", "0.10.0", "0.12.0"]


@pytest.mark.parametrize("said", [("79",), ("Xid", "13"), ("NVRM: Xid (PCI:0000:00:06): 31, pid=601",)])
def test_an_xid_is_for_triage(said: tuple[str, ...]) -> None:
    ran = vdbg_env("runbooks", "explain", *said)
    assert ran.status == 2 and "try: dmesg | vdbg-env triage -" in ran.stderr


def test_a_name_in_no_table_is_bad_input_and_the_nearest_is_named() -> None:
    ran = vdbg_env("runbooks", "explain", "VLLM_TRACE_FUNCTON")
    assert ran.status == 2
    assert "did you mean VLLM_TRACE_FUNCTION?" in ran.stderr
    assert "did you mean" not in vdbg_env("runbooks", "explain", "VLLM_VERSION_OVERRIDE").stderr, "alike by its prefix"


def test_what_we_say_of_a_name_is_what_the_releases_show() -> None:
    """`since` and `until` of our own entries against the names that were read from each release."""
    knowledge = shipped_knowledge()
    table = knowledge.surface
    rows = {name: row for name, row in knowledge.rows.items() if name in table.names and row.owner == "vLLM"}
    assert "--watchdog-config" in rows
    for name, row in rows.items():
        for release in table.releases:
            key, has = version_key(release), release in table.names[name]
            if (row.since and key < version_key(row.since)) or (row.until and key >= version_key(row.until)):
                assert not has, f"{name} is in {release}"
            elif row.since:
                assert has, f"{name} is not in {release}"
