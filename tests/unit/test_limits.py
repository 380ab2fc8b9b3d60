"""A test that hangs or leaves a process behind fails with its name, and the run goes on (tests/support/limits.py)."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.support.reaper import STAYS
from vdbg_env.supervisor.proc import is_alive

ROOT = Path(__file__).parents[2]
PASSES = "\ndef test_that_passes(): pass\n"
IN_HASTE = "from tests.support import limits\nlimits.GONE_S, limits.UNWIND_S = 1.0, 2.0\n"

# A context manager that waits without a limit, for a grandchild that has the pipe too.
WAITS = """
import pathlib, subprocess, pytest
@pytest.mark.limit(1)
def test_that_waits():
    script = "setsid sh -c 'echo $$ > waits.pid; exec sleep 777' & sleep 778"
    with subprocess.Popen(["sh", "-c", script], stdout=subprocess.PIPE) as process:
        process.communicate(timeout=0.5)
"""
LEAVES = """
import pathlib, subprocess, time
def test_that_leaves_one():
    subprocess.run(["sh", "-c", "setsid sh -c 'echo $$ > leaves.pid; exec sleep 777' > /dev/null 2>&1 &"])
    while not (pathlib.Path("leaves.pid").exists() and pathlib.Path("leaves.pid").read_text()): time.sleep(0.01)
"""
COMPUTES = """
import pytest
@pytest.mark.limit(1)
def test_that_computes():
    while True: pass
"""
# No signal interrupts it: only the end of its process does.
DEAF = """
import ctypes, pathlib, pytest, signal, subprocess
@pytest.mark.limit(1)
def test_that_is_deaf():
    pathlib.Path("deaf.pid").write_text(str(subprocess.Popen(["sleep", "776"]).pid))
    signal.pthread_sigmask(signal.SIG_BLOCK, set(signal.Signals) | {signal.SIGRTMIN + 7})
    ctypes.CDLL(None).pause()
"""
HANGS_AT_ITS_END = """
import pytest, time
@pytest.fixture
def slow():
    yield
    time.sleep(777)
@pytest.mark.limit(1)
def test_that_hangs_at_its_end(slow): pass
"""
OF_A_MODULE = """
import pathlib, subprocess, time, pytest
@pytest.fixture(scope="module")
def server():
    process = subprocess.Popen(["sh", "-c", "sleep 777 & wait"])
    pathlib.Path("server.pid").write_text(str(process.pid))
    yield process
    if {ends}: subprocess.run(["pkill", "-9", "-P", str(process.pid)]); process.kill(); process.wait()
def test_with_it(server): pass
def test_with_it_too(server): assert server.poll() is None
def test_after_it(): pass
"""
FORKS = """
import os, pathlib, pytest, time
@pytest.mark.{mark}
def test_that_leaves_a_fork():
    if os.fork() == 0:
        pathlib.Path("forks.pid").write_text(str(os.getpid()))
        time.sleep(777)
        os._exit(0)
    while not (pathlib.Path("forks.pid").exists() and pathlib.Path("forks.pid").read_text()): time.sleep(0.01)
