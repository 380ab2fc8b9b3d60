"""Supervisors are started ahead of time, and one that got no orders leaves no trace."""

import json
import os
import shlex
import signal
import time
from pathlib import Path

import pytest

from vdbg_env.common.errors import HostNotAble
from vdbg_env.run.job import StepSettings
from vdbg_env.run.local import Supervisors
from vdbg_env.supervisor import control_files, helpers
from vdbg_env.supervisor.job import Job, to_json
from vdbg_env.supervisor.proc import descendants, process

COMMAND = StepSettings(env={}, cwd=Path("/"), mark="").supervisor


def order(directory: Path, *argv: str) -> bytes:
    mark = str(directory)  # the cgroup is named by it: tests that run at the same time must not end each other's
    return to_json(Job(str(directory), argv, {"PATH": os.environ["PATH"], helpers.MARK: mark}, "/"))


def supervisors_below(pid: int) -> set[int]:
    found = (p.pid for p in descendants(pid))
    return {p for p in found if b"supervisor/__main__.py" in Path(f"/proc/{p}/cmdline").read_bytes()}


def lives(pid: int) -> bool:
    found = process(pid)
    return found is not None and found.state not in "ZX"


def one_step(supervisors: Supervisors, directory: Path) -> int:
    """Run a step to its end and return its supervisor's pid."""
    directory.mkdir()
    process = supervisors.start(directory, order(directory, "true"))
    assert process.wait(20) == 0
    assert json.loads((directory / "ended.json").read_text())["by"] == "exit"
    return process.pid


def test_the_second_step_gets_the_supervisor_that_was_started_during_the_first(tmp_path: Path) -> None:
    supervisors, before = Supervisors(COMMAND), supervisors_below(os.getpid())
    one_step(supervisors, tmp_path / "a")
    (waiting,) = supervisors_below(os.getpid()) - before
    assert one_step(supervisors, tmp_path / "b") == waiting


def test_a_waiting_supervisor_that_somebody_ended_is_replaced(tmp_path: Path) -> None:
    supervisors, before = Supervisors(COMMAND), supervisors_below(os.getpid())
    one_step(supervisors, tmp_path / "a")
    (waiting,) = supervisors_below(os.getpid()) - before
    os.kill(waiting, signal.SIGKILL)
    os.waitid(os.P_PID, waiting, os.WEXITED | os.WNOWAIT)
    assert one_step(supervisors, tmp_path / "b") != waiting


def test_where_no_further_supervisor_can_be_started_the_step_that_runs_is_not_disturbed(tmp_path: Path) -> None:
    once = tmp_path / "once"
    once.write_text(f'#!/bin/sh\nrm "$0"\nexec {shlex.join(COMMAND)}\n')
    once.chmod(0o700)
    supervisors = Supervisors((str(once),))
    one_step(supervisors, tmp_path / "a")
    with pytest.raises(HostNotAble, match="could not be started: No such file or directory"):
        one_step(supervisors, tmp_path / "b")


def test_a_waiting_supervisor_goes_with_the_run(tmp_path: Path) -> None:
    supervisors, before = Supervisors(COMMAND), supervisors_below(os.getpid())
    one_step(supervisors, tmp_path / "a")
    assert len(supervisors_below(os.getpid()) - before) == 1
    del supervisors
    assert supervisors_below(os.getpid()) == before


def test_a_waiting_supervisor_ends_when_its_engine_is_killed(tmp_path: Path) -> None:
    read, write = os.pipe()
    engine = os.fork()
    if engine == 0:
        try:
            supervisors = Supervisors(COMMAND)
            one_step(supervisors, tmp_path / "a")
            os.write(write, json.dumps(sorted(supervisors_below(os.getpid()))).encode())
            os.kill(os.getpid(), signal.SIGKILL)
        finally:
            os._exit(1)
    os.close(write)
    waiting = json.loads(os.read(read, 4096))
    os.close(read)
    assert os.waitpid(engine, 0)[1] == signal.SIGKILL
    assert len(waiting) == 1
    until = time.monotonic() + 120
    while time.monotonic() < until and lives(waiting[0]):
        time.sleep(0.01)
    assert not lives(waiting[0])


def test_orders_that_did_not_come_whole_start_nothing(tmp_path: Path) -> None:
    marker = tmp_path / "started"
    torn = order(tmp_path, "touch", str(marker)).rstrip(b"\n")
    assert Supervisors(COMMAND).start(tmp_path, torn).wait(20) == 1
    assert not marker.exists()
    assert not control_files.was_started(str(tmp_path))


def test_a_directory_that_is_not_there_is_an_error_that_says_so(tmp_path: Path) -> None:
    with pytest.raises(HostNotAble, match="could not be started") as told:
        Supervisors(COMMAND).start(tmp_path / "gone", order(tmp_path, "true"))
    assert "No such file or directory" in told.value.details[-1]
