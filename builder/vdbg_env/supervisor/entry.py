"""Take a step's lock and its job, and run it: what a supervisor is between its start and its exit status."""

from __future__ import annotations

import json
import os
import select
import signal
import time

from vdbg_env.supervisor.job import Job, from_json, settled
from vdbg_env.supervisor.loop import KILL_LIMIT_S, Supervisor
from vdbg_env.supervisor.phase import EndReason
from vdbg_env.supervisor.processes.proc import descendants
from vdbg_env.supervisor.processes.signals import become_subreaper, send
from vdbg_env.supervisor.state import lock_file
from vdbg_env.supervisor.watch.guard import FORWARDED

# How long a job may take to arrive. Less than an engine waits to know whether a step was started (`was_started`). Where
# dockerd is killed after it took the job and before it passed it on, a container's standard input never ends.
JOB_LIMIT_S = 20.0


def main() -> int:
    """Take the lock of the step's directory, then the job, and run it; returns the exit status.

    Standard input holds two lines of JSON: the directory, and the job. The workload is started only after the job
    arrived whole, and `ready` is said only after the lock is held: so an engine that finds no lock knows that nothing
    runs, and one that died while it sent the job has started nothing.
    """
    named, rest = read_line(0)
    if not named.endswith(b"\n"):
        return 1  # the engine went before it had a step for us
    os.chdir(json.loads(named))
    lock = lock_file.take_lock(".")
    # A signal that arrives before its handler is set must wait: it would end us, or pass a container's first process.
    signal.pthread_sigmask(signal.SIG_BLOCK, FORWARDED)
    os.write(1, b"ready\n")
    job = from_json(read_line(0, rest, limit_s=JOB_LIMIT_S)[0])
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


def read_line(descriptor: int, begun: bytes = b"", *, limit_s: float | None = None) -> tuple[bytes, bytes]:
    """Return the next line, and what was read past its end; without its end where the input ends or the time is up."""
    until = None if limit_s is None else time.monotonic() + limit_s
    while b"\n" not in begun:
        left = None if until is None else max(0.0, until - time.monotonic())
        if not select.select([descriptor], [], [], left)[0]:
            return begun, b""
        piece = os.read(descriptor, 1 << 16)
        if not piece:
            return begun, b""
        begun += piece
    line, end, rest = begun.partition(b"\n")
    return line + end, rest


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
    return supervisor.exit_status


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
