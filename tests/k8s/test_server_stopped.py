"""The API server stops responding under a run: told to stop, the run ends all the same, and is resumed."""

import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.k8s.cluster import Cluster, until
from tests.k8s.test_ranks_live_on import flags
from tests.support.stopped import ended_within

pytestmark = pytest.mark.long

BELOW_OWN_LIMIT_S = 20.0  # an answer is waited for longer
RANK = """
import os, time, signal
rank = os.environ["JOB_COMPLETION_INDEX"]
open("{0}/runs" + rank, "w")
while not os.path.exists("{0}/go"):
    time.sleep(0.1)
if rank == "1":
    os.kill(os.getpid(), signal.SIGSEGV)
"""


@pytest.fixture(autouse=True)
def server_goes_on(cluster: Cluster) -> Iterator[None]:
    yield
    cluster.server.go_on()


def engine(volume: Path, *words: str) -> "subprocess.Popen[str]":
    argv = [sys.executable, "-m", "vdbg_env", "runbook", "host-crash", *words]
    return subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=volume)


def begun(volume: Path) -> "subprocess.Popen[str]":
    return engine(volume, *flags(volume), "--", sys.executable, "-c", RANK.format(volume))


def ended(process: "subprocess.Popen[str]", number: int) -> str:
    """Send a signal to a run whose API server is still stopped, and return what it said."""
    _, said = ended_within(BELOW_OWN_LIMIT_S, process, number)
    assert process.returncode == (-number if number == signal.SIGKILL else 128 + number), said
    return said


def check_resumed(cluster: Cluster, volume: Path) -> None:
    """Resume the run: it ends as it would have, and nothing of it is left in the cluster."""
    cluster.server.go_on()
    (volume / "go").touch()
    again = engine(volume, "--resume", str(volume / "run"), "--batch", "--json")
    out, said = again.communicate(timeout=300)
    assert again.returncode == 3, (out, said)
    assert "SIGSEGV" in out
    until(lambda: cluster.objects() == [] and cluster.processes() == [])


MAKING = [("create", "jobs"), ("create", "secrets"), ("create", "services"), ("list", "pods"), ("patch", "jobs")]


@pytest.mark.parametrize("place", MAKING, ids=" ".join)
def test_a_run_ends_while_a_job_is_made(cluster: Cluster, volume: Path, place: tuple[str, str]) -> None:
    cluster.front.pauses_at = place
    process = begun(volume)
    until(lambda: cluster.front.pauses_at is None or process.poll() is not None)
    time.sleep(0.2)
    assert "ended without waiting" in ended(process, signal.SIGTERM)
    check_resumed(cluster, volume)


def test_a_run_ends_while_its_ranks_run(cluster: Cluster, volume: Path) -> None:
    process = begun(volume)
    until(lambda: len(list(volume.glob("runs*"))) == 2 or process.poll() is not None)
    cluster.server.pause()
    ended(process, signal.SIGTERM)
    check_resumed(cluster, volume)


def test_a_run_ends_while_its_job_is_deleted(cluster: Cluster, volume: Path) -> None:
    (volume / "go").touch()
    cluster.front.pauses_at = ("delete", "jobs")
    process = begun(volume)
    until(lambda: cluster.front.pauses_at is None or process.poll() is not None)
    assert "ended without waiting" in ended(process, signal.SIGTERM)
    check_resumed(cluster, volume)


@pytest.mark.parametrize("place", MAKING, ids=" ".join)
def test_a_job_whose_maker_was_killed_is_neither_lost_nor_made_twice(
    cluster: Cluster, volume: Path, place: tuple[str, str]
) -> None:
    cluster.front.pauses_at = place
    process = begun(volume)
    until(lambda: cluster.front.pauses_at is None or process.poll() is not None)
    time.sleep(0.2)
    ended(process, signal.SIGKILL)
    check_resumed(cluster, volume)
