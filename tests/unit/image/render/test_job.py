"""The objects of an attempt are valid, and say what fleets of pods need."""

import json
from dataclasses import replace
from typing import Any

import kubernetes_validate
import pytest

from tests.support.golden import assert_golden
from vdbg_env.common.errors import BadInput
from vdbg_env.image.container.pod_settings import PodSettings, PodVolume, parse_env_from, parse_volume
from vdbg_env.image.container.run_settings import Gpu, RunSettings
from vdbg_env.image.render.job import RankPods, job, overlaid, secret, service
from vdbg_env.image.render.manifests import as_yaml

PODS = RankPods(
    name="vdbg-core-0a1b2c3d4e",
    token="0a1b2c3d4e",
    ranks=2,
    nodes=2,
    start=("python3", "-I", "rank.py", "orders"),
    folder="/data/runs/r/steps/core/1",
    package="/data/runs/.vdbg-env-0123",
    grace_s=344.5,
    user=(1000, 1000),
    limit_s=7200.0,
)
SETTINGS = PodSettings(
    run=RunSettings(
        image="registry/vllm:lineinfo", gpu=Gpu(by="runtime", devices=("8",)), env=(("HF_TOKEN", "hf_secret"),),
        seccomp="default", memory=64 << 30,
    ),
    volumes=(
        parse_volume("pvc:runs=/data"), parse_volume("nfs:filer:/models=/models"), parse_volume("host:/mnt=/mnt"),
    ),
    env_from=("secret/hub", "configmap/site"),
    overlay={
        "nodeSelector": {"gpu": "h100"},
        "containers": [{"name": "rank", "resources": {"limits": {"rdma/ib": "1"}}}],
        "tolerations": [{"key": "gpu", "operator": "Exists"}],
    },
)  # fmt: skip
OWNER = {"metadata": {"name": PODS.name, "uid": "1-2-3"}}


def objects() -> list[dict[str, Any]]:
    return [
        job(PODS, SETTINGS), service(PODS, OWNER), secret(PODS, OWNER, b"{}\n", dict(SETTINGS.run.env)),
    ]  # fmt: skip


def test_the_objects_read_as_their_golden() -> None:
    assert_golden("image/run/ranks.k8s.yaml", "---\n".join(as_yaml(one, ()) for one in objects()))


@pytest.mark.parametrize("release", ["1.32", "1.37"])
def test_the_objects_have_the_fields_of_kubernetes_and_no_others(release: str) -> None:
    bare = replace(PODS, ranks=1, nodes=1, user=None, limit_s=None)
    host = replace(SETTINGS, run=replace(SETTINGS.run, ipc="host", env=(), gpu=Gpu(by="none")), env_from=(), overlay={})
    for one in [*objects(), job(bare, host)]:
        kubernetes_validate.validate(one, release, strict=True)


def test_no_value_of_a_variable_is_in_what_everyone_may_read() -> None:
    assert "hf_secret" not in json.dumps(objects()[:2])


def test_a_job_waits_for_its_orders_and_ends_no_sibling() -> None:
    spec = job(PODS, SETTINGS)["spec"]
    assert spec["suspend"] is True
    assert (spec["backoffLimitPerIndex"], spec["maxFailedIndexes"], spec["podReplacementPolicy"]) == (0, 2, "Failed")
    pod = spec["template"]["spec"]
    assert (pod["restartPolicy"], pod["terminationGracePeriodSeconds"]) == ("Never", 345)
    assert pod["subdomain"] == PODS.name
    assert pod["containers"][0]["resources"]["limits"] == {
        "nvidia.com/gpu": 8, "memory": str(64 << 30), "rdma/ib": "1",
    }  # fmt: skip


def test_what_is_merged_in_replaces_extends_and_removes() -> None:
    base = {"a": {"b": 1, "c": 2}, "env": [{"name": "x", "value": "1"}], "words": ["one"]}
    change = {"a": {"b": None}, "env": [{"name": "x", "value": "2"}, {"name": "y"}], "words": ["two"], "new": 3}
    assert overlaid(base, change) == {
        "a": {"c": 2}, "env": [{"name": "x", "value": "2"}, {"name": "y"}], "words": ["two"], "new": 3,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("text", "volume"),
    [
        ("pvc:runs=/data", PodVolume(kind="pvc", source="runs", path="/data")),
        ("nfs:filer.x:/a/b=/data", PodVolume(kind="nfs", source="/a/b", path="/data", server="filer.x")),
        ("host:/mnt/x=/mnt/x", PodVolume(kind="host", source="/mnt/x", path="/mnt/x")),
    ],
)
def test_a_volume_is_read(text: str, volume: PodVolume) -> None:
    assert parse_volume(text) == volume


@pytest.mark.parametrize("text", ["runs", "pvc:runs", "pvc:Runs=/x", "pvc:runs=x", "nfs:filer=/x", "host:x=/x", "a\nb"])
def test_what_is_not_a_volume_is_refused(text: str) -> None:
    with pytest.raises(BadInput):
        parse_volume(text)


def test_variables_are_taken_from_secrets_and_config_maps_alone() -> None:
    assert parse_env_from("secret/hub") == "secret/hub"
    with pytest.raises(BadInput):
        parse_env_from("pod/hub")


def test_the_deepest_volume_has_a_path() -> None:
    nested = replace(SETTINGS, volumes=(parse_volume("pvc:a=/data"), parse_volume("pvc:b=/data/runs")))
    assert nested.found_on("/data/runs/r") == (1, "r")
    assert nested.found_on("/data/x") == (0, "x")
    assert not nested.sees("/database")
