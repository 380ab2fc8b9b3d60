"""What the engine makes of a server's requests, its start, and the settings that its engine logs."""

from dataclasses import replace

import pytest

from tests.support.runbooks import changed, match, observation, result
from vdbg_env.evidence.finding import Ended, EndedBy, Match, Observation, Requests
from vdbg_env.runbook import machine
from vdbg_env.runbook.model import (
    ArgvOverlay,
    ArtifactRule,
    Command,
    End,
    Input,
    Matcher,
    Outcome,
    Ready,
    Repeat,
    Run,
    Runbook,
    ServerDriver,
    Status,
)
from vdbg_env.runbook.state import Facts, RunState, RunStep, StepRecord
from vdbg_env.runbook.workload import STARTED, TRACEBACK, url

STOPPED = Ended(by=EndedBy.STOPPED, code=0, message="4 of 4 requests sent, 4 answered")
NEVER_READY = Ended(by=EndedBy.TIMEOUT, signal=15, message="the server was not ready")
WELL = Requests(recorded=4, ready=True, sent=4, answered=4)
# The engine's line of vLLM 0.32.0 on a CPU, cut down; `-cc.backend=eager` was given, and the platform put it back.
CONFIG = (
    "(EngineCore pid=7) INFO 11-22 05:29:50 [core.py:133] Initializing a V1 LLM engine (v0.32.0) with config: "
    "model='/models/tiny-llama', quantization=None, enforce_eager={eager}, device_config=cpu, "
    "structured_outputs_config=StructuredOutputsConfig(backend='auto', disable_any_whitespace=False), "
    "compilation_config={{'mode': <CompilationMode.{mode}>, 'debug_dump_path': None, 'backend': '{backend}', "
    "'custom_ops': ['all'], 'cudagraph_mode': <CUDAGraphMode.NONE: 0>, 'cudagraph_num_of_warmups': 0}}"
)

STEP = Run(
    id="step",
    command="workload",
    repeat=Repeat(count=3, until="has(matched.failure)"),
    outcomes=(
        Outcome(status=Status.REPRODUCED, when="has(matched.failure)"),
        Outcome(status=Status.HANG, when="ended.by == 'watch'"),
        Outcome(status=Status.FAIL, when="requests.failed > 0", message="${{ requests.failed }}/${{ requests.sent }}"),
        Outcome(status=Status.NOT_REPRODUCED, when="ended.clean || ended.by == 'timeout'", next=End()),
        Outcome(status=Status.UNRESOLVED),
    ),
)


def begun(*argv: str, step: Run = STEP, at_once: int | None = None) -> RunState:
    runbook = Runbook(
        name="small",
        title="Small",
        inputs={
            "argv": Input(name="argv", type="array", required=True),
            "url": Input(name="url", type="string"),
            "concurrency": Input(name="concurrency", type="int"),
        },
        matchers={"failure": Matcher(name="failure", pattern="illegal")},
        commands={
            "workload": Command(
                name="workload",
                argv="${{ inputs.argv }}",
                driver=ServerDriver(
                    replay="r.jsonl",
                    ready=Ready(http="${{ inputs.url == null ? workload.url : inputs.url }}/health"),
                    concurrency="${{ inputs.concurrency }}",
                ),
            )
        },
        steps=(step,),
    )
    words = argv or ("vllm", "serve", "M", "--port", "8005")
    return machine.start(runbook, {"argv": list(words), "url": None, "concurrency": at_once}, Facts())[0]


def attempt(ended: Ended, requests: Requests | None, *matchers: str) -> Observation:
    return replace(observation("step", *matchers, ended=ended), requests=requests)


def judged(seen: Observation, step: Run = STEP) -> StepRecord:
    return machine.advance(begun(step=step), result("step", seen))[0].trail[-1]


@pytest.mark.parametrize(("asked", "sent"), [(None, None), (8, 8), (0, 1), (-3, 1)])
def test_requests_are_sent_side_by_side_where_an_input_asks_for_it(asked: int | None, sent: int | None) -> None:
    decision = begun(at_once=asked).decision
    assert isinstance(decision, RunStep)
    assert decision.invocation.driver is not None
    assert decision.invocation.driver.concurrency == sent


