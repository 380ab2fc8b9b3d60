"""Runs that an older version recorded are resumed, replayed, shown and reported with the same result."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from vdbg_env.cli import main

RECORDED = Path(__file__).parents[3] / "data" / "recordings" / "before-relayout"
# What depends on the day, the folder or the version of the tool.
OF_TODAY = {"run", "started", "duration_s", "started_s", "tool_version", "origin", "provenance", "environment", "host"}
ADDED_SINCE = {"held_by", "known", "fingerprint", "part", "node", "deaths", "process", "rank", "root_cause", "address"}


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    shutil.copytree(RECORDED, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.delenv("SLOW", raising=False)
    return tmp_path


def printed(capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(capsys.readouterr().out)
    return document


def lasting(value: Any) -> Any:
    """Return a report without what depends on the day or the folder."""
    match value:
        case dict():
            return {key: lasting(inner) for key, inner in value.items() if key not in OF_TODAY | ADDED_SINCE}
        case list():
            return [lasting(inner) for inner in value]
        case _:
            return value


def outcomes(report: dict[str, Any]) -> list[tuple[str, str | None]]:
    return [(step["id"], step["outcome"]) for step in report["steps"]]


@pytest.mark.parametrize(
    "command",
    [("runs", "report", "./finished", "--format", "json"), ("runbook", "--resume", "finished", "--json")],
    ids=["reported", "resumed"],
)
def test_a_finished_run_is_reported_as_it_was(
    here: Path, capsys: pytest.CaptureFixture[str], command: tuple[str, ...]
) -> None:
    before = json.loads((here / "finished" / "report.json").read_text())
    assert main([*command]) == 3
    assert lasting(printed(capsys)) == lasting(before)


def test_a_run_that_was_cut_off_is_resumed_and_finished(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["runbook", "--resume", "cut", "--batch", "--json"]) == 3
    report = printed(capsys)
    expected = json.loads((here / "finished" / "report.json").read_text())
    assert (report["verdict"], outcomes(report)) == (expected["verdict"], outcomes(expected))


def test_a_recorded_run_is_replayed(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    replay = ["--replay", "recording", "--run-dir", "again", "--json", "--", "sh", "crash.sh"]
    status = main(["runbook", "./two-steps.yaml", *replay])
    report = printed(capsys)
    expected = json.loads((here / "finished" / "report.json").read_text())
    assert (status, report["verdict"]) == (3, expected["verdict"])
    assert outcomes(report)[:2] == outcomes(expected)[:2]  # the third looks at this machine
