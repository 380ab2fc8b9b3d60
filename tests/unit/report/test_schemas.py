"""The published schemas of runs and runbooks: every document keeps to its schema, and every field is met.

Those of other rooms are in `tests/unit/{build,crash,lines}/test_schemas.py`; the last test here holds them together.
"""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from gpucore.dwarf import OtherHeaders
from tests.support import reports
from tests.support.schemas import FOLDER, Contract
from tests.support.shipped import shipped
from vdbg_env.common.errors import BadInput
from vdbg_env.common.yaml_source import Complaint
from vdbg_env.evidence.finding import Death, Ended, EndedBy, Finding, Match, RootCause
from vdbg_env.record.diff import Difference
from vdbg_env.record.export_run import Export
from vdbg_env.record.run_directory import RunDirectory, RunHead
from vdbg_env.record.runs import RunFolder
from vdbg_env.report.model import Attempt, Report, report_json
from vdbg_env.report.runbooks import lint_json, list_json, plan_json, show_json
from vdbg_env.run import again, capture, crash_groups, doctor, guard, history
from vdbg_env.runbook import machine
from vdbg_env.runbook.judge import Fingerprint
from vdbg_env.runbook.machine import final_inputs
from vdbg_env.runbook.model import ArgvOverlay
from vdbg_env.runbook.state import Facts, Verdict

SERVE = ("vllm", "serve", "M", "-cc", '{"cudagraph_mode": "FULL"}')
CAUSE = Fingerprint(id="v2-a-b", base="v2-a", kind="gpu", exception="Warp Illegal Address", kernel="k", frames=("k:3",))
OTHER = OtherHeaders(project="CUTLASS", used="4.2.1", wanted="4.4.0")
HEAD = RunHead(
    run="r", runbook="tiny", runbook_file="tiny.yaml", digest="d", started="2026-11-21T03:15:02Z", workload=("./a",),
    inputs={"deep": True}, facts={"gpus": None}, environment={"driver": "580"}, tool_version="1", host="h",
    recorded_on="a desk", synthetic=True, image={"name": "debug:1"}, container={"gpus": "all"},
    placement={"on": "local"}, pseudonyms=True, folder="/home/me", disk_floor=7,
)  # fmt: skip
FAULT: Finding = replace(
    reports.FAULT,
    location=replace(reports.LEAF, headers=OTHER),
    process="Worker_TP1",
    rank=1,
    address={"width": 4},
    owner={"where": "inside"},
    around={"x": 1},
    waits={"polled": []},
)


def rare_report() -> Report:
    """Return the full report with all that a run may have besides."""
    attempt = Attempt(
        step="ranks", attempt=1, rank=1, host="n2", ended=Ended(by=EndedBy.EXIT, code=1, message="why"),
        duration_s=1.0, held_by="cgroup v2", part="first failure", node={"driver": "580"}, notes=("a note",),
        root_cause=RootCause(rank=1, local_rank=0, host="n2", pid=7, code=-6, signal="SIGABRT", error="error.json"),
        deaths=(
            Death(pid=7, name="w", parent=1, code=1, at_s=0.5), Death(pid=8, name="w", parent=1, signal=6, at_s=0.6),
        ),
        workers=reports.HANG.steps[0].attempts[0].workers,
    )  # fmt: skip
    match = Match(matcher="m", stream="stdout", line=1, offset=0, text="x=1", groups={"x": "1"})
    step = replace(
        reports.STEPS[1], id="ranks", attempts=(attempt,), evidence=(match,), notes=("one",), plugged=True,
        engine_args=("--enforce-eager",), argv_change=ArgvOverlay(append=("a",), remove=("b",), wrap=("nsys",)),
        env_change={"X": "1"},
    )  # fmt: skip
    return replace(
        reports.FULL, steps=(*reports.STEPS, step), findings=(FAULT,), fingerprint=CAUSE, notes=("a note",), origin="n1"
    )


@pytest.mark.parametrize("report", [reports.FULL, reports.HANG, reports.BARE], ids=["full", "hang", "bare"])
def test_a_report(report: Report) -> None:
    Contract("run-v1").check(json.loads(report_json(report)))


def test_every_field_of_a_report() -> None:
    contract = Contract("run-v1")
    for report in (reports.FULL, reports.HANG, rare_report()):
        contract.check(json.loads(report_json(report)))
    assert contract.never_met() == set()


