"""A run's record becomes a Report: nothing that was seen is lost, and what was never seen is not made up."""

import dataclasses
import json
import shlex
import subprocess
from pathlib import Path

import pytest

from gpucore.core import decode_core
from tests.builders.core_builder import illegal_address_core
from tests.support.reports import FAULT, GRAPHS, IMA
from vdbg_env.evidence.finding import Artifact, Ended, EndedBy, HowKnown, Level, NextStep, Observation
from vdbg_env.evidence.gpu_findings import gpu_core_findings
from vdbg_env.evidence.system import FIND_THE_KERNEL, not_started_findings
from vdbg_env.record.progress import Progress, StepVisit, from_document, to_document
from vdbg_env.record.run_directory import RunHead
from vdbg_env.report.assemble import assemble, next_steps, typed_outside
from vdbg_env.report.model import Report, StepStatus, delta, headline
from vdbg_env.report.pages import as_markdown, write_report
from vdbg_env.runbook.model import ArgvOverlay, Command, End, Repeat, Run, Runbook, Status, ToRunbook, ToStep, Uses
from vdbg_env.runbook.state import (
    Facts,
    Finish,
    Invocation,
    RunState,
    RunStep,
    StepRecord,
    StepResult,
    UseBuiltin,
    Verdict,
)
from vdbg_env.runbook.workload import Inputs

BASELINE = Run(id="baseline", title="Does it reproduce?", command="main", env={"B": None, "D": "${{ rank.dir }}"})
CORE = Uses(id="core", title="Read the core", uses="builtin/decode-gpu-core@v1")
UNUSED = Uses(id="locate", title="Look up the PC", uses="builtin/locate@v1")
BOOK = Runbook(
    name="ima",
    title="Illegal access",
    commands={"main": Command(name="main", argv=("prog",))},
    steps=(BASELINE, CORE, UNUSED),
)
HEAD = RunHead(run="r", runbook="ima", workload=("prog",), host="n1")


def observed(attempt: int, ended: Ended) -> Observation:
    return Observation(
        step="baseline",
        attempt=attempt,
        ended=ended,
        duration_s=2.0,
        directory=f"steps/baseline/{attempt}/localhost-0",
        matched={"ima": (IMA,)},
        artifacts={"cores": (Artifact(name="cores", path=f"a{attempt}", size=3),)},
    )


INVOCATION = Invocation(
    step="baseline", attempt=1, argv=("prog", "-x"), env={"A": "1", "B": None, "D": "${{ rank.dir }}/x"}
)
DECISION = RunStep(invocation=INVOCATION, repeat=Repeat())
STATE = RunState(runbook=BOOK, inputs=Inputs({}), facts=Facts(), decision=DECISION)
SEEN = Finish(verdict=Verdict.REPRODUCED, why="seen")


def run(record: StepRecord, *seen: Observation) -> Report:
    visit = StepVisit(step=BASELINE, decision=DECISION, observations=seen, record=record, started_s=1.0, duration_s=4.0)
    return assemble(Progress(state=STATE, visits=(visit,)), SEEN, HEAD)


CRASH, WELL = Ended(by=EndedBy.SIGNAL, signal=6), Ended(by=EndedBy.EXIT, code=0)


def test_a_step_keeps_its_command_its_delta_and_every_attempt() -> None:
    record = StepRecord(
        step="baseline", outcome=Status.REPRODUCED, next=ToStep(step="core"), ended=CRASH, attempts=2, reproduced=1
    )
    step = run(record, observed(1, WELL), observed(2, CRASH)).steps[0]
    assert (step.argv, step.next) == (("prog", "-x"), "core")
    assert step.env == {"A": "1", "B": None, "D": "steps/baseline/2/localhost-0/x"}
    assert step.env_change == {"B": None, "D": "steps/baseline/2/localhost-0/x"}
    assert [attempt.reproduced for attempt in step.attempts] == [False, True]
    assert [artifact.path for artifact in step.artifacts] == ["a1", "a2"]
    assert step.evidence == (IMA, IMA)
    assert step.status is StepStatus.FINISHED


