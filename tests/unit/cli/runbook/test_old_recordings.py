"""Runs and recordings of release 0.1.0 (tests/data/recordings) are resumed, replayed and reported by this one."""

import json
import shutil
from pathlib import Path

import pytest

from vdbg_env.cli import main

OLD = Path(__file__).parents[3] / "data" / "recordings"
STEPS = ["baseline", "changed", "enough", "report"]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    shutil.copytree(OLD, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("VDBG_ENV_RUNS", raising=False)
    return tmp_path


def steps(document: str) -> list[tuple[str, str | None]]:
    return [(step["id"], step["outcome"]) for step in json.loads(document)["steps"]]


def test_an_interrupted_run_is_resumed(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (here / "go").touch()
    assert main(["runbook", "-f", "tiny.yaml", "tiny", "--batch", "--resume", "interrupted", "--json"]) == 3
    assert steps(capsys.readouterr().out) == list(
        zip(STEPS, ["reproduced", "not_reproduced", None, "pass"], strict=True)
    )
    events = [json.loads(line) for line in (here / "interrupted" / "events.jsonl").read_bytes().splitlines()]
    started = [(e["step"], e["attempt"]) for e in events if e["kind"] == "attempt_started"]
    assert started == [("baseline", 1), ("baseline", 2), ("changed", 1), ("changed", 2)]


def test_a_recording_is_replayed(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["runbook", "-f", "tiny.yaml", "tiny", "--batch", "--replay", "recording", "--json", "--", "./work.sh"]
    assert main(words) == 3
    shown = capsys.readouterr().out
    assert steps(shown) == list(zip(STEPS, ["reproduced", "not_reproduced", None, "pass"], strict=True))
    assert [f["message"] for f in json.loads(shown)["findings"]] == ["boom badly"]


def test_an_interrupted_run_is_shown_and_reported(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["runs", "show", "interrupted", "--json"]) == 0
    (run,) = json.loads(capsys.readouterr().out)["runs"]
    assert (run["condition"], [step["outcome"] for step in run["steps"]]) == ("interrupted", ["reproduced"])
    assert main(["runs", "report", "interrupted", "--format", "json"]) == 3
    again, then = json.loads(capsys.readouterr().out), json.loads((here / "interrupted" / "report.json").read_text())
    assert [(s["id"], s["outcome"], s["argv"]) for s in again["steps"]] == [
        (s["id"], s["outcome"], s["argv"]) for s in then["steps"]
    ]
    assert again["findings"] == then["findings"]
