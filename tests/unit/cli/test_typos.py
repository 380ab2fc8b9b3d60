"""What a person mistypes, or lacks, is answered with the reason and the next thing to type, never with a traceback."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from vdbg_env.cli import main

BUILDER = Path(__file__).parents[3] / "builder"
NO_ENGINE = "unix:///nowhere/docker.sock"
BARE = ("runbook", "illegal-memory-access")
# What is typed, the exit status, and words of the answer.
TYPOS: dict[str, tuple[tuple[str, ...], int, tuple[str, ...]]] = {
    "dump-no-number": (("dump", "vllm"), 2, ("'vllm' is not a process ID", "pgrep -af vllm")),
    "dump-zero": (("dump", "0"), 2, ("'0' is not a process ID",)),
    "dumps-no-folder": (("dumps", "list", "--dumps", "/no/dumps"), 2, ("there is no folder /no/dumps", "mistyped")),
    "core-no-file": (("core", "lost.nvcudmp"), 2, ("no such file: lost.nvcudmp", "vdbg-env dumps list")),
    "core-not-readable": (("core", "file/x"), 2, ("error: file/x cannot be read: Not a directory", "ls -ld file/x")),
    "lint-no-file": (("runbooks", "lint", "./no.yaml"), 2, ("no.yaml cannot be read", "mistyped", "ls -ld no.yaml")),
    "fmt-no-file": (("runbooks", "fmt", "./no.yaml"), 2, ("no.yaml cannot be read", "mistyped", "ls -ld no.yaml")),
    "log-not-readable": (("triage", "file/log"), 2, ("file/log cannot be read", "ls -ld file/log")),
    "replay-no-folder": ((*BARE, "--replay", "nowhere"), 2, ("--replay", "'nowhere' does not exist")),
    "bundle-no-folder": (
        ("bundle", "no/x.tar", "--profile", "sample"),
        2,
        ("no/x.tar cannot be written", "mkdir -p no,"),
    ),
    "no-engine-dumps": (("dumps", "list"), 1, ("cannot reach", "dumps list --dumps FOLDER")),
    "no-engine-run": (
        ("run", "--", "true"),
        1,
        ("cannot reach", "systemctl start docker", "build --engine host"),
    ),
    "report-is-of-runs": (("report", "RUN"), 2, ("No such command 'report'", "Did you mean 'runs report'?")),
    "no-command": (
        ("runbook", "kernel-hang"),
        2,
        ("needs a command to run", "vdbg-env runbook kernel-hang -- COMMAND"),
    ),
    "runs-in-a-file": (BARE, 1, ("file/runs/sample cannot be made", "export VDBG_ENV_RUNS=DIR")),
}


@pytest.mark.parametrize("name", TYPOS)
def test_a_typo_is_answered(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DOCKER_HOST", NO_ENGINE)
    monkeypatch.setenv("VDBG_ENV_RUNS", "file/runs")
    (tmp_path / "file").write_text("")
    words, status, answer = TYPOS[name]
    assert main(words) == status
    said = capsys.readouterr().err
    assert [word for word in answer if word not in said] == [], said
    assert list(tmp_path.iterdir()) == [tmp_path / "file"]


def test_a_current_folder_that_was_removed_is_named(tmp_path: Path) -> None:
    run = f"{sys.executable} -P -m vdbg_env runbook illegal-memory-access --batch -- true"
    done = subprocess.run(
        ["sh", "-c", f"mkdir gone && cd gone && rmdir ../gone && exec {run}"],
        env={**os.environ, "PYTHONPATH": str(BUILDER)}, cwd=tmp_path, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 1
    assert "the current folder: No such file or directory" in done.stderr and "cd to one that exists" in done.stderr


def test_the_sample_is_made_where_the_record_of_its_run_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("VDBG_ENV_RUNS", "file/runs")  # where nothing can be made
    (tmp_path / "file").write_text("")
    assert main([*BARE, "--batch", "--run-dir", "mine"]) == 3
    assert (tmp_path / "mine/report.md").is_file()
    assert "cannot be made" not in capsys.readouterr().err