def test_steps_that_no_outcome_led_to_are_told_as_such() -> None:
    report = run(StepRecord(step="baseline", outcome=Status.PASS, next=End()))
    assert [(s.id, s.status) for s in report.steps[1:]] == [
        ("core", StepStatus.NOT_REACHED),
        ("locate", StepStatus.NOT_REACHED),
    ]


def test_a_step_that_was_cut_short_keeps_its_attempts_and_has_no_outcome() -> None:
    step = assemble(Progress(state=STATE, observations=(observed(1, CRASH),)), SEEN, HEAD).steps[0]
    assert (step.id, step.status, step.outcome, step.next) == ("baseline", StepStatus.INTERRUPTED, None, None)
    assert [attempt.reproduced for attempt in step.attempts] == [None]
    assert step.argv == ("prog", "-x")


def test_an_attempt_that_was_cancelled_is_in_the_report_and_its_step_was_interrupted() -> None:
    ranks = tuple(
        dataclasses.replace(observed(1, ended), rank=rank)
        for rank, ended in enumerate((Ended(by=EndedBy.CANCEL), CRASH, Ended(by=EndedBy.CANCEL)))
    )
    step = assemble(Progress(state=STATE, cancelled=ranks), SEEN, HEAD).steps[0]
    assert step.status is StepStatus.INTERRUPTED
    assert [one.part for one in step.attempts] == ["cancelled", "first failure", "cancelled"]
    assert len(step.artifacts) == 3
    assert "rank 1 on localhost failed first, of 3 that did not end well among 3" in step.notes


def test_a_step_that_was_judged_before_the_time_was_up_is_not_shown_again() -> None:
    out_of_time = Finish(verdict=Verdict.OUT_OF_TIME, why="time is up")
    visit = StepVisit(
        step=BASELINE,
        decision=DECISION,
        observations=(observed(1, CRASH),),
        record=StepRecord(step="baseline", outcome=Status.REPRODUCED, next=End()),
    )
    judged = Progress(state=STATE, visits=(visit,), used={"baseline": 1}, finish=out_of_time)
    assert [s.id for s in assemble(judged, out_of_time, HEAD).steps] == ["baseline", "core", "locate"]


def test_out_of_time_is_the_headline_and_what_to_do_next_is_to_continue() -> None:
    no_gpu = dataclasses.replace(
        GRAPHS, rule="gpu-none", how_known=HowKnown.HOST_CHECK, next_step=NextStep.read("vdbg-env doctor")
    )
    record = StepRecord(step="baseline", outcome=Status.WARN, next=ToStep(step="core"), findings=(no_gpu,))
    visit = StepVisit(step=BASELINE, decision=DECISION, record=record)
    finish = Finish(verdict=Verdict.OUT_OF_TIME, why="the 30 s allowed for the whole run are spent")
    report = assemble(Progress(state=STATE, visits=(visit,)), finish, HEAD, folder="/runs/r", resumable=True)
    assert headline(report) == "the 30 s allowed for the whole run are spent"
    assert report.next_steps[0].command == "vdbg-env runbook ima --resume /runs/r"


def test_a_skipped_step_gives_its_reason_and_a_branch_names_the_runbook() -> None:
    record = StepRecord(step="baseline", outcome=None, next=ToRunbook(runbook="hang"), skipped_because="no GPU")
    step = run(record).steps[0]
    assert (step.status, step.message, step.next) == (StepStatus.SKIPPED, "no GPU", "runbook:hang")


def test_a_step_that_could_not_do_its_work_failed() -> None:
    assert run(StepRecord(step="baseline", outcome=Status.ERROR, next=End())).steps[0].status is StepStatus.FAILED


def test_a_builtin_says_which_it_was() -> None:
    decision = UseBuiltin(step="core", name="decode-gpu-core", version=1)
    record = StepRecord(step="core", outcome=Status.PASS, next=End(), findings=(GRAPHS, FAULT))
    visit = StepVisit(step=CORE, decision=decision, record=record)
    report = assemble(Progress(state=STATE, visits=(visit,)), Finish(verdict=Verdict.PASSED, why=""), HEAD)
    assert report.steps[0].builtin == "builtin/decode-gpu-core@v1"
    assert report.findings == (FAULT, GRAPHS)


