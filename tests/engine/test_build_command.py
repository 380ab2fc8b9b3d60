"""`vdbg-env build` on a real engine: what is proven is tagged; what goes wrong outside is told with its cause."""

import json
import subprocess
import uuid
from pathlib import Path
from typing import Any

import pytest

from tests.support.build_orders import BASE
from tests.support.command_line import Ran, vdbg_env
from vdbg_env.engine.client import Engine

pytestmark = [pytest.mark.engine, pytest.mark.slow]


def build(*more: str, tag: str = "vdbg-test/sample:never") -> Ran:
    return vdbg_env("build", "--lineinfo", "--profile", "sample", "--no-guard", "--base", BASE, "--tag", tag, *more)


def test_the_sample_is_built_proven_by_two_witnesses_and_tagged(docker_engine: Engine, tmp_path: Path) -> None:
    metadata, tag = tmp_path / "build.json", f"vdbg-test/sample:{uuid.uuid4().hex}"
    ran = build("--metadata-file", str(metadata), tag=tag)
    assert ran.status == 0, ran.stderr
    assert "cubins with code carry line info" in ran.stdout
    found: dict[str, Any] = docker_engine.client.inspect_image(tag)  # type: ignore[no-untyped-call]
    docker_engine.client.remove_image(tag)
    labels = found["Config"]["Labels"]
    document = json.loads(metadata.read_text())
    assert labels["dev.vdbg-env.proof"].startswith("full: ")
    assert labels["dev.vdbg-env.plan.digest"] == document["plan_digest"]
    assert document["proof"]["verdict"] == "full"
    assert all(file["witness"]["agrees"] for file in document["proof"]["files"])


def test_a_build_that_reaches_no_network_says_so() -> None:
    ran = build("--network", "none")
    assert ran.status == 1
    assert "error: the build failed at: Packages of debian trixie" in ran.stderr
    assert "usual cause: the step reached no network or no name server" in ran.stderr
    assert "try: check the proxy and mirror settings" in ran.stderr


@pytest.mark.long  # another authority, other layers: packages are installed once more, and pip tries five times
def test_a_certificate_authority_that_signed_nothing_here_is_told_as_such(tmp_path: Path) -> None:
    authority = tmp_path / "authority.pem"
    key = ["-newkey", "rsa:2048", "-nodes", "-keyout", str(tmp_path / "key.pem")]
    argv = ["openssl", "req", "-x509", *key, "-out", str(authority), "-subj", "/CN=nobody", "-days", "1"]
    subprocess.run(argv, check=True, capture_output=True)
    ran = build("--ca-bundle", str(authority))
    assert ran.status == 1
    assert "usual cause: a server showed a certificate the image does not trust" in ran.stderr
    assert "try: the same command with --ca-bundle FILE" in ran.stderr
