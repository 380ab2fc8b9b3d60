"""Whole runs in an allocation that ends under them."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.slurm.cluster import Allocated, Cluster, ranked, until
from tests.slurm.cluster import ends as rank_ends
from tests.slurm.runs import RUNBOOK, VDBG, WORKLOAD, ends, engine, resumed
from tests.support.patience import patience

# Each start of each rank leaves a line.
COUNTED = """
import os, sys
with open(f"{sys.argv[1]}/starts", "a") as starts:
    starts.write(os.environ["SLURM_PROCID"] + "\\n")
"""


def words(folder: Path, code: str = WORKLOAD) -> tuple[str, ...]:
    """Return the words of a run whose first step waits for the file `go`."""
    (folder / "ranks.yaml").write_text(RUNBOOK)
    return (
        "ranks", "--file", str(folder / "ranks.yaml"), "--on", "slurm", "--run-dir", str(folder / "run"), "--batch",
        "--", sys.executable, "-c", code, str(folder),
    )  # fmt: skip


def test_a_cancelled_job_is_in_the_report_and_its_attempt_is_repeated_once(
    cluster: Cluster, tmp_path: Path, allocation: Allocated
) -> None:
    run = tmp_path / "run"
    with cluster.allocated(2, "--overcommit") as short:
        ran = engine(short, *words(tmp_path))
        until(lambda: len(list(tmp_path.glob("runs-*"))) == 2 or ran.poll() is not None, 60.0)
        cluster.run("scancel", short.job)
        _, said = ran.communicate(timeout=60)
    assert ran.returncode == 125, said
    assert "step 'first' was cancelled from outside: by scancel, its job's time limit, preemption or a SIGTERM" in said
    assert f"--resume {run}" in said
    report = json.loads((run / "report.json").read_text())
    assert (report["steps"][0]["status"], ends(report, "first")) == ("interrupted", ["cancel"] * 2)
    (tmp_path / "go").touch()
    larger = resumed(run, allocation)
    assert larger.returncode == 2
    assert "was begun on 2 nodes, and this allocation has 3" in larger.stderr
    with cluster.allocated(2, "--overcommit") as same:
        again = resumed(run, same)
    assert again.returncode == 3, again.stderr
    report = json.loads((run / "report.json").read_text())
    assert ends(report, "first") == ["exit"] * 2
    assert len(list((run / "steps" / "first").iterdir())) == 2


def test_a_job_that_is_over_before_a_step_is_named_and_what_was_seen_is_reported(
    cluster: Cluster, tmp_path: Path
) -> None:
    with cluster.allocated(2, "--overcommit") as short:
        cluster.run("scancel", short.job)
        until(lambda: cluster.run("squeue", "-h", "--jobs", short.job, "--states=all", "-o", "%T").strip() != "RUNNING")
        ran = engine(short, *words(tmp_path))
        _, said = ran.communicate(timeout=60)
    assert ran.returncode == 1, said
    assert f"job {short.job} is over: CANCELLED" in said
    assert "salloc --nodes 2, and there continue with --resume" in said
    report = json.loads((tmp_path / "run" / "report.json").read_text())
    assert report["why"] == f"job {short.job} is over: CANCELLED"


def test_more_nodes_than_there_are_begin_no_run(tmp_path: Path, allocation: Allocated) -> None:
    ran = engine(allocation, "--nodes", "4", *words(tmp_path))
    _, said = ran.communicate(timeout=60)
    assert ran.returncode == 2
    assert "4 nodes are asked for, and the allocation has 3" in said
    assert not (tmp_path / "run").exists()  # the same command line can be typed again, corrected


def outside(cluster: Cluster, *words: str) -> "subprocess.CompletedProcess[str]":
    """Run the command line as on a login node: in no allocation."""
    return subprocess.run(
        [VDBG, "runbook", *words], env=cluster.environment, capture_output=True, text=True, timeout=patience(120),
        check=False,
    )  # fmt: skip


def test_outside_an_allocation_salloc_is_started_and_a_resume_needs_no_flag_again(
    cluster: Cluster, allocation: Allocated, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    asks = ("--nodes", "2", "--slurm-arg=--overcommit", "--slurm-arg=--comment=of ours")
    cut = outside(cluster, *asks, "--total-time", "12s", *words(tmp_path))
    assert cut.returncode == 124, cut.stderr
    assert "no allocation here: salloc --job-name=vdbg-ranks --no-kill --nodes=2 --ntasks=2 --overcommit" in cut.stderr
    assert "--submit queues a batch job instead" in cut.stderr
    report = json.loads((run / "report.json").read_text())
    assert ends(report, "first") == ["cancel"] * 2
    (tmp_path / "go").touch()
    again = outside(cluster, "--resume", str(run), "--batch")
    assert again.returncode == 3, again.stderr
    report = json.loads((run / "report.json").read_text())
    assert {one["host"] for one in report["steps"][0]["attempts"]} == {"n0", "n1"}
    assert [ends(report, step) for step in ("first", "second")] == [["exit"] * 2] * 2
    until(lambda: "vdbg-ranks" not in cluster.run("squeue", "--noheader", "--format", "%j"))  # it ends with the run
    same = outside(cluster, "--resume", str(run), "--nodes", "2", "--batch")
    assert same.returncode == 3, same.stderr
    other = outside(cluster, "--resume", str(run), "--nodes", "3", "--batch")
    assert other.returncode == 2
    assert "were started in another way" in other.stderr


def test_ranks_on_nodes_are_told_where_they_meet(allocation: Allocated, attempt: Path) -> None:
    code = "print(*(os.environ[n] for n in ('RANK', 'WORLD_SIZE', 'LOCAL_RANK', 'MASTER_ADDR', 'MASTER_PORT')))"
    started = allocation.ranks(attempt).start(ranked(code), attempt)
    assert all(one.ended.clean for one in rank_ends(started).values())
    said = [(attempt / f"n{rank}-{rank}" / "stdout").read_text().split() for rank in range(3)]
    assert [line[:4] for line in said] == [[str(rank), "3", "0", "127.0.0.1"] for rank in range(3)]
    assert len({line[4] for line in said}) == 1


@pytest.mark.long
@pytest.mark.parametrize("events", range(1, 8))
def test_an_engine_that_is_killed_at_any_event_is_resumed_to_the_same_end_and_nothing_starts_twice(
    tmp_path: Path, allocation: Allocated, events: int
) -> None:
    log, starts = tmp_path / "run" / "events.jsonl", tmp_path / "starts"
    ran = engine(allocation, *words(tmp_path, code=COUNTED + WORKLOAD))
    (tmp_path / "go").touch()
    until(lambda: log.exists() and log.read_bytes().count(b"\n") >= events, 120.0)
    ran.kill()
    ran.communicate()
    again = resumed(tmp_path / "run", allocation)
    assert again.returncode == 3, again.stderr
    report = json.loads((tmp_path / "run" / "report.json").read_text())
    assert [ends(report, step) for step in ("first", "second")] == [["exit"] * 3] * 2
    assert sorted(starts.read_text().split()) == sorted(["0", "1", "2"] * 2)
