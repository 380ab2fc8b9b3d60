"""Whole runs as jobs of a real cluster: a lost engine, a time limit, a lost node, a killed shell."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.slurm.cluster import Cluster, missing, until
from tests.slurm.runs import RUNBOOK, WORKLOAD, ends, resumed
from tests.slurm.test_ranks_live_on import listening
from tests.support.patience import patience

SECRET = "hf_" + "Qw7" * 12


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    if why := missing():
        pytest.skip(why)
    found = Cluster(tmp_path / "cluster", settings={"SLURM_TEST_KILLWAIT": "30"})
    found.start()
    try:
        yield found
        until(lambda: not found.steps_and_tasks(), patience(20))
    finally:
        found.verb("clean")


class Job:
    """A run that was queued with --submit on all three nodes."""

    def __init__(self, cluster: Cluster, folder: Path, *words: str, **environment: str) -> None:
        self.cluster = cluster
        self.folder = folder
        self.run = folder / "run"
        (folder / "ranks.yaml").write_text(RUNBOOK)
        (folder / "setup.sh").write_text(f"export SLURM_CONF={cluster.folder}/slurm.conf PATH={os.environ['PATH']}\n")
        argv = [
            *(str(Path(sys.executable).parent / "vdbg-env"), "runbook", "ranks", "--file", str(folder / "ranks.yaml")),
            *("--on", "slurm", "--submit", "--nodes", "3", "--setup", str(folder / "setup.sh")),
            *("--run-dir", str(self.run), *words, "--", sys.executable, "-c", WORKLOAD, str(folder)),
        ]
        env = {**cluster.environment, **environment}
        done = subprocess.run(argv, env=env, capture_output=True, text=True, timeout=patience(60), check=False)
        assert done.returncode == 0, done.stderr
        self.number = done.stdout.split()[1].rstrip(",")

    def waits(self) -> None:
        """Wait until all ranks of the first step run."""
        until(lambda: len(list(self.folder.glob("runs-*"))) == 3, patience(60))

    def go(self) -> None:
        (self.folder / "go").touch()

    def state(self) -> str:
        return self.fields()["JobState"]

    def fields(self) -> Mapping[str, str]:
        said = self.cluster.run("scontrol", "--oneliner", "show", "job", self.number)
        return dict(word.split("=", 1) for word in said.split() if "=" in word)

    def hosts(self) -> list[str]:
        return self.cluster.run("scontrol", "show", "hostnames", self.fields()["NodeList"]).split()

    def ended(self, within_s: float = 120.0) -> str:
        """Return the state that the job ended in."""
        over = until(
            lambda: (now := self.state()) not in {"PENDING", "RUNNING", "COMPLETING"} and now, patience(within_s)
        )
        assert isinstance(over, str)
        return over

    def processes(self, *words: str) -> list[int]:
        """Return the processes of the job whose command line has all these words."""
        found = []
        for pid in self.cluster.steps_and_tasks():
            line = _command(int(pid)).decode()
            found += [int(pid)] if all(word in line for word in (str(self.run), *words)) else []
        return sorted(found)

    def report(self) -> dict[str, Any]:
        document: dict[str, Any] = json.loads((self.run / "report.json").read_text())
        return document


def _command(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:  # it has ended
        return b""


def test_an_engine_that_is_killed_is_replaced_and_the_ranks_run_on(cluster: Cluster, tmp_path: Path) -> None:
    job = Job(cluster, tmp_path, HF_TOKEN=SECRET)
    job.waits()
    assert (job.fields()["Requeue"], job.fields()["Restarts"]) == ("0", "0")
    for path in cluster.folder.rglob("*"):  # while the job runs, the controller has what it was given
        assert not path.is_file() or SECRET.encode() not in path.read_bytes(), path
    assert set(listening(map(int, cluster.steps_and_tasks()))) <= {
        "srun"
    }  # Slurm's own, on the loopback interface here
    (engine,) = job.processes("--batch", "-I")
    os.kill(engine, signal.SIGKILL)
    until(lambda: job.processes("--resume"), patience(30))
    job.go()
    job.ended()
    report = job.report()
    assert ends(report, "first") == ["exit"] * 3
    assert ends(report, "second") == ["exit"] * 3
    assert [step["message"] for step in report["steps"]] == [None, "rank 1 failed"]
    assert len(list((job.run / "steps" / "first").iterdir())) == 1  # the attempt of the killed engine, not a second one


def test_a_node_that_is_lost_starts_nothing_again_and_the_next_step_runs_on_the_others(
    cluster: Cluster, tmp_path: Path
) -> None:
    job = Job(cluster, tmp_path, "--ranks", "3")
    job.waits()
    (batch,) = {host for host in ("n0", "n1", "n2") if host == job.fields()["BatchHost"]}
    lost = next(host for host in ("n1", "n2") if host != batch)
    cluster.verb("lose-hard", lost)
    # Its state may flap while it does not respond; that the job has lost it is for good.
    until(lambda: lost not in job.hosts(), patience(240))
    assert job.state() == "RUNNING"
    job.go()
    job.ended(180.0)
    assert job.fields()["Restarts"] == "0"
    report = job.report()
    assert ends(report, "first") == ["exit"] * 3  # those of the second attempt: the first one lost a node
    assert ends(report, "second") == ["exit"] * 3
    notes = " ".join(report["steps"][0]["notes"])
    assert "attempt 1 was lost and has been repeated: its node was lost: srun: error: Node failure on" in notes
    second = next(step for step in report["steps"] if step["id"] == "second")
    assert lost not in {one["host"] for one in second["attempts"]}
    assert f"3 ranks shared 2 nodes and their GPUs, and a failure may come of that (lost before: {lost})" in " ".join(
        second["notes"]
    )


def test_the_record_is_whole_before_a_jobs_time_is_up(cluster: Cluster, tmp_path: Path) -> None:
    job = Job(cluster, tmp_path, "--submit-arg=--time=2")
    job.waits()
    assert job.ended(240.0) in {"COMPLETED", "FAILED"}  # by itself: Slurm's own end is TIMEOUT
    assert job.report()["verdict"] == "out_of_time"
    (first,) = job.report()["steps"]
    assert (first["status"], {one["part"] for one in first["attempts"]}) == ("interrupted", {"cancelled"})
    assert ends(job.report(), "first") == ["cancel"] * 3
    job.go()
    with cluster.allocated(3) as again:
        said = resumed(job.run, again)
    assert said.returncode == 3, said.stderr
    assert ends(job.report(), "first") == ["exit"] * 3
    assert "attempt 1 was cancelled and has been repeated" in " ".join(job.report()["steps"][0]["notes"])
    assert len(list((job.run / "steps" / "first").iterdir())) == 2


def test_a_rank_that_has_lost_its_own_node_is_not_started_on_one_of_another(cluster: Cluster, tmp_path: Path) -> None:
    job = Job(cluster, tmp_path)
    job.waits()
    lost = next(host for host in ("n1", "n2") if host != job.fields()["BatchHost"])
    cluster.verb("lose-hard", lost)
    until(lambda: lost not in job.hosts(), patience(240))
    job.go()
    assert job.ended(180.0) == "FAILED"
    said = " ".join((job.run / "slurm.txt").read_text().split())
    assert f"its node was lost: srun: error: Node failure on {lost}" in said
    assert "2 of 3 nodes are left, and this step has its ranks on 3" in said
    assert "salloc --nodes 3, and there continue with --resume" in said
    assert "first" in {step["id"] for step in job.report()["steps"]}
    cluster.verb("node", lost)
    with cluster.allocated(3) as again:
        ran = resumed(job.run, again)
    assert ran.returncode == 3, ran.stderr
    assert [ends(job.report(), step) for step in ("first", "second")] == [["exit"] * 3] * 2


def test_ranks_write_their_ends_when_the_batch_shell_is_killed(cluster: Cluster, tmp_path: Path) -> None:
    job = Job(cluster, tmp_path)
    job.waits()
    (shell,) = [pid for pid in map(int, cluster.steps_and_tasks()) if b"slurm_script" in _command(pid)]
    os.kill(shell, signal.SIGKILL)
    assert job.ended() == "FAILED"
    until(lambda: not cluster.steps_and_tasks(), patience(40))
    ended = sorted((job.run / "steps" / "first" / "1" / "ended").iterdir())
    assert [json.loads(path.read_text())["ended"]["by"] for path in ended] == ["cancel"] * 3


def test_a_second_cluster_has_nothing_to_do_with_the_first(cluster: Cluster, tmp_path: Path) -> None:
    other = Cluster(tmp_path / "other", nodes=1)
    other.start()
    try:
        theirs = other.run("sbatch", "--parsable", "--output=/dev/null", "--wrap", "sleep 120").strip()
        until(lambda: other.steps_and_tasks(), patience(30))
        job = Job(cluster, tmp_path)
        job.waits()
        cluster.run("scancel", job.number)
        assert job.ended() == "CANCELLED"
        assert other.run("squeue", "--noheader", "--jobs", theirs, "--format", "%T").strip() == "RUNNING"
        assert other.steps_and_tasks()
    finally:
        other.verb("clean")
