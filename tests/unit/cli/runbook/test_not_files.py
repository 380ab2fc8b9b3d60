"""A run whose files are pipes, sockets, links, folders or devices stops no command, and leads nowhere."""

import sys
from pathlib import Path

import pytest

from tests.support import not_files
from tests.support.runbooks import TINY
from vdbg_env.cli import main

FILES = ("run.json", "run.lock", "events.jsonl", "events.reserve", "report.json", ".probe", "supervisor.json")
BOOM = "print('boom'); raise SystemExit(1)"


@pytest.fixture
def cut_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run that was cut off before its last event."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("VDBG_ENV_RUNS", str(tmp_path / "runs"))
    (tmp_path / "runbooks").mkdir()
    (tmp_path / "runbooks" / "tiny.yaml").write_text(TINY)
    run = tmp_path / "runs" / "cut"
    assert main(["runbook", "tiny", "--batch", "--run-dir", str(run), "--", sys.executable, "-c", BOOM]) == 3
    lines = (run / "events.jsonl").read_bytes().splitlines(keepends=True)
    (run / "events.jsonl").write_bytes(b"".join(lines[:-1]))
    return run


@pytest.mark.parametrize("kind", not_files.KINDS)
@pytest.mark.parametrize("name", FILES)
def test_every_command_ends_and_writes_nothing_elsewhere(
    cut_off: Path, name: str, kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    place = cut_off / name if name != "supervisor.json" else cut_off / "steps/baseline/1/localhost-0" / name
    outside = not_files.put(kind, place)
    statuses = {}
    for words in (
        ["runs", "list"],
        ["runs", "list", "--group"],
        ["runs", "report", "cut"],
        ["runs", "redact", "cut"],
        ["runs", "prune", "--keep", "5"],
        ["runbook", "tiny", "--batch", "--resume", "cut"],
    ):
        with not_files.no_wait_without_end():
            statuses[" ".join(words[:3])] = main(words)
    assert outside.read_bytes() == not_files.OUTSIDE
    said = capsys.readouterr().err
    assert "Traceback" not in said
    assert set(statuses.values()) <= {0, 1, 2, 3, 4}, (statuses, said)
    if name == "run.lock":
        assert (statuses["runs report cut"], statuses["runbook tiny --batch"]) == (3, 1)
        assert "run.lock cannot be opened: it is a link, pipe" in said


@pytest.mark.parametrize("kind", not_files.KINDS)
def test_a_list_needs_no_index(cut_off: Path, kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    outside = not_files.put(kind, cut_off.parent / ".runs.sqlite")
    capsys.readouterr()
    with not_files.no_wait_without_end():
        assert main(["runs", "list"]) == 0
    assert "cut" in capsys.readouterr().out
    assert outside.read_bytes() == not_files.OUTSIDE