"""


def ran(folder: Path, code: str, *words: str, env: dict[str, str] | None = None) -> "subprocess.CompletedProcess[str]":
    """Run a file of tests with the plug-in."""
    (folder / "test_it.py").write_text(IN_HASTE + code + PASSES)
    argv = [sys.executable, "-m", "pytest", "-p", "tests.support.limits", "-p", "no:cacheprovider", "-v", *words, "."]
    own = {**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'builder'}", "COLUMNS": "200", **(env or {})}
    return subprocess.run(argv, cwd=folder, env=own, capture_output=True, text=True, timeout=150, check=False)


def nothing_runs(folder: Path) -> bool:
    return not any(is_alive(int(file.read_text())) for file in folder.glob("*.pid"))


def overdue(name: str) -> str:
    return f"test_it.py::test_that_{name} took longer than its limit of 1 s"


def left(folder: Path, test: str, pid: str) -> str:
    return f"test_it.py::test_that_{test} left behind:\nprocess {(folder / pid).read_text().strip()} of "


@pytest.mark.parametrize(("more", "words"), [("", ()), (DEAF, ("-n", "1"))], ids=["alone", "xdist"])
def test_what_hangs_or_leaves_something_fails_by_its_name(tmp_path: Path, more: str, words: tuple[str, ...]) -> None:
    """With xdist, one of them can be ended only with the process that runs it, which is replaced."""
    code = WAITS + LEAVES + COMPUTES + more + HANGS_AT_ITS_END + FORKS.format(mark="limit(60)")
    done = ran(tmp_path, code, *words)
    assert done.returncode == 1, done.stdout + done.stderr
    assert all(overdue(name) in done.stdout for name in ("waits", "computes", "hangs_at_its_end"))
    assert "in test_that_waits\n" in done.stdout
    assert "sleep 777\n" in done.stdout and "sleep 778\n" in done.stdout and ": state S, waits in " in done.stdout
    assert left(tmp_path, "leaves_one", "leaves.pid") in done.stdout
    assert left(tmp_path, "leaves_a_fork", "forks.pid") in done.stdout
    if more:
        assert overdue("is_deaf") in done.stderr and "sleep 776\n" in done.stderr
        assert "crashed while running 'test_it.py::test_that_is_deaf'" in done.stdout
    assert f"{3 if more else 2} failed, 4 passed, 3 errors in" in done.stdout
    assert nothing_runs(tmp_path)


def test_a_run_that_cannot_go_on_ends_with_all_that_it_started(tmp_path: Path) -> None:
    done = ran(tmp_path, DEAF)
    assert done.returncode == 70
    assert overdue("is_deaf") in done.stderr
    assert nothing_runs(tmp_path)


@pytest.mark.parametrize("ends", [True, False])
def test_what_a_module_s_fixture_starts_ends_with_its_module(tmp_path: Path, ends: bool) -> None:
    """What a test may leave ends with the run."""
    done = ran(tmp_path, FORKS.format(mark="leaves('a reason')") + OF_A_MODULE.format(ends=ends))
    assert ("5 passed in" if ends else "5 passed, 1 error in") in done.stdout
    assert nothing_runs(tmp_path)


def test_an_engine_for_whoever_needs_one_lives_on(tmp_path: Path) -> None:
    code = LEAVES.replace("setsid sh", f"{STAYS}=yes setsid sh")
    done = ran(tmp_path, code)
    assert done.returncode == 0, done.stdout
    assert not nothing_runs(tmp_path)
    os.kill(int((tmp_path / "leaves.pid").read_text()), signal.SIGKILL)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_run_that_is_ended_takes_all_with_it(tmp_path: Path, number: signal.Signals) -> None:
    """As by timeout(1), and by Ctrl-C in a terminal."""
    (tmp_path / "test_it.py").write_text(WAITS.replace("limit(1)", "limit(600)").replace("timeout=0.5", "timeout=777"))
    argv = [sys.executable, "-m", "pytest", "-p", "tests.support.limits", "-p", "no:cacheprovider", "."]
    own = {**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'builder'}"}
    pid = tmp_path / "waits.pid"
    process = subprocess.Popen(argv, cwd=tmp_path, env=own, start_new_session=True, stdout=subprocess.DEVNULL)
    until = time.monotonic() + 60
    while not (pid.exists() and pid.read_text()):
        assert time.monotonic() < until
        time.sleep(0.01)
    if number == signal.SIGINT:
        os.killpg(process.pid, number)
    else:
        process.send_signal(number)
    process.wait(60)
    until = time.monotonic() + 60
    while not nothing_runs(tmp_path):
        assert time.monotonic() < until
        time.sleep(0.01)
