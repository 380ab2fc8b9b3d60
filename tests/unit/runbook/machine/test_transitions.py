"""The engine goes from step to step by what was seen, and by nothing else."""

from dataclasses import replace

import pytest

from tests.support.runbooks import changed, crashed, hung, observation, ran, result
from vdbg_env.common.errors import BadInput
from vdbg_env.evidence.finding import Ended, EndedBy, Level, Match, MemoryKills, Observation, WorkerEnvironment
from vdbg_env.run.library import catalogue
from vdbg_env.runbook import machine
from vdbg_env.runbook.model import (
    ArgvOverlay,
    Builtin,
    Command,
    End,
    Input,
    Manual,
    Matcher,
    Outcome,
    Question,
    Repeat,
    Run,
    Runbook,
    Skipped,
    Status,
    StepRequires,
    ToRunbook,
    ToStep,
)
from vdbg_env.runbook.state import AskPerson, BranchTo, Decision, Facts, Finish, RunState, RunStep, StepResult, Verdict

BLOCKING = Run(
    id="blocking",
    title="Blocking launches",
    command="workload",
    env={"CUDA_LAUNCH_BLOCKING": "1"},
    argv=ArgvOverlay(append=("--one",)),
    outcomes=(
        Outcome(
            status=Status.REPRODUCED,
            when="has(matched.ima)",
            rule="VDBG010",
            level=Level.ERROR,
            message="seen: ${{ matched.ima.text }}",
            location="${{ matched.ima.groups.file }}:12",
            next=End(),
        ),
        Outcome(status=Status.UNRESOLVED, next=End()),
    ),
)
RUNBOOK = Runbook(
    name="small",
    title="Small",
    inputs={"argv": Input(name="argv", type="array", required=True), "deep": Input(name="deep", type="bool")},
    matchers={"ima": Matcher(name="ima", pattern="illegal"), "oom": Matcher(name="oom", pattern="out of memory")},
    commands={"workload": Command(name="workload", argv="${{ inputs.argv }}")},
    steps=(
        Run(
            id="baseline",
            title="Baseline",
            command="workload",
            repeat=Repeat(count=3, until="has(matched.ima)"),
            outcomes=(
                Outcome(status=Status.REPRODUCED, when="has(matched.ima)", next=ToStep(step="blocking")),
                Outcome(status=Status.FAIL, when="has(matched.oom)", next=ToRunbook(runbook="out-of-memory")),
                Outcome(status=Status.HANG, when="ended.by == 'watch'", next=End()),
                Outcome(status=Status.NOT_REPRODUCED, when="ended.clean", next=ToStep(step="ask")),
                Outcome(status=Status.UNRESOLVED, next=End()),
            ),
        ),
        BLOCKING,
        Manual(
            id="ask",
            title="Ask",
            question=Question(
                prompt="${{ steps.baseline.outcome }}: again?",
                choices={"again": ToStep(step="baseline"), "stop": End()},
                default="stop",
                timeout_s=60,
            ),
        ),
    ),
)
INPUTS = {"argv": ["./a.out", "x"], "deep": False}


def begin(runbook: Runbook = RUNBOOK, facts: Facts | None = None) -> tuple[RunState, Decision]:
    return machine.start(runbook, INPUTS, facts or Facts())  # type: ignore[arg-type]


def test_the_first_decision_starts_the_first_step() -> None:
    _, decision = begin()
    assert isinstance(decision, RunStep)
    assert decision.invocation.argv == ("./a.out", "x")
    assert [matcher.name for matcher in decision.invocation.matchers] == ["ima", "oom"]


def test_a_crash_leads_on_with_the_steps_delta() -> None:
    state, _ = begin()
    state, decision = machine.advance(state, result("baseline", crashed("baseline", "ima")))
    assert isinstance(decision, RunStep)
    assert decision.invocation.argv == ("./a.out", "x", "--one")
    assert decision.invocation.env == {"CUDA_LAUNCH_BLOCKING": "1"}
    state, decision = machine.advance(state, result("blocking", crashed("blocking", "ima")))
    assert decision == Finish(verdict=Verdict.REPRODUCED, why="the failure was reproduced in step 'baseline'")
    (finding,) = state.findings
    assert (finding.rule, finding.message, str(finding.location)) == ("VDBG010", "seen: text of ima", "a.py:12")


