"""Conclude a run: its verdict, and the exit status for a shell or for `git bisect run`."""

from __future__ import annotations

from collections.abc import Sequence

from vdbg_env.evidence.finding import Finding, Level
from vdbg_env.evidence.observation import EndedBy
from vdbg_env.runbook.model import Run, Runbook, Status
from vdbg_env.runbook.state import Finish, StepRecord, Verdict

# The strongest outcome decides: a crash seen once stays seen, whatever a later step with another setting showed.
_STRENGTH: tuple[tuple[Status, Verdict, str], ...] = (
    (Status.REPRODUCED, Verdict.REPRODUCED, "the failure was reproduced in step {step!r}"),
    (Status.HANG, Verdict.HANG, "the workload hung in step {step!r}"),
    (Status.FAIL, Verdict.FAILED, "step {step!r} failed"),
    (Status.NOT_REPRODUCED, Verdict.NOT_REPRODUCED, "the failure did not show"),
    (Status.WARN, Verdict.WARNED, "step {step!r} warned"),
    (Status.UNRESOLVED, Verdict.INCONCLUSIVE, "step {step!r} decided nothing"),
    (Status.ERROR, Verdict.INCONCLUSIVE, "step {step!r} could not do its work"),
)


def conclude(trail: Sequence[StepRecord], runbook: Runbook | None = None) -> Finish:
    """Return the end of a run that came to its end.

    Given the runbook, checks of the host alone conclude nothing about a workload that was to be run and never was.
    """
    runs = {step.id for step in runbook.steps if isinstance(step, Run)} if runbook else set()
    tried = [record for record in trail if record.step in runs and record.skipped_because is None]
    if runs and all(record.outcome is Status.ERROR for record in tried):
        failed = next((record.step for record in trail if record.outcome is Status.FAIL), None)
        if failed is None:
            because = next((f": {record.message}" for record in tried if record.message), "")
            ends = {record.ended.by for record in tried if record.ended}
            what = (
                "the workload lost a node each time"
                if EndedBy.NODE_LOST in ends
                else "how the workload ended was not seen"
                if EndedBy.ENGINE_LOST in ends
                else "the workload was never run"
            )
            return Finish(verdict=Verdict.INCONCLUSIVE, why=f"{what}{because}")
    refused = next((x.step for x in tried if x.ended and x.ended.by is EndedBy.NOT_STARTED), None)
    for status, verdict, why in _STRENGTH:
        if status is Status.WARN and refused:
            return Finish(verdict=Verdict.INCONCLUSIVE, why=f"the command of step {refused!r} could not be started")
        record = next((record for record in trail if record.outcome is status), None)
        if record:
            return Finish(verdict=verdict, why=why.format(step=record.step))
    if any(record.outcome is Status.PASS for record in trail):
        return Finish(verdict=Verdict.PASSED, why="every check passed")
    return Finish(verdict=Verdict.INCONCLUSIVE, why="no step said anything")


def exit_status(verdict: Verdict, findings: Sequence[Finding]) -> int:
    """Return the exit status of a run: 0, 3 (an error found), 4 (warnings only), 124 (out of time), 125 (unclear)."""
    levels = {finding.level for finding in findings}
    match verdict:
        case Verdict.OUT_OF_TIME:
            return 124
        case Verdict.REPRODUCED | Verdict.HANG | Verdict.FAILED:
            return 3
        case Verdict.NOT_REPRODUCED | Verdict.PASSED | Verdict.WARNED | Verdict.INCONCLUSIVE if Level.ERROR in levels:
            return 3
        case Verdict.INCONCLUSIVE:
            return 125
        case Verdict.WARNED:
            return 4
        case Verdict.NOT_REPRODUCED | Verdict.PASSED:
            return 4 if Level.WARNING in levels else 0


def bisect_status(verdict: Verdict, *, handed_over: bool = False) -> int:
    """Return the exit status for `git bisect run`: 1 for a bad revision, 0 for a good one, 125 to skip it.

    A revision that hangs or fails otherwise is skipped, and so is one whose failure was handed over to another
    runbook: it says nothing about the bug that is looked for. An engine that fails raises an error,
    which the command line maps to 128 and more: bisecting then stops.
    """
    if handed_over:
        return 125
    match verdict:
        case Verdict.REPRODUCED:
            return 1
        case Verdict.NOT_REPRODUCED | Verdict.PASSED:
            return 0
        case Verdict.HANG | Verdict.FAILED | Verdict.WARNED | Verdict.INCONCLUSIVE | Verdict.OUT_OF_TIME:
            return 125
