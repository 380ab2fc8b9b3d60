"""Which process of a workload ended badly, and how, whatever its parent says of it."""

import signal
from pathlib import Path

import pytest

from tests.support.steps import python, seen

# A parent that takes the status of its child at once, as one that waits for it does, and keeps it to itself.
PARENT = """
import os, sys, time
child = os.fork()
if child == 0:
    with open('/proc/self/comm', 'w') as name:
        name.write('VLLM::Worker_TP1')
    time.sleep(1)
    {end}
    os._exit(0)
os.waitpid(child, 0)
time.sleep(0.3)
sys.exit({status})
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV, signal.SIGABRT])
def test_a_worker_that_a_signal_ended_is_named_with_the_signal(tmp_path: Path, number: signal.Signals) -> None:
    found = seen(tmp_path, python(PARENT.format(end=f"os.kill(os.getpid(), {number.value})", status=0)))
    (death,) = found.deaths
    assert (death.signal, death.code, death.name) == (number, None, "VLLM::Worker_TP")
    assert death.at_s > 0.5


def test_a_worker_that_ended_itself_has_its_exit_status(tmp_path: Path) -> None:
    found = seen(tmp_path, python(PARENT.format(end="os._exit(3)", status=0)))
    assert [(death.code, death.signal) for death in found.deaths] == [(3, None)]


@pytest.mark.parametrize("end", ["", "os.kill(os.getpid(), 15)"])
def test_a_good_end_and_one_that_another_asked_for_are_no_deaths(tmp_path: Path, end: str) -> None:
    assert seen(tmp_path, python(PARENT.format(end=end, status=1))).deaths == ()
