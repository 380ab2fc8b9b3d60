"""`vdbg-env build` on a real engine: what is proven is tagged; what goes wrong outside is told with its cause."""

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.support.command_line import Ran, vdbg_env
from vdbg_env.adapters.docker.client import Engine

pytestmark = [pytest.mark.engine, pytest.mark.slow]

BASE = "vdbg/debian-trixie:local"


def build(profile: str, *more: str) -> Ran:
    tag = f"vdbg-test/{profile}:proven"
    return vdbg_env("build", "--lineinfo", "--profile", profile, "--no-guard", "--base", BASE, "--tag", tag, *more)


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


def test_a_build_that_reaches_no_network_says_so() -> None:
    ran = build("sample", "--network", "none")
    assert ran.status == 1
    assert "error: the build failed at: Packages of debian trixie" in ran.stderr
    assert "usual cause: the step reached no network or no name server" in ran.stderr
    assert "try: check the proxy and mirror settings" in ran.stderr


def test_a_certificate_authority_that_signed_nothing_here_is_told_as_such(tmp_path: Path) -> None:
    authority = tmp_path / "authority.pem"
    key = ["-newkey", "rsa:2048", "-nodes", "-keyout", str(tmp_path / "key.pem")]
    argv = ["openssl", "req", "-x509", *key, "-out", str(authority), "-subj", "/CN=nobody", "-days", "1"]
    subprocess.run(argv, check=True, capture_output=True)
    ran = build("sample", "--ca-bundle", str(authority))
    assert ran.status == 1
    assert "usual cause: a server showed a certificate the image does not trust" in ran.stderr
    assert "try: the same command with --ca-bundle FILE" in ran.stderr
