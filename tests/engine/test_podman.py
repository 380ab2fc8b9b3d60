"""Podman behind its Docker-compatible socket: it runs a debug container, and names the way to build."""

import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.builders.fatbin import host_library
from tests.support.build_orders import BASE, built, small_order
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
    saved = folder / "base.tar"
    subprocess.run(["docker", "save", BASE, "--output", saved], check=True)
    address = f"unix://{folder}/podman.sock"
    with own_store(folder), own_service(program, folder, address):
        subprocess.run([program, "load", "--quiet", "--input", saved], check=True, capture_output=True)
        saved.unlink()
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
        deadline = time.monotonic() + 30
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


def test_without_its_command_a_build_names_the_way_that_works(engine: Engine) -> None:
    with pytest.raises(HostNotAble) as caught:
        choose_builder("auto", find_podman=lambda: None)
    assert "the podman command is not on this machine" in (caught.value.cause or "")
    assert "podman build" in (caught.value.next_step or "")


def test_a_library_that_a_link_leads_to_is_read_too(
    engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))  # which has no config.json
    links = "ln -s /opt/elsewhere/libk.so lib/libk.so; ln -s . lib/self; ln -s /nowhere lib/no"
    order = small_order(
        f"mkdir /opt/elsewhere; mv lib/libk.so /opt/elsewhere; {links}",
        files={"lib/libk.so": host_library(), "lib/libhere.so": host_library()},
        base=f"localhost/{BASE}",
        network="none",
    )
    builder = choose_builder("auto")
    image = built(list(builder.build(order))).image_id
    with builder.files(image, ["/opt/vdbg/lib", "/opt/vdbg/not-there"]) as files:
        assert [file.name for file in files] == ["/opt/vdbg/lib/libhere.so", "/opt/elsewhere/libk.so"]


@pytest.mark.long
def test_the_podman_command_builds_and_what_it_built_is_proven_over_the_socket(engine: Engine) -> None:
    tag = "localhost/vdbg-test/sample:1"
    flags = ("--base", f"localhost/{BASE}", "--network", "host", "--object-cache", "vdbg-test-podman")
    ran = vdbg_env("build", "--lineinfo", "--profile", "sample", "--no-guard", *flags, "--tag", tag)
    assert ran.status == 0, ran.stderr[-3000:]
    assert "2 of 2 cubins with code carry line info" in ran.stdout and "builder   podman" in ran.stdout
    found = engine.client.inspect_image(tag)  # type: ignore[no-untyped-call]
    assert found["Config"]["Labels"]["dev.vdbg-env.proof"].startswith("full: ")
