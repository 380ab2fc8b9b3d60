"""Podman behind its Docker-compatible socket: it runs a debug container, and names the way to build."""

import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.build_orders import BASE
from tests.support.command_line import vdbg_env
from vdbg_env.adapters.builders.select import choose_builder
from vdbg_env.adapters.docker.client import Engine, connect
from vdbg_env.common.errors import HostNotAble

pytestmark = pytest.mark.engine


@pytest.fixture(scope="module")
def podman(docker_engine: Engine, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Podman's service with a store of its own that contains the base image; yields its address."""
    program = shutil.which("podman")
    if program is None:
        pytest.skip("podman is not installed: apt-get install podman")
    folder = tmp_path_factory.mktemp("podman")
    base = [program, "--root", str(folder / "root"), "--runroot", str(folder / "run"), "--storage-driver", "vfs"]
    base += ["--cgroup-manager", "cgroupfs", "--runtime", shutil.which("runc") or "runc"]
    saved = folder / "base.tar"
    subprocess.run(["docker", "save", BASE, "--output", saved], check=True)
    subprocess.run([*base, "load", "--quiet", "--input", saved], check=True, capture_output=True)
    saved.unlink()
    address = f"unix://{folder}/podman.sock"
    with subprocess.Popen([*base, "system", "service", "--time=0", address], stderr=subprocess.DEVNULL) as service:
        deadline = time.monotonic() + 30
        while not (folder / "podman.sock").exists():
            assert service.poll() is None and time.monotonic() < deadline, "podman's service does not start"
            time.sleep(0.1)
        yield address
        service.terminate()
    subprocess.run([*base, "rm", "--all", "--force"], check=False, capture_output=True)


@pytest.fixture
def engine(podman: str, monkeypatch: pytest.MonkeyPatch) -> Engine:
    monkeypatch.setenv("DOCKER_HOST", podman)
    return connect()


def test_a_debug_container_has_its_seccomp_profile_and_the_least_capabilities(engine: Engine, tmp_path: Path) -> None:
    assert engine.is_podman and not engine.has_buildkit()
    script = "grep -E 'CapEff|NoNewPrivs|Seccomp:' /proc/self/status; ulimit -c; echo x > /dumps/x; exit 7"
    ran = vdbg_env(
        "run", "--image", BASE, "--gpu", "none", "--dumps", str(tmp_path / "dumps"), "--", "sh", "-c", script
    )
    assert (ran.status, ran.stdout.split()) == (
        7,
        ["CapEff:", "00000000000800eb", "NoNewPrivs:", "1", "Seccomp:", "2", "unlimited"],
    )
    assert (tmp_path / "dumps" / "x").read_text() == "x\n"
    assert engine.client.containers(all=True) == []


def test_a_build_names_the_way_that_works(engine: Engine) -> None:
    with pytest.raises(HostNotAble) as caught:
        choose_builder("auto")
    assert "podman build" in (caught.value.next_step or "")
