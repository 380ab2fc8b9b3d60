"""What `--replay` and `--from` copy may be of any size: signals and the time limit are obeyed within two seconds."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.support.patience import patience
from tests.support.runbooks import TINY
from vdbg_env.cli import main
from vdbg_env.record.run_directory import RunDirectory

COMMAND = ["--", sys.executable, "-c", "raise SystemExit(3)"]
FILES = 20_000  # what takes seconds to copy and to search for secrets, on a fast and idle machine too


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a runbook, a run and a recording of it, whose step left many files."""
    here = tmp_path_factory.mktemp("large")
    (here / "runbooks").mkdir()
    (here / "runbooks" / "tiny.yaml").write_text(TINY)
    before = Path.cwd()
    os.chdir(here)
    try:
        main(["runbook", "tiny", "--batch", "--run-dir", "seen", "--record", "recording", *COMMAND])
    finally:
        os.chdir(before)
    for folder in ("seen", "recording"):
        many = here / folder / "steps/baseline/1/localhost-0/many"
        many.mkdir()
        for number in range(FILES):
            (many / str(number)).write_bytes(b"token=abcdefgh\n")
    return here


@pytest.mark.parametrize(
    ("flag", "end"),
    [("--replay", "SIGTERM"), ("--replay", "total time"), ("--from", "SIGINT"), ("--from", "total time")],
)
def test_a_copy_is_cut_short(large: Path, tmp_path: Path, flag: str, end: str) -> None:
    source = "recording" if flag == "--replay" else "seen"
    limit = ("--total-time", "0.5s") if end == "total time" else ()
    words = ["runbook", "tiny", "--batch", "--run-dir", str(tmp_path / "run"), *limit, flag, str(large / source)]
    command = [sys.executable, "-m", "vdbg_env", *words, *COMMAND]
    with subprocess.Popen(command, cwd=large, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL) as engine:
        rank = tmp_path / "run/steps/baseline/1/localhost-0"
        while not (rank.with_name(".localhost-0.new") / "many").is_dir():
            assert engine.poll() is None
            time.sleep(0.01)
        until = time.monotonic() + patience(2.0)
        if limit:
            until += 0.5
        else:
            engine.send_signal(getattr(signal, end))
        status = engine.wait(timeout=until - time.monotonic())
        assert engine.stderr
        said = engine.stderr.read().decode()
    assert status == {"SIGTERM": 143, "SIGINT": 130, "total time": 124}[end], said
    assert "Traceback" not in said
    assert not list(rank.parent.glob(".*"))
    assert not (rank / "many").exists()
    events = [json.loads(line) for line in RunDirectory(tmp_path / "run").events.read_text().splitlines()]
    assert [event["kind"] for event in events[-2:]] == ["attempt_ended", "run_interrupted"]
    assert events[-2]["observation"]["ended"]["by"] == "cancel"


def test_what_was_cut_short_is_repeated(large: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(large)
    run = str(tmp_path / "run")
    assert main(["runbook", "tiny", "--batch", "--from", "seen", "--run-dir", run, "--total-time", "0.5s"]) == 124
    assert main(["runbook", "tiny", "--batch", "--resume", run]) in {0, 4, 125}
    events = [json.loads(line) for line in RunDirectory(Path(run)).events.read_text().splitlines()]
    ends = [event["observation"]["ended"]["by"] for event in events if event["kind"] == "attempt_ended"]
    assert ends == ["cancel", "exit"]
