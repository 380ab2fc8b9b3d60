"""The exit status tells the verdict: to a shell, to CI, and to git bisect."""

import pytest

from vdbg_env.evidence.finding import Ended, EndedBy, Finding, HowKnown, Level
from vdbg_env.run.library import RunbookLibrary, catalogue
from vdbg_env.runbook.judge import bisect_status, conclude, exit_status
from vdbg_env.runbook.model import End, Status
from vdbg_env.runbook.state import StepRecord, Verdict


def finding(level: Level) -> Finding:
    return Finding(rule="R", level=level, message="m", how_known=HowKnown.LOG, confidence=1)


@pytest.mark.parametrize(
    ("outcomes", "expected"),
    [
        ([Status.PASS, Status.REPRODUCED, Status.NOT_REPRODUCED], Verdict.REPRODUCED),
        ([Status.HANG, Status.NOT_REPRODUCED], Verdict.HANG),
        ([Status.FAIL, Status.PASS], Verdict.FAILED),
        ([Status.PASS, Status.NOT_REPRODUCED, Status.UNRESOLVED], Verdict.NOT_REPRODUCED),
        ([Status.PASS, Status.UNRESOLVED], Verdict.INCONCLUSIVE),
        ([Status.PASS, Status.ERROR], Verdict.INCONCLUSIVE),
        ([Status.PASS, Status.WARN], Verdict.WARNED),
        ([Status.PASS, None], Verdict.PASSED),
        ([None], Verdict.INCONCLUSIVE),
        ([], Verdict.INCONCLUSIVE),
    ],
)
def test_the_strongest_outcome_decides(outcomes: list[Status | None], expected: Verdict) -> None:
    trail = [StepRecord(step=f"s{i}", outcome=outcome, next=End()) for i, outcome in enumerate(outcomes)]
    assert conclude(trail).verdict is expected


@pytest.mark.parametrize(
    ("verdict", "levels", "status", "bisect"),
    [
        (Verdict.REPRODUCED, [], 3, 1),
        (Verdict.HANG, [Level.NOTE], 3, 125),
        (Verdict.FAILED, [Level.ERROR], 3, 125),
        (Verdict.NOT_REPRODUCED, [], 0, 0),
        (Verdict.NOT_REPRODUCED, [Level.NOTE], 0, 0),
        (Verdict.NOT_REPRODUCED, [Level.WARNING], 4, 0),
        (Verdict.NOT_REPRODUCED, [Level.ERROR], 3, 0),
        (Verdict.PASSED, [], 0, 0),
        (Verdict.WARNED, [Level.WARNING], 4, 125),
        (Verdict.INCONCLUSIVE, [Level.WARNING], 125, 125),
        (Verdict.INCONCLUSIVE, [Level.ERROR], 3, 125),
        (Verdict.OUT_OF_TIME, [Level.ERROR], 124, 125),
    ],
)
def test_each_verdict_has_its_exit_statuses(verdict: Verdict, levels: list[Level], status: int, bisect: int) -> None:
    assert exit_status(verdict, [finding(level) for level in levels]) == status
    assert bisect_status(verdict) == bisect
    assert bisect_status(verdict, handed_over=True) == 125


def test_a_workload_that_could_not_be_started_gives_no_verdict_and_says_why() -> None:
    runbook = RunbookLibrary((), catalogue).load("illegal-memory-access")
    trail = [
        StepRecord(step="preflight", outcome=Status.WARN, next=End()),
        StepRecord(step="baseline", outcome=Status.ERROR, message="nosuch: No such file", next=End()),
        StepRecord(step="report", outcome=Status.PASS, next=End()),
    ]
    finish = conclude(trail, runbook)
    assert (finish.verdict, finish.why) == (
        Verdict.INCONCLUSIVE,
        "the workload was never run: nosuch: No such file",
    )


def test_a_workload_whose_supervisor_was_killed_was_run_and_its_end_not_seen() -> None:
    runbook = RunbookLibrary((), catalogue).load("illegal-memory-access")
    lost = Ended(by=EndedBy.ENGINE_LOST, message="killed")
    finish = conclude(
        [StepRecord(step="baseline", outcome=Status.ERROR, message="killed", ended=lost, next=End())], runbook
    )
    assert finish.why == "how the workload ended was not seen: killed"


def test_a_command_that_could_not_be_started_is_no_mere_warning_where_checks_could() -> None:
    runbook = RunbookLibrary((), catalogue).load("no-core-dump")
    refused = Ended(by=EndedBy.NOT_STARTED, message="MISSING: No such file")
    trail = [
        StepRecord(step="preflight", outcome=Status.WARN, next=End()),
        StepRecord(step="setup", outcome=Status.PASS, next=End()),
        StepRecord(step="armed", outcome=Status.ERROR, ended=refused, next=End()),
    ]
    finish = conclude(trail, runbook)
    assert (finish.verdict, finish.why) == (
        Verdict.INCONCLUSIVE, "the command of step 'armed' could not be started",
    )  # fmt: skip
