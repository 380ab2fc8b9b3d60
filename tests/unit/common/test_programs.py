"""Helper programs end, are found, and leave no child behind."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from vdbg_env.common.errors import HostNotAble
from vdbg_env.common.programs import Programs
from vdbg_env.common.stop import STOP_SIGNALS, Held


def test_output_and_status_come_back() -> None:
    ran = Programs().run([sys.executable, "-c", "import sys; print('out'); print('err', file=sys.stderr); sys.exit(3)"])
    assert (ran.code, ran.stdout, ran.stderr) == (3, "out\n", "err\n")


def test_a_program_that_hangs_is_ended_with_its_children(tmp_path: Path) -> None:
    script = (
        "import pathlib, subprocess; p = subprocess.Popen(['sleep', '60']); "
        f"pathlib.Path({str(tmp_path / 'pid')!r}).write_text(str(p.pid)); p.wait()"
    )
    with pytest.raises(HostNotAble, match=r"did not end within 1.5 seconds"):
        Programs().run([sys.executable, "-c", script], timeout_s=1.5)
    child = int((tmp_path / "pid").read_text())
    for _ in range(50):
        if _ended(child):
            return
        time.sleep(0.1)
    pytest.fail("the child outlived the program")


@pytest.mark.parametrize("number", STOP_SIGNALS)
def test_a_signal_in_the_middle_of_a_start_leaves_no_program_behind(
    monkeypatch: pytest.MonkeyPatch, number: signal.Signals
) -> None:
    """Popen has started the program already, and does not return it where a handler raises."""
    started: list[int] = []

    class Told(Exception):
        pass

    def told(*_: object) -> None:
        raise Told

    class Interrupted(subprocess.Popen):  # type: ignore[type-arg]
        def __init__(self, *arguments: Any, **more: Any) -> None:
            super().__init__(*arguments, **more)
            started.append(self.pid)
            signal.raise_signal(number)

    before = signal.signal(number, told)
    try:
        monkeypatch.setattr(subprocess, "Popen", Interrupted)
        with pytest.raises(Told):
            Programs().run(["sleep", "600"])
        assert signal.getsignal(number) is told
    finally:
        signal.signal(number, before)
    assert _ended(started[0])


def test_a_signal_that_is_ignored_stays_so() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with Held():
            signal.raise_signal(signal.SIGHUP)
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


def test_a_program_that_is_missing_is_told() -> None:
    with pytest.raises(HostNotAble, match="cannot be started: No such file or directory"):
        Programs().run(["/nowhere/cuobjdump"])


def test_a_toolkit_beside_path_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "bin" / "cuobjdump-of-this-test"
    program.parent.mkdir()
    program.touch(0o755)
    monkeypatch.setenv("CUDA_HOME", str(tmp_path))
    assert Programs().which("cuobjdump-of-this-test") == str(program)
    assert Programs().which("no-such-program-anywhere") is None


def _ended(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
