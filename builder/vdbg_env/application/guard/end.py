"""How a guarded command ended: the exit status to pass on, and what is announced of a failure."""

from __future__ import annotations

import shlex
from dataclasses import dataclass

from vdbg_env.application.run.result.model import Report
from vdbg_env.application.run.result.next_steps import typed_outside
from vdbg_env.application.session import FinishedRun
from vdbg_env.evidence.finding import Finding
from vdbg_env.evidence.observation import Ended, EndedBy
from vdbg_env.runbook.state import Verdict

GUARDED = "guarded"  # the step of the runbook that runs the command
TERMINATION_MESSAGE_BYTES = 4096  # what Kubernetes keeps of /dev/termination-log
_ENDED_BY_US = 124  # as timeout(1): a hung command that returned 0 when it was asked to end
_NOT_FOUND, _NOT_EXECUTABLE = 127, 126
_WELL = {Verdict.PASSED, Verdict.NOT_REPRODUCED}


def exit_status(ended: Ended) -> int:
    """Return the command's own exit status, as a shell gives it: 128 and the number for a signal."""
    if ended.by is EndedBy.NOT_STARTED:
        return _NOT_EXECUTABLE if "ermission denied" in (ended.message or "") else _NOT_FOUND
    if ended.signal is not None:
        return 128 + ended.signal
    if ended.by is EndedBy.ENGINE_LOST:
        return 128 + 9  # its supervisor was killed, and it with it
    return ended.code or (_ENDED_BY_US if ended.by is EndedBy.WATCH else 0)


def ended_of(report: Report) -> Ended | None:
    """Return how the command ended; None where it never was started."""
    attempts = [attempt for step in report.steps if step.id == GUARDED for attempt in step.attempts]
    return attempts[-1].ended if attempts else None


def went_well(done: FinishedRun, status: int) -> bool:
    """Return whether there is nothing to explain; of a run that was cut short the command's `status` says so."""
    return done.report.verdict in _WELL or (done.resume is not None and status == 0)


@dataclass(frozen=True, kw_only=True)
class Announcement:
    """What is announced after a failure; `directory` is the run's folder.

    `seen` says which crash of this cause it is: 1 for the first, None where the cause has no name.
    """

    report: Report
    directory: str
    files: tuple[str, ...]
    status: int
    ended: Ended
    seen: int | None = None

    @property
    def lead(self) -> Finding | None:
        """The finding that explains the failure."""
        return self.report.lead

    @property
    def report_file(self) -> str | None:
        """The path of the report to read."""
        return f"{self.directory}/report.md" if "report.md" in self.files else None

    @property
    def next_step(self) -> str | None:
        """What to type next: a runbook, or in words what keeps the command from being started; None without either."""
        runbook = next(
            (s.results["runbook"] for s in self.report.steps if s.id == GUARDED and "runbook" in s.results), None
        )
        if runbook:
            return f"vdbg-env runbook {runbook} --from {shlex.quote(self.directory)}"
        commands = (step.command or "" for step in typed_outside(self.report, self.directory).next_steps)
        said = self.lead.next_step if self.lead and self.ended.by is EndedBy.NOT_STARTED else None
        return next((command for command in commands if command.startswith("vdbg-env runbook ")), said)
