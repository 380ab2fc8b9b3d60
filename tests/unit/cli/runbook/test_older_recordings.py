"""Runs that an older version recorded are resumed, replayed, shown and reported with the same result."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from vdbg_env.cli import main

RECORDINGS = Path(__file__).parents[3] / "data" / "recordings"
RECORDED = RECORDINGS / "before-relayout"
# What depends on the day, the folder or the version of the tool.
OF_TODAY = {"run", "started", "duration_s", "started_s", "tool_version", "origin", "provenance", "environment", "host"}
ADDED_SINCE = {
    "held_by", "known", "fingerprint", "part", "node", "deaths", "process", "rank", "root_cause", "address", "around",
}  # fmt: skip


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
        case {"status": "skipped", "message": str(), **rest}:  # why is worded as today
            return lasting(rest)
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


@pytest.fixture
def rooms(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder with the runs of commit d1d39e0f, one of them by its own form of a shipped runbook."""
    shutil.copytree(RECORDINGS / "before-rooms", tmp_path, dirs_exist_ok=True)
    for head in tmp_path.glob("*/run.json"):  # the folder in which the command was typed
        head.write_text(head.read_text().replace("/home/user", str(tmp_path)))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("VDBG_ENV_RUNS", str(tmp_path))
    monkeypatch.delenv("SLOW", raising=False)
    return tmp_path


def test_runs_of_d1d39e0f_are_listed_and_shown(rooms: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["runs", "list", "--json"]) == 0
    listed = {run["run"]: run["condition"] for run in printed(capsys)["runs"]}
    assert listed == {"killed": "cut off", "20261124-165639-guard-4fcf": "finished", "ima": "finished"}
    for run in ("killed", "guarded"):
        assert main(["runs", "show", run]) == 0
    assert "cut off" in capsys.readouterr().out


def test_a_run_of_a_shipped_runbook_that_changed_since_is_reported_as_it_was_started(
    rooms: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    then = json.loads((rooms / "guarded" / "report.json").read_text())
    for command in (["runs", "report", "guarded", "--format", "json"], ["runbook", "--resume", "guarded", "--json"]):
        assert main(command) == 3
        told = capsys.readouterr()
        report = json.loads(told.out)
        assert "has changed since, and judges the recorded steps as then" in told.err
        assert lasting(report["steps"]) == lasting(then["steps"])  # PYTHONFAULTHANDLER, set today, was not set then
        assert [found["message"] for found in report["findings"]] == [found["message"] for found in then["findings"]]
    for form in ("markdown", "terminal"):
        assert main(["runs", "report", "guarded", "--format", form]) == 3
        assert "illegal memory access" in capsys.readouterr().out


def test_a_run_whose_runbook_asked_for_other_variables_then_is_reported(
    rooms: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    then = json.loads((rooms / "ima" / "report.json").read_text())
    assert "skip_shared_memory" in (rooms / "ima" / "events.jsonl").read_text()  # which cores keep by default today
    for command in (["runs", "report", "ima", "--format", "json"], ["runbook", "--resume", "ima", "--json"]):
        assert main(command) == 3
        assert lasting(printed(capsys)["steps"]) == lasting(then["steps"])


@pytest.mark.parametrize(
    ("recorded", "other"),
    [
        ('"outcome": "fail"', '"outcome": "pass"'),
        ('"attempt_started", "step": "guarded"', '"attempt_started", "step": "x"'),
    ],
)
def test_a_run_that_todays_runbook_judges_otherwise_is_refused(
    rooms: Path, capsys: pytest.CaptureFixture[str], recorded: str, other: str
) -> None:
    events = rooms / "guarded" / "events.jsonl"
    assert recorded in events.read_text()
    events.write_text(events.read_text().replace(recorded, other))
    (rooms / "guarded" / "report.md").touch()
    assert main(["runs", "report", "guarded", "--format", "json"]) == 2
    assert "has changed since run" in (told := capsys.readouterr().err) and "report.md" in told


def test_a_run_whose_engine_was_killed_is_resumed(rooms: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["runbook", "--resume", "killed", "--batch", "--json"]) == 3
    report = printed(capsys)
    steps = [("baseline", "reproduced"), ("blocking", "reproduced"), ("health", "pass")]
    assert (report["verdict"], outcomes(report)) == ("reproduced", steps)


def test_a_recording_of_d1d39e0f_is_replayed_and_a_run_begun_from_another(
    rooms: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    steps = [("baseline", "reproduced"), ("blocking", "reproduced")]
    replay = ["--replay", "recording", "--run-dir", "again", "--json", "--", "sh", "crash.sh"]
    for argv in (replay, ["--from", "killed", "--run-dir", "other", "--batch", "--json"]):
        assert main(["runbook", "./two-steps.yaml", *argv]) == 3
        assert outcomes(printed(capsys))[:2] == steps
