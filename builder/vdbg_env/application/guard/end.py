"""How a guarded command ended: the exit status to pass on, and what is announced of a failure."""

from __future__ import annotations

import shlex
from dataclasses import dataclass

from vdbg_env.application.run.result.model import Report
from vdbg_env.application.run.result.next_steps import flags_after_guard, typed_outside
from vdbg_env.application.session import FinishedRun
from vdbg_env.evidence.finding import Finding
from vdbg_env.evidence.observation import Ended, EndedBy
from vdbg_env.runbook.model import Status
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


def crashed(ended: Ended, outcome: Status | None) -> bool:
    """Return whether it crashed or hung; `outcome` is what was judged, None where that was not reached.

    A command that was told to end from outside has not crashed, unless its log or a core shows that it has.
    """
    if ended.by is EndedBy.NOT_STARTED:
        return False
    if outcome is not None:
        return outcome not in {Status.PASS, Status.WARN}
    return ended.by is not EndedBy.STOPPED and not (ended.by is EndedBy.EXIT and ended.code == 0)


def outcome_of(report: Report) -> Status | None:
    """Return what the command's end was judged as; None where it was not."""
    return next((step.outcome for step in report.steps if step.id == GUARDED), None)


def ended_of(report: Report) -> Ended | None:
    """Return how the command ended; None where it never was started."""
    attempts = [attempt for step in report.steps if step.id == GUARDED for attempt in step.attempts]
    return attempts[-1].ended if attempts else None


def went_well(done: FinishedRun, status: int) -> bool:
    """Return whether there is nothing to explain; of a run that was cut short the command's `status` says so."""
    return done.report.verdict in _WELL or (done.resume is not None and status == 0)


@dataclass(frozen=True, kw_only=True)
class Seen:
    """How often the folder of all runs has crashes of one cause, this one included, and on which hosts.

    `since` is when the first began, ISO 8601 in UTC; None where this is the first.
    """

    times: int
    hosts: tuple[str, ...] = ()
    since: str | None = None

    def __str__(self) -> str:
        times = "once" if self.times == 1 else f"{self.times} times"
        nodes = f" on {len(self.hosts)} node{'' if len(self.hosts) == 1 else 's'}" if self.hosts else ""
        return f"seen {times}{nodes}" + (f" since {self.since}" if self.since else "")


@dataclass(frozen=True, kw_only=True)
class Announcement:
    """What is announced after a failure; `directory` is the run's folder.

    `seen` counts the crashes of this cause, None where the cause has no name.
    """

    report: Report
    directory: str
    files: tuple[str, ...]
    status: int
    ended: Ended
    seen: Seen | None = None

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
        """What to type next: the fix, a runbook, or what keeps the command from being started; None without."""
        results = next((s.results for s in self.report.steps if s.id == GUARDED), {})
        if "fix" in results:
            return str(results["fix"])
        if runbook := results.get("runbook"):
            flags = flags_after_guard(self.report.workload)
            return f"vdbg-env runbook {runbook}{flags} --from {shlex.quote(self.directory)}"
        commands = (step.command or "" for step in typed_outside(self.report, self.directory).next_steps)
        said = self.lead.next_step if self.lead and self.ended.by is EndedBy.NOT_STARTED else None
        return next((command for command in commands if command.startswith("vdbg-env runbook ")), said)
