"""A workload writes into the files by which an engine and a supervisor agree: the step is ended as ever."""

import fcntl
import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.patience import patience
from tests.support.steps import place, python, runner, survivors
from vdbg_env.evidence.finding import EndedBy
from vdbg_env.run.local import LocalStep
from vdbg_env.supervisor import control_files
from vdbg_env.supervisor.proc import process

WAITS = python("print('up', flush=True); import time; time.sleep(60)")
FORGED = json.dumps({"by": "exit", "code": 0})


@pytest.fixture(params=["its own engine", "another engine"])
def step(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[LocalStep]:
    """Yield a step that waits, as the engine sees it that started it, or another that has taken it over."""
    directory = place(tmp_path)
    started = runner(tmp_path).start(WAITS, directory)
    until = time.monotonic() + 120
    while not (directory / "stdout").exists() or not (directory / "stdout").read_bytes():
        assert time.monotonic() < until
        time.sleep(0.02)
    seen = started if request.param == "its own engine" else runner(tmp_path).adopt(WAITS, directory)
    assert seen is not None
    yield seen
    started.cancel(firmly=True)
    started.wait(20)


def folder(tmp_path: Path) -> Path:
    return tmp_path / "run/steps/step/1/localhost-0"


def ends_when_cancelled(step: LocalStep, tmp_path: Path) -> EndedBy:
    began = time.monotonic()
    step.cancel()
    while (seen := step.wait(0.1)) is None:
        pass
    assert time.monotonic() - began < patience(0.4 + 2.0)
    assert survivors(tmp_path) == []
    return seen.ended.by


def test_a_forged_end_ends_nothing(step: LocalStep, tmp_path: Path) -> None:
    (folder(tmp_path) / "ended.json").write_text(FORGED)
    assert step.wait(0.3) is None
    assert ends_when_cancelled(step, tmp_path) is EndedBy.CANCEL


def test_lines_that_no_supervisor_wrote_are_left_out(step: LocalStep, tmp_path: Path) -> None:
    with (folder(tmp_path) / "supervisor.json").open("ab") as file:
        for line in (b"x}", b"[1]", b"{}", b'{"pid": "7"}', b'{"state": []}', b"[" * 9000, b"\xff\xfe", b"null"):
            file.write(line + b"\n")
    assert step.wait(0.1) is None
    assert control_files.was_started(str(folder(tmp_path)))
    assert ends_when_cancelled(step, tmp_path) is EndedBy.CANCEL


def test_no_process_is_signalled_because_it_is_written_there(step: LocalStep, tmp_path: Path) -> None:
    with subprocess.Popen(["sleep", "60"]) as bystander:
        found = process(bystander.pid)
        assert found
        with (folder(tmp_path) / "supervisor.json").open("a") as file:
            file.write(json.dumps({"state": "running", "pid": found.pid, "start": found.start}) + "\n")
        ends_when_cancelled(step, tmp_path)
        assert bystander.poll() is None
        bystander.kill()


def test_a_lock_that_a_workload_holds_keeps_no_step_alive(step: LocalStep, tmp_path: Path) -> None:
    path = folder(tmp_path) / "supervisor.json"
    text = path.read_bytes()
    path.unlink()
    path.write_bytes(text)
    with path.open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        assert step.wait(0.2) is None
        ends_when_cancelled(step, tmp_path)


def test_a_supervisor_that_is_killed_after_a_forged_end_was_lost(step: LocalStep, tmp_path: Path) -> None:
    supervisor = control_files.lock_holder(str(folder(tmp_path)))
    assert supervisor
    (folder(tmp_path) / "ended.json").write_text(FORGED)
    os.kill(supervisor.pid, signal.SIGKILL)
    while (seen := step.wait(0.1)) is None:
        pass
    assert seen.ended.by is (EndedBy.ENGINE_LOST if step._process else EndedBy.EXIT)
    assert survivors(tmp_path) == []


def test_a_stopped_supervisor_is_continued_by_who_takes_over(tmp_path: Path) -> None:
    directory = place(tmp_path)
    first = runner(tmp_path).start(python("import time; time.sleep(0.5)"), directory)
    supervisor = control_files.lock_holder(str(directory))
    assert supervisor
    os.kill(supervisor.pid, signal.SIGSTOP)  # as a rule before it has read its job
    began = time.monotonic()
    second = runner(tmp_path).adopt(WAITS, directory)
    assert second is not None
    seen = second.wait(20)
    assert seen is not None and seen.ended.by is EndedBy.EXIT
    assert time.monotonic() - began < patience(5)
    assert first.wait(20) is not None


def test_a_stopped_supervisor_obeys_a_cancel(tmp_path: Path) -> None:
    step = runner(tmp_path).start(WAITS, place(tmp_path))
    supervisor = control_files.lock_holder(str(folder(tmp_path)))
    assert supervisor
    os.kill(supervisor.pid, signal.SIGSTOP)
    assert ends_when_cancelled(step, tmp_path) is EndedBy.CANCEL