@pytest.mark.parametrize(
    ("seen", "expected"),
    [
        (hung("baseline"), Verdict.HANG),
        (Observation(step="baseline", attempt=1, ended=Ended(by=EndedBy.EXIT, code=7), duration_s=1), "unresolved"),
    ],
    ids=["hang", "other status"],
)
def test_how_it_ended_does_not_say_whether_the_bug_showed(seen: Observation, expected: str) -> None:
    state, _ = begin()
    state, decision = machine.advance(state, result("baseline", seen))
    assert isinstance(decision, Finish)
    record = state.trail[0]
    assert record.ended == seen.ended
    assert expected in {decision.verdict, record.outcome}


def test_another_failure_branches_to_its_runbook() -> None:
    state, _ = begin()
    _, decision = machine.advance(state, result("baseline", crashed("baseline", "oom")))
    assert decision == BranchTo(runbook="out-of-memory", step="baseline", came_from=("small",))


@pytest.mark.parametrize(
    ("seen", "expected"),
    [
        ({"runbook": "kernel-hang"}, BranchTo(runbook="kernel-hang", step="baseline", came_from=("small",))),
        ({}, Finish(verdict=Verdict.FAILED, why="step 'baseline' failed")),
    ],
    ids=["named", "not named"],
)
def test_an_outcome_may_name_the_runbook_by_what_was_seen(seen: dict[str, str], expected: Decision) -> None:
    baseline = RUNBOOK.steps[0]
    assert isinstance(baseline, Run)
    elsewhere = Outcome(status=Status.FAIL, next=ToRunbook(runbook="${{ results.runbook }}"))
    step = changed(baseline, readers=(Builtin(uses="builtin/triage@v1"),), outcomes=(elsewhere,))
    state, _ = begin(changed(RUNBOOK, steps=(step, *RUNBOOK.steps[1:]), catalogue=catalogue()))
    _, decision = machine.advance(state, result("baseline", crashed("baseline"), **seen))
    assert decision == expected


def test_an_outcome_that_leads_back_to_a_walked_runbook_is_passed_over() -> None:
    state, _ = machine.start(RUNBOOK, INPUTS, Facts(), came_from=("out-of-memory",))  # type: ignore[arg-type]
    state, _ = machine.advance(state, result("baseline", crashed("baseline", "oom")))
    assert state.trail[0].outcome is Status.UNRESOLVED
    assert state.trail[0].notes == ("runbook 'out-of-memory' was walked already",)


def test_a_runbook_that_was_walked_is_not_walked_again() -> None:
    baseline = RUNBOOK.steps[0]
    assert isinstance(baseline, Run)
    back = changed(baseline, outcomes=(Outcome(status=Status.FAIL, next=ToRunbook(runbook="out-of-memory")),))
    small = changed(RUNBOOK, steps=(back, *RUNBOOK.steps[1:]))
    state, _ = machine.start(small, INPUTS, Facts(), came_from=("out-of-memory",))  # type: ignore[arg-type]
    _, decision = machine.advance(state, result("baseline", crashed("baseline", "oom")))
    assert isinstance(decision, Finish)
    assert decision.why == "runbook 'out-of-memory' was already walked"


def test_a_question_may_lead_back_and_its_default_ends() -> None:
    state, _ = begin()
    state, decision = machine.advance(state, result("baseline", ran("baseline")))
    assert isinstance(decision, AskPerson)
    assert decision.prompt == "not_reproduced: again?"
    again, decision = machine.advance(state, StepResult(step="ask", choice="again"))
    assert isinstance(decision, RunStep)
    _, decision = machine.advance(state, StepResult(step="ask"))
    assert decision == Finish(verdict=Verdict.NOT_REPRODUCED, why="the failure did not show")
    assert again.trail[-1].choice == "again"


def test_a_step_is_repeated_until_the_bug_shows_and_no_more() -> None:
    state, _ = begin()
    tries = [ran("baseline", attempt=1)]
    assert machine.again(state, tries)
    tries.append(crashed("baseline", "ima", attempt=2))
    assert not machine.again(state, tries)
    state, _ = machine.advance(state, result("baseline", *tries))
    assert (state.trail[0].attempts, state.trail[0].reproduced) == (2, 1)


def test_the_count_bounds_the_repeats() -> None:
    state, _ = begin()
    assert not machine.again(state, [ran("baseline", attempt=i) for i in (1, 2, 3)])


def test_an_attempt_that_the_kernel_ended_for_lack_of_memory_is_a_finding_of_its_step() -> None:
    state, _ = begin()
    seen = replace(crashed("baseline"), memory_kills=MemoryKills(cgroup=1))
    state, _ = machine.advance(state, result("baseline", seen))
    assert [(f.rule, f.step) for f in state.findings] == [("memory-kill", "baseline")]


