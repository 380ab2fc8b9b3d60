"""Every branch of the shipped runbook is walked, by results that a real run could have given."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

import pytest

from tests.support.golden import assert_golden
from tests.support.runbooks import crashed, hung, observation, ran
from tests.support.shipped import shipped
from vdbg_env.evidence.finding import HowKnown, Level
from vdbg_env.evidence.observation import Ended, EndedBy, Observation
from vdbg_env.runbook import engine
from vdbg_env.runbook.engine_args import VARIABLE, WITNESS
from vdbg_env.runbook.inputs import final_inputs
from vdbg_env.runbook.model import Manual, Next, Run, Status, ToStep
from vdbg_env.runbook.state import (
    AskPerson,
    Decision,
    Facts,
    Finish,
    ResultValue,
    RunState,
    RunStep,
    StepResult,
    UseBuiltin,
    Verdict,
)
from vdbg_env.runbook.verdict import bisect_status, exit_status

RUNBOOK = shipped("illegal-memory-access")
SERVE = ("vllm", "serve", "M", "--port", "8000")
HEALTHY: Mapping[str, ResultValue] = {"gpus": 1, "xids": []}
KERNEL: Mapping[str, ResultValue] = {
    "cores": 1,
    "exception": "CUDBG_EXCEPTION_WARP_ILLEGAL_ADDRESS",
    "kernel": "scatter_kernel",
    "source": "/src/scatter.cu:42 in scatter",
    "pc": "0x7f00",
    "has_lines": True,
}


@dataclass(frozen=True)
class Story:
    """What each step sees: an observation kind for run steps, results for built-ins, a choice for questions.

    A question that comes again gets the next of its choices, separated by blanks.
    """

    runs: Mapping[str, str] = field(default_factory=dict)
    results: Mapping[str, Mapping[str, ResultValue]] = field(default_factory=dict)
    choices: Mapping[str, str] = field(default_factory=dict)
    argv: tuple[str, ...] = SERVE
    inputs: Mapping[str, str] = field(default_factory=lambda: {"request": "r.jsonl"})
    facts: Facts = field(default_factory=lambda: Facts(data_dir="/d"))
    otherwise: str = "crash"


def seen(kind: str, decision: RunStep) -> Observation:
    step = decision.invocation.step
    witness = (WITNESS.name,) if VARIABLE in decision.invocation.env else ()
    match kind:
        case "crash":
            return crashed(step, "failure", "vllm_engine", *witness, artifacts=_cores(decision))
        case "crash without core":
            return crashed(step, "failure", "vllm_engine", *witness)
        case "crash of no vllm":
            return crashed(step, "failure", artifacts=_cores(decision))
        case "well":
            return ran(step, "vllm_engine", *witness)
        case "hang":
            return replace(hung(step, *witness), artifacts=crashed(step, artifacts=_cores(decision)).artifacts)
        case "hang without core":
            return hung(step, *witness)
        case "out of memory":
            return crashed(step, "oom")
        case "assert":
            return crashed(step, "other_fault", artifacts=_cores(decision))
        case "status 7":
            return observation(step, *witness, ended=Ended(by=EndedBy.EXIT, code=7))
        case "held until its time is over":
            return observation(step, *witness, ended=Ended(by=EndedBy.TIMEOUT, signal=15))
        case "without the plug-in":
            return ran(step)
        case _:
            raise AssertionError(kind)


def _cores(decision: RunStep) -> dict[str, int]:
    return {rule.name: 1 for rule in decision.invocation.artifacts if rule.name == "cores"}


def answer(story: Story, decision: Decision, visit: int = 0) -> StepResult:
    match decision:
        case RunStep():
            step = decision.invocation.step
            one = seen(story.runs.get(step, story.otherwise), decision)
            return StepResult(step=step, observations=(one,), results=story.results.get(step, {}))
        case UseBuiltin(step=step, name=name):
            usual: Mapping[str, Mapping[str, ResultValue]] = {"gpu-health": HEALTHY, "decode-gpu-core": KERNEL}
            return StepResult(step=step, results=story.results.get(step, usual.get(name, {})))
        case AskPerson(step=step):
            return StepResult(step=step, choice=story.choices[step].split()[visit] if step in story.choices else None)
        case _:
            raise AssertionError(decision)


def walk(story: Story) -> tuple[RunState, Finish, list[str]]:
    """Tell the whole story and return the last state, its finish, and the steps that were really done."""
    inputs = final_inputs(RUNBOOK, story.inputs, story.argv, {})
    state, decision = engine.start(RUNBOOK, inputs, story.facts)
    for _ in range(100):
        if isinstance(decision, Finish):
            done = [record.step for record in state.trail if record.skipped_because is None]
            return state, decision, done
        visits = sum(record.step == engine.waiting_for(state) for record in state.trail)
        state, decision = engine.advance(state, answer(story, decision, visits))
    raise AssertionError("the story has no end")


SANITIZERS = ("memcheck", "memcheck_uncached", "racecheck", "initcheck", "synccheck")
CLEAN_SANITIZER: Mapping[str, Mapping[str, ResultValue]] = {name: {"summary": True, "errors": 0} for name in SANITIZERS}
FOUND_BY_SANITIZER: Mapping[str, ResultValue] = {"summary": True, "errors": 1, "first": "a finding of it"}
NO_SUMMARY: Mapping[str, Mapping[str, ResultValue]] = {name: {"summary": False} for name in SANITIZERS}
LAYERS = (
    "blocking",
    "graphs_piecewise",
    "graphs_off",
    "inductor_off",
    "compile_off",
    "eager",
    "all_reduce",
    "attention",
)
NO_LINES: Mapping[str, ResultValue] = {key: value for key, value in KERNEL.items() if key != "source"}

LADDER = "blocking graphs_piecewise graphs_off inductor_off compile_off eager attention coredump analyse"
STORIES: dict[str, tuple[Story, str, Verdict]] = {
    "it crashes whatever is taken off": (
        Story(), f"preflight collect_env baseline {LADDER} report", Verdict.REPRODUCED,
    ),
    "gone with blocking launches": (
        Story(runs={"blocking": "well"}), f"preflight collect_env baseline {LADDER} report", Verdict.REPRODUCED,
    ),
    "full graphs are to blame": (
        Story(runs={"graphs_piecewise": "well"}),
        "preflight collect_env baseline blocking graphs_piecewise coredump analyse report", Verdict.REPRODUCED,
    ),
    "graphs are to blame": (
        Story(runs={"graphs_off": "well"}),
        "preflight collect_env baseline blocking graphs_piecewise graphs_off coredump analyse report",
        Verdict.REPRODUCED,
    ),
    "Inductor is to blame": (
        Story(runs={"inductor_off": "well"}),
        "preflight collect_env baseline blocking graphs_piecewise graphs_off inductor_off coredump analyse report",
        Verdict.REPRODUCED,
    ),
    "torch.compile is to blame": (
        Story(runs={"compile_off": "well"}),
        "preflight collect_env baseline blocking graphs_piecewise graphs_off inductor_off compile_off coredump analyse "
        "report", Verdict.REPRODUCED,
    ),
    "compile and graphs together are to blame": (
        Story(runs={"eager": "well"}),
        "preflight collect_env baseline blocking graphs_piecewise graphs_off inductor_off compile_off eager coredump "
        "analyse report", Verdict.REPRODUCED,
    ),
    "two ranks, and custom all-reduce is to blame": (
        Story(argv=(*SERVE, "-tp", "2"), runs={"all_reduce": "well"}),
        "preflight collect_env baseline blocking graphs_piecewise graphs_off inductor_off compile_off eager all_reduce "
        "coredump analyse report", Verdict.REPRODUCED,
    ),
    "two ranks, and the attention backend is to blame": (
        Story(argv=(*SERVE, "-tp", "2"), runs={"attention": "well"}),
        "preflight collect_env baseline blocking graphs_piecewise graphs_off inductor_off compile_off eager all_reduce "
        "attention coredump analyse report", Verdict.REPRODUCED,
    ),
    "eager already": (
        Story(argv=(*SERVE, "--enforce-eager")),
        "preflight collect_env baseline blocking attention coredump analyse report", Verdict.REPRODUCED,
    ),
    "quick": (
        Story(inputs={"quick": "true", "request": "r"}),
        "preflight collect_env baseline coredump analyse report", Verdict.REPRODUCED,
    ),
    "a script that builds its engine itself": (
        Story(argv=("python", "offline.py")),
        "preflight collect_env baseline blocking graphs_piecewise graphs_off inductor_off compile_off eager all_reduce "
        "attention coredump analyse report", Verdict.REPRODUCED,
    ),
    "a script of PyTorch alone": (
        Story(argv=("python", "train.py"), otherwise="crash of no vllm"),
        "preflight collect_env baseline blocking coredump analyse report", Verdict.REPRODUCED,
    ),
    "a plain CUDA program": (
        Story(argv=("./a.out",), otherwise="crash of no vllm"),
        "preflight collect_env baseline blocking coredump analyse report", Verdict.REPRODUCED,
    ),
    "hardware": (
        Story(results={"preflight": {"gpus": 8, "xids": [79]}}), "preflight report", Verdict.FAILED,
    ),
    "no GPU is seen": (
        Story(results={"preflight": {"gpus": 0}}), f"preflight collect_env baseline {LADDER} report",
        Verdict.REPRODUCED,
    ),
    "the host cannot be read": (
        Story(results={"preflight": {}}), f"preflight collect_env baseline {LADDER} report", Verdict.REPRODUCED,
    ),
    "a stale variable": (
        Story(results={"collect_env": {"stale_variables": ["VLLM_ATTENTION_BACKEND"]}}),
        f"preflight collect_env baseline {LADDER} report", Verdict.REPRODUCED,
    ),
    "a server, and traffic by hand": (
        Story(inputs={}), f"preflight collect_env traffic baseline {LADDER} report", Verdict.REPRODUCED,
    ),
    "a server, and nobody to send traffic": (
        Story(inputs={}, choices={"traffic": "stop"}), "preflight collect_env traffic report",
        Verdict.INCONCLUSIVE,
    ),
    "out of memory": (
        Story(runs={"baseline": "out of memory"}), "preflight collect_env baseline report", Verdict.FAILED,
    ),
    "another fault": (
        Story(runs={"baseline": "assert", "coredump": "assert"}),
        "preflight collect_env baseline coredump analyse report", Verdict.FAILED,
    ),
    "it does not crash": (
        Story(runs={"baseline": "well"}), "preflight collect_env baseline ask report", Verdict.NOT_REPRODUCED,
    ),
    "it does not crash, the sanitizer looks": (
        Story(runs={"baseline": "well"}, choices={"ask": "sanitizer"}, results=CLEAN_SANITIZER, otherwise="well"),
        "preflight collect_env baseline ask memcheck memcheck_uncached report", Verdict.NOT_REPRODUCED,
    ),
    "it fails otherwise": (
        Story(runs={"baseline": "status 7", "coredump": "status 7"}, results=CLEAN_SANITIZER, otherwise="well"),
        "preflight collect_env baseline coredump memcheck memcheck_uncached report", Verdict.NOT_REPRODUCED,
    ),
    "only the sanitizer without the caching allocator sees it": (
        Story(argv=("python", "offline.py"), inputs={"quick": "true"}, runs={"coredump": "well"}, results={
            "memcheck": {"summary": True, "errors": 0},
            "memcheck_uncached": {"summary": True, "errors": 1, "first": "Invalid __global__ read"},
        }),
        "preflight collect_env baseline coredump memcheck memcheck_uncached report", Verdict.REPRODUCED,
    ),
    "a race is found": (
        Story(inputs={"quick": "true", "deep": "true", "request": "r"}, results={**CLEAN_SANITIZER,
            "racecheck": {"summary": True, "errors": 1, "first": "Race reported", "source": "k.cu:7"},
        }),
        "preflight collect_env baseline coredump analyse memcheck memcheck_uncached racecheck initcheck synccheck "
        "report", Verdict.REPRODUCED,
    ),
    "it hangs": (
        Story(runs={"baseline": "hang", "hang_coredump": "hang"}),
        "preflight collect_env baseline hang_coredump analyse_hang report", Verdict.HANG,
    ),
    "it hangs, and the pipe does not answer": (
        Story(runs={"baseline": "hang", "hang_coredump": "hang without core"}),
        "preflight collect_env baseline hang_coredump report", Verdict.HANG,
    ),
    "it hangs once": (
        Story(runs={"baseline": "hang", "hang_coredump": "well"}),
        "preflight collect_env baseline hang_coredump report", Verdict.HANG,
    ),
    "it hangs with dumps armed": (
        Story(runs={"coredump": "hang without core", "hang_coredump": "crash"}, inputs={"quick": "true"},
              argv=("python", "offline.py")),
        "preflight collect_env baseline coredump hang_coredump analyse_hang report", Verdict.REPRODUCED,
    ),
    "a hang looked at in depth": (
        Story(runs={"baseline": "hang", "hang_coredump": "hang", "nccl": "hang", "function_trace": "hang"},
              inputs={"deep": "true", "request": "r"}, argv=(*SERVE, "-tp", "2"),
              results={"nccl": {"warnings": ["NET/IB : No device found"]}, "function_trace": {"last_call": "a.py:3"}}),
        "preflight collect_env baseline hang_coredump analyse_hang nccl function_trace report", Verdict.HANG,
    ),
    "no core is written": (
        Story(runs={"coredump": "crash without core"}, inputs={"quick": "true", "request": "r"},
              results={"memcheck": {"summary": True, "errors": 2, "first": "Invalid __global__ write",
                                    "source": "k.cu:6"}}),
        "preflight collect_env baseline coredump memcheck report", Verdict.REPRODUCED,
    ),
    "gone with dumps armed": (
        Story(runs={"coredump": "well"}, inputs={"quick": "true", "request": "r"}, results=CLEAN_SANITIZER),
        "preflight collect_env baseline coredump memcheck memcheck_uncached report", Verdict.REPRODUCED,
    ),
    "no line info": (
        Story(inputs={"quick": "true", "request": "r"},
              results={"analyse": NO_LINES, "locate": {"source": "k.cu:9", "file": "_C.so"}, **CLEAN_SANITIZER}),
        "preflight collect_env baseline coredump analyse locate memcheck memcheck_uncached report",
        Verdict.REPRODUCED,
    ),
    "the core cannot be read": (
        Story(inputs={"quick": "true", "request": "r"}, results={"analyse": {}, **CLEAN_SANITIZER}),
        "preflight collect_env baseline coredump analyse memcheck memcheck_uncached report", Verdict.REPRODUCED,
    ),
    "deep, with a debugger": (
        Story(inputs={"quick": "true", "deep": "true", "attach": "true", "request": "r"}, results=CLEAN_SANITIZER,
              facts=Facts(interactive=True, data_dir="/d")),
        "preflight collect_env baseline coredump analyse memcheck memcheck_uncached racecheck initcheck synccheck "
        "attach report", Verdict.REPRODUCED,
    ),
    "the sanitizer itself fails": (
        Story(inputs={"quick": "true", "request": "r"}, results={"analyse": {}, "memcheck": {"summary": False}}),
        "preflight collect_env baseline coredump analyse memcheck memcheck_uncached report", Verdict.REPRODUCED,
    ),
    "no sanitizer is at hand": (
        Story(inputs={"quick": "true", "request": "r"}, results={"analyse": {}},
              facts=Facts(tools=frozenset({"cuda-gdb"}), data_dir="/d")),
        "preflight collect_env baseline coredump analyse report", Verdict.REPRODUCED,
    ),
    "it does not crash, and is tried again": (
        Story(runs={"baseline": "well"}, choices={"ask": "again again stop"}),
        "preflight collect_env baseline ask baseline ask baseline ask report", Verdict.NOT_REPRODUCED,
    ),
    "each layer taken off makes it hang": (
        Story(argv=(*SERVE, "-tp", "2"), runs=dict.fromkeys(LAYERS, "hang")),
        f"preflight collect_env baseline {' '.join(LAYERS)} coredump analyse report", Verdict.REPRODUCED,
    ),
    "each layer taken off makes it fail otherwise": (
        Story(argv=(*SERVE, "-tp", "2"), runs=dict.fromkeys(LAYERS, "status 7")),
        f"preflight collect_env baseline {' '.join(LAYERS)} coredump analyse report", Verdict.REPRODUCED,
    ),
    "it hangs, then fails otherwise": (
        Story(runs={"baseline": "hang", "hang_coredump": "status 7"}),
        "preflight collect_env baseline hang_coredump report", Verdict.HANG,
    ),
    "it hangs, and its core cannot be read": (
        Story(runs={"baseline": "hang", "hang_coredump": "hang"}, results={"analyse_hang": {}}),
        "preflight collect_env baseline hang_coredump analyse_hang report", Verdict.HANG,
    ),
    **{
        f"a hang in depth, and NCCL's step {what}": (
            Story(runs={"baseline": "hang", "hang_coredump": "hang", "nccl": kind, "function_trace": "status 7"},
                  inputs={"deep": "true", "request": "r"}, argv=(*SERVE, "-tp", "2")),
            "preflight collect_env baseline hang_coredump analyse_hang nccl function_trace report", verdict,
        )
        for what, kind, verdict in (
            ("hangs in silence", "hang", Verdict.HANG), ("says nothing", "status 7", Verdict.HANG),
            ("fails in silence", "crash", Verdict.REPRODUCED),
        )
    },
    "no line info on disk either": (
        Story(inputs={"quick": "true", "request": "r"}, results={"analyse": NO_LINES, **CLEAN_SANITIZER}),
        "preflight collect_env baseline coredump analyse locate memcheck memcheck_uncached report",
        Verdict.REPRODUCED,
    ),
    "a plain CUDA program, and no core of it": (
        Story(argv=("./a.out",), otherwise="crash of no vllm", runs={"coredump": "status 7"}, results=CLEAN_SANITIZER,
              inputs={"quick": "true", "deep": "true"}),
        "preflight collect_env baseline coredump memcheck racecheck initcheck synccheck report", Verdict.REPRODUCED,
    ),
    **{
        f"the sanitizers {what}": (
            Story(inputs={"quick": "true", "deep": "true", "request": "r"}, runs=dict.fromkeys(SANITIZERS, kind),
                  results=results),
            "preflight collect_env baseline coredump analyse memcheck memcheck_uncached racecheck initcheck synccheck "
            "report", Verdict.REPRODUCED,
        )
        for what, kind, results in (
            ("are stuck", "hang", {}),
            ("all find something, but memcheck", "crash", {
                **CLEAN_SANITIZER, **dict.fromkeys(SANITIZERS[2:], FOUND_BY_SANITIZER),
            }),
            ("have nothing to say of a run that fails otherwise", "status 7", NO_SUMMARY),
        )
    },
    **{
        f"a debugger is waited for: {what}": (
            Story(inputs={"quick": "true", "attach": "true", "request": "r"}, runs={"attach": kind},
                  facts=Facts(interactive=True, data_dir="/d")),
            "preflight collect_env baseline coredump analyse attach report", Verdict.REPRODUCED,
        )
        for what, kind in (("its time is over", "held until its time is over"), ("no exception comes", "well"),
                           ("it is quit", "status 7"))
    },
}  # fmt: skip


@pytest.mark.parametrize("name", STORIES)
def test_a_story_walks_its_steps(name: str) -> None:
    story, path, verdict = STORIES[name]
    _, finish, done = walk(story)
    assert " ".join(done) == path
    assert finish.verdict is verdict


def test_every_step_and_every_way_on_is_walked_by_some_story() -> None:
    """A way on is a step, the outcome or answer it had (none for one that was skipped), and where that leads."""
    walked = {
        (record.step, str(record.outcome or record.choice or "skipped"), _target(record.next))
        for story, _, _ in STORIES.values()
        for record in walk(story)[0].trail
    }
    assert {step.id for step in RUNBOOK.steps} == {step for step, _, _ in walked}
    assert set(_ways_on()) - walked == set()


def _ways_on() -> Iterator[tuple[str, str, str]]:
    for step in RUNBOOK.steps:
        if isinstance(step, Manual):
            yield from ((step.id, choice, _target(following)) for choice, following in step.choices.items())
        else:
            yield from ((step.id, str(outcome.status), _target(outcome.next)) for outcome in step.outcomes)
        if step.condition is not None:
            skipped = step.skipped.next if step.skipped else step.outcomes[-1].next
            yield step.id, "skipped", _target(skipped)


def _target(following: Next) -> str:
    return following.step if isinstance(following, ToStep) else "end"


def test_the_core_names_kernel_line_and_how_it_is_known() -> None:
    state, finish, _ = walk(STORIES["it crashes whatever is taken off"][0])
    core = next(x for x in state.findings if x.how_known is HowKnown.GPU_CORE)
    assert (core.rule, core.level, str(core.location)) == ("VDBG050", Level.ERROR, "/src/scatter.cu:42 in scatter")
    assert core.message == "CUDBG_EXCEPTION_WARP_ILLEGAL_ADDRESS in scatter_kernel"
    assert exit_status(finish.verdict, state.findings) == 3
    assert bisect_status(finish.verdict) == 1


def test_the_layer_whose_absence_ends_the_failure_is_a_finding_of_its_own() -> None:
    state, _, _ = walk(STORIES["Inductor is to blame"][0])
    (finding,) = [x for x in state.findings if x.how_known is HowKnown.STEP_CHANGE]
    assert (finding.rule, finding.step, finding.level) == ("VDBG022", "inductor_off", Level.WARNING)


def test_steps_never_stack() -> None:
    """Each layer is taken off the command as given: what one step changed is gone in the next."""
    inputs = final_inputs(RUNBOOK, {"request": "r"}, SERVE, {})
    state, decision = engine.start(RUNBOOK, inputs, Facts())
    changed = {}
    while not isinstance(decision, Finish):
        if isinstance(decision, RunStep):
            changed[decision.invocation.step] = decision.invocation.argv[len(SERVE) :]
            assert decision.invocation.argv[: len(SERVE)] == SERVE
        state, decision = engine.advance(state, answer(Story(), decision))
    assert changed == {
        "baseline": (), "blocking": (), "coredump": (),
        "graphs_piecewise": ("-cc.cudagraph_mode=PIECEWISE",), "graphs_off": ("-cc.cudagraph_mode=NONE",),
        "inductor_off": ("-cc.backend=eager",), "compile_off": ("-cc.mode=0",), "eager": ("--enforce-eager",),
        "attention": ("-ac.backend=TRITON_ATTN",),
    }  # fmt: skip


def test_a_script_that_the_plug_in_did_not_reach_has_tried_nothing() -> None:
    story = Story(argv=("python", "offline.py"), runs={"eager": "without the plug-in"})
    state, _, done = walk(story)
    record = state.latest("eager")
    assert record is not None
    assert record.outcome is Status.ERROR
    assert record.message is not None
    assert record.message.startswith("the engine arguments did not reach vLLM")
    assert "all_reduce" in done


def test_a_question_can_start_the_tries_again() -> None:
    inputs = final_inputs(RUNBOOK, {"request": "r"}, SERVE, {})
    state, decision = engine.start(RUNBOOK, inputs, Facts())
    story = Story(runs={"baseline": "well"}, choices={"ask": "again"})
    for _ in range(4):
        state, decision = engine.advance(state, answer(story, decision))
    assert isinstance(decision, RunStep)
    assert decision.invocation.step == "baseline"


def test_each_run_step_may_be_run_long_enough_and_is_ended_at_last() -> None:
    for step in RUNBOOK.steps:
        if isinstance(step, Run):
            assert step.timeout_s is not None, step.id
            assert step.kill.grace_s <= 600, step.id


def test_the_exit_statuses_of_all_stories_are_as_published() -> None:
    told = []
    for name, (story, _, _) in STORIES.items():
        state, finish, _ = walk(story)
        rules = " ".join(x.rule for x in state.findings)
        status, bisect = exit_status(finish.verdict, state.findings), bisect_status(finish.verdict)
        told.append(f"{name}: {finish.verdict}, exit {status}, bisect {bisect}; {rules}")
    assert_golden("runbook/stories.txt", "\n".join(told) + "\n")