def test_a_server_that_answers_all_is_well() -> None:
    assert judged(attempt(STOPPED, WELL)).outcome is Status.NOT_REPRODUCED


def test_failed_requests_are_seen_by_conditions() -> None:
    record = judged(attempt(STOPPED, replace(WELL, answered=1, failed=3)))
    assert (record.outcome, record.message) == (Status.FAIL, "3/4")


def test_a_server_with_failed_requests_did_not_end_clean() -> None:
    plain = changed(STEP, outcomes=tuple(x for x in STEP.outcomes if x.status is not Status.FAIL))
    record = judged(attempt(STOPPED, replace(WELL, answered=1, failed=3)), plain)
    assert record.outcome is Status.UNRESOLVED


def test_no_request_sent_is_an_error_and_never_a_finding() -> None:
    record = judged(attempt(NEVER_READY, Requests(recorded=4)))
    assert record.outcome is Status.ERROR
    assert record.message == "no request was sent: nothing answered at http://127.0.0.1:8005/health"
    assert record.findings == ()


def test_a_server_that_is_up_elsewhere_does_not_hang() -> None:
    silent = Ended(by=EndedBy.WATCH, signal=15)
    record = judged(attempt(silent, Requests(recorded=4), STARTED.name))
    assert record.outcome is Status.ERROR
    assert "the server is up, -i url=URL says where" in (record.message or "")
    assert judged(attempt(silent, Requests(recorded=4))).outcome is Status.HANG


def test_requests_that_are_all_refused_try_nothing() -> None:
    record = judged(attempt(STOPPED, Requests(recorded=4, ready=True, sent=4, refused=4)))
    assert record.outcome is Status.ERROR
    assert "refused all 4 requests" in (record.message or "")


def test_a_failure_at_the_start_needs_no_request() -> None:
    died = Ended(by=EndedBy.EXIT, code=1)
    assert judged(attempt(died, Requests(recorded=4), "failure")).outcome is Status.REPRODUCED


def test_an_error_raised_by_the_start_is_not_tried_again() -> None:
    died = Ended(by=EndedBy.EXIT, code=1)
    state = begun()
    assert not machine.again(state, [attempt(died, Requests(recorded=4), TRACEBACK.name)])
    assert machine.again(state, [attempt(died, Requests(recorded=4))]), "it says nothing of the reason"
    ready = Requests(recorded=4, ready=True, sent=1, failed=1)
    assert machine.again(state, [attempt(died, ready, TRACEBACK.name)]), "a request may fail otherwise next time"


def test_a_server_is_ended_after_the_match_that_a_step_is_repeated_for() -> None:
    def decisive(step: Run) -> tuple[str, ...]:
        decision = begun(step=step).decision
        assert isinstance(decision, RunStep)
        return decision.invocation.decisive

    assert decisive(STEP) == ("failure",)
    assert decisive(changed(STEP, repeat=Repeat(count=3, until="ended.by == 'watch'"))) == ()
    assert decisive(changed(STEP, argv=ArgvOverlay(wrap=("compute-sanitizer",)))) == (), "its summary comes last"
    cores = {"cores": ArtifactRule(name="cores", glob="core.*", required=True)}
    dump = changed(STEP, repeat=Repeat(count=3, until="artifacts.cores.count > 0 || host.gpus == 0"), artifacts=cores)
    assert decisive(dump) == ("failure",), "the core of the rank that failed comes within the grace"


