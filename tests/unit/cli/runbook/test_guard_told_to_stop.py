"""A guard that is told to stop while it explains a failure ends at once, with its command's status and what it has."""

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.patience import patience
from tests.unit.cli.runbook.test_guard import environment, guard_command
from vdbg_env.supervisor.proc import processes

AT_ONCE = 1.0  # seconds, on an idle machine


@contextmanager
def explaining(folder: Path, code: str, *flags: str, until: Callable[[], bool]) -> Iterator["subprocess.Popen[bytes]"]:
    """Yield a guard whose command has ended, and which is busy with something that takes minutes."""
    command = guard_command(sys.executable, "-c", code, flags=flags)
    with subprocess.Popen(
        command, env=environment(folder), cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
    ) as guard:
        try:
            given_up = time.monotonic() + patience(60)
            while not until():
                assert time.monotonic() < given_up and guard.poll() is None
                time.sleep(0.05)
            yield guard
        finally:
            guard.kill()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP], ids=lambda n: n.name)
def test_a_hook_is_ended_with_what_it_started(tmp_path: Path, number: signal.Signals) -> None:
    hook = f"sh -c 'sleep 3600 & echo $! > {tmp_path}/pid.new; mv {tmp_path}/pid.new {tmp_path}/pid; wait'"
    pid = tmp_path / "pid"
    with explaining(tmp_path, "raise SystemExit(7)", "--hook", hook, until=pid.exists) as guard:
        guard.send_signal(number)
        _, stderr = guard.communicate(timeout=patience(AT_ONCE) + 2)
    assert guard.returncode == 7
    line, problem = stderr.decode().splitlines()
    assert (json.loads(line)["status"], json.loads(line)["verdict"]) == (7, "failed")
    assert problem == "vdbg-env guard: told to stop: the hook was not waited for"
    assert int(pid.read_text()) not in {one.pid for one in processes() if one.state != "Z"}


def stopped_while_it_reads_a_core(tmp_path: Path, last: str) -> tuple[int, bytes]:
    """Return status and stderr of a guard that is told to stop after its command, which leaves a huge core, ended."""
    code = (
        f"import glob, os\nos.chdir(glob.glob({str(tmp_path)!r} + '/runs/*/steps/guarded/1/*')[0])\n"
        f"open('core.cuda.host.1', 'wb').truncate(4 << 40)\n{last}"
    )

    def ended() -> bool:
        return any(tmp_path.glob("runs/*/steps/guarded/1/*/ended.json"))

    with explaining(tmp_path, code, until=ended) as guard:
        time.sleep(1.0)
        guard.send_signal(signal.SIGTERM)
        _, stderr = guard.communicate(timeout=patience(AT_ONCE) + 2)
    return guard.returncode, stderr


def test_what_the_command_left_is_read_no_further(tmp_path: Path) -> None:
    """A core of 4 TB, nearly all of it a hole, takes an hour to read."""
    status, stderr = stopped_while_it_reads_a_core(tmp_path, "os._exit(9)")
    assert status == 9
    said = json.loads(stderr.splitlines()[-1])
    assert (said["status"], said["ended"]["code"]) == (9, 9)
    report = Path(said["report"]).read_text()
    assert "the run was being ended" in report


def test_a_command_that_ended_well_is_not_announced(tmp_path: Path) -> None:
    assert stopped_while_it_reads_a_core(tmp_path, "") == (0, b"")


def test_a_line_that_nobody_reads_is_given_up(tmp_path: Path) -> None:
    """The command has filled the pipe that is stderr."""
    code = (
        "import os\nos.set_blocking(2, False)\ntry:\n    while True: os.write(2, b'x')\nexcept BlockingIOError: pass\n"
    )
    code += "os.set_blocking(2, True)\nos._exit(3)"

    def finished() -> bool:
        return any(tmp_path.glob("runs/*/report.md"))

    with explaining(tmp_path, code, until=finished) as guard:
        time.sleep(0.5)
        guard.send_signal(signal.SIGTERM)
        assert guard.wait(timeout=patience(AT_ONCE) + 2) == 3


def test_a_signal_while_the_guard_exits_changes_no_status(tmp_path: Path) -> None:
    """Python's end takes a tenth of a second, in which no handler of its own works."""
    ending = (
        "import os, time\nclass Last:\n"
        "    def __del__(self, mknod=os.mknod, sleep=time.sleep):\n        mknod('ending'); sleep(1)\n"
        "if b'\\0guard\\0' in open('/proc/self/cmdline', 'rb').read():\n    last = Last()\n"
    )
    (tmp_path / "sitecustomize.py").write_text(ending)
    command = guard_command(sys.executable, "-S", "-c", "raise SystemExit(7)")
    env = {**environment(tmp_path), "PYTHONPATH": f"{tmp_path}:{environment(tmp_path)['PYTHONPATH']}"}
    with subprocess.Popen(command, env=env, cwd=tmp_path, stderr=subprocess.DEVNULL) as guard:
        while not (tmp_path / "ending").exists() and guard.poll() is None:
            time.sleep(0.02)
        guard.send_signal(signal.SIGTERM)
        assert guard.wait() == 7
