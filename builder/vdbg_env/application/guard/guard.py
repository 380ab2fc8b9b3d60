"""Do what `vdbg-env guard` was asked for: run the command once, explain its failure, return its exit status.

The command comes first. Where no record can be made it runs without one, and nothing that fails here changes its
exit status.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from gpucore.arming import CoreSize
from vdbg_env.application import session
from vdbg_env.application.guard.armed import fitting, listed
from vdbg_env.application.guard.end import (
    TERMINATION_MESSAGE_BYTES,
    Announcement,
    Seen,
    crashed,
    ended_of,
    exit_status,
    outcome_of,
    went_well,
)
from vdbg_env.application.guard.groups import of_same_cause, recorded_crashes
from vdbg_env.application.ports.this_host import Announcer, GuardedCommand, Room
from vdbg_env.application.run.request import RunbookRequest
from vdbg_env.application.run.result.model import REPORT_FILES
from vdbg_env.application.session import FinishedRun, RunPorts, RunView
from vdbg_env.common.errors import VdbgError
from vdbg_env.common.stop import ToldToStop, stoppable
from vdbg_env.evidence.observation import Ended
from vdbg_env.record.run_directory import GUARD
from vdbg_env.runbook.model import Status
from vdbg_env.runbook.workload.recognise import recognise

if TYPE_CHECKING:
    from pathlib import Path

_EXAMPLE = ("vllm", "serve", "MODEL")
_RANK_DIR = "${{ rank.dir }}"
Write = Callable[[Announcement, int | None], str]
"""Writes an announcement as one line, of fewer bytes than the number where one is given."""
_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class GuardRequest:
    """The flags of `vdbg-env guard`; `hook` is a line of the shell that gets the JSON line.

    `crash_status` is returned after a crash or a hang in place of the command's own status; None keeps that.
    """

    argv: tuple[str, ...]
    core_size: CoreSize = "default"
    termination_log: Path | None = None
    hook: str | None = None
    crash_status: int | None = None


@dataclass(frozen=True, kw_only=True)
class Guard:
    """One guarded command, and what its failure is explained with; `say` gets the line of JSON that `write` makes."""

    request: GuardRequest
    ports: RunPorts
    view: RunView
    command: GuardedCommand
    announcer: Announcer
    say: Callable[[str], None]
    write: Write
    room: Callable[[], Room]

    def environment(self) -> Iterator[str]:
        """Yield, as lines, all that the command would find in its environment, and whether its cores have room."""
        request, given = self.request, self.ports.environment
        size, words = fitting(request.core_size, recognise(request.argv).ranks, self.room())
        argv = request.argv or _EXAMPLE
        run = RunbookRequest(runbook=GUARD, argv=argv, inputs={"core_size": size}, batch=True, at_once=True)
        planned = session.planned(run, self.ports, lambda _: None).steps[0].invocation
        variables = planned.env.items() if planned else ()
        armed = {name: value.replace(_RANK_DIR, "FOLDER") for name, value in variables if value is not None}
        yield from listed(armed, given)
        yield from listed(self.command.own_variables, {})
        yield "# FOLDER is steps/guarded/1/HOST-0 of the run's record."
        yield "# A variable that is set already stays as it is: NAME=VALUE vdbg-env guard -- COMMAND"
        yield "# Without any of it: the command without guard, or VDBG_GUARD=off where an image's entry point starts it"
        yield f"# {words or f'GPU cores: {size}, and there is room for them'}"

    def run(self) -> int:
        """Run the command to its end and return its exit status; `command` must be entered."""
        request, command = self.request, self.command
        size, words = fitting(request.core_size, recognise(request.argv).ranks, self.room())
        if words and "CUDA_COREDUMP_GENERATION_FLAGS" not in self.ports.environment:
            self.say(f"vdbg-env guard: {words}")
        inputs = {"core_size": size}
        run = RunbookRequest(runbook=GUARD, argv=request.argv, inputs=inputs, batch=True, at_once=True)
        try:
            done = session.run(run, self.ports, self.view)
        except Exception as error:  # a command in production does not go down with its guard
            _LOG.info("the run of the guarded command failed", exc_info=True)
            if not command.started:
                self.say(f"vdbg-env guard: no record can be made, the command runs without its guard: {error}")
                command.become(request.argv)
            status = self._status(command.wait(), None)
            self.say(f"vdbg-env guard: the end of the command could not be explained: {error}")
            return status
        ended = ended_of(done.report)
        if ended is None:  # told to stop before that was recorded
            if not command.started:
                return 1
            ended = command.wait()
        status = self._status(ended, outcome_of(done.report))
        if not went_well(done, status):
            try:
                self._explain(done, ended, status)
            except Exception as error:  # nor does its exit status change for what is wrong with what explains it
                _LOG.info("the failure could not be announced", exc_info=True)
                self.say(f"vdbg-env guard: the failure could not be announced: {error}")
        return status

    def _status(self, ended: Ended, outcome: Status | None) -> int:
        chosen = self.request.crash_status
        return chosen if chosen is not None and crashed(ended, outcome) else exit_status(ended)

    def _explain(self, done: FinishedRun, ended: Ended, status: int) -> None:
        """Count the failure among those of its cause, and announce it; what takes long ends where we must stop."""
        seen = None
        try:
            with stoppable():
                done, seen = _counted(done, self.ports)
        except ToldToStop:
            _LOG.info("told to stop before the crashes of this cause were counted")
        except Exception:  # the records of other runs are others'
            _LOG.info("the crashes of this cause could not be counted", exc_info=True)
        self._announce(
            Announcement(
                report=done.report,
                directory=str(done.directory),
                files=done.files,
                status=status,
                ended=ended,
                seen=seen,
            )
        )

    def _announce(self, announcement: Announcement) -> None:
        """Say it everywhere, the surest place first; what cannot be reached is named on stderr."""
        request, announcer = self.request, self.announcer
        problems = []
        if request.termination_log:
            message = self.write(announcement, TERMINATION_MESSAGE_BYTES)
            problems.append(announcer.write(request.termination_log, message))
        line = self.write(announcement, None)
        self.say(line)
        try:
            with stoppable():
                if request.hook:
                    problems.append(announcer.run(request.hook, line))
        except ToldToStop:
            if request.hook:
                problems.append("told to stop: the hook was not waited for")
        for problem in problems:
            if problem:
                self.say(f"vdbg-env guard: {problem}")


def _counted(done: FinishedRun, ports: RunPorts) -> tuple[FinishedRun, Seen | None]:
    """Count the crashes of this cause in the folder of all runs; from the second on the report says so too."""
    known = done.report.fingerprint
    if known is None:
        return done, None
    crashes, _ = recorded_crashes(ports.environment)
    same = of_same_cause(crashes, cause=known.id, base=known.base)
    others = [crash for crash in same if crash.run != done.report.run]
    hosts = {crash.host for crash in others if crash.host} | {done.report.environment.get("host", "")} - {""}
    seen = Seen(times=len(others) + 1, hosts=tuple(sorted(hosts)), since=others[0].started if others else None)
    if not others:
        return done, seen
    report = replace(done.report, notes=(f"{seen} (cause {known.id}): runs list --group", *done.report.notes))
    try:
        ports.write_report(report, done.directory, REPORT_FILES)
    except (OSError, VdbgError) as error:
        _LOG.info("the report could not be written again: %s", error)
    return replace(done, report=report), seen