@pytest.mark.parametrize(
    ("argv", "address"),
    [
        ("vllm serve M", "http://127.0.0.1:8000"),
        ("vllm serve M --port 8005", "http://127.0.0.1:8005"),
        ("vllm serve M --port=8005 --host 0.0.0.0", "http://127.0.0.1:8005"),
        ("vllm serve M --host=10.0.0.7 --port 1 --port 2", "http://10.0.0.7:2"),
        ("vllm serve M --host ::1", "http://[::1]:8000"),
        ("vllm serve M --ssl-certfile c.pem", "https://127.0.0.1:8000"),
        ("vllm serve M --ssl_certfile c.pem --port 1 -- --port 3", "https://127.0.0.1:1"),
        ("python -m sglang.launch_server --model M", "http://127.0.0.1:30000"),
        ("vllm serve M --port", "http://127.0.0.1:8000"),
    ],
)
def test_the_address_follows_from_the_command_line(argv: str, address: str) -> None:
    assert url(argv.split()) == address


def test_the_requests_go_to_the_address_of_the_command_line() -> None:
    decision = begun("vllm", "serve", "M", "--port=9001").decision
    assert isinstance(decision, RunStep)
    assert decision.invocation.driver is not None
    assert decision.invocation.driver.ready.http == "http://127.0.0.1:9001/health"
    assert decision.invocation.server


def logged(step: Run, *lines: str) -> Observation:
    """An attempt in which the step's own matchers found what they look for in these lines."""
    import re

    decision = begun(step=step).decision
    assert isinstance(decision, RunStep)
    matched: dict[str, tuple[Match, ...]] = {}
    for matcher in decision.invocation.matchers:
        found = [hit for line in lines if (hit := re.search(matcher.pattern, line))]
        if found:
            matched[matcher.name] = tuple(replace(match(matcher.name), groups=hit.groupdict()) for hit in found)
    return replace(observation("step", ended=STOPPED), matched=matched, requests=WELL)


INDUCTOR_OFF = changed(STEP, engine_args={"compilation_config": {"backend": "eager"}})
COMPILE_OFF = changed(STEP, engine_args={"compilation_config": {"mode": 0}})
EAGER = changed(STEP, engine_args={"enforce_eager": True})
ATTENTION = changed(STEP, engine_args={"attention_config": {"backend": "TRITON_ATTN"}})


def config(*, eager: bool = False, mode: str = "VLLM_COMPILE: 3", backend: str = "inductor") -> str:
    return CONFIG.format(eager=eager, mode=mode, backend=backend)


@pytest.mark.parametrize(
    ("step", "line", "why"),
    [
        (INDUCTOR_OFF, config(), "vLLM runs with compilation_config.backend=inductor, the step asked for eager"),
        (COMPILE_OFF, config(), "vLLM runs with compilation_config.mode=VLLM_COMPILE, the step asked for 0"),
        (EAGER, config(), "vLLM runs with enforce_eager=False, the step asked for True"),
        (
            ATTENTION,
            "WARNING 11-22 04:50:01 [cpu.py:99] Cannot use AttentionBackendEnum.TRITON_ATTN backend on CPU.",
            "vLLM cannot use the attention backend TRITON_ATTN here, and took another one",
        ),
        (
            ATTENTION,
            "INFO 11-03 [cuda.py:411] Using FLASH_ATTN attention backend out of potential backends: ['FLASH_ATTN']",
            "vLLM runs with the attention backend FLASH_ATTN, the step asked for TRITON_ATTN",
        ),
    ],
)
def test_a_step_whose_setting_was_undone_tried_nothing(step: Run, line: str, why: str) -> None:
    record = judged(logged(step, line), step)
    assert (record.outcome, record.message) == (Status.ERROR, why)


@pytest.mark.parametrize(
    ("step", "line"),
    [
        (INDUCTOR_OFF, config(backend="eager")),
        (COMPILE_OFF, config(mode="NONE: 0")),
        (EAGER, config(eager=True)),
        (ATTENTION, "INFO 11-03 [cuda.py:411] Using TRITON_ATTN attention backend out of potential backends: []"),
        (ATTENTION, "INFO 11-03 [cuda.py:380] Using AttentionBackendEnum.TRITON_ATTN backend."),
        (EAGER, "a log level of WARNING hides the configuration: nothing is known, and the step counts"),
    ],
)
def test_a_step_whose_setting_arrived_is_judged(step: Run, line: str) -> None:
    assert judged(logged(step, line), step).outcome is Status.NOT_REPRODUCED
