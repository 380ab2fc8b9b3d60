"""What a site does to running jobs: daemons restarted, jobs suspended, two engines in one allocation."""

import json
import time
from functools import partial
from pathlib import Path

from tests.slurm.cluster import Allocated, Cluster, ends, ranked, until
from tests.slurm.runs import ends as ended_by
from tests.slurm.runs import engine
from tests.slurm.test_ranks_live_on import PATIENT, running, waiting
from tests.slurm.test_runs import words
from tests.support.patience import patience
from vdbg_env.evidence.finding import EndedBy
from vdbg_env.runbook.model import Watch


def test_the_daemon_of_a_node_that_is_restarted_has_lost_nothing(
    cluster: Cluster, allocation: Allocated, attempt: Path
) -> None:
    started = allocation.ranks(attempt).start(ranked(waiting(attempt), placement=PATIENT), attempt)
    running(attempt)
    cluster.verb("kill-daemon", "n1")
    assert started.wait(2.0) is None
    cluster.verb("node", "n1")
    (attempt / "go").touch()
    assert [one.ended.code for one in ends(started).values()] == [0, 1, 2]


def test_ranks_that_end_while_their_daemon_is_gone_are_read(
    cluster: Cluster, allocation: Allocated, attempt: Path
) -> None:
    started = allocation.ranks(attempt).start(ranked(waiting(attempt), placement=PATIENT), attempt)
    running(attempt)
    cluster.verb("kill-daemon", "n1")
    (attempt / "go").touch()
    until(lambda: len(list((attempt / "ended").iterdir())) == 3)
    cluster.verb("node", "n1")
    assert [one.ended.code for one in ends(started).values()] == [0, 1, 2]


def test_a_job_that_is_suspended_for_longer_than_its_silence_may_last_is_no_hang(
    cluster: Cluster, attempt: Path
) -> None:
    """Suspension (gang scheduling, preemption) stops every task by SIGSTOP; the clock goes on."""
    silence = patience(4.0)  # of which the crowd of a machine may take a part before and after
    with cluster.allocated(2) as short:
        watch = Watch(output_idle_s=silence)
        step = ranked(waiting(attempt), placement=PATIENT, watch=watch, timeout_s=20 * silence)
        started = short.ranks(attempt).start(step, attempt)
        running(attempt, 2)
        cluster.run("scontrol", "suspend", short.job)
        time.sleep(silence + 5)
        cluster.run("scontrol", "resume", short.job)
        time.sleep(2)  # long enough for a watch to look, too short to be silent for long
        (attempt / "go").touch()
        seen = ends(started)
        assert [(one.ended.by, one.ended.code) for one in seen.values()] == [(EndedBy.EXIT, 0), (EndedBy.EXIT, 1)]
        assert all("it was stopped for" in " ".join(one.notes) for one in seen.values())


def _all_run(folder: Path) -> bool:
    return len(list(folder.glob("runs-*"))) == 3


def test_two_runs_in_one_allocation_end_apart(allocation: Allocated, tmp_path: Path) -> None:
    folders = [tmp_path / "one", tmp_path / "two"]
    for folder in folders:
        folder.mkdir()
    ran = [engine(allocation, *words(folder)) for folder in folders]
    for folder in folders:
        until(partial(_all_run, folder), 90.0)
    (folders[0] / "go").touch()
    _, said = ran[0].communicate(timeout=120)
    assert ran[0].returncode == 3, said
    assert ran[1].poll() is None
    (folders[1] / "go").touch()
    _, said = ran[1].communicate(timeout=120)
    assert ran[1].returncode == 3, said
    for folder in folders:
        report = json.loads((folder / "run" / "report.json").read_text())
        assert ended_by(report, "first") == ["exit"] * 3
