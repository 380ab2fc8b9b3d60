"""What a guard returns and says at the end of its command."""

import json

import pytest

from tests.support.schemas import Contract
from vdbg_env.evidence.finding import Ended, EndedBy, Finding, HowKnown, Level, NextStep
from vdbg_env.report.model import Report
from vdbg_env.run.guard import (
    TERMINATION_MESSAGE_BYTES,
    Announcement,
    Seen,
    crashed,
    exit_status,
    guard_line,
)
from vdbg_env.runbook.model import Status
from vdbg_env.runbook.state import Verdict


@pytest.mark.parametrize(
    ("ended", "status"),
    [
        (Ended(by=EndedBy.EXIT, code=7), 7),
        (Ended(by=EndedBy.DIED, code=0), 0),
        (Ended(by=EndedBy.SIGNAL, signal=11), 139),
        (Ended(by=EndedBy.STOPPED, code=143), 143),
        (Ended(by=EndedBy.STOPPED, signal=15), 143),
        (Ended(by=EndedBy.WATCH, code=0), 124),
        (Ended(by=EndedBy.WATCH, signal=9), 137),
        (Ended(by=EndedBy.ENGINE_LOST), 137),
        (Ended(by=EndedBy.NOT_STARTED, message="x: No such file or directory"), 127),
        (Ended(by=EndedBy.NOT_STARTED, message="x: Permission denied"), 126),
        (Ended(by=EndedBy.NOT_STARTED, message="x: Exec format error"), 126),
        (Ended(by=EndedBy.NOT_STARTED, message="x: Argument list too long"), 126),
    ],
)
def test_the_status_is_the_command_s_own(ended: Ended, status: int) -> None:
    assert exit_status(ended) == status


@pytest.mark.parametrize(
    ("ended", "outcome", "is_one"),
    [
        (Ended(by=EndedBy.DIED, code=0), Status.FAIL, True),
        (Ended(by=EndedBy.WATCH, code=0), Status.HANG, True),
        (Ended(by=EndedBy.STOPPED, code=9), Status.WARN, False),
        (Ended(by=EndedBy.STOPPED, signal=15), Status.FAIL, True),  # its log shows a crash
        (Ended(by=EndedBy.NOT_STARTED), Status.ERROR, False),
        (Ended(by=EndedBy.DIED, code=0), None, True),  # told to stop before it was judged
        (Ended(by=EndedBy.STOPPED, code=143), None, False),
        (Ended(by=EndedBy.EXIT, code=0), None, False),
    ],
)
def test_what_is_a_crash(ended: Ended, outcome: Status | None, is_one: bool) -> None:
    assert crashed(ended, outcome) is is_one


def test_a_message_of_kubernetes_is_whole_json_within_its_limit() -> None:
    long = "é" * 50_000
    lead = Finding(rule="r", level=Level.ERROR, message=long, how_known=HowKnown.GPU_CORE, confidence=0.9, kernel=long)
    said = Announcement(
        report=Report(run="r", runbook="guard", verdict=Verdict.FAILED, why="it died", findings=(lead,)),
        directory="/runs/r", files=("report.md",), status=139, ended=Ended(by=EndedBy.SIGNAL, signal=11),
        seen=Seen(times=3, hosts=tuple(f"node-{n}" for n in range(99)), since="2026-11-22T01:00:00+00:00"),
    )  # fmt: skip
    line = guard_line(said, TERMINATION_MESSAGE_BYTES)
    assert len(line.encode()) < TERMINATION_MESSAGE_BYTES
    document = json.loads(line)
    assert (document["status"], document["seen"], document["report"]) == (139, 3, "/runs/r/report.md")
    assert document["history"] == "seen 3 times on 99 nodes since 2026-11-22T01:00:00+00:00"
    Contract("guard-v1").check(document)
    whole = json.loads(guard_line(said))
    assert whole["found"].startswith("éé") and whole["found"].endswith("é...")
    Contract("guard-v1").check(whole)


def test_what_the_report_says_next_is_announced_where_triage_names_no_runbook() -> None:
    ended = Ended(by=EndedBy.SIGNAL, signal=11)
    command = "vdbg-env runbook host-crash --from '/my runs/r'"
    advice = (NextStep(text="read it"), NextStep(text="again", command=command))
    report = Report(run="r", runbook="guard", verdict=Verdict.FAILED, why="it died", next_steps=advice)
    said = Announcement(report=report, directory="/my runs/r", files=(), status=139, ended=ended)
    assert said.next_step == command
