"""A run that continues another one starts its command where that one did, wherever it is typed."""

import json
import shutil
from pathlib import Path

import pytest

from vdbg_env.cli import main

RUNBOOK = """\
apiVersion: vdbg-env/v1
kind: Runbook
metadata: {name: where, title: A command that names files of its folder}
spec:
  inputs:
    argv: {type: array, required: true}
    word: {type: string, default: none}
    notes: {type: path, default: notes}
  matchers: {boom: {regex: 'boom.*'}}
  commands: {workload: {argv: "${{ inputs.argv }}", env: {WORD: "${{ inputs.word }}", NOTES: "${{ inputs.notes }}"}}}
  steps:
    - id: baseline
      run: workload
      outcomes: [{reproduced: {message: "${{ matched.boom.text }}", next: changed}}]
    - id: changed
      run: workload
      env: {AGAIN: "1"}
      outcomes: [{reproduced: {message: "${{ matched.boom.text }}", next: end}}]
"""


@pytest.fixture
def begun(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Path:
    """Run a program of a folder, and go to another one; return the record."""
    monkeypatch.setenv("VDBG_ENV_RUNS", str(tmp_path / "runs"))
    (tmp_path / "where.yaml").write_text(RUNBOOK)
    (first := tmp_path / "first").mkdir()
    (first / "crash.sh").write_text('#!/bin/sh\necho boom in $(basename "$PWD"): $WORD, $NOTES, $1\nexit 1\n')
    (first / "crash.sh").chmod(0o755)
    monkeypatch.chdir(first)
    assert runbook("--run-dir", "../runs/known", "-i", "word=hello", "--", "./crash.sh", "data") == 3
    (second := tmp_path / "second").mkdir()
    monkeypatch.chdir(second)
    capsys.readouterr()
    return tmp_path / "runs/known"


def runbook(*words: str) -> int:
    return main(["runbook", "../where.yaml", "--batch", *words])


def messages(text: str) -> list[str]:
    return [step["message"] for step in json.loads(text)["steps"]]


def cut_off(run: Path) -> None:
    """Leave of a record what a kill after its first step leaves."""
    log = run / "events.jsonl"
    lines = log.read_bytes().splitlines(keepends=True)
    end = next(n for n, line in enumerate(lines) if json.loads(line)["kind"] == "step_finished")
    log.write_bytes(b"".join(lines[: end + 1]))
    shutil.rmtree(run / "steps/changed")


def forget_the_folder(run: Path) -> None:
    """Make a record one of a version that kept no folder."""
    head = json.loads((run / "run.json").read_text())
    del head["folder"]
    (run / "run.json").write_text(json.dumps(head))


def test_the_record_says_where_the_command_started(begun: Path) -> None:
    assert json.loads((begun / "run.json").read_text())["folder"] == str(begun.parents[1] / "first")


def test_a_run_from_another_starts_where_that_did_with_its_inputs(
    begun: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.rmtree(begun / "steps/changed")  # so that this step is run, and not taken over
    assert runbook("--from", "known", "--json") == 3
    assert messages(capsys.readouterr().out) == ["boom in first: hello, notes, data"] * 2


def test_the_latest_run_is_the_one_before_this(begun: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["runs", "show", "latest"]) == 0
    assert capsys.readouterr().out.startswith("known: ")
    assert runbook("--from", "latest", "--json") == 3
    assert messages(capsys.readouterr().out) == ["boom in first: hello, notes, data"] * 2
    assert not begun.with_name("latest").exists()


def test_paths_given_now_start_from_where_they_are_typed(begun: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert runbook("--from", "known", "--json", "-i", "word=bye", "-i", "notes=mine") == 3
    here = begun.parents[1] / "second"
    assert messages(capsys.readouterr().out) == [f"boom in first: bye, {here}/mine, data"] * 2


def test_a_command_given_again_starts_where_it_is_typed(begun: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert runbook("--from", "known", "--json", "--", "../first/crash.sh") == 3
    assert messages(capsys.readouterr().out) == ["boom in second: none, notes,"] * 2


def test_a_resumed_run_continues_where_it_was_begun(begun: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cut_off(begun)
    assert main(["runbook", "--resume", "known", "--json"]) == 3
    assert messages(capsys.readouterr().out) == ["boom in first: hello, notes, data"] * 2


@pytest.mark.parametrize("how", ["--from", "--resume"])
def test_a_folder_that_is_gone_is_named_with_what_to_type(
    begun: Path, capsys: pytest.CaptureFixture[str], how: str
) -> None:
    first = begun.parents[1] / "first"
    shutil.rmtree(first)
    assert (runbook if how == "--from" else lambda *words: main(["runbook", "where", *words]))(how, "known") == 2
    said = capsys.readouterr().err
    assert f"the command of run 'known' started in {first}, and there is no such folder" in said
    again = "--from known -- ./crash.sh data; or --image" if how == "--from" else "-- COMMAND"
    assert again in said


def test_an_older_record_is_begun_from_here_as_it_was(
    begun: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    forget_the_folder(begun)
    monkeypatch.chdir(begun.parents[1] / "first")
    assert runbook("--from", "known", "--json") == 3
    assert messages(capsys.readouterr().out) == ["boom in first: hello, notes, data"] * 2


def test_a_folder_with_a_secret_is_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, begun: Path) -> None:
    (secret := tmp_path / "hf_abcdefghijklmnopqrstuvwxyz").mkdir()
    monkeypatch.chdir(secret)
    assert runbook("--run-dir", str(tmp_path / "r"), "--", "../first/crash.sh") == 3
    assert json.loads((tmp_path / "r/run.json").read_text())["folder"] == ""
