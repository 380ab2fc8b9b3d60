"""Programs that help to look at the workload: the GPU probe, the driver of a server, and what is run on a hang."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from typing import NamedTuple

from vdbg_env.common.files import open_file
from vdbg_env.record.redactor import Redactor
from vdbg_env.supervisor.job import HangCommand, Job
from vdbg_env.supervisor.launch import MOST_IN_PIPE, NotStarted, launch_helper
from vdbg_env.supervisor.proc import Process, executable, send_to_group, stack, title

MARK = "VDBG_ENV_STEP"  # set in every process of a step: they can be found by it even when the supervisor died


class Helper(NamedTuple):
    """A running helper: where its output goes, what is done with its exit status, and until when it may run."""

    pid: int
    descriptor: int
    output: Callable[[bytes], None]
    ended: Callable[[int], None]
    deadline: float


class Helpers:
    """The helpers that run now; the supervisor reads their output and reports when one has ended."""

    def __init__(self, job: Job, now: Callable[[], float]) -> None:
        self._now = now
        self._cwd = job.directory
        self._env = {name: value for name, value in job.env.items() if name not in job.overlay}
        self.running: dict[int, Helper] = {}

    def start(
        self, argv: tuple[str, ...], output: Callable[[bytes], None], ended: Callable[[int], None], timeout_s: float
    ) -> str | None:
        """Start a helper; returns why it could not be started, or None."""
        try:
            pid, descriptor = launch_helper(argv, self._env, self._cwd)
        except NotStarted as problem:
            return str(problem)
        self.running[pid] = Helper(pid, descriptor, output, ended, self._now() + timeout_s)
        return None

    def read(self) -> None:
        """Read what the helpers have printed, without waiting."""
        for helper in self.running.values():
            _drain(helper)

    def reaped(self, pid: int, status: int) -> bool:
        """Take note that a child has ended; returns whether it was a helper."""
        helper = self.running.pop(pid, None)
        if helper is None:
            return False
        _drain(helper)
        os.close(helper.descriptor)
        helper.ended(os.waitstatus_to_exitcode(status))
        return True

    def end_overdue(self, now: float) -> None:
        """Kill the helpers whose time is over."""
        for helper in self.running.values():
            if now >= helper.deadline:
                send_to_group(helper.pid, signal.SIGKILL)  # each helper leads its session

    def end_all(self) -> None:
        """Kill every helper: what they looked at is gone."""
        for pid in self.running:
            send_to_group(pid, signal.SIGKILL)


class HangActions:
    """What is done on a hang before the tree is ended, one after the other; all they say goes to one file."""

    def __init__(self, job: Job, helpers: Helpers, redactor: Redactor) -> None:
        self._job = job
        self._helpers = helpers
        self._redactor = redactor
        self._path = f"{job.directory}/hang.txt"
        self._queue: list[tuple[HangCommand, int]] = []
        self._busy = False
        self.ran: list[str] = []

    def begin(
        self, why: str, root: int, processes: list[Process], used: Callable[[Process], tuple[float, float] | None]
    ) -> None:
        """Write where every thread waits and the processor time of each process, and queue the commands."""
        self._note(f"# hang: {why}\n".encode())
        if self._job.hang_stacks:
            for one in processes:
                time = used(one)
                spent = f", {time[0]:.1f} s of processor time in {time[1]:.1f} s" if time else ""
                about = f"(parent {one.parent}, state {one.state}{spent})"
                self._note(f"process {one.pid} {title(one)} {about}\n".encode())
                self._note(stack(one.pid).encode() + b"\n")
            self.ran.append("stacks")
        stopped = {one.pid for one in processes if one.state == "T"}
        for command in self._job.hang_commands:
            of_stopped = command._replace(argv=(*command.argv, *command.stopped))
            for pid in _targets(command, root, processes):
                self._queue.append((of_stopped if pid in stopped else command, pid))

    def step(self) -> bool:
        """Start the next command when the last one has ended; returns whether all have."""
        while self._queue and not self._busy:
            command, pid = self._queue.pop(0)
            argv = tuple(word.replace("{pid}", str(pid)) for word in command.argv)
            self._note(f"\n# {command.name}: process {pid}\n".encode())
            problem = self._helpers.start(argv, self._note, self._command_ended, command.timeout_s)
            self._busy = problem is None
            self.ran.append(f"{command.name} {pid}" + (f": not started: {problem}" if problem else ""))
        return not self._busy and not self._queue

    def _command_ended(self, code: int) -> None:
        self._busy = False
        self._note(f"# ended with {code}\n".encode())

    def _note(self, text: bytes) -> None:
        try:
            with os.fdopen(open_file(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND), "ab") as file:
                file.write(self._redactor.data(text))
        except OSError as error:
            self.ran.append(f"hang.txt could not be written: {error.strerror}")


def _targets(command: HangCommand, root: int, processes: list[Process]) -> list[int]:
    if command.each == "root":
        return [root]
    return [p.pid for p in processes if command.each == "all" or "python" in executable(p.pid).rpartition("/")[2]]


def _drain(helper: Helper) -> None:
    """Pass on what is in a helper's pipe, at most as much as it holds: one that prints without end fills it again."""
    left = MOST_IN_PIPE
    try:
        while left > 0 and (data := os.read(helper.descriptor, 1 << 16)):
            left -= len(data)
            helper.output(data)
    except BlockingIOError:
        return
