"""Take a step's lock and its job, and run it: what a supervisor is between its start and its exit status."""

from __future__ import annotations

import json
import os
import signal
import sys
import time

from vdbg_env.supervisor.job import Job, from_json, settled
from vdbg_env.supervisor.loop import KILL_LIMIT_S, Supervisor
from vdbg_env.supervisor.phase import EndReason
from vdbg_env.supervisor.processes.proc import descendants
from vdbg_env.supervisor.processes.signals import become_subreaper, send
from vdbg_env.supervisor.state import lock_file
from vdbg_env.supervisor.watch.guard import FORWARDED


def main() -> int:
    """Take the lock of the step's directory, then the job, and run it; returns the exit status.

    Standard input holds two lines of JSON: the directory, and the job. The workload is started only after the job
    arrived whole, and `ready` is said only after the lock is held: so an engine that finds no lock knows that nothing
    runs, and one that died while it sent the job has started nothing.
    """
    named = sys.stdin.buffer.readline()
    if not named.endswith(b"\n"):
        return 1  # the engine went before it had a step for us
    os.chdir(json.loads(named))
    lock = lock_file.take(".")
    # A signal that arrives before its handler is set must wait: it would end us, or pass a container's first process.
    signal.pthread_sigmask(signal.SIG_BLOCK, FORWARDED)
    os.write(1, b"ready\n")
    job = from_json(sys.stdin.buffer.readline())
    if job is None:
        return 1
    # The folder is this process's own from here on, wherever its name may lead when the workload has moved it.
    job = job._replace(directory=".")
    nothing = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(nothing, descriptor)
    for descriptor in (*job.live, job.stdin):
        if descriptor >= 0:
            os.set_inheritable(descriptor, False)
    return supervise(job, lock)


def supervise(job: Job, lock: int, *, refused: str = "") -> int:
    """Run a job in the current folder, whose lock is held, to its end; returns the exit status of a supervisor.

    Where it is `refused`, nothing is started, and the record says why.
    """
    become_subreaper()
    supervisor = Supervisor(settled(job, os.environ), lock)
    try:
        if refused:
            supervisor.refuse(refused)
        else:
            supervisor.run()
    except Exception as error:
        import traceback  # not at start-up, where it would cost more than all of this module

        place = traceback.extract_tb(error.__traceback__)[-1]
        _kill_everything()
        what = f"the supervisor failed: {type(error).__name__}: {error} ({place.name}, line {place.lineno})"
        supervisor.finish(EndReason("engine_lost", what))
        return 1
    return 0


def _kill_everything() -> None:
    """Kill the whole tree until no child is left, for ten seconds at most."""
    until = time.monotonic() + KILL_LIMIT_S
    while time.monotonic() < until:
        send(descendants(os.getpid()), signal.SIGKILL)
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            return
        time.sleep(0.01)
