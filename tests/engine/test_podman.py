"""Podman behind its Docker-compatible socket: it runs a debug container, and names the way to build."""

import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.engine.own_engine import TINY, few_programs
from tests.support.command_line import vdbg_env
from vdbg_env.engine.client import Engine, connect

pytestmark = pytest.mark.engine


@pytest.fixture(scope="module")
def podman(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Podman's service with a store of its own that has a small image; yields its address."""
    program = shutil.which("podman")
    if program is None:
        pytest.skip("podman is not installed: apt-get install podman")
    folder = tmp_path_factory.mktemp("podman")
    address = f"unix://{folder}/podman.sock"
    with own_store(folder), own_service(program, folder, address):
        subprocess.run(
            [program, "import", "--quiet", "-", TINY],
            input=few_programs(folder / "base"),
            check=True,
            capture_output=True,
        )
        yield address
        subprocess.run([program, "rm", "--all", "--force"], check=False, capture_output=True)
        subprocess.run([program, "rmi", "--all", "--force"], check=False, capture_output=True)


@contextmanager
def own_store(folder: Path) -> Iterator[None]:
    """Give the podman command and its service one store that is not this machine's."""
    store = f'[storage]\ndriver = "overlay"\ngraphroot = "{folder}/root"\nrunroot = "{folder}/run"\n'
    (folder / "storage.conf").write_text(store)
    runtime = shutil.which("runc") or "runc"
    (folder / "containers.conf").write_text(f'[engine]\ncgroup_manager = "cgroupfs"\nruntime = "{runtime}"\n')
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CONTAINERS_STORAGE_CONF", str(folder / "storage.conf"))
        patch.setenv("CONTAINERS_CONF", str(folder / "containers.conf"))
        yield


@contextmanager
def own_service(program: str, folder: Path, address: str) -> Iterator[None]:
    with subprocess.Popen([program, "system", "service", "--time=0", address], stderr=subprocess.DEVNULL) as service:
        deadline = time.monotonic() + 120
        while not (folder / "podman.sock").exists():
            assert service.poll() is None and time.monotonic() < deadline, "podman's service does not start"
            time.sleep(0.1)
        yield
        service.terminate()


@pytest.fixture
def engine(podman: str, monkeypatch: pytest.MonkeyPatch) -> Engine:
    monkeypatch.setenv("DOCKER_HOST", podman)
    return connect()


def test_a_debug_container_has_its_seccomp_profile_and_the_least_capabilities(engine: Engine, tmp_path: Path) -> None:
    assert engine.is_podman and engine.no_buildkit() == "Podman has no BuildKit"
    show = (
        "while read line; do case $line in CapEff*|NoNewPrivs*|Seccomp:*) echo $line;; esac; done < /proc/self/status"
    )
    script = f"{show}; ulimit -c; echo x > /dumps/x; exit 7"
    ran = vdbg_env(
        "run", "--image", TINY, "--gpu", "none", "--dumps", str(tmp_path / "dumps"), "--", "sh", "-c", script
    )
    assert (ran.status, ran.stdout.split()) == (
        7,
        ["CapEff:", "00000000000800eb", "NoNewPrivs:", "1", "Seccomp:", "2", "unlimited"],
    )
    assert (tmp_path / "dumps" / "x").read_text() == "x\n"
    assert engine.client.containers(all=True) == []


def test_a_build_is_refused_with_the_way_that_works(engine: Engine) -> None:
    ran = vdbg_env("build", "--lineinfo", "--profile", "sample", "--no-guard", "--base", f"localhost/{TINY}")
    assert ran.status == 1 and f"Podman {engine.version} responds" in ran.stderr
    assert "vdbg-env render DIR && podman build" in ran.stderr