def test_a_next_step_is_split_into_words_and_command() -> None:
    texts = ["read all warps: vdbg-env core x", "vdbg-env core y", "ask the maintainers"]
    findings = [dataclasses.replace(FAULT, next_step=NextStep.read(text)) for text in texts]
    steps = [(step.text, step.command) for step in next_steps(findings)]
    assert steps == [
        ("read all warps", "vdbg-env core x"),
        (FAULT.message, "vdbg-env core y"),
        ("ask the maintainers", None),
    ]


def test_errors_come_before_warnings_and_a_named_core_before_any_core() -> None:
    sure = dataclasses.replace(GRAPHS, confidence=1.0, next_step=NextStep.read("vdbg-env doctor"))
    vague = dataclasses.replace(FAULT, confidence=0.5, next_step=NextStep.read("read the dump: vdbg-env core FILE"))
    steps = [step.command for step in next_steps((sure, FAULT, vague))]
    assert steps == [str(FAULT.next_step), "vdbg-env doctor"]
    assert [step.command for step in next_steps((vague,))] == ["vdbg-env core FILE"]


def test_a_failure_that_did_not_show_is_looked_for_before_warnings_of_the_machine_are_mended() -> None:
    """A server that answered every synthetic request was followed by `vdbg-env doctor` alone."""
    warning = dataclasses.replace(GRAPHS, level=Level.WARNING, next_step=NextStep.read("vdbg-env doctor"))
    record = StepRecord(step="baseline", outcome=Status.NOT_REPRODUCED, next=End(), findings=(warning,))
    visit = StepVisit(step=BASELINE, decision=DECISION, observations=(observed(1, WELL),), record=record)
    report = assemble(Progress(state=STATE, visits=(visit,)), Finish(verdict=Verdict.NOT_REPRODUCED, why="not"), HEAD)
    assert [step.command for step in report.next_steps] == [None, "vdbg-env doctor"]
    assert "the same requests (-i request=FILE)" in report.next_steps[0].text


def test_a_command_is_told_once_by_the_finding_that_leads() -> None:
    texts = ["see every thread of it: vdbg-env core x", "read the dump: vdbg-env core x", "ask", "mend"]
    findings = [dataclasses.replace(FAULT, next_step=NextStep.read(text)) for text in texts]
    assert [step.text for step in next_steps(findings)] == ["see every thread of it", "ask", "mend"]


def test_a_failed_assertion_in_a_core_has_the_words_that_the_program_printed() -> None:
    said = "/pytorch/IndexKernel.cu:111: operator(): block: [0,0,0], thread: [0,0,0] Assertion `i < n` failed"
    core = dataclasses.replace(FAULT, message="Warp Assert at rope+0x10", why=(), chain=(), location=None)
    log = dataclasses.replace(GRAPHS, kernel=None, message=f"an assertion in a kernel failed: {said}.", confidence=0.5)
    shown = run(StepRecord(step="baseline", outcome=Status.FAIL, next=End(), findings=(core, log)), observed(1, CRASH))
    assert shown.lead and shown.lead.why == (f"the program printed: {said}",)
    other = dataclasses.replace(core, message="Warp Illegal Address at rope+0x10")
    shown = run(StepRecord(step="baseline", outcome=Status.FAIL, next=End(), findings=(other, log)), observed(1, CRASH))
    assert shown.lead and shown.lead.why == ()


def test_a_kernel_that_is_found_is_not_to_be_found() -> None:
    xid = dataclasses.replace(GRAPHS, kernel=None, next_step=NextStep(FIND_THE_KERNEL))
    assert [step.text for step in next_steps((xid,))] == [FIND_THE_KERNEL]
    assert FIND_THE_KERNEL not in [step.text for step in next_steps((FAULT, xid))]


