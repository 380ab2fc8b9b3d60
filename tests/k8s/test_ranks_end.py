"""How ranks in pods end, and what is reported of each."""

import json
import os
import signal
from dataclasses import replace
from pathlib import Path

import pytest

from tests.k8s.cluster import Cluster, until
from tests.k8s.conftest import PATIENT
from tests.k8s.ranks import Pods, ends, ranked, running, waiting
from tests.support.patience import patience
from vdbg_env.adapters.placement.k8s.ranks import PodRanks
from vdbg_env.common.errors import BadInput, HostNotAble
from vdbg_env.evidence.observation import EndedBy
from vdbg_env.runbook.model import KillPolicy


def test_ranks_run_to_their_end_and_nothing_is_left(cluster: Cluster, pods: Pods, attempt: Path) -> None:
    code = "print('rank', rank, flush=True)\nopen('made', 'w').write('x')"
    seen = ends(pods().start(ranked(code), attempt))
    assert [(one.host, one.ended.by, one.ended.code) for one in seen] == [
        ("node0", EndedBy.EXIT, 0), ("node1", EndedBy.EXIT, 0),
    ]  # fmt: skip
    assert (attempt / "node1-1" / "stdout").read_text() == "rank 1\n"
    assert (attempt / "node1-1" / "made").read_text() == "x"
    assert all(one.node["kernel"] for one in seen)
    until(lambda: cluster.objects() == [])
    job = next(one for one in cluster.front.made if one["kind"] == "Job")
    spec = job["spec"]
    assert (spec["completionMode"], spec["backoffLimitPerIndex"], spec["maxFailedIndexes"]) == ("Indexed", 0, 2)
    assert spec["podReplacementPolicy"] == "Failed" and "ttlSecondsAfterFinished" not in spec
    assert {one["kind"] for one in cluster.front.made} == {"Job", "Secret", "Service"}


@pytest.mark.long
def test_a_rank_that_crashes_ends_the_others_after_their_records(cluster: Cluster, pods: Pods, attempt: Path) -> None:
    code = "if rank == 1: os.kill(os.getpid(), signal.SIGSEGV)\ntime.sleep(60)"
    first, second = ends(pods().start(ranked(code), attempt))
    assert (second.ended.by, second.ended.signal) == (EndedBy.SIGNAL, signal.SIGSEGV)
    assert first.ended.by is EndedBy.PEER
    until(lambda: cluster.objects() == [])
    said = json.loads((attempt / "kubernetes" / "pods.json").read_text())
    (crashed,) = (one for one in said.values() if one["rank"] == 1)
    assert json.loads(crashed["message"])["signal"] == signal.SIGSEGV


@pytest.mark.parametrize(
    ("fate", "words"),
    [
        ("image", "cannot be pulled: ImagePullBackOff.*not found"),
        pytest.param("unschedulable", "0/3 nodes", marks=pytest.mark.long),
        pytest.param("no pod", "no pod", marks=pytest.mark.long),
    ],
)
def test_pods_that_cannot_start_are_reported_with_what_the_cluster_says(
    cluster: Cluster, pods: Pods, attempt: Path, fate: str, words: str
) -> None:
    cluster.fates.update({0: fate, 1: fate})
    with pytest.raises(HostNotAble, match=words) as caught:
        # Where a controller makes pods, a busy machine must not be reported as one that makes none.
        start_s = 1.0 if fate == "no pod" else patience(2.0)
        pods(patience=replace(PATIENT, start_s=start_s)).start(ranked("pass"), attempt).wait(120)
    if fate == "image":
        assert any("Failed to pull image" in line for line in caught.value.details)
    until(lambda: cluster.objects() == [])


@pytest.mark.long
def test_one_rank_without_its_image_ends_the_others(cluster: Cluster, pods: Pods, attempt: Path) -> None:
    cluster.fates[1] = "image"
    started = pods().start(ranked("open('runs', 'w')\ntime.sleep(60)"), attempt)
    running(attempt, 1)
    first, second = ends(started)
    assert second.ended.by is EndedBy.NOT_STARTED and "ImagePullBackOff" in str(second.ended.message)
    assert first.ended.by is EndedBy.PEER


@pytest.mark.long
def test_an_eviction_is_reported_as_one(cluster: Cluster, pods: Pods, attempt: Path) -> None:
    started = pods().start(ranked(waiting(attempt)), attempt)
    running(attempt)
    assert started.wait(0.2) is None
    cluster.evict(1, "The node was low on resource: memory.")
    first, second = ends(started)
    assert second.ended.by is EndedBy.NODE_LOST
    assert second.ended.message == "its pod was evicted: The node was low on resource: memory."
    assert first.ended.by is EndedBy.PEER


@pytest.mark.long
def test_a_supervisor_that_is_killed_is_a_lost_rank(cluster: Cluster, pods: Pods, attempt: Path) -> None:
    started = pods().start(ranked(waiting(attempt)), attempt)
    running(attempt)
    for pid in cluster.processes()[1:]:
        os.kill(pid, signal.SIGKILL)
    (attempt / "go").touch()
    _, second = ends(started)
    assert second.ended.by is EndedBy.NODE_LOST
    assert second.ended.message == "its pod ended (status 137), and it left no record of its end"


@pytest.mark.long
def test_a_cancel_lets_every_rank_write_its_end(cluster: Cluster, pods: Pods, attempt: Path) -> None:
    started = pods().start(ranked(waiting(attempt)), attempt)
    running(attempt)
    started.cancel()
    assert {one.ended.by for one in ends(started)} == {EndedBy.CANCEL}
    until(lambda: cluster.objects() == [] and cluster.processes() == [])


@pytest.mark.long
def test_what_ignores_the_end_is_killed_within_the_grace(cluster: Cluster, pods: Pods, attempt: Path) -> None:
    code = "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n" + waiting(attempt)
    started = pods(1).start(ranked(code, kill=KillPolicy(grace_s=0.5)), attempt)
    running(attempt, 1)
    started.cancel()
    (seen,) = ends(started)
    assert (seen.ended.by, seen.ended.signal) == (EndedBy.CANCEL, signal.SIGKILL)


def test_the_run_must_be_on_a_volume_that_pods_see(pods: Pods, tmp_path: Path) -> None:
    settings = pods()._settings
    with pytest.raises(BadInput, match="pods do not see"):
        PodRanks(settings, run=tmp_path / "elsewhere", api=pods()._api, disk_floor=0)


@pytest.mark.long
def test_an_image_without_what_ranks_need_is_reported_by_its_log(cluster: Cluster, pods: Pods, attempt: Path) -> None:
    found = pods(1, python="/usr/bin/python3")
    with pytest.raises(HostNotAble, match=r"status 3 before it began.*no pydantic 2"):
        found.start(ranked("pass"), attempt).wait(120)


def test_pods_with_another_volume_than_this_machine_are_reported_with_what_to_do(
    cluster: Cluster, pods: Pods, attempt: Path, tmp_path: Path
) -> None:
    with pytest.raises(HostNotAble, match="status 2 before it began") as caught:
        pods(1, source=tmp_path / "another").start(ranked("pass"), attempt).wait(120)
    assert caught.value.cause == f"the volume that pods mount does not have the run's folder {attempt.parents[2]}"
    assert "records cannot be collected through the API server" in str(caught.value.next_step)
    until(lambda: cluster.objects() == [])
