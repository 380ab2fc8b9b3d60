"""Runbooks that set a stale name are told so, at its line, with what replaced it."""

from pathlib import Path

import pytest

from tests.support.command_line import vdbg_env
from vdbg_env.run.stale import name_complaints

ROOT = Path(__file__).parents[3]
STALE = """\
steps:
  - id: a
    env: {VLLM_ATTENTION_BACKEND: FLASHINFER, CUDA_LAUNCH_BLOCKING: "1", VLLM_USE_V1: null}
  - id: b
    argv: {append: [--swap-space, "4"], wrap: [tool, --max-seq-len-to-capture]}
    engine_args: {enforce_eager: true}
"""


def test_each_stale_name_is_told_with_its_place_and_successor(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(STALE)
    found = [c for c in name_complaints([path], "0.33.0") if c.file == str(path)]
    assert [(c.line, c.what.split(":")[0]) for c in found] == [(3, "VLLM_ATTENTION_BACKEND"), (5, "--swap-space")]
    assert "--attention-backend" in found[0].what


def test_a_release_that_had_the_name_has_no_complaint(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(STALE)
    assert [c for c in name_complaints([path], "0.14.1") if c.file == str(path)] == []


MISSPELT = """\
commands:
  server: {argv: [vllm, serve, --enforce-eagr, --, --max-modl-len]}
  script: {argv: [python, train.py, --enforce-eagr]}
steps:
  - id: a
    argv: {append: [--max-modl-len=8, --a-flag-of-mine, "-"]}
  - id: b
    engine_args: {enforce_eagr: true, no_such_thing_at_all: 1}
"""


def test_a_misspelt_flag_or_engine_argument_is_reported_with_the_nearest(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(MISSPELT)
    found = {(c.line, c.what.split(":")[0]): c.what for c in name_complaints([path]) if c.file == str(path)}
    assert found.keys() == {
        (2, "--enforce-eagr"),
        (6, "--max-modl-len"),
        (8, "enforce_eagr"),
        (8, "no_such_thing_at_all"),
    }
    assert found[2, "--enforce-eagr"].endswith("did you mean --enforce-eager?")
    assert found[6, "--max-modl-len"].endswith("did you mean --max-model-len?")
    assert found[8, "enforce_eagr"].endswith("did you mean enforce_eager?")


@pytest.mark.parametrize("path", sorted((ROOT / "runbooks").glob("*.yaml")), ids=lambda p: p.name)
def test_no_shipped_runbook_or_step_sets_a_stale_name(path: Path) -> None:
    assert name_complaints([path], "0.33.0") == ()


def test_the_lint_command_holds_names_against_a_release() -> None:
    assert vdbg_env("runbooks", "lint", "--vllm", "0.33.0").status == 0
    assert "not in vLLM 0.12.0" in vdbg_env("runbooks", "lint", "--vllm", "0.12.0").stdout
