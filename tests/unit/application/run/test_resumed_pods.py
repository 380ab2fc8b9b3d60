"""A run in pods is continued in the same ones; its record has the names of variables, and none of their values."""

import json
from dataclasses import replace
from typing import Any

import pytest

from vdbg_env.application.run.request import PlacementRequest, resumed_placement
from vdbg_env.common.errors import BadInput
from vdbg_env.image.container.pod_settings import PodSettings, parse_volume
from vdbg_env.image.container.run_settings import RunSettings
from vdbg_env.record.run_directory import RunHead

ASKED = PlacementRequest(
    on="k8s",
    ranks=2,
    pods=PodSettings(
        run=RunSettings(image="registry/x:1", env=(("HF_TOKEN", "hf_one"), ("SEED", "7"))),
        volumes=(parse_volume("pvc:runs=/data"),),
        overlay={"nodeSelector": {"gpu": "h100"}},
    ),
)


def head(**placement: Any) -> RunHead:
    document: dict[str, Any] = {
        "run": "r", "runbook": "b", "digest": "d", "started": "s", "workload": [], "inputs": {}, "facts": {},
        "tool_version": "1", "host": "h", "placement": placement,
    }  # fmt: skip
    return RunHead(**document)


def written() -> dict[str, Any]:
    """Return what `run.json` has of it."""
    found: dict[str, Any] = json.loads(json.dumps(ASKED.document()))
    return found


def test_the_record_has_names_and_no_values() -> None:
    assert "hf_one" not in str(written())
    assert "HF_TOKEN" in str(written())
    assert "pods" not in PlacementRequest(ranks=2).document()


def test_values_are_taken_from_the_environment_or_given_again() -> None:
    recorded = head(**written())
    there = {"HF_TOKEN": "hf_two", "SEED": "8"}
    again = resumed_placement(recorded, None, there)
    assert again and again.pods
    assert dict(again.pods.run.env) == there
    assert replace(again.pods.run, env=ASKED.pods.run.env if ASKED.pods else ()) == (ASKED.pods and ASKED.pods.run)
    assert resumed_placement(recorded, ASKED, {}) == ASKED
    with pytest.raises(BadInput, match="HF_TOKEN is not set here"):
        resumed_placement(recorded, None, {"SEED": "8"})


def test_other_pods_are_refused() -> None:
    assert ASKED.pods
    other = replace(ASKED, pods=replace(ASKED.pods, namespace="elsewhere"))
    with pytest.raises(BadInput, match="started in another way"):
        resumed_placement(head(**written()), other, {})
