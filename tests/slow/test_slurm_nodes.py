"""Nodes that are lost, an srun that is killed, and more ranks than a machine has processors, on a real cluster."""

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.slurm.cluster import Cluster, ends, missing, ranked, until
from tests.slurm.test_ranks_live_on import PATIENT, running, sruns, waiting
from tests.support.patience import patience
from vdbg_env.evidence.deaths import first_failure
from vdbg_env.evidence.finding import EndedBy
from vdbg_env.runbook.model import OnFirstFailure, Placement

FOR_EVER = Placement(on_first_failure=OnFirstFailure(wait_s=600.0))


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    if why := missing():
        pytest.skip(why)
    found = Cluster(tmp_path / "cluster", settings={"SLURM_TEST_CPUS": "32"})
    found.start()
    yield found
    found.verb("clean")


@pytest.fixture
def attempt(tmp_path: Path) -> Path:
    folder = tmp_path / "run" / "steps" / "step" / "1"
    folder.mkdir(parents=True)
    return folder


def test_the_tasks_of_a_node_that_slurm_lost_are_read_to_their_end(cluster: Cluster, attempt: Path) -> None:
    code = (
        f"open('runs', 'w').close()\nwhile not os.path.exists('{attempt}/go'): time.sleep(0.1)\nraise SystemExit(rank)"
    )
    with cluster.allocated(3, "--no-kill") as allocation:
        invocation = ranked("os.chdir('${{ rank.dir }}')\n" + code, placement=FOR_EVER, timeout_s=300.0)
        started = allocation.ranks(attempt).start(invocation, attempt)
        until(lambda: len(list(attempt.glob("*/runs"))) == 3, patience(30))
        cluster.verb("lose", "n1")
        until(lambda: "down" in cluster.run("sinfo", "-h", "-N", "-o", "%N %t"), patience(90))
        assert started.wait(1.0) is None
        (attempt / "go").touch()
        assert [one.ended.code for one in ends(started, patience(120)).values()] == [0, 1, 2]


def test_a_node_without_power_is_lost_and_a_crash_elsewhere_comes_first(cluster: Cluster, attempt: Path) -> None:
    code = (
        "os.chdir('${{ rank.dir }}')\nopen('runs', 'w').close()\n"
        f"while not os.path.exists('{attempt}/go'): time.sleep(0.1)\n"
        "if rank == 2: os.kill(os.getpid(), signal.SIGSEGV)\n"
    )
    with cluster.allocated(3, "--no-kill") as allocation:
        started = allocation.ranks(attempt).start(ranked(code, placement=FOR_EVER, timeout_s=300.0), attempt)
        until(lambda: len(list(attempt.glob("*/runs"))) == 3, patience(30))
        cluster.verb("lose-hard", "n1")
        (attempt / "go").touch()
        seen = ends(started, patience(180))
        assert seen[1].ended.by is EndedBy.NODE_LOST
        assert (seen[0].ended.by, seen[2].ended.signal) == (EndedBy.EXIT, 11)
        assert first_failure(seen.values()) is seen[2]
        cluster.verb("node", "n1")


def test_forty_eight_real_supervisors(cluster: Cluster, attempt: Path) -> None:
    with cluster.allocated(3, "--ntasks=48") as allocation:
        began = time.monotonic()
        invocation = ranked("raise SystemExit(rank == 17)", placement=FOR_EVER, timeout_s=300.0)
        seen = ends(allocation.ranks(attempt, ranks=48).start(invocation, attempt), patience(240))
        assert len(seen) == 48
        first = first_failure(seen.values())
        assert first is not None
        assert first.rank == 17
        assert time.monotonic() - began < patience(60)


def test_ranks_whose_srun_was_killed_are_lost_and_nothing_of_them_runs_on(cluster: Cluster, attempt: Path) -> None:
    """Slurm has every task killed when one of srun's two processes is: no rank can write its end."""
    with cluster.allocated(2) as allocation:
        started = allocation.ranks(attempt).start(ranked(waiting(attempt), placement=PATIENT), attempt)
        running(attempt, 2)
        os.kill(sruns(attempt)[0], signal.SIGKILL)
        seen = ends(started, patience(90.0))
    assert {(one.ended.by, str(one.ended.message)[:15]) for one in seen.values()} == {
        (EndedBy.ENGINE_LOST, "srun was killed")
    }
    until(lambda: not [pid for pid in cluster.steps_and_tasks() if _is_of(pid, attempt)])


def _is_of(pid: str, attempt: Path) -> bool:
    try:
        return os.fsencode(attempt) in Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return False
