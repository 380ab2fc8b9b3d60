"""`vdbg-env build` on a real engine: what is proven is tagged, and the compiler cache's trap is seen for what it is."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.command_line import Ran, vdbg_env
from vdbg_env.engines.docker_client import Engine

pytestmark = [pytest.mark.engine, pytest.mark.slow]

BASE = "vdbg/debian-trixie:local"
PROFILES = Path(__file__).parents[1] / "data" / "images"


@pytest.fixture(autouse=True)
def _profiles_of_the_tests(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VDBG_IMAGES", str(PROFILES))


def build(profile: str, *more: str) -> Ran:
    tag = f"vdbg-test/{profile}:proven"
    return vdbg_env("build", "--lineinfo", "--profile", profile, "--base", BASE, "--tag", tag, *more)


def names(engine: Engine, profile: str) -> list[object]:
    found: list[object] = engine.client.images(name=f"vdbg-test/{profile}")
    return found


def test_the_sample_is_built_proven_by_two_witnesses_and_tagged(docker_engine: Engine, tmp_path: Path) -> None:
    metadata = tmp_path / "build.json"
    ran = build("sample", "--metadata-file", str(metadata))
    assert ran.status == 0, ran.stderr
    assert "cubins with code carry line info" in ran.stdout
    found: dict[str, Any] = docker_engine.client.inspect_image("vdbg-test/sample:proven")  # type: ignore[no-untyped-call]
    labels = found["Config"]["Labels"]
    document = json.loads(metadata.read_text())
    assert labels["dev.vdbg-env.proof"].startswith("full: ")
    assert labels["dev.vdbg-env.plan.digest"] == document["plan_digest"]
    assert document["proof"]["verdict"] == "full"
    assert all(file["witness"]["agrees"] for file in document["proof"]["files"])


def test_the_sample_is_built_on_the_bare_machine_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    ran = vdbg_env("build", "--lineinfo", "--profile", "sample", "--engine", "host", "--json")
    assert ran.status == 0, ran.stderr
    document = json.loads(ran.stdout)
    assert document["engine"]["name"] == "host"
    assert document["proof"]["verdict"] == "full"


@pytest.mark.parametrize(
    ("profile", "verdict", "named"), [("trap", "none", "libsample.so"), ("trap-partial", "partial", "scatter")]
)
def test_a_compiler_cache_that_hands_back_old_objects_costs_the_tag(
    docker_engine: Engine, profile: str, verdict: str, named: str
) -> None:
    ran = build(profile)
    assert ran.status == 3, ran.stderr
    assert names(docker_engine, profile) == []
    assert f"cubins with code carry line info: {verdict}" in ran.stderr
    assert named in ran.stderr
    assert "usual cause: a compiler cache handed back objects compiled without the flag" in ran.stderr
    assert "the candidate is kept, untagged: sha256:" in ran.stderr
