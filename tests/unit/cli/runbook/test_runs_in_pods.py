"""A run whose ranks were pods stays readable: it is listed, shown and reported, and is not resumed."""

import json
import shutil
from pathlib import Path

import pytest

from vdbg_env.cli import main

RECORDED = Path(__file__).parents[3] / "data" / "recordings" / "on-k8s"


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    shutil.copytree(RECORDED / "cut", tmp_path / "vdbg-runs" / "cut")
    shutil.copy(RECORDED / "two-steps.yaml", tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return tmp_path


def test_it_is_listed_shown_and_reported(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["runs", "list"]) == 0
    assert capsys.readouterr().out.split()[:2] == ["cut", "interrupted"]
    assert main(["runs", "show", "cut"]) == 0
    shown = capsys.readouterr().out
    assert "it cannot be continued" in shown and "--resume" not in shown
    main(["runs", "report", "cut", "--format", "json"])
    report = json.loads(capsys.readouterr().out)
    assert next((step["id"], step["outcome"]) for step in report["steps"]) == ("baseline", "reproduced")
    assert "--resume" not in json.dumps(report)
    assert report["environment"]["steps run in"] == "pods of a Kubernetes cluster"


@pytest.mark.parametrize("words", [("--resume", "cut"), ("./two-steps.yaml", "--from", "cut")])
def test_it_is_not_started_again(here: Path, capsys: pytest.CaptureFixture[str], words: tuple[str, ...]) -> None:
    assert main(["runbook", *words, "--batch"]) == 2
    said = " ".join(capsys.readouterr().err.split())
    assert "the ranks of run 'cut' were pods (--on k8s), and that placement is gone" in said
    assert "run it inside a pod that you have" in said and "vdbg-env runs report cut" in said


def test_a_run_begun_from_it_elsewhere_takes_nothing_of_its_place(here: Path) -> None:
    words = ("--from", "cut", "--on", "local", "--plan", "--", "sh", "crash.sh")
    assert main(["runbook", "./two-steps.yaml", *words]) == 0
