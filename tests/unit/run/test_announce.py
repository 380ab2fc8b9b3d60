"""Whatever a hook or a workload does, a guard ends: its command is to be started again."""

import os
import signal
import tempfile
import time
from pathlib import Path

import pytest

from tests.support.patience import patience
from vdbg_env.run.guarded import Announcer


def test_what_a_hook_leaves_in_the_background_is_neither_waited_for_nor_ended(tmp_path: Path) -> None:
    began = time.monotonic()
    assert Announcer().run(f"sleep 120 & echo $! > '{tmp_path}/pid'", "{}") is None
    assert time.monotonic() - began < patience(5)
    child = int((tmp_path / "pid").read_text())
    assert ") Z" not in Path(f"/proc/{child}/stat").read_text()
    os.kill(child, signal.SIGKILL)


def test_a_hook_that_takes_too_long_is_ended_with_its_children(tmp_path: Path) -> None:
    announcer = Announcer(hook_s=patience(0.3))
    problem = announcer.run(f"sleep 60 & echo $! > '{tmp_path}/pid'; wait", "{}")
    assert problem and "was ended" in problem
    child = int((tmp_path / "pid").read_text())
    until = time.monotonic() + patience(5)
    while Path(f"/proc/{child}/stat").exists() and ") Z" not in Path(f"/proc/{child}/stat").read_text():
        assert time.monotonic() < until
        time.sleep(0.02)


def test_a_hook_runs_where_no_file_can_be_written(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a container with a read-only file system."""
    monkeypatch.setattr(tempfile, "tempdir", "/nonexistent")
    assert Announcer().run("echo it >&2; exit 3", "{}") == "the hook `echo it >&2; exit 3` ended with 3: it"
    assert Announcer().run("exit 3", "{}") == "the hook `exit 3` ended with 3, without a word"


def test_a_hook_that_fails_says_why() -> None:
    said = Announcer().run("echo no route >&2; exit 3", "{}")
    assert said == "the hook `echo no route >&2; exit 3` ended with 3: no route"
    problem = Announcer().run("/no/such/hook", "{}")
    assert problem and "ended with 127" in problem and "not found" in problem


def test_a_hook_is_a_line_of_the_shell(tmp_path: Path) -> None:
    assert Announcer().run(f"tr a-z A-Z | cat > '{tmp_path}/a file' && exit 0", "{x}") is None
    assert (tmp_path / "a file").read_text() == "{X}\n"


def test_a_termination_log_that_is_not_there_is_made(tmp_path: Path) -> None:
    assert Announcer().write(tmp_path / "log", "text") is None
    assert (tmp_path / "log").read_text() == "text"
    problem = Announcer().write(tmp_path / "no folder" / "log", "text")
    assert problem and "No such file" in problem


def test_a_pipe_in_place_of_the_termination_log_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "log")
    problem = Announcer().write(tmp_path / "log", "text")
    assert problem and "could not be written" in problem
