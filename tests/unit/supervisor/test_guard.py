"""A signal for a guarded workload goes to its first process, and to no later owner of that one's number."""

import os
import signal
import subprocess
import sys

from vdbg_env.supervisor.job import Job
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
