"""A supervisor reads its folder and its job as two lines, and never waits without end for the second."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.support.patience import patience
from vdbg_env.supervisor import control_files
from vdbg_env.supervisor.loop import read_line

LATE = "import sys; from vdbg_env.supervisor import loop; loop.JOB_LIMIT_S = 0.2; sys.exit(loop.main())"  # not 20 s


def test_two_lines_in_one_piece_are_two_lines() -> None:
    reading, writing = os.pipe()
    os.write(writing, b"one\ntwo\n")
    line, rest = read_line(reading)
    assert (line, rest) == (b"one\n", b"two\n")
    assert read_line(reading, rest, limit_s=0.0) == (b"two\n", b"")
    os.write(writing, b"half")
    os.close(writing)
    assert read_line(reading) == (b"half", b"")
    os.close(reading)


@pytest.mark.parametrize("arrived", [b"", b'{"argv": ["tru'], ids=["nothing", "half of it"])
def test_a_job_that_never_arrives_whole_gives_the_lock_back(tmp_path: Path, arrived: bytes) -> None:
    """As when dockerd is killed with the job in its buffers: the standard input of a container never ends then."""
    began = time.monotonic()
    supervisor = subprocess.Popen([sys.executable, "-c", LATE], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert supervisor.stdin and supervisor.stdout
    with supervisor.stdin as stdin, supervisor.stdout as stdout:
        stdin.write(f'"{tmp_path}"\n'.encode())
        stdin.flush()
        assert stdout.readline() == b"ready\n"
        assert control_files.is_held(str(tmp_path))
        stdin.write(arrived)
        stdin.flush()
        assert supervisor.wait(patience(10)) == 1
    assert not control_files.is_held(str(tmp_path))
    assert not control_files.was_started(str(tmp_path)), "its engine may start the step anew"
    assert time.monotonic() - began < patience(10)
