"""Ranks outlive the engine and the API server; names, rights and secrets are as they should be."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from tests.k8s.cluster import CORE, JOBS, Cluster, until
from tests.k8s.conftest import PATIENT as USUAL
from tests.k8s.ranks import Pods, ends, ranked, running, waiting, watch
from vdbg_env.common.errors import HostNotAble
from vdbg_env.evidence.observation import EndedBy
from vdbg_env.runbook.model import Placement

PATIENT = Placement()
SECRET = "hf_" + "Qw7" * 12


@pytest.mark.long
def test_a_watch_that_is_too_old_begins_again(cluster: Cluster, pods: Pods, attempt: Path) -> None:
    cluster.front.expire_watches = 2
    started = pods(1).start(ranked(waiting(attempt)), attempt)
    until(lambda: cluster.front.asked.count(("watch", "pods")) == 3)
    (attempt / "go").touch()
    assert [one.ended.code for one in ends(started)] == [0]
    asked = [verb for verb, resource in cluster.front.asked if resource == "pods"]
    assert asked == ["list", *(["list", "watch"] * 3)]  # the first list is a question for the right to it


@pytest.mark.long
def test_a_server_that_is_gone_for_a_while_costs_nothing(cluster: Cluster, pods: Pods, attempt: Path) -> None:
    started = pods().start(ranked(waiting(attempt), placement=PATIENT), attempt)
    running(attempt)
    assert started.wait(0.1) is None
    cluster.server.kill()
    until(lambda: watch(started).away)
    assert started.wait(0.5) is None
    (attempt / "go").touch()
    until(lambda: len(list((attempt / "ended").glob("[0-9]"))) == 2)
    cluster.restart()
    assert [one.ended.code for one in ends(started)] == [0, 1]
    until(lambda: cluster.objects() == [])


@pytest.mark.long
def test_ranks_are_ended_without_a_server_and_the_job_that_is_left_is_named(
    cluster: Cluster, pods: Pods, attempt: Path
) -> None:
    started = pods(patience=replace(USUAL, tidy_s=1.0)).start(ranked(waiting(attempt), placement=PATIENT), attempt)
    running(attempt)
    cluster.server.kill()
    try:
        started.cancel()
        seen = ends(started)
        assert {one.ended.by for one in seen} == {EndedBy.CANCEL}
        assert "kubectl --namespace default delete job vdbg-step-" in seen[0].notes[-1]
    finally:
        cluster.restart()


@pytest.mark.long
def test_the_next_engine_takes_the_pods_over(cluster: Cluster, pods: Pods, attempt: Path) -> None:
    invocation = ranked(waiting(attempt), placement=PATIENT)
    watch(pods().start(invocation, attempt)).stop()
    running(attempt)
    adopted = pods().adopt(invocation, attempt)
    assert adopted is not None
    (attempt / "go").touch()
    assert [one.ended.code for one in ends(adopted)] == [0, 1]
    assert len([one for one in cluster.front.made if one["kind"] == "Job"]) == 1
    until(lambda: cluster.objects() == [])


@pytest.mark.long
def test_what_ended_while_no_engine_was_there_is_read_from_its_records(
    cluster: Cluster, pods: Pods, attempt: Path
) -> None:
    invocation = ranked("raise SystemExit(rank)", placement=PATIENT)
    watch(pods().start(invocation, attempt)).stop()
    until(lambda: len(list((attempt / "ended").glob("[0-9]"))) == 2)
    (job,) = (name for name in cluster.objects() if name.startswith("jobs/"))
    assert cluster.server.call("DELETE", f"{JOBS}/{job.removeprefix('jobs/')}")[0] == 200
    until(lambda: cluster.objects() == [])
    adopted = pods().adopt(invocation, attempt)
    assert adopted is not None
    assert [one.ended.code for one in ends(adopted)] == [0, 1]


@pytest.mark.long
def test_a_job_that_was_never_released_is_begun_anew(cluster: Cluster, pods: Pods, attempt: Path) -> None:
    """An engine that dies before its orders are there has started nothing."""
    cluster.front.denied.add(("patch", "jobs"))
    cluster.front.denied.add(("delete", "jobs"))
    with pytest.raises(HostNotAble):
        pods(1).start(ranked("pass"), attempt)
    assert any(name.startswith("jobs/") for name in cluster.objects())
    cluster.front.denied.clear()
    assert pods(1).adopt(ranked("pass"), attempt) is None
    until(lambda: cluster.objects() == [])
    assert pods(1).adopt(ranked("pass"), attempt.parent) is None


@pytest.mark.long
def test_names_that_are_taken_are_left_alone(
    cluster: Cluster, pods: Pods, attempt: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokens = iter(["aaaaaaaaaa", "bbbbbbbbbb", "cccccccccc"])
    monkeypatch.setattr("vdbg_env.adapters.placement.k8s.ranks.token_hex", lambda _: next(tokens))
    for kind, place, name in (
        ("Job", JOBS, "aaaaaaaaaa"),
        ("Secret", f"{CORE}/secrets", "bbbbbbbbbb"),
    ):
        group = "batch.test/v1" if kind == "Job" else "core.test/v1"
        spec = {"spec": {"suspend": True, "completions": 1}, "data": {}}
        status, said = cluster.server.call(
            "POST", place, {"apiVersion": group, "kind": kind, "metadata": {"name": f"vdbg-step-{name}"}, **spec}
        )
        assert status == 201, said
    assert [one.ended.code for one in ends(pods(1).start(ranked("pass"), attempt))] == [0]
    until(lambda: set(cluster.objects()) == {"jobs/vdbg-step-aaaaaaaaaa", "secrets/vdbg-step-bbbbbbbbbb"})
    cluster.server.call("DELETE", f"{CORE}/secrets/vdbg-step-bbbbbbbbbb")


@pytest.mark.parametrize(
    ("verb", "resource"),
    [
        ("create", "jobs"),
        pytest.param("create", "secrets", marks=pytest.mark.long),
        pytest.param("list", "pods", marks=pytest.mark.long),
        pytest.param("patch", "jobs", marks=pytest.mark.long),
    ],
)
def test_a_missing_right_is_reported_with_what_to_grant(
    cluster: Cluster, pods: Pods, attempt: Path, verb: str, resource: str
) -> None:
    cluster.front.denied.add((verb, resource))
    with pytest.raises(HostNotAble) as caught:
        pods(1).start(ranked("pass"), attempt)
    name = "jobs.batch" if resource == "jobs" else resource
    assert f"alice may not {verb} {name} in default" in caught.value.what
    grants = "\n".join(caught.value.details)
    assert "create role vdbg-env-1 --verb=create,get,patch,delete --resource=jobs.batch" in grants
    assert "create rolebinding vdbg-env-1 --role=vdbg-env-1 --user=alice" in grants
    until(lambda: cluster.objects() == [])


@pytest.mark.long
def test_what_is_granted_is_what_a_run_asks_for(cluster: Cluster, pods: Pods, attempt: Path) -> None:
    from vdbg_env.adapters.placement.k8s.api import RULES

    granted = {
        (verb, resource.removesuffix(".batch"))
        for verbs, resources in RULES
        for verb in verbs.split(",")
        for resource in resources.split(",")
    }
    ends(pods().start(ranked("raise SystemExit(rank)"), attempt))
    assert set(cluster.front.asked) <= granted


def test_no_secret_is_in_a_job_nor_in_the_record(cluster: Cluster, pods: Pods, attempt: Path) -> None:
    cluster.values["another"] = f"{SECRET}2"
    code = (
        "print('mine is', os.environ['HF_TOKEN'], 'and', sys.argv[1], flush=True)\n"
        "open('note', 'w').write(os.environ['HF_TOKEN'])\n"
    )
    invocation = ranked(code + waiting(attempt, ""), placement=PATIENT)
    invocation = type(invocation)(**{**vars(invocation), "argv": (*invocation.argv, f"--api-key={SECRET}3")})
    started = pods(1, env=(("HF_TOKEN", SECRET),), env_from=("secret/another",)).start(invocation, attempt)
    running(attempt, 1)
    shown = json.dumps([one for one in cluster.front.made if one["kind"] != "Secret"] + cluster.pods())
    assert SECRET not in shown
    (attempt / "go").touch()
    ends(started)
    assert "mine is [redacted" in (attempt / "node0-0" / "stdout").read_text()
    for path in attempt.rglob("*"):
        if path.is_file():
            assert SECRET.encode() not in path.read_bytes(), path


@pytest.fixture
def engine(cluster: Cluster, volume: Path, tmp_path: Path) -> Callable[..., "subprocess.Popen[str]"]:
    """Return what starts the command line as a user does."""

    def started(*words: str) -> "subprocess.Popen[str]":
        argv = [sys.executable, "-m", "vdbg_env", "runbook", *words]
        return subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=tmp_path)

    return started


def flags(volume: Path) -> tuple[str, ...]:
    return (
        "--on", "k8s", "--image", "registry/debug:1", "--gpu", "none", "--ranks", "2", "--k8s-python", sys.executable,
        "--k8s-volume", f"host:{volume}={volume}", "--run-dir", str(volume / "run"), "--batch",
    )  # fmt: skip


@pytest.mark.long
def test_an_engine_that_is_interrupted_leaves_nothing(
    cluster: Cluster, engine: Callable[..., "subprocess.Popen[str]"], volume: Path
) -> None:
    code = (
        "import os, time\nopen('" + str(volume) + "/runs' + os.environ['JOB_COMPLETION_INDEX'], 'w')\ntime.sleep(600)"
    )
    ran = engine("host-crash", *flags(volume), "--", sys.executable, "-c", code)
    until(lambda: len(list(volume.glob("runs*"))) == 2 or ran.poll() is not None)
    ran.send_signal(signal.SIGINT)
    out, said = ran.communicate(timeout=120)
    assert ran.returncode == 130, (out, said)
    until(lambda: cluster.objects() == [] and cluster.processes() == [])


@pytest.mark.long
def test_an_engine_that_is_killed_is_resumed(
    cluster: Cluster, engine: Callable[..., "subprocess.Popen[str]"], volume: Path
) -> None:
    rank = "import os, time, signal\nrank = os.environ['JOB_COMPLETION_INDEX']\n"
    code = rank + (
        f"open('{volume}/runs' + rank, 'w')\nwhile not os.path.exists('{volume}/go'): time.sleep(0.1)\n"
        "if rank == '1': os.kill(os.getpid(), signal.SIGSEGV)"
    )
    ran = engine("host-crash", *flags(volume), "--", sys.executable, "-c", code)
    until(lambda: len(list(volume.glob("runs*"))) == 2 or ran.poll() is not None)
    os.kill(ran.pid, signal.SIGKILL)
    ran.communicate()
    (volume / "go").touch()
    again = engine("host-crash", "--resume", str(volume / "run"), "--batch", "--json")
    out, said = again.communicate(timeout=300)
    assert again.returncode == 3, (out, said)
    assert "SIGSEGV" in out
    until(lambda: cluster.objects() == [] and cluster.processes() == [])
