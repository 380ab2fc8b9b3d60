"""Only the process that was seen is signalled: its number may have passed on to another since."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest

from vdbg_env.supervisor.proc import process, send


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"]) as started:
        yield started
        started.kill()


@pytest.mark.parametrize("without_descriptors", [False, True])
def test_a_process_that_got_the_number_of_one_that_was_seen_is_not_signalled(
    sleeper: subprocess.Popen[bytes], without_descriptors: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if without_descriptors:  # as on a kernel older than 5.3

        def refused(_pid: int) -> int:
            raise OSError(38, "Function not implemented")

        monkeypatch.setattr(os, "pidfd_open", refused)
    seen = process(sleeper.pid)
    assert seen
    assert send([seen._replace(start=seen.start - 1)], signal.SIGKILL) == []
    assert sleeper.poll() is None
    assert send([seen], signal.SIGTERM) == []
    assert sleeper.wait(10) == -signal.SIGTERM
