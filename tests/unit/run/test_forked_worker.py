"""Work is done apart from the engine: its result is returned whole, and its end is ours to set."""

import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

from tests.support.patience import patience
from vdbg_env.common.errors import HostNotAble
from vdbg_env.run.execute import in_fork
from vdbg_env.supervisor.proc import descendants, process


def nothing() -> None:
    return None


def test_a_result_of_many_megabytes_comes_whole() -> None:
    whole = bytes(range(256)) * 40_000
    assert in_fork(lambda: whole, timeout_s=None, check=nothing) == whole


def test_work_that_outlasts_its_time_is_ended_with_what_it_started(tmp_path: Path) -> None:
    def work() -> bytes:
        child = subprocess.Popen(["sleep", "60"], start_new_session=True)
        (tmp_path / "child").write_text(str(child.pid))
        child.wait()
        return b""

    before, began = descendants(os.getpid()), time.monotonic()
    with pytest.raises(HostNotAble, match=r"it was not done within 0\.5 s"):
        in_fork(work, timeout_s=0.5, check=nothing)
    assert time.monotonic() - began < patience(5)
    assert (tmp_path / "child").exists()
    assert {p.pid for p in descendants(os.getpid())} <= {p.pid for p in before}
    assert int((tmp_path / "child").read_text()) not in {p.pid for p in descendants(1) if p.state not in "ZX"}


def test_a_fault_in_the_work_is_told_and_not_raised_here() -> None:
    def work() -> bytes:
        raise ValueError("an odd file")

    with pytest.raises(HostNotAble, match="the work failed: ValueError: an odd file"):
        in_fork(work, timeout_s=None, check=nothing)


def test_work_that_is_killed_takes_nobody_along() -> None:
    def work() -> bytes:
        os.kill(os.getpid(), signal.SIGKILL)
        return b""

    with pytest.raises(HostNotAble, match="it was ended by signal 9"):
        in_fork(work, timeout_s=None, check=nothing)


class _Stop(Exception):
    pass


def test_a_check_that_raises_ends_the_work() -> None:
    def stop() -> None:
        raise _Stop

    def work() -> bytes:
        time.sleep(60)
        return b""

    before = {p.pid for p in descendants(os.getpid())}
    with pytest.raises(_Stop):
        in_fork(work, timeout_s=None, check=stop)
    assert {p.pid for p in descendants(os.getpid())} <= before


def test_the_work_ends_with_an_engine_that_is_killed(tmp_path: Path) -> None:
    told = tmp_path / "worker"

    def work() -> bytes:
        told.write_text(str(os.getpid()))
        time.sleep(60)
        return b""

    engine = os.fork()
    if engine == 0:
        in_fork(work, timeout_s=None, check=lambda: os.kill(os.getpid(), signal.SIGKILL) if told.exists() else None)
        os._exit(1)
    assert os.waitpid(engine, 0)[1] == signal.SIGKILL
    until = time.monotonic() + 120
    while (worker := process(int(told.read_text()))) and worker.state not in "ZX" and time.monotonic() < until:
        time.sleep(0.01)
    assert worker is None or worker.state in "ZX"


def test_the_work_holds_nothing_of_the_engine_open(tmp_path: Path) -> None:
    def work() -> bytes:
        return " ".join(os.path.realpath(one) for one in Path("/proc/self/fd").iterdir()).encode()

    with (tmp_path / "run.lock").open("wb"):
        assert b"run.lock" not in in_fork(work, timeout_s=None, check=nothing)


def test_the_work_cannot_change_this_program() -> None:
    seen: list[int] = []

    def work() -> bytes:
        seen.append(1)
        return b"done"

    assert in_fork(work, timeout_s=None, check=nothing) == b"done"
    assert seen == []
