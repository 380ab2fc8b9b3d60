"""Do what `vdbg-env guard` was asked for: run the command once, explain its failure, return its exit status.

The command comes first. Where no record can be made it runs without one, and nothing that fails here changes its
exit status.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from vdbg_env.application import session
from vdbg_env.application.guard.end import TERMINATION_MESSAGE_BYTES, Announcement, ended_of, exit_status, went_well
from vdbg_env.application.guard.groups import of_same_cause, recorded_crashes
from vdbg_env.application.ports.this_host import Announcer, GuardedCommand
from vdbg_env.application.run.request import RunbookRequest
from vdbg_env.application.run.result.model import REPORT_FILES
from vdbg_env.application.session import FinishedRun, RunPorts, RunView
from vdbg_env.common.errors import VdbgError
from vdbg_env.common.stop import ToldToStop, stoppable
from vdbg_env.evidence.observation import Ended

if TYPE_CHECKING:
    from pathlib import Path

RUNBOOK = "guard"
_REPEATED = 3  # crashes of one cause that are no coincidence
Write = Callable[[Announcement, int | None], str]
"""Writes an announcement as one line, of fewer bytes than the number where one is given."""
_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class GuardRequest:
    """The flags of `vdbg-env guard`; `hook` is a command that gets the report's path, `webhook` a URL."""

    argv: tuple[str, ...]
    full_core: bool = False
    termination_log: Path | None = None
    hook: tuple[str, ...] = ()
    webhook: str | None = None


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

    def run(self) -> int:
        """Run the command to its end and return its exit status; `command` must be entered."""
        request, command = self.request, self.command
        inputs = {"full_core": "true"} if request.full_core else {}
        run = RunbookRequest(runbook=RUNBOOK, argv=request.argv, inputs=inputs, batch=True, at_once=True)
        try:
            done = session.run(run, self.ports, self.view)
        except Exception as error:  # a command in production does not go down with its guard
            _LOG.info("the run of the guarded command failed", exc_info=True)
            if not command.started:
                self.say(f"vdbg-env guard: no record can be made, the command runs without its guard: {error}")
                command.become(request.argv)
            status = exit_status(command.wait())
            self.say(f"vdbg-env guard: the end of the command could not be explained: {error}")
            return status
        ended = ended_of(done.report)
        if ended is None:  # told to stop before that was recorded
            if not command.started:
                return 1
            ended = command.wait()
        status = exit_status(ended)
        if not went_well(done, status):
            try:
                self._explain(done, ended, status)
            except Exception as error:  # nor does its exit status change for what is wrong with what explains it
                _LOG.info("the failure could not be announced", exc_info=True)
                self.say(f"vdbg-env guard: the failure could not be announced: {error}")
        return status

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
                if request.webhook:
                    problems.append(announcer.post(request.webhook, line))
        except ToldToStop:
            if request.hook or request.webhook:
                problems.append("told to stop: the hook or the webhook was not waited for")
        for problem in problems:
            if problem:
                self.say(f"vdbg-env guard: {problem}")


def _counted(done: FinishedRun, ports: RunPorts) -> tuple[FinishedRun, int | None]:
    """Count the crashes of this cause; from the third on the report says so too."""
    known = done.report.fingerprint
    if known is None:
        return done, None
    crashes, _ = recorded_crashes(ports.environment)
    same = of_same_cause(crashes, cause=known.id, base=known.base)
    others = [crash for crash in same if crash.run != done.report.run]
    if len(others) + 1 < _REPEATED:
        return done, len(others) + 1
    hosts = ", ".join(sorted({crash.host for crash in same}))
    note = f"crash {len(others) + 1} of the cause {known.id} since {others[0].started} ({hosts}): runs list --group"
    report = replace(done.report, notes=(note, *done.report.notes))
    try:
        ports.write_report(report, done.directory, REPORT_FILES)
    except (OSError, VdbgError) as error:
        _LOG.info("the report could not be written again: %s", error)
    return replace(done, report=report), len(others) + 1
