"""A bundle builds where there is no network: an engine without any image, in a network namespace without any route."""

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.build_orders import BASE
from tests.support.command_line import vdbg_env
from vdbg_env.engine.client import Engine

pytestmark = [pytest.mark.engine, pytest.mark.long]


@dataclass(frozen=True, kw_only=True)
class Site:
    """The air-gapped site: the process whose network namespace it is, and its engine's socket."""

    pid: int
    host: str

    def run(self, *argv: str | Path) -> subprocess.CompletedProcess[str]:
        """Run a program inside; its only network is what the namespace has."""
        words = ["nsenter", "--target", str(self.pid), "--net", *map(str, argv)]
        env = os.environ | {"DOCKER_HOST": self.host}
        return subprocess.run(words, capture_output=True, text=True, check=False, env=env)

    def engine_responds(self) -> bool:
        return self.run("docker", "version").returncode == 0


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    """An engine with its own empty store, started in a new network namespace that has a loopback device and no more."""
    if os.geteuid() != 0 or not shutil.which("dockerd") or not shutil.which("nsenter"):
        pytest.skip("only root can start a second engine in a network namespace")
    host = f"unix://{tmp_path}/docker.sock"
    folders = ["--data-root", tmp_path / "data", "--exec-root", tmp_path / "exec", "--pidfile", tmp_path / "pid"]
    alone = ["--bridge", "none", "--iptables=false", "--ip6tables=false", "--host", host]
    with (tmp_path / "log").open("w") as log:
        engine = subprocess.Popen(
            ["unshare", "--net", "dockerd", *map(str, folders), *alone], stdout=log, stderr=log, start_new_session=True
        )
    try:
        found = Site(pid=engine.pid, host=host)
        deadline = time.monotonic() + 120
        while not found.engine_responds():
            assert engine.poll() is None and time.monotonic() < deadline, (tmp_path / "log").read_text()[-2000:]
            time.sleep(0.5)
        yield found
    finally:
        engine.send_signal(signal.SIGTERM)
        engine.wait(60)
        shutil.rmtree(tmp_path / "data")


def test_a_bundle_builds_and_is_proven_without_any_route(docker_engine: Engine, site: Site, tmp_path: Path) -> None:
    bundle = tmp_path / "sample.tar"
    flags = ("--engine", "buildkit", "--base", BASE, "--network", "host")
    made = vdbg_env("bundle", "--lineinfo", "--profile", "sample", *flags, "--tag", "site/sample:1", str(bundle))
    assert made.status == 0, made.stderr[-3000:]

    assert site.run("ip", "route").stdout == ""
    assert site.run("docker", "images", "--quiet").stdout == ""
    built = site.run(sys.executable, "-m", "vdbg_env", "build", "--bundle", bundle, "--engine", "buildkit")
    assert built.returncode == 0, built.stderr[-3000:]
    assert "2 of 2 cubins with code carry line info" in built.stdout
    assert "site/sample:1" in site.run("docker", "images", "--format", "{{.Repository}}:{{.Tag}}").stdout
    verified = site.run(sys.executable, "-m", "vdbg_env", "verify", "site/sample:1:/opt/vdbg/out")
    assert verified.returncode == 0, verified.stderr
