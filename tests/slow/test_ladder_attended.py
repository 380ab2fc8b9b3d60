"""The branches of the ladder that want a person: questions asked and answered at a terminal, a debugger waited for."""

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.killing import left_running
from tests.support.ladder import attended, lay_out, outcomes, program, step

pytestmark = pytest.mark.slow

BENCH = ("--", "vllm", "bench", "throughput")
QUICK = ("-i", "quick=true")


def faulty(tmp_path: Path, fault: str, *shorter: tuple[str, str]) -> dict[str, str]:
    return {**lay_out(tmp_path, shorter), "FAKE_VLLM": fault}


def test_a_person_has_it_tried_again_and_then_lets_the_sanitizer_look(tmp_path: Path) -> None:
    asked = "It did not fail in three tries"
    ran = attended(
        tmp_path,
        faulty(tmp_path, "well"),
        (*QUICK, *BENCH),
        [
            (asked, "again"),
            ("answered again", lambda _: None),
            ("(3600 s): ", "perhaps"),
            ("is none of them", "sanitizer"),
        ],
    )
    answers = [s["message"] for s in ran.report["steps"] if s["id"] == "ask"]
    assert answers == ["answered 'again'", "answered 'sanitizer'"]
    assert sum(s["id"] == "baseline" for s in ran.report["steps"]) == 2
    assert outcomes(ran.report)["memcheck"] == "not_reproduced"
    assert (ran.status, ran.report["verdict"]) == (4, "not_reproduced")  # the host has no GPU, which is a warning
    assert "again, sanitizer, [stop]" in ran.screen


def test_a_person_without_traffic_stops_before_anything_is_started(tmp_path: Path) -> None:
    ran = attended(tmp_path, faulty(tmp_path, "ima"), ("--", "vllm", "serve", "M"), [("Will you send", "stop")])
    assert not any(s["attempts"] for s in ran.report["steps"])
    assert (ran.status, ran.report["verdict"]) == (125, "inconclusive")


def test_nobody_at_the_terminal_is_the_default_in_the_end(tmp_path: Path) -> None:
    ran = attended(tmp_path, faulty(tmp_path, "well", (r"timeout: 1h", "timeout: 1s")), (*QUICK, *BENCH), [])
    assert "no answer, taking stop" in ran.screen
    assert step(ran.report, "ask")["message"] == "answered 'stop'"


def held(number: int) -> Callable[[Path], None]:
    """Do what a debugger does to the process that is held at its exception, once it is: let it go, or end it."""

    def act(run: Path) -> None:
        time.sleep(4)  # longer than any watch of these walks: a step that waits for a person must not be ended by one
        engines = [pid for pid in left_running(run) if b"EngineCore" in Path(f"/proc/{pid}/cmdline").read_bytes()]
        assert len(engines) == 1
        os.kill(engines[0], number)

    return act


@pytest.mark.parametrize(
    ("number", "outcome", "message"),
    [
        (signal.SIGUSR1, "reproduced", "it failed as soon as it was let go"),
        (signal.SIGKILL, "unresolved", "it was ended; a debugger that quits ends what it holds"),
    ],
)
def test_the_workload_is_held_until_the_debugger_is_done(
    tmp_path: Path, number: int, outcome: str, message: str
) -> None:
    environment = faulty(tmp_path, "ima")
    program(tmp_path / "bin" / "cuda-gdb", "exit 1")  # only has to be there: the person starts it
    ran = attended(
        tmp_path, environment, (*QUICK, "-i", "attach=true", *BENCH), [("attach #1: Held for a debugger", held(number))]
    )
    attach = step(ran.report, "attach")
    assert (attach["outcome"], attach["message"]) == (outcome, message)
    assert attach["env_change"] == {"CUDA_DEVICE_WAITS_ON_EXCEPTION": "1"}
    assert attach["duration_s"] > 3.5


def test_the_time_to_attach_has_an_end(tmp_path: Path) -> None:
    environment = faulty(tmp_path, "ima", (r"timeout: 8h", "timeout: 2s"))
    program(tmp_path / "bin" / "cuda-gdb", "exit 1")
    ran = attended(tmp_path, environment, (*QUICK, "-i", "attach=true", *BENCH), [])
    attach = step(ran.report, "attach")
    assert (attach["outcome"], attach["message"]) == ("reproduced", "the time to attach is over")
    assert attach["ended"]["by"] == "timeout"


def test_without_a_debugger_or_a_person_nobody_is_held(tmp_path: Path) -> None:
    environment = faulty(tmp_path, "ima")
    ran = attended(tmp_path, environment, (*QUICK, "-i", "attach=true", *BENCH), [])
    assert (step(ran.report, "attach")["status"], step(ran.report, "attach")["message"]) == (
        "skipped",
        "cuda-gdb was not found",
    )


def test_a_question_that_is_interrupted_is_asked_again_when_the_run_goes_on(tmp_path: Path) -> None:
    environment = faulty(tmp_path, "well")
    ran = attended(tmp_path, environment, (*QUICK, *BENCH), [("It did not fail in three tries", "\x03")])
    assert ran.status == 130
    assert "continue with: vdbg-env runbook" in ran.screen
    assert not any(s["id"] == "ask" and s["outcome"] for s in ran.report["steps"])
    again = attended(tmp_path, environment, ("--resume", "attended"), [("It did not fail in three tries", "stop")])
    assert step(again.report, "ask")["message"] == "answered 'stop'"
    assert sum(s["id"] == "baseline" for s in again.report["steps"]) == 1
    assert again.status == 4


def test_a_question_lasts_no_longer_than_the_whole_run_may(tmp_path: Path) -> None:
    ran = attended(tmp_path, faulty(tmp_path, "well"), ("--total-time", "6s", *QUICK, *BENCH), [])
    assert (ran.status, ran.report["verdict"]) == (124, "out_of_time")
