"""A signal for a guarded workload goes to its first process, and to no later owner of that one's number."""

import os
import signal
import subprocess
import sys
import time

import pytest

from vdbg_env.supervisor.job import EndReason, Job
from vdbg_env.supervisor.watch import Guard


def test_a_signal_after_the_workloads_end_reaches_no_process() -> None:
    guard = Guard(Job(directory=".", argv=("x",), env={}, cwd=".", guard=os.getpid()))
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"]) as other:
        guard.received(signal.SIGTERM)
        assert guard.pass_on(None), "it is to end all the same"
        assert other.poll() is None
        guard.received(signal.SIGTERM)
        assert guard.pass_on(other.pid)
        assert other.wait(10) == -signal.SIGTERM


@pytest.mark.parametrize(
    ("number", "after_s", "by"),
    [
        (signal.SIGHUP, 5, "stopped"),
        (signal.SIGHUP, 90_000, "exit"),
        (signal.SIGQUIT, 90_000, "exit"),
        (signal.SIGTERM, 90_000, "stopped"),
    ],
)
def test_a_crash_a_day_after_a_reload_is_no_stop_from_outside(
    monkeypatch: pytest.MonkeyPatch, number: signal.Signals, after_s: float, by: str
) -> None:
    """SIGHUP has many servers read their settings again, SIGQUIT has Java print its stacks; a drain may take long."""
    guard, now = Guard(Job(directory=".", argv=("x",), env={}, cwd=".", guard=os.getpid())), [1000.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    guard.received(number)
    guard.pass_on(None)
    now[0] += after_s
    assert guard.end_of(EndReason("exit"), 256, unread=False).by == by
    guard.received(signal.SIGTERM)
    guard.pass_on(None)
    assert guard.end_of(EndReason("exit"), 256, unread=False).by == "stopped"