def test_the_head_of_a_run(tmp_path: Path) -> None:
    contract = Contract("run-head-v1")
    directory = RunDirectory(tmp_path / "r")
    directory.create()
    directory.write_head(HEAD)
    contract.check(json.loads((directory.path / "run.json").read_text()))
    assert contract.never_met() == set()


def test_runbooks() -> None:
    for name, document in (
        ("list", list_json([("shipped", Path("a.yaml"), shipped("illegal-memory-access"))])),
        ("lint", lint_json([Complaint(file="a.yaml", line=1, column=2, what="w", suggestion="s")], 1)),
        ("show", show_json(shipped("illegal-memory-access"))),
    ):
        contract = Contract(f"runbooks-{name}-v1")
        contract.check(json.loads(json.dumps(document)))
        assert contract.never_met() == set(), name


def test_plans() -> None:
    contract = Contract("runbook-plan-v1")
    for name in ("illegal-memory-access", "core-dump-too-large", "kernel-hang"):
        book = shipped(name)
        facts = Facts(on="plan", data_dir="/runbooks")
        plan = machine.plan(book, final_inputs(book, {}, SERVE, {}), facts)
        for one in (plan, replace(plan, image="debug:1", ranks=2, nodes=1)):
            contract.check(json.loads(json.dumps(plan_json(one))))
    assert contract.never_met() == set()


def test_lists_of_runs_and_crashes(tmp_path: Path) -> None:
    contract = Contract("runs-v1")
    step = history.RecordedStep(
        id="s", outcome="fail", message="m", choice="go on", attempts=1, ended={"by": "exit"}, duration_s=1, error="e"
    )
    run = history.RecordedRun(
        directory=tmp_path, head=HEAD, condition="finished", verdict="failed", why="w", found="f", elapsed_s=1.0,
        steps=(step,),
    )  # fmt: skip
    contract.check(json.loads(history.runs_json([run], [BadInput("damaged")])))
    crash = crash_groups.RecordedCrash(
        run="r", condition="finished", host="h", started="t", cause="c", base="b", exception="e", kernel="k", place="p",
        found="f", ranks=(1,), culprit="kv_cache[3]",
    )  # fmt: skip
    contract.check(json.loads(crash_groups.as_json([crash_groups.CrashGroup(crashes=(crash,))], [])))
    assert contract.never_met() == set()


def test_what_is_done_with_runs(tmp_path: Path) -> None:
    folder = RunFolder(path="r", size=7, modified=1.0, runbook="tiny")
    retired = history.PrunedRuns(
        place="/r", removed=True, runs=(history.RetiredRun(run=folder, why="old"),), running=("a",), unreadable=("b",)
    )
    export = Export(path="r.tar.gz", size=7, files=(("a", 1),), notes=("n",))
    for name, text in (
        ("runs-diff-v1", history.diff_json([Difference(kind="outcome", where="s", before="a", after="b")])),
        ("runs-prune-v1", history.prune_json(retired)),
        ("runs-export-v1", again.as_json(export)),
        ("capture-v1", capture.as_json(capture.CaptureReport(file=tmp_path, problem="disk full"))),
    ):
        contract = Contract(name)
        contract.check(json.loads(text))
        assert contract.never_met() == set(), name


def test_doctor() -> None:
    contract = Contract("doctor-v1")
    report = doctor.judge(doctor.HostFacts(python=(3, 11, 0)))
    contract.check(json.loads(doctor.as_json(report)))
    assert any(check.fix for check in report.checks)
    assert contract.never_met() == set()


def test_what_guard_announces() -> None:
    contract = Contract("guard-v1")
    report = Report(
        run="r", runbook="guard", verdict=Verdict.FAILED, findings=(FAULT,), fingerprint=CAUSE,
        next_steps=reports.FULL.next_steps,
    )  # fmt: skip
    for ended in (Ended(by=EndedBy.SIGNAL, signal=11), Ended(by=EndedBy.EXIT, code=1)):
        said = guard.Announcement(
            report=report, directory="/r", files=("report.md",), status=139, ended=ended,
            seen=guard.Seen(times=2, hosts=("n1",), since="2026-11-22T01:00:00+00:00"),
        )  # fmt: skip
        contract.check(json.loads(guard.guard_line(said)))
    assert contract.never_met() == set()


def test_a_schema_that_no_test_holds_is_noticed() -> None:
    tests = "".join(path.read_text() for path in Path(__file__).parents[2].rglob("test_*.py"))
    names = [path.name.removesuffix(".schema.json") for path in FOLDER.glob("*.schema.json")]
    assert [name for name in names if name not in tests and not name.startswith("runbooks-")] == []
