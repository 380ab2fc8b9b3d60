"""What runs next to our ranks is left alone."""

import subprocess
from pathlib import Path

from tests.slurm.cluster import Allocated, Cluster, ends, ranked
from tests.slurm.test_ranks_live_on import PATIENT, running, waiting
from vdbg_env.evidence.finding import EndedBy


def test_a_cancel_ends_neither_another_attempt_nor_a_step_nor_a_job_of_others(
    cluster: Cluster, allocation: Allocated, attempt: Path
) -> None:
    second = attempt.with_name("2")
    second.mkdir()
    foreign = subprocess.Popen(["srun", "--overlap", "--ntasks=1", "sleep", "60"], env=allocation.environment)
    job = cluster.run("sbatch", "--parsable", "--overcommit", "--output=/dev/null", "--wrap", "sleep 60").strip()
    try:
        started = allocation.ranks(attempt).start(ranked(waiting(attempt), placement=PATIENT), attempt)
        beside = allocation.ranks(second).start(ranked(waiting(second), placement=PATIENT), second)
        running(attempt)
        running(second)  # a second step does not wait for the first one to end
        started.cancel()
        assert {one.ended.by for one in ends(started).values()} == {EndedBy.CANCEL}
        (second / "go").touch()
        assert [one.ended.code for one in ends(beside).values()] == [0, 1, 2]
        assert foreign.poll() is None
        assert cluster.run("squeue", "--noheader", "--jobs", job, "--format", "%T").strip() in {"RUNNING", "PENDING"}
    finally:
        foreign.terminate()  # SIGTERM has srun kill its task
        foreign.wait(30)
        cluster.run("scancel", job)