def test_a_command_on_a_terminal_names_its_core_from_where_the_reader_stands() -> None:
    finding = dataclasses.replace(FAULT, next_step=NextStep.read("read it: vdbg-env core a1"))
    record = StepRecord(step="baseline", outcome=Status.REPRODUCED, next=End(), findings=(finding,))
    report = run(record, observed(1, CRASH))
    assert [step.command for step in report.next_steps] == ["vdbg-env core a1"]
    outside = typed_outside(report, "/runs of mine/r")
    shown = outside.next_steps[0].command
    assert shown and shlex.split(shown) == ["vdbg-env", "core", "/runs of mine/r/a1"]
    assert [str(finding.next_step) for finding in outside.findings] == [f"read it: {shown}"]


@pytest.mark.parametrize(
    "name",
    ["core.h;touch PWNED;.1", "1: vdbg-env core y; touch PWNED #.1", "core of.n1.1", "core\n'$(touch PWNED).1"],
)
def test_a_core_with_any_name_is_one_word_of_its_command(name: str, tmp_path: Path) -> None:
    path = f"steps/baseline/1/localhost-0/{name}"
    read = decode_core(illegal_address_core())
    finding = gpu_core_findings(read.faults, read.warp_groups, path)[0]
    finding = dataclasses.replace(finding, next_step=NextStep.read(str(finding.next_step)))  # as a record keeps it
    cores = {"cores": (Artifact(name="cores", path=path, size=3),)}
    seen = dataclasses.replace(observed(1, CRASH), artifacts=cores)
    report = run(StepRecord(step="baseline", outcome=Status.REPRODUCED, next=End(), findings=(finding,)), seen)
    outside = typed_outside(report, "/runs of mine/r")
    for shown, file in ((report, path), (outside, f"/runs of mine/r/{path}")):
        command = shown.next_steps[0].command
        assert command and command.startswith("vdbg-env core ")
        words = f"vdbg-env() {{ printf '%s\\0' \"$@\"; }}; {command}"
        typed = subprocess.run(["bash", "-c", words], cwd=tmp_path, capture_output=True, text=True, check=True)
        assert typed.stdout == f"core\0{file}\0"
    assert list(tmp_path.iterdir()) == []
    for file in write_report(report, tmp_path, ("markdown", "html")):
        assert "In the folder of this report" in (tmp_path / file).read_text()
    assert "In the folder of this report" not in as_markdown(outside)


def test_a_record_that_has_the_name_of_a_core_unquoted_is_read() -> None:
    path = "steps/baseline/1/localhost-0/core;touch PWNED"
    finding = dataclasses.replace(FAULT, next_step=NextStep.read(f"read it: vdbg-env core {path}"))
    seen = dataclasses.replace(observed(1, CRASH), artifacts={"cores": (Artifact(name="cores", path=path, size=3),)})
    report = run(StepRecord(step="baseline", outcome=Status.REPRODUCED, next=End(), findings=(finding,)), seen)
    shown = typed_outside(report, "/r").next_steps[0].command
    assert shown == f"vdbg-env core '/r/{path}'"


def test_a_file_of_the_record_is_named_by_its_whole_path_on_a_terminal() -> None:
    finding = dataclasses.replace(
        FAULT, next_step=NextStep.read("read the end of it: tail -n 50 steps/baseline/1/localhost-0/std*")
    )
    report = run(StepRecord(step="baseline", outcome=Status.FAIL, next=End(), findings=(finding,)), observed(1, CRASH))
    assert [step.text for step in report.next_steps] == ["read the end of it"]
    shown = typed_outside(report, "/runs of mine/r").next_steps[0].command
    assert shown == "tail -n 50 '/runs of mine/r'/steps/baseline/1/localhost-0/std*"  # the shell expands the pattern


