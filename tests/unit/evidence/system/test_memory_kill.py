"""A lack of memory is concluded from how an attempt ended, and never surer than the counters allow."""

from dataclasses import replace

import pytest

from tests.support.runbooks import observation, ran
from vdbg_env.evidence.finding import Ended, EndedBy, Level, MemoryKills, Observation
from vdbg_env.evidence.system import memory_kill_findings

KILLED = Ended(by=EndedBy.SIGNAL, signal=9)
SHELL = Ended(by=EndedBy.EXIT, code=137)
WORKER_DIED = Ended(by=EndedBy.EXIT, code=1)
OURS = Ended(by=EndedBy.TIMEOUT, signal=9)


def seen(ended: Ended, *, cgroup: int = 0, machine: int = 0, processes: tuple[str, ...] | None = None) -> Observation:
    kills = MemoryKills(cgroup=cgroup, machine=machine, processes=processes)
    return replace(observation("s", ended=ended), memory_kills=kills)


@pytest.mark.parametrize(
    ("attempt", "level", "words"),
    [
        (seen(WORKER_DIED, cgroup=1, machine=1), Level.ERROR, "the kernel OOM-killed a process of this step's cgroup"),
        (seen(WORKER_DIED, cgroup=2, machine=2), Level.ERROR, "OOM-killed 2 processes of this step's cgroup"),
        (seen(KILLED, machine=1), Level.ERROR, "OOM-killed a process of this step"),
        (seen(SHELL, machine=1), Level.ERROR, "OOM-killed a process of this step"),
        (seen(WORKER_DIED, machine=2, processes=("python3 (7)",)), Level.ERROR, "OOM-killed python3 (7) of this step"),
        (seen(KILLED, machine=1, processes=()), Level.WARNING, "a SIGKILL that is not ours"),
        # Two guards of one session: the log names the other one's process.
        (seen(WORKER_DIED, cgroup=1, processes=()), Level.WARNING, "its log names none of this step's"),
        (seen(WORKER_DIED, machine=1), Level.WARNING, "it need not have been the workload"),
        (seen(KILLED), Level.WARNING, "a SIGKILL that is not ours"),
    ],
)
def test_it_is_told_as_surely_as_it_is_known(attempt: Observation, level: Level, words: str) -> None:
    (finding,) = memory_kill_findings([attempt])
    assert (finding.rule, finding.level) == ("memory-kill", level)
    assert words in finding.message


def test_of_many_attempts_the_surest_word_is_kept() -> None:
    (finding,) = memory_kill_findings([seen(KILLED), seen(KILLED, cgroup=1), seen(WORKER_DIED, machine=1)])
    assert finding.confidence == 0.95


@pytest.mark.parametrize(
    "attempt", [seen(OURS), seen(WORKER_DIED), seen(WORKER_DIED, machine=1, processes=()), ran("s")]
)
def test_other_ends_point_to_no_lack_of_memory(attempt: Observation) -> None:
    assert memory_kill_findings([attempt]) == ()
