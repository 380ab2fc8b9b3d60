"""Start supervisors, and keep one ready: a step then waits for no Python to start and import."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import weakref
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from vdbg_env.common.errors import HostNotAble
from vdbg_env.common.files import write_whole
from vdbg_env.common.stop import waiting
from vdbg_env.evidence.finding import Observation
from vdbg_env.run.attempt import SupervisedStep, has_ended
from vdbg_env.run.guarded import Guarded
from vdbg_env.run.job import StepSettings, job_for
from vdbg_env.runbook.state import Invocation
from vdbg_env.supervisor import control_files, helpers, process_tree
from vdbg_env.supervisor.job import Job, to_json
from vdbg_env.supervisor.proc import Process, send

_START_LIMIT_S = 30.0


class Supervisors:
    """The supervisors of one run, each started by `command`: one for each step, and one more that waits for the next.

    The one that waits has no directory, no lock and no job; it ends with this object, or when this program dies,
    because its standard input is then closed.
    """

    def __init__(self, command: tuple[str, ...], *, spare: bool = True) -> None:
        self._command = command
        self._spare = spare
        self._waiting: list[subprocess.Popen[bytes]] = []
        weakref.finalize(self, _dismiss, self._waiting)

    def start(self, directory: Path, job: bytes, descriptors: tuple[int, ...] = ()) -> subprocess.Popen[bytes]:
        """Have a supervisor take the lock of `directory`, and only then send it its job; returns its process.

        It inherits `descriptors`, where there are any.

        Raises HostNotAble when none can be started, or the directory cannot be written.
        """
        process = _spawn(self._command, descriptors) if descriptors else self._next()
        try:
            with waiting():
                if not _takes(process, directory):
                    raise _not_started(process)
                assert process.stdin
                write_whole(process.stdin.fileno(), job)
        except BrokenPipeError as error:
            raise _not_started(process) from error
        finally:
            _hang_up(process)
        if self._spare:
            with suppress(HostNotAble):  # no room for one more process now: the next step says so if it is still true
                self._waiting.append(_spawn(self._command))
        return process

    def _next(self) -> subprocess.Popen[bytes]:
        """Return the supervisor that waits, or a new one where there is none, or where that was ended."""
        while self._waiting:
            process = self._waiting.pop()
            if process.poll() is None:
                return process
            _hang_up(process)
        return _spawn(self._command)


def _spawn(command: tuple[str, ...], descriptors: tuple[int, ...] = ()) -> subprocess.Popen[bytes]:
    """Start a supervisor, which first waits for its directory; it gets no variable of the user.

    Raises HostNotAble when there can be no such process.
    """
    try:
        return subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={},
            cwd="/",
            start_new_session=True,
            pass_fds=descriptors,
            bufsize=0,
        )
    except OSError as error:
        raise HostNotAble(
            f"the supervisor of a step could not be started: {error.strerror}",
            cause="this machine has no room for one more process, or its Python is gone",
        ) from error


def _takes(process: subprocess.Popen[bytes], directory: Path) -> bool:
    """Name the directory to a supervisor; returns whether it holds its lock now."""
    assert process.stdin and process.stdout
    process.stdin.write(json.dumps(str(directory)).encode() + b"\n")
    return bool(select.select([process.stdout], [], [], _START_LIMIT_S)[0]) and process.stdout.readline() == b"ready\n"


def _not_started(process: subprocess.Popen[bytes]) -> HostNotAble:
    assert process.stderr
    process.kill()
    told = process.stderr.read().decode("utf-8", "replace").strip().splitlines()
    process.wait()
    return HostNotAble(
        "the supervisor of a step could not be started",
        cause="the run directory cannot be written, or this Python lacks a standard module",
        details=tuple(told[-3:]),
    )


def _hang_up(process: subprocess.Popen[bytes]) -> None:
    """Close the pipes to a supervisor; it has its job, and needs no engine from now on."""
    for pipe in (process.stdin, process.stdout, process.stderr):
        if pipe:
            pipe.close()


def _dismiss(waiting: list[subprocess.Popen[bytes]]) -> None:
    """End the supervisors that never got a job; they have started nothing."""
    for process in waiting:
        process.kill()
        _hang_up(process)
        process.wait()


# Runs steps as process trees of this machine, each under a supervisor that needs this program for nothing.
#
# Everything that must hold while a workload runs (its output, limits, watches and its end) is the supervisor's; here an
# attempt is prepared, started or adopted, and what it left behind is read.


class LocalProcesses:
    """A StepRunner for this machine."""

    def __init__(self, settings: StepSettings) -> None:
        self._settings = settings
        # A guard starts one workload: a second supervisor would wait for days, and keep its output open.
        self._supervisors = Supervisors(settings.supervisor, spare=settings.guarded is None)

    def start(self, invocation: Invocation, directory: Path) -> LocalStep:
        """Start an attempt; see `StepRunner.start`."""
        where = directory.resolve()
        job = job_for(invocation, where, self._settings)
        guarded = self._settings.guarded
        process = self._supervisors.start(where, to_json(job), (*guarded.streams, guarded.starts) if guarded else ())
        if guarded:
            guarded.attached(process, where)
        return LocalStep(invocation, where, job, process, guarded)

    def adopt(self, invocation: Invocation, directory: Path) -> LocalStep | None:
        """Take over an attempt: it runs, it has ended, or it is lost; see `StepRunner.adopt`."""
        where = directory.resolve()
        if supervisor := control_files.lock_holder(str(where)):
            # A stopped one would never read its job nor end the step; to any other the signal means nothing.
            send([supervisor], signal.SIGCONT)
        with waiting():
            if not has_ended(where) and not control_files.was_started(str(where)):
                return None
        return LocalStep(invocation, where, job_for(invocation, where, self._settings), None)


class LocalStep(SupervisedStep):
    """A StartedStep under a supervisor of this machine; `process` is None when another engine started it."""

    def __init__(
        self,
        invocation: Invocation,
        directory: Path,
        job: Job,
        process: subprocess.Popen[bytes] | None,
        guarded: Guarded | None = None,
    ) -> None:
        super().__init__(invocation, directory, job)
        self._mark = job.env[helpers.MARK]
        self._survivors: list[Process] = []
        self._process = process
        self._guarded = guarded
        self._given_up = False

    def _ask_to_end(self, *, firmly: bool) -> None:
        numbers = (signal.SIGTERM, signal.SIGINT) if firmly else (signal.SIGTERM,)
        if self._process is not None:
            for number in (*numbers, signal.SIGCONT):  # a stopped supervisor would never see the others
                self._process.send_signal(number)  # does nothing when it has ended
        elif supervisor := control_files.lock_holder(str(self._directory)):
            for number in numbers:
                send([supervisor], number)
        elif not self._given_up:
            self._given_up = True  # the process that holds the lock is not our supervisor
            self._lost()

    def _runs(self) -> bool:
        if self._process is not None:
            return self._process.poll() is None
        return not self._given_up and super()._runs()

    def _sleep(self, left: float | None) -> None:
        supervisor = self._process or control_files.lock_holder(str(self._directory))
        try:
            descriptor = os.pidfd_open(supervisor.pid) if supervisor else -1
        except OSError:
            descriptor = -1
        if descriptor < 0:
            super()._sleep(left)
            return
        try:
            select.select([descriptor], [], [], left)
        finally:
            os.close(descriptor)

    def _lost(self) -> None:
        """Kill what is left: the supervisor's first child died with it, that child's orphans did not."""
        where = str(self._directory)
        recorded = control_files.recorded_values(where, "cgroup")
        self._survivors = process_tree.end(where, helpers.MARK, self._mark, recorded=recorded)

    def _completed(self, seen: Observation) -> Observation:
        left = (f"process {one.pid} ({one.name}, state {one.state}) could not be killed" for one in self._survivors)
        seen = replace(seen, notes=(*seen.notes, *left))
        return self._guarded.seen(seen) if self._guarded else seen

    def _over(self) -> None:
        """Take the supervisor's status; of one that was killed no end is believed, as the workload can write one."""
        if self._process is None:
            self._lost()
        elif self._process.wait() < 0:
            with suppress(OSError):
                (self._directory / control_files.ENDED).unlink()
            self._lost()