def test_what_cannot_be_started_at_all_is_not_tried_again() -> None:
    state, _ = begin()
    refused = observation("baseline", ended=Ended(by=EndedBy.NOT_STARTED, message="nope: No such file or directory"))
    assert not machine.again(state, [refused])


def test_a_command_that_could_not_be_started_is_not_tried_with_another_setting_either() -> None:
    refused = Ended(by=EndedBy.NOT_STARTED, message="nope: No such file or directory")
    first, second = changed(BLOCKING, id="first"), changed(BLOCKING, id="second")
    leads_on = tuple(changed(outcome, next=ToStep(step="second")) for outcome in BLOCKING.outcomes)
    state, _ = begin(changed(RUNBOOK, steps=(changed(first, outcomes=leads_on), second)))
    state, decision = machine.advance(state, result("first", observation("first", ended=refused)))
    assert isinstance(decision, Finish)
    assert decision.why == "the workload was never run: nope: No such file or directory"
    assert [record.skipped_because for record in state.trail] == [
        None,
        "its program could not be started in step 'first' either",
    ]
    assert [(f.rule, f.message, str(f.next_step)) for f in state.findings] == [
        (
            "not-started",
            "the command could not be started: nope: No such file or directory",
            "check the path or activate its environment; `runbook --image` runs it where only an image has it, and a "
            "container sees its image and what --mount names",
        )
    ]


def test_a_tool_that_could_not_be_started_says_nothing_of_the_command_inside_it() -> None:
    refused = Ended(by=EndedBy.NOT_STARTED, message="tool: No such file or directory")
    leads_on = tuple(changed(outcome, next=ToStep(step="second")) for outcome in BLOCKING.outcomes)
    wrapped = changed(BLOCKING, id="first", argv=ArgvOverlay(wrap=("tool",)), outcomes=leads_on)
    state, _ = begin(changed(RUNBOOK, steps=(wrapped, changed(BLOCKING, id="second"))))
    state, decision = machine.advance(state, result("first", observation("first", ended=refused)))
    assert isinstance(decision, RunStep)
    assert decision.invocation.step == "second"


def test_a_missing_tool_skips_a_step_and_says_so() -> None:
    sanitizer = changed(
        BLOCKING, requires=StepRequires(tools=("compute-sanitizer",)), skipped=Skipped(next=ToStep(step="ask"))
    )
    runbook = changed(RUNBOOK, steps=(sanitizer, *RUNBOOK.steps[2:]))
    state, decision = begin(changed(runbook, steps=(sanitizer, _ask())), Facts(tools=frozenset({"gdb"})))
    assert isinstance(decision, AskPerson)
    assert state.trail[0].skipped_because == "compute-sanitizer was not found"


def _ask() -> Manual:
    question = Question(prompt="?", choices={"stop": End()}, default="stop", timeout_s=1)
    return Manual(id="ask", title="Ask", question=question)


def test_a_condition_that_does_not_hold_skips_a_step() -> None:
    runbook = changed(RUNBOOK, steps=(changed(BLOCKING, condition="inputs.deep"),))
    state, decision = begin(runbook)
    assert isinstance(decision, Finish)
    assert state.trail[0].skipped_because == "only with -i deep=true"


def test_a_delta_that_did_not_reach_the_worker_has_tried_nothing() -> None:
    state, _ = begin(changed(RUNBOOK, steps=(BLOCKING,)))
    worker = WorkerEnvironment(pid=4, name="VLLM::Worker_TP0", seen={"CUDA_LAUNCH_BLOCKING": None})
    seen = replace(crashed("blocking", "ima"), workers=(worker,))
    state, decision = machine.advance(state, result("blocking", seen))
    assert state.trail[0].outcome is Status.ERROR
    assert state.trail[0].message == "VLLM::Worker_TP0 had CUDA_LAUNCH_BLOCKING=(unset), the step asked for 1"
    assert state.findings == ()
    assert isinstance(decision, Finish)
    assert decision.verdict is Verdict.INCONCLUSIVE


FIRST = WorkerEnvironment(pid=3, name="python3", seen={"CUDA_LAUNCH_BLOCKING": "1"})
HELPER = WorkerEnvironment(pid=4, name="python3", seen={"CUDA_LAUNCH_BLOCKING": None})