def test_the_command_of_several_ranks_is_that_of_the_one_that_failed_first() -> None:
    """It was the last rank's: who typed it again looked at a rank that was well."""
    well = Ended(by=EndedBy.EXIT, code=0)
    ranks = tuple(
        dataclasses.replace(observed(1, ended), rank=rank, directory=f"r/{rank}")
        for rank, ended in enumerate((well, CRASH, well))
    )
    record = StepRecord(step="baseline", outcome=Status.REPRODUCED, next=End())
    visit = StepVisit(step=BASELINE, decision=DECISION, observations=ranks, record=record)
    step = assemble(Progress(state=STATE, visits=(visit,)), SEEN, HEAD).steps[0]
    assert step.env["D"] == "r/1/x"


def test_a_command_of_another_runbook_names_this_run_in_place_of_its_command() -> None:
    finding = dataclasses.replace(
        FAULT, next_step=NextStep.read("why there is none: vdbg-env runbook no-core-dump -- COMMAND")
    )
    record = StepRecord(step="baseline", outcome=Status.REPRODUCED, next=End(), findings=(finding,))
    visit = StepVisit(step=BASELINE, decision=DECISION, observations=(observed(1, CRASH),), record=record)
    report = assemble(Progress(state=STATE, visits=(visit,)), SEEN, HEAD, folder="/runs of mine/r")
    shown = report.next_steps[0].command
    assert shown and shlex.split(shown) == ["vdbg-env", "runbook", "no-core-dump", "--from", "/runs of mine/r"]
    assert typed_outside(report, "/runs of mine/r") == report


def test_a_command_that_could_not_be_started_goes_before_warnings_of_the_machine() -> None:
    refused = Ended(by=EndedBy.NOT_STARTED, message="./serve: Permission denied")
    warning = dataclasses.replace(
        GRAPHS,
        rule="gpu-none",
        how_known=HowKnown.HOST_CHECK,
        confidence=1.0,
        next_step=NextStep.read("vdbg-env doctor"),
    )
    findings = (warning, *not_started_findings([observed(1, refused)]))
    record = StepRecord(step="baseline", outcome=Status.ERROR, next=End(), findings=findings)
    report = run(record, observed(1, refused))
    assert [finding.rule for finding in report.findings] == ["not-started", "gpu-none"]
    assert "chmod +x" in report.next_steps[0].text
    elsewhere = not_started_findings([observed(1, Ended(by=EndedBy.NOT_STARTED, message="./serve: No such file"))])
    assert "--mount" in str(elsewhere[0].next_step)


def test_what_wraps_a_command_is_shown_as_it_was_filled_in() -> None:
    step = Run(id="native", title="t", command="main", argv=ArgvOverlay(wrap=("sh", "${{ host.data_dir }}/x")))
    made = RunStep(invocation=Invocation(step="native", attempt=1, argv=("sh", "/data/x", "prog")), repeat=Repeat())
    record = StepRecord(step="native", outcome=Status.PASS, next=End())
    visit = StepVisit(step=step, decision=made, observations=(), record=record, started_s=1.0, duration_s=4.0)
    (shown,) = assemble(Progress(state=STATE, visits=(visit,)), SEEN, HEAD).steps[:1]
    assert tuple(shown.argv_change.wrap) == ("sh", "/data/x")
    assert delta(shown) == ("sh /data/x …",)


@pytest.mark.parametrize(
    ("written", "text", "command"),
    [
        ("read the dump: vdbg-env core FILE", "read the dump", "vdbg-env core FILE"),
        ("vdbg-env core y", "", "vdbg-env core y"),
        ("name the server: -i url=http://HOST:PORT", "name the server: -i url=http://HOST:PORT", None),
        ("VLLM_X=1 as a stopgap", "VLLM_X=1 as a stopgap", None),
        ("see: the end: tail -n 50 a: b", "see: the end: tail -n 50 a: b", None),
    ],
)
def test_a_next_step_is_recorded_as_the_text_that_it_always_was(written: str, text: str, command: str | None) -> None:
    step = NextStep.read(written)
    assert (step.text, step.command, str(step)) == (text, command, written)
    finding = dataclasses.replace(FAULT, next_step=step)
    result = StepResult(step="s", findings=(finding,))
    document = to_document(result)
    assert document["findings"][0]["next_step"] == written
    assert from_document(StepResult, json.loads(json.dumps(document))) == result
