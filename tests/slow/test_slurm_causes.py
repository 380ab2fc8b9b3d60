"""What a run on three real nodes says of failures that no rank reports itself: the cause first, and how to go on."""

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.slurm.cluster import Allocated, Cluster, missing, until
from tests.slurm.runs import engine, resumed
from tests.support.patience import patience

RUNBOOK = """
apiVersion: vdbg-env/v1
kind: Runbook
metadata: {name: ranks, title: Ranks}
spec:
  inputs:
    argv: {type: array, required: true}
  commands:
    workload:
      argv: "${{ inputs.argv }}"
      timeout: 20m
      kill: {grace: 2s}
      watch: WATCH
      placement: {on_first_failure: {wait: 1s}}
  steps:
    - id: first
      run: workload
      outcomes:
        - hang: {when: 'ended.by == "watch"', next: second}
        - reproduced: {when: "!ended.clean", next: second}
        - not_reproduced: {next: second}
    - id: second
      run: workload
      env: {SECOND: "1"}
      outcomes:
        - reproduced: {when: "!ended.clean", next: end}
        - not_reproduced: {next: end}
"""
# What each rank runs before its own words: the second step, and a first one that finds `well`, end at once.
BEGIN = """
import os, signal, sys, time
rank, here = int(os.environ["SLURM_PROCID"]), sys.argv[1]
if os.environ.get("SECOND") or os.path.exists(f"{here}/well"):
    raise SystemExit(0)
open(f"{here}/runs-{rank}", "w").close()
"""
# The survivors wait for the lost rank as NCCL's kernels do, without a word and without an end.
WAIT = "while True: time.sleep(0.1)\n"
CRASH_WHEN_TOLD = f"""
while rank == 1 and not os.path.exists(f"{{here}}/crash"): time.sleep(0.1)
if rank == 1: os.kill(os.getpid(), signal.SIGSEGV)
{WAIT}"""
# Shaped as PyTorch's watchdog speaks; Python's fault handler says that it aborted.
LEFT_EARLY = """
import faulthandler; faulthandler.enable()
if rank == 2: raise SystemExit(0)
time.sleep(2)
print(f"[Rank {rank}] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=31)", file=sys.stderr, flush=True)
os.abort()
"""
SPINS = f"""
while rank == 1: pass
{WAIT}"""


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    if why := missing():
        pytest.skip(why)
    found = Cluster(tmp_path / "cluster", settings={"SLURM_TEST_SLURMDTIMEOUT": "5"})
    found.start()
    try:
        yield found
    finally:
        found.verb("clean")


def started(allocation: Allocated, folder: Path, code: str, watch: str = "{}") -> "subprocess.Popen[str]":
    """Start a run of both steps and wait until all ranks of the first one run."""
    (folder / "ranks.yaml").write_text(RUNBOOK.replace("WATCH", watch))
    ran = engine(
        allocation, "ranks", "--file", str(folder / "ranks.yaml"), "--on", "slurm", "--run-dir", str(folder / "run"),
        "--batch", "--", sys.executable, "-c", BEGIN + code, str(folder),
    )  # fmt: skip
    until(lambda: len(list(folder.glob("runs-*"))) == 3 or ran.poll() is not None, patience(60))
    return ran


def report(folder: Path) -> dict[str, Any]:
    document: dict[str, Any] = json.loads((folder / "run" / "report.json").read_text())
    return document


def parts(document: dict[str, Any]) -> list[tuple[str, str]]:
    """Return how each rank of the first step ended, and its part in the failure."""
    rows = sorted(document["steps"][0]["attempts"], key=lambda row: int(row["rank"]))
    return [(row["ended"]["by"], row["part"]) for row in rows]


def lead(document: dict[str, Any]) -> str:
    (found,) = [one["message"] for one in document["findings"] if one["id"] == document["lead"]]
    return str(found)