@pytest.mark.parametrize(
    ("workers", "failed", "tried"),
    [
        ((FIRST, HELPER), None, True),
        ((FIRST, HELPER), 3, True),
        ((FIRST, HELPER), 4, False),
        ((HELPER,), None, False),
        ((HELPER, FIRST), None, False),
        ((FIRST, replace(HELPER, name="ray::RayWorkerWrapper")), None, False),
    ],
)
def test_a_helper_without_the_delta_voids_no_step_in_which_another_process_failed(
    workers: tuple[WorkerEnvironment, ...], failed: int | None, tried: bool
) -> None:
    state, _ = begin(changed(RUNBOOK, steps=(BLOCKING,)))
    seen = result("blocking", replace(crashed("blocking", "ima"), workers=workers))
    seen = replace(seen, results={**seen.results, **({"failed_pid": failed} if failed else {})})
    state, _ = machine.advance(state, seen)
    assert (state.trail[0].outcome is not Status.ERROR) is tried
    assert any("python3 had CUDA_LAUNCH_BLOCKING=(unset)" in note for note in state.trail[0].notes) is tried


def test_an_unknown_environment_makes_less_sure_and_is_said_and_is_no_error() -> None:
    known = WorkerEnvironment(pid=4, name="VLLM::EngineCor", seen={"CUDA_LAUNCH_BLOCKING": "1"})
    unknown = replace(known, seen={}, known=False)
    told = []
    for worker in (known, unknown):
        state, _ = begin(changed(RUNBOOK, steps=(BLOCKING,)))
        seen = replace(crashed("blocking", "ima"), workers=(worker,))
        told.append(machine.advance(state, result("blocking", seen))[0])
    sure, unsure = told
    assert unsure.trail[0].outcome is sure.trail[0].outcome is Status.REPRODUCED
    assert [f.confidence for f in unsure.findings] == [pytest.approx(0.7 * f.confidence) for f in sure.findings]
    assert unsure.findings
    assert not sure.trail[0].notes
    assert "CUDA_LAUNCH_BLOCKING reached VLLM::EngineCor is not known" in unsure.trail[0].notes[0]


def test_of_several_ranks_the_first_failure_is_the_cause_and_not_the_siblings_torn_down() -> None:
    state, _ = begin()
    victim = replace(crashed("baseline", rank=0), ended=Ended(by=EndedBy.SIGNAL, signal=15), duration_s=1.0)
    cause = replace(crashed("baseline", "ima", rank=1), ended=Ended(by=EndedBy.SIGNAL, signal=11), duration_s=2.0)
    state, _ = machine.advance(state, result("baseline", victim, cause))
    assert state.trail[0].ended == cause.ended


def test_what_is_quoted_of_several_ranks_is_of_the_one_that_failed_first() -> None:
    """The headline had the abort of a rank whose watchdog gave up, and the cause was another one's segfault."""
    state, _ = begin()
    state, _ = machine.advance(state, result("baseline", crashed("baseline", "ima")))
    matched = {
        rank: {"ima": (Match(matcher="ima", stream="stdout", line=1, offset=0, text=f"of rank {rank}"),)}
        for rank in (0, 1, 2)
    }
    ended = {1: Ended(by=EndedBy.SIGNAL, signal=11)}
    ranks = [
        replace(
            crashed("blocking", "ima", rank=rank),
            ended=ended.get(rank, Ended(by=EndedBy.SIGNAL, signal=6)),
            duration_s=1.0 if rank == 1 else 9.0,
            matched=matched[rank],
        )
        for rank in (0, 1, 2)
    ]
    state, _ = machine.advance(state, result("blocking", *ranks))
    (finding,) = state.findings
    assert finding.message == "seen: of rank 1"


def test_a_result_of_another_step_is_refused() -> None:
    state, _ = begin()
    with pytest.raises(BadInput, match="'blocking' came where one of 'baseline' was awaited"):
        machine.advance(state, result("blocking", ran("blocking")))


def test_replaying_the_results_gives_the_same_state() -> None:
    results = [result("baseline", ran("baseline")), StepResult(step="ask", choice="again"),
               result("baseline", crashed("baseline", "ima")), result("blocking", ran("blocking"))]  # fmt: skip
    first, second = begin()[0], begin()[0]
    for one in results:
        first, _ = machine.advance(first, one)
    for one in results:
        second, _ = machine.advance(second, one)
    assert first == second
    assert first.decision == Finish(verdict=Verdict.REPRODUCED, why="the failure was reproduced in step 'baseline'")


def test_a_run_cut_short_keeps_what_it_knows() -> None:
    state, _ = begin()
    state, _ = machine.advance(state, result("baseline", crashed("baseline", "ima")))
    ended, finish = machine.cut_short(state, "the total time of 1 h is spent", out_of_time=True)
    assert finish.verdict is Verdict.OUT_OF_TIME
    assert ended.trail == state.trail
