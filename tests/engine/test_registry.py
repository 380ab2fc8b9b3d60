"""A real registry: a base is pulled by its digest, a proven image is pushed with its proof, what is refused is told."""

import base64
import json
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.engine.imported_image import imported
from tests.engine.registry import PASSWORD, USER, Registry, running_registry
from tests.support.build_orders import BASE
from tests.support.command_line import Ran, vdbg_env
from vdbg_env.build.buildkit import BuildKitBuilder
from vdbg_env.engine.client import Engine

pytestmark = [pytest.mark.engine, pytest.mark.slow]


@pytest.fixture
def registry(tmp_path: Path) -> Iterator[Registry]:
    with running_registry(tmp_path) as running:
        yield running


def build(*argv: str) -> Ran:
    return vdbg_env("build", "--lineinfo", "--profile", "sample", "--no-guard", *argv)


def forget(engine: Engine, *names: str) -> None:
    for name in names:
        engine.client.remove_image(name, force=True)


def test_the_digest_told_of_a_push_is_the_registrys(docker_engine: Engine, tmp_path: Path) -> None:
    """An image of a few bytes goes the way of a large one."""
    builder = BuildKitBuilder(docker_engine, why="test")
    with running_registry(tmp_path) as registry, imported(docker_engine, {"opt/x": uuid.uuid4().bytes}) as name:
        tag = f"{registry.host}/debug/tiny:pushed"
        image = builder.tag(name, [tag], {"dev.vdbg-env.proof": "full: 1"})
        *progress, last = builder.push(tag)
        assert progress and last.digest == registry.digest("debug/tiny", "pushed")
        forget(docker_engine, tag)
        by_digest = f"{registry.host}/debug/tiny@{last.digest}"
        docker_engine.client.pull(by_digest)
        found = docker_engine.client.inspect_image(by_digest)  # type: ignore[no-untyped-call]
        assert (found["Id"], found["Config"]["Labels"]["dev.vdbg-env.proof"]) == (image, "full: 1")
        forget(docker_engine, by_digest)


@pytest.mark.long  # the engine takes a minute to compress a gigabyte
def test_a_proven_image_is_pushed_and_the_digest_told_is_the_registrys(
    docker_engine: Engine, registry: Registry
) -> None:
    tag = f"{registry.host}/debug/sample:proven"
    ran = build("--base", BASE, "--tag", tag, "--push", "--json")
    assert ran.status == 0, ran.stderr
    document: dict[str, Any] = json.loads(ran.stdout)
    assert document["pushed_digest"] == registry.digest("debug/sample", "proven")
    by_digest = f"{registry.host}/debug/sample@{document['pushed_digest']}"
    forget(docker_engine, tag)
    docker_engine.client.pull(by_digest)
    found = docker_engine.client.inspect_image(by_digest)  # type: ignore[no-untyped-call]
    assert found["Id"] == document["image_id"]
    assert found["Config"]["Labels"]["dev.vdbg-env.proof"].startswith("full: ")
    forget(docker_engine, by_digest)


@pytest.mark.long
def test_a_base_is_pulled_by_its_digest(docker_engine: Engine, registry: Registry) -> None:
    name = f"{registry.host}/base/debian"
    docker_engine.client.tag(BASE, name, "trixie")
    for _ in docker_engine.client.push(name, tag="trixie", stream=True):
        pass
    forget(docker_engine, f"{name}:trixie")
    tag, base = f"vdbg-test/sample:{uuid.uuid4().hex}", f"{name}@{registry.digest('base/debian', 'trixie')}"
    ran = build("--base", base, "--tag", tag, "--json")
    assert ran.status == 0, ran.stderr
    document: dict[str, Any] = json.loads(ran.stdout)
    assert document["plan"]["base"] == base
    assert document["proof"]["verdict"] == "full"
    forget(docker_engine, tag)


@pytest.mark.long  # as above
def test_a_registry_that_wants_a_password_is_told_with_what_to_type(
    docker_engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    with running_registry(tmp_path, password=True) as registry:
        tag = f"{registry.host}/debug/sample:proven"
        refused = build("--base", BASE, "--tag", tag, "--push")
        assert refused.status == 1
        assert f"pushing {tag} failed" in refused.stderr
        assert f"try: docker login {registry.host}, then docker push {tag}" in refused.stderr
        assert docker_engine.client.inspect_image(tag)  # type: ignore[no-untyped-call]  # proven: it keeps its name
        token = base64.b64encode(f"{USER}:{PASSWORD}".encode()).decode()
        (tmp_path / "config.json").write_text(json.dumps({"auths": {registry.host: {"auth": token}}}))
        pushed = build("--base", BASE, "--tag", tag, "--push")
        assert pushed.status == 0, pushed.stderr
        assert "pushed    sha256:" in pushed.stdout
        forget(docker_engine, tag)


def test_a_registry_that_does_not_answer_is_told(docker_engine: Engine) -> None:
    tag = "127.0.0.1:9/debug/sample:proven"  # the discard port: nobody listens
    ran = build("--base", BASE, "--tag", tag, "--push")
    assert ran.status == 1
    assert f"pushing {tag} failed" in ran.stderr
    assert "the registry cannot be reached" in ran.stderr
    forget(docker_engine, tag)