def test_a_node_that_is_lost_while_the_others_wait_ends_the_wait_and_the_run_can_go_on(
    cluster: Cluster, tmp_path: Path
) -> None:
    with cluster.allocated(3, "--no-kill") as allocation:
        ran = started(allocation, tmp_path, WAIT)
        began = time.monotonic()
        cluster.verb("lose-hard", "n1")
        _, said = ran.communicate(timeout=patience(240))
    assert ran.returncode == 125, said
    assert time.monotonic() - began < 600  # half of the step's own time
    found = report(tmp_path)
    assert parts(found) == [("peer", "ended by us"), ("node_lost", "first failure"), ("peer", "ended by us")]
    assert found["verdict"] == "inconclusive"
    assert found["steps"][0]["status"] == "interrupted"
    lost = "step 'first' lost rank 1 on n1: its node was lost: srun: error: Node failure on n1"
    assert found["why"] == f"{lost}; 2 of 3 nodes are left, and this step has its ranks on 3"
    assert found["next_steps"][0]["command"] == f"vdbg-env runbook ranks --resume {tmp_path / 'run'}"
    assert f"--resume {tmp_path / 'run'}" in said
    cluster.verb("node", "n1")
    (tmp_path / "well").touch()
    with cluster.allocated(3) as again:
        ended = resumed(tmp_path / "run", again)
    assert ended.returncode == 0, ended.stderr
    (first, second) = report(tmp_path)["steps"]
    assert [one["ended"]["by"] for one in (*first["attempts"], *second["attempts"])] == ["exit"] * 6
    assert "attempt 1 was lost and has been repeated: its node was lost: srun: error: Node failure on n1" in " ".join(
        first["notes"]
    )


def test_a_crash_on_a_node_whose_daemon_is_gone_is_the_first_failure_and_the_loss_is_said(
    cluster: Cluster, tmp_path: Path
) -> None:
    with cluster.allocated(3, "--no-kill") as allocation:
        ran = started(allocation, tmp_path, CRASH_WHEN_TOLD)
        cluster.verb("lose", "n1")
        until(lambda: "down" in cluster.run("sinfo", "-h", "-N", "-o", "%N %t"), patience(120))
        time.sleep(40)  # longer than a rank of a lost node may be silent: this one is not
        assert ran.poll() is None
        (tmp_path / "crash").touch()
        _, said = ran.communicate(timeout=patience(240))
    found = report(tmp_path)
    assert parts(found) == [("peer", "ended by us"), ("signal", "first failure"), ("peer", "ended by us")]
    (row,) = [one for one in found["steps"][0]["attempts"] if one["rank"] == 1]
    assert row["ended"]["signal"] == 11
    assert "Slurm lost its node, and it ran on there (srun: error: Node failure on n1)" in row["notes"]
    assert found["steps"][0]["outcome"] == "reproduced"
    # The second step has its ranks on three nodes.
    assert "2 of 3 nodes are left" in said
    assert f"--resume {tmp_path / 'run'}" in said
    cluster.verb("node", "n1")
    with cluster.allocated(3) as again:
        ended = resumed(tmp_path / "run", again)
    assert ended.returncode == 3, ended.stderr
    assert [one["outcome"] for one in report(tmp_path)["steps"]] == ["reproduced", "not_reproduced"]


def test_a_rank_that_ended_early_and_well_is_named_before_those_that_waited_for_it(
    cluster: Cluster, tmp_path: Path
) -> None:
    with cluster.allocated(3) as allocation:
        ran = started(allocation, tmp_path, LEFT_EARLY)
        out, said = ran.communicate(timeout=patience(120))
    assert ran.returncode == 3, said
    found = report(tmp_path)
    assert parts(found) == [("signal", "victim"), ("signal", "victim"), ("exit", "left early")]
    words = "no rank showed a cause of its own; rank 2 ended with status 0 before"
    assert lead(found) == words
    assert words in found["steps"][0]["notes"]
    assert "failed first" not in json.dumps(found) + out


def test_a_rank_that_spins_is_named_before_the_one_that_reports_the_hang(cluster: Cluster, tmp_path: Path) -> None:
    with cluster.allocated(3) as allocation:
        ran = started(allocation, tmp_path, SPINS, watch="{output_idle: 3s}")
        out, said = ran.communicate(timeout=patience(180))
    assert ran.returncode == 3, said
    found = report(tmp_path)
    assert found["verdict"] == "hang"
    assert parts(found)[1][1] == "running", found["steps"][0]["attempts"]
    assert lead(found).startswith("rank 1 on n1 was running: python"), lead(found)
    assert "failed first" not in json.dumps(found) + out
