"""Runs steps as process trees of this machine, each under a supervisor that needs this program for nothing.

Everything that must hold while a workload runs (its output, limits, watches and its end) is the supervisor's; here an
attempt is prepared, started or adopted, and what it left behind is read.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from vdbg_env.adapters.execution.job_builder import StepSettings, job_for
from vdbg_env.adapters.execution.supervised_step import SupervisedStep, has_ended
from vdbg_env.adapters.execution.supervisor_pool import Supervisors
from vdbg_env.adapters.host.guarded import Guarded
from vdbg_env.common.stop import waiting
from vdbg_env.evidence.observation import Observation
from vdbg_env.runbook.invocation import Invocation
from vdbg_env.supervisor.job import Job, to_json
from vdbg_env.supervisor.processes import attempt_tree
from vdbg_env.supervisor.processes.proc import Process
from vdbg_env.supervisor.processes.signals import send
from vdbg_env.supervisor.state import lock_file, result_file
from vdbg_env.supervisor.watch import helpers


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
        process = self._supervisors.start(where, to_json(job), guarded.streams if guarded else ())
        if guarded:
            guarded.attached(process, where)
        return LocalStep(invocation, where, job, process, guarded)

    def adopt(self, invocation: Invocation, directory: Path) -> LocalStep | None:
        """Take over an attempt: it runs, it has ended, or it is lost; see `StepRunner.adopt`."""
        where = directory.resolve()
        if supervisor := lock_file.holder(str(where)):
            # A stopped one would never read its job nor end the step; to any other the signal means nothing.
            send([supervisor], signal.SIGCONT)
        with waiting():
            if not has_ended(where) and not lock_file.was_started(str(where)):
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
        elif supervisor := lock_file.holder(str(self._directory)):
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
        supervisor = self._process or lock_file.holder(str(self._directory))
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
        recorded = lock_file.values(where, "cgroup")
        self._survivors = attempt_tree.end(where, helpers.MARK, self._mark, recorded=recorded)

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
                (self._directory / result_file.NAME).unlink()
            self._lost()
