"""A server that hangs keeps printing: what shows progress, and what only says that something waits."""

import time
from pathlib import Path

import pytest

from tests.support.steps import python, seen
from vdbg_env.evidence.finding import EndedBy
from vdbg_env.runbook.model import Watch
from vdbg_env.supervisor.job import Job
from vdbg_env.supervisor.watch import HangWatch, Progress

BROADCAST = "INFO 11-22 05:{:02d}:01 [shm_broadcast.py:466] No available shared memory broadcast block found."
STATS = "Engine 000: Avg prompt throughput: {} tokens/s, Avg generation throughput: {} tokens/s, Running: {} reqs"


@pytest.mark.parametrize(
    "lines",
    [
        [BROADCAST.format(minute) for minute in (5, 6, 7)],
        ["(EngineCore pid=7) " + STATS.format("0.0", "0.0", n) for n in (1, 2, 1)],
        ["12:00:01 heartbeat: worker 0 not responding", "12:00:11 heartbeat: worker 0 not responding"],
        ['INFO: 127.0.0.1:5123 - "GET /health HTTP/1.1" 200 OK'] * 2,
        ["still waiting for 3 peers\n\x1b[0mstill waiting for 3 peers"],
    ],
)
def test_what_is_said_again_is_no_progress(lines: list[str]) -> None:
    progress = Progress()
    progress.shown_by(lines[0].encode())
    assert not any(progress.shown_by(f"{line}\n".encode()) for line in lines[1:] or lines)


@pytest.mark.parametrize(
    "lines",
    [
        [STATS.format("0.0", "12.5", 1)] * 2,
        [STATS.format("3.1", "0.0", 1)] * 2,
        ['INFO: 127.0.0.1:5123 - "POST /v1/completions HTTP/1.1" 200 OK'] * 2,
        ["batch done"] * 2,
        ["waiting for 3 peers", "waiting for 2 peers"],
        ["loading:  20%\r", "loading:  40%\r"],
        [BROADCAST.format(1), BROADCAST.format(2) + "\nstep 7"],
        [BROADCAST.format(1), (BROADCAST.format(2) + "\n") * 90],
    ],
)
def test_all_else_is(lines: list[str]) -> None:
    progress = Progress()
    assert [progress.shown_by(f"{line}\n".encode()) for line in lines][-1]


def test_a_workload_that_only_repeats_that_it_waits_hangs(tmp_path: Path) -> None:
    code = f"import time\nfor n in range(60): print({BROADCAST!r}.format(n), flush=True); time.sleep(0.2)"
    found = seen(tmp_path, python(code, watch=Watch(output_idle_s=0.8), timeout_s=120))
    assert found.ended.by is EndedBy.WATCH
    assert "no progress for 0.8 s; it prints: INFO" in str(found.ended.message)


def test_silence_is_told_as_silence() -> None:
    watch = HangWatch(Job("", (), {}, "", output_idle_s=5.0), time.monotonic)
    assert watch.verdict(time.monotonic() + 6) == "no output for 5 s"
    watch.output(b"still waiting\n")
    watch.output(b"still waiting\n")
    assert watch.verdict(time.monotonic() + 6) == "no progress for 5 s; it prints: still waiting"


def in_production(**limits: float) -> HangWatch:
    return HangWatch(Job(directory="/", argv=("x",), env={}, cwd="/", guard=1, **limits), time.monotonic)  # type: ignore[arg-type]


IN_VAIN = (
    b"INFO 11-03 23:14:03 [shm_broadcast.py:501] No available shared memory broadcast block found in 60 seconds.\n"
)


@pytest.mark.parametrize(
    "line",
    [b"", b'INFO:     10.0.0.1:4711 - "GET /health HTTP/1.1" 200 OK\n', b"12:00:01 heartbeat, waiting for work\n"],
)
def test_a_server_in_production_that_has_nothing_to_do_does_not_hang(line: bytes) -> None:
    watch = in_production(output_idle_s=10.0)
    for _ in range(3):
        watch.output(line)
    assert watch.verdict(watch.last_progress + 1000) is None
    assert watch.next_deadline() == float("inf")


def test_work_that_waits_in_vain_hangs_in_production_too() -> None:
    watch = in_production(output_idle_s=10.0)
    for _ in range(3):
        watch.output(BROADCAST.format(5).encode())
    assert watch.verdict(watch.last_progress + 9) is None
    assert "No available shared memory" in str(watch.verdict(watch.last_progress + 10))
    watch.output(b"Engine 000: Avg generation throughput: 812.4 tokens/s, Running: 7 reqs\n")
    assert watch.verdict(watch.last_progress + 1000) is None


GPU_LOADS = {"no GPU answers": [], "idle": [b"0, 0\n"], "pinned": [b"0, 100\n"], "at work": [b"0, 100\n", b"0, 60\n"]}


@pytest.mark.parametrize("loads", GPU_LOADS.values(), ids=GPU_LOADS)
@pytest.mark.parametrize("line", [b"", IN_VAIN], ids=["silent", "in vain"])
@pytest.mark.parametrize("guarded", [True, False])
def test_nothing_is_due_before_there_is_a_verdict(loads: list[bytes], line: bytes, guarded: bool) -> None:
    """A deadline that has passed without a verdict is a loop that never waits: it took a core of an idle server."""
    limits = {"output_idle_s": 30.0, "gpu_idle_s": 20.0, "gpu_pinned_s": 40.0}
    for name in (*limits, None):
        job = Job("", (), {}, "", guard=int(guarded), **({name: limits[name]} if name else limits))  # type: ignore[arg-type]
        watch = HangWatch(job, time.monotonic)
        watch.output(line)
        watch.output(line)
        for load in loads:
            watch.gpu(load)
        due = watch.next_deadline()
        if due == float("inf"):
            assert watch.verdict(time.monotonic() + 1000) is None
        else:
            assert watch.verdict(due - 1) is None
            assert watch.verdict(due)


@pytest.mark.parametrize("began", [32761.392363378185, 65531.04, 131067.7, 4194299.3, 0.1])
def test_the_verdict_is_there_at_the_deadline_whatever_the_clock_says(
    began: float,
) -> None:
    """A machine that is up for 9.1 hours: 32761.392363378185 + 10 - 32761.392363378185 is less than 10."""
    for name in ("output_idle_s", "gpu_idle_s", "gpu_pinned_s"):
        watch = HangWatch(Job("", (), {}, "", **{name: 10.0}), lambda: began)  # type: ignore[arg-type]
        watch.gpu(b"0, 100\n" if name == "gpu_pinned_s" else b"0, 0\n")
        assert watch.verdict(watch.next_deadline())
