"""What a pod's status and an API server's answers mean, without a cluster."""

import sys
from typing import Any

import pytest

from vdbg_env.adapters.placement.k8s.api import Away, KubeApi, Refused, not_able
from vdbg_env.adapters.placement.k8s.pods import INDEX, Pod, read_pod
from vdbg_env.common.errors import BadInput, HostNotAble


def pod(status: dict[str, Any], **metadata: Any) -> Pod:
    document = {
        "metadata": {"name": "p-0-abc", "uid": "1", "labels": {INDEX: "3"}, **metadata},
        "spec": {"nodeName": "n1"},
        "status": status,
    }
    found = read_pod(document)
    assert found is not None and (found.rank, found.node) == (3, "n1")
    return found


def container(**state: Any) -> list[dict[str, Any]]:
    return [{"name": "sidecar", "state": {"running": {}}}, {"name": "rank", "state": state}]


def test_a_pod_that_is_no_rank_is_none() -> None:
    assert read_pod({"metadata": {"name": "x", "uid": "1"}}) is None


@pytest.mark.parametrize(
    ("reason", "words", "hopeless"),
    [
        ("ImagePullBackOff", "its image cannot be pulled: ImagePullBackOff: no such thing", False),
        ("InvalidImageName", "its image cannot be pulled: InvalidImageName: no such thing", True),
        ("CreateContainerConfigError", "its container cannot be started: CreateContainerConfigError: no such", False),
        ("ContainerCreating", "it is not started yet: ContainerCreating: no such thing", False),
    ],
)
def test_why_a_rank_has_not_started(reason: str, words: str, hopeless: bool) -> None:
    found = pod(
        {"phase": "Pending", "containerStatuses": container(waiting={"reason": reason, "message": "no such thing"})}
    )
    assert found.waits.startswith(words)
    assert (found.hopeless, found.over) == (hopeless, False)


def test_a_pod_without_a_node_says_what_nodes_lack() -> None:
    said = {"type": "PodScheduled", "status": "False", "message": "0/3 nodes are available: 3 Insufficient gpu."}
    assert pod({"phase": "Pending", "conditions": [said]}).waits == f"no node can take it: {said['message']}"


@pytest.mark.parametrize(
    ("status", "words"),
    [
        ({"reason": "Evicted", "message": "low on memory"}, "its pod was evicted: low on memory"),
        (
            {"conditions": [{"type": "DisruptionTarget", "status": "True", "message": "preempted by x"}]},
            "its pod was evicted: preempted by x",
        ),
        ({"reason": "NodeLost"}, "its pod failed: NodeLost"),
        ({"containerStatuses": container(terminated={"exitCode": 137, "reason": "OOMKilled"})}, "out of memory"),
        ({}, ""),
    ],
)
def test_who_ended_a_pod(status: dict[str, Any], words: str) -> None:
    found = pod({"phase": "Failed", **status})
    assert found.over
    assert found.failed.startswith(words) and bool(found.failed) == bool(words)


def test_a_deleted_pod_and_a_termination_message() -> None:
    assert pod({"phase": "Running"}, deletionTimestamp="2026-11-22T12:00:00Z").failed == "its pod was deleted"
    said = '{"rank": 3, "by": "signal", "code": null, "signal": 11}'
    found = pod({"phase": "Succeeded", "containerStatuses": container(terminated={"exitCode": 0, "message": said})})
    assert (found.code, found.said) == (0, {"rank": 3, "by": "signal", "code": None, "signal": 11})
    other = pod({"phase": "Failed", "containerStatuses": container(terminated={"exitCode": 2, "message": "no {"})})
    assert (other.said, other.message) == (None, "no {")


FORBIDDEN = (
    'pods "x" is forbidden: User "system:serviceaccount:debug:engine" cannot get resource "pods/log" in API group "" '
    'in the namespace "debug"'
)


def test_a_missing_right_of_a_service_account_names_it() -> None:
    error = not_able(Refused(403, FORBIDDEN), "no Job can be started", "debug")
    assert error.what == (
        "no Job can be started: system:serviceaccount:debug:engine may not get pods/log in debug"
    )  # fmt: skip
    assert "--serviceaccount=debug:engine" in error.details[1]


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (Away("connection refused"), "does not respond"),
        (Refused(403, 'exceeded quota: gpus, requested: 8'), "refused it with status 403"),
        (Refused(401, "Unauthorized"), "does not accept this user's credentials"),
    ],
)  # fmt: skip
def test_other_errors_are_what_they_are(error: Away | Refused, words: str) -> None:
    assert words in not_able(error, "no Job can be started", "default").what


def test_without_the_client_the_package_to_install_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "kubernetes", None)
    with pytest.raises(HostNotAble) as caught:
        KubeApi(context=None, namespace=None)
    assert caught.value.next_step == "pip install 'vdbg-env[k8s]'"


def test_without_a_cluster_the_kubeconfig_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    with pytest.raises(BadInput, match="no cluster is configured"):
        KubeApi(context=None, namespace=None)
