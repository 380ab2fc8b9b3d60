"""Which rank failed first: by what it says, then by a common clock, and by its exit status last."""

import re
from typing import Any

import pytest

from vdbg_env.evidence.deaths import CAUSE, CAUSE_PATTERN, VICTIM, VICTIM_PATTERN, first_failure, summary
from vdbg_env.evidence.finding import Ended, EndedBy, Match, MemoryKills, Observation, RankClock
from vdbg_env.runbook.state import first_end

SAME_CLOCK = RankClock(ahead_s=0.0, within_s=0.0)


def rank(
    number: int, by: str = "signal", *, started: float | None = 0.0, duration_s: float = 1.0, **fields: Any
) -> Observation:
    end = {name: fields.pop(name) for name in ("code", "signal", "core") if name in fields}
    said = fields.pop("said", ())
    matched = {name: (Match(matcher=name, stream="stderr", line=1, offset=0, text=name),) for name in said}
    return Observation(
        step="s", attempt=1, rank=number, host=f"n{number}", ended=Ended(by=EndedBy(by), **end), matched=matched,
        started=started, duration_s=duration_s, **{"clock": SAME_CLOCK, **fields},
    )  # fmt: skip


def test_a_later_abort_is_not_named_before_the_crash_that_came_first() -> None:
    """Reproduced with the order by duration: SIGSEGV 95 s after an early start, SIGABRT 70 s after a late one."""
    segv = rank(0, signal=11, started=1000.0, duration_s=95.0)
    abort = rank(1, signal=6, started=1030.0, duration_s=70.0)
    first = first_failure([abort, segv])
    assert first is segv
    named = first_end([abort, segv])
    assert named is not None
    assert named.signal == 11


def test_a_lost_node_is_not_named_before_a_crash() -> None:
    """Reproduced with the order by duration: a rank without a record has the duration 0."""
    segv = rank(0, signal=11, started=1000.0, duration_s=5.0)
    lost = rank(1, "node_lost", duration_s=0.0, started=None, clock=None)
    assert first_failure([lost, segv]) is segv


@pytest.mark.parametrize(
    ("victim", "cause"),
    [
        ({"signal": 6, "said": (VICTIM,)}, {"by": "watch"}),
        ({"by": "exit", "code": 1, "said": (VICTIM,)}, {"by": "exit", "code": 1}),
        ({"by": "exit", "code": 143}, {"signal": 11}),
        ({"signal": 9}, {"by": "exit", "code": 3}),
        ({"by": "peer", "signal": 15}, {"by": "exit", "code": 3}),
        ({"by": "exit", "code": 1, "said": (VICTIM,)}, {"by": "node_lost"}),
        ({"by": "died", "said": (VICTIM,)}, {"by": "died"}),  # vLLM's server returns 0 on both nodes
        ({"signal": 9}, {"by": "exit", "code": 137, "memory_kills": MemoryKills(cgroup=1)}),
    ],
)
def test_a_victim_that_ended_earlier_is_no_cause(victim: dict[str, Any], cause: dict[str, Any]) -> None:
    early, late = rank(0, started=0.0, **victim), rank(1, started=50.0, **cause)
    assert first_failure([early, late]) is late


def test_what_a_rank_says_of_itself_makes_it_no_victim() -> None:
    """The task of a crashed worker also prints what its siblings print: EngineDeadError after a CUDA error."""
    crashed = rank(0, "exit", code=1, said=(VICTIM, CAUSE), started=10.0)
    other = rank(1, "exit", code=1, said=(VICTIM,), started=0.0)
    assert first_failure([other, crashed]) is crashed


def test_ends_closer_than_the_clocks_are_known_are_not_ordered_by_time() -> None:
    rough = RankClock(ahead_s=0.0, within_s=2.0)
    exit_first = rank(0, "exit", code=1, started=0.0, duration_s=1.0, clock=rough)
    segv = rank(1, signal=11, started=0.0, duration_s=2.0, clock=rough)
    assert first_failure([exit_first, segv]) is segv
    later = rank(1, signal=11, started=0.0, duration_s=60.0, clock=rough)
    assert first_failure([exit_first, later]) is exit_first


def test_a_clock_that_is_ahead_is_set_right() -> None:
    ahead = rank(0, signal=11, started=1100.0, duration_s=1.0, clock=RankClock(ahead_s=100.0, within_s=0.1))
    other = rank(1, signal=6, started=1010.0, duration_s=1.0)
    assert first_failure([ahead, other]) is ahead


def test_conditions_see_the_rank_its_host_and_those_that_failed_or_were_lost() -> None:
    seen = [rank(0, "exit", code=0), rank(1, signal=11), rank(2, "node_lost"), rank(3, "peer", signal=15)]
    found = summary(seen)
    assert (found.count, found.failed, found.lost) == (4, (1, 2), (2,))
    assert found.first is not None
    assert (found.first.rank, found.first.host) == (1, "n1")


def test_of_a_single_rank_nothing_changes() -> None:
    assert first_failure([rank(0, "exit", code=0)]) is None
    killed = rank(0, signal=9)
    assert first_failure([killed]) is killed


# What vLLM 0.32 printed on two nodes when a worker of the second one died of SIGSEGV.
@pytest.mark.parametrize(
    ("line", "cause", "victim"),
    [
        ("!!!!!!! Segfault encountered !!!!!!!", True, False),
        ("Worker proc VllmWorker-1 died unexpectedly (exit code: None), shutting down executor.", False, False),
        ("RuntimeError: [pair.cc:553] Connection closed by peer [127.0.0.1]:19340. This is typically", False, True),
        ("vllm.v1.engine.exceptions.EngineDeadError: EngineCore encountered an issue.", False, True),
        ("Fatal Python error: Aborted", False, False),  # NCCL's watchdog aborts every rank that waits
        ("Fatal Python error: Bus error", True, False),
        ("ncclSystemError: System call (e.g. socket, malloc) or external library call failed", False, True),
        ("RuntimeError: [../third_party/gloo] Timed out waiting 1800000ms for recv operation", False, True),
        ("torch.distributed.DistNetworkError: failed to recv, got 0 bytes", False, True),
    ],
)
def test_the_rank_whose_worker_died_is_told_from_the_one_that_lost_its_peer(
    line: str, cause: bool, victim: bool
) -> None:
    assert bool(re.search(CAUSE_PATTERN, line)) is cause
    assert bool(re.search(VICTIM_PATTERN, line)) is victim


def test_a_rank_that_was_cancelled_did_not_fail() -> None:
    cancelled = rank(0, "cancel", signal=15)
    assert first_failure([cancelled]) is None
    crash = rank(1, signal=11)
    assert first_failure([cancelled, crash]) is crash
