"""An engine of the test's own that is killed, full or closed to the user: each told plainly, nothing left behind."""

import gc
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.engine.conftest import make_builder
from tests.support.build_orders import failed, small_order
from vdbg_env.adapters.builders.buildkit import BuildKitBuilder
from vdbg_env.adapters.docker.client import Engine, connect
from vdbg_env.application.ports import ImageBuilder
from vdbg_env.application.ports.build_events import OutputLine
from vdbg_env.common.errors import BadInput, EngineFailed, HostNotAble

pytestmark = [
    pytest.mark.engine,
    pytest.mark.slow,
    # The client library leaves a socket open when nothing listens behind it any more; that is no fault of ours.
    pytest.mark.filterwarnings("ignore:Exception ignored in. <socket:pytest.PytestUnraisableExceptionWarning"),
]

# All that the base image of these tests holds, with the libraries these programs need.
PROGRAMS = ("/bin/sh", "/bin/sleep", "/bin/echo", "/bin/dd", "/bin/cat")


@pytest.fixture(autouse=True)
def sockets_are_collected_here() -> Iterator[None]:
    """Keep what the client library left open from being found, and complained of, in another test."""
    yield
    gc.collect()


@dataclass
class OwnEngine:
    """A dockerd that only this test uses, on a disk of its own."""

    process: subprocess.Popen[bytes]
    host: str
    folder: Path

    def connect(self) -> Engine:
        return connect({"DOCKER_HOST": self.host})

    def kill(self) -> None:
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


@pytest.fixture
def own_engine(tmp_path: Path) -> Iterator[OwnEngine]:
    if os.geteuid() != 0 or shutil.which("dockerd") is None:
        pytest.skip("only root may start a second dockerd, and dockerd must be installed")
    disk, mount = tmp_path / "disk", tmp_path / "root"
    mount.mkdir()
    with disk.open("wb") as file:
        file.truncate(400 << 20)
    made = subprocess.run(["mkfs.ext4", "-q", "-F", disk], capture_output=True, check=False)
    mounted = subprocess.run(["mount", "-o", "loop", disk, mount], capture_output=True, text=True, check=False)
    if made.returncode or mounted.returncode:
        pytest.skip(f"no disk of its own for a second dockerd: {mounted.stderr.strip()}")
    engine = start(tmp_path, mount)
    try:
        make_base(engine, tmp_path)
        yield engine
    finally:
        if engine.process.poll() is None:
            os.killpg(engine.process.pid, signal.SIGTERM)
            try:
                engine.process.wait(20)
            except subprocess.TimeoutExpired:
                engine.kill()
        # Containers and their shims of a killed engine are still there and hold its disk.
        end_all_below(str(tmp_path))
        for place in [mount, *(tmp_path / "exec" / "netns").glob("*")]:
            subprocess.run(["umount", "-l", place], check=False, capture_output=True)


def start(folder: Path, root: Path) -> OwnEngine:
    host = f"unix://{folder}/docker.sock"
    # In a network of its own: a dockerd started with --bridge none removes docker0, which is the other engine's.
    argv = [
        "unshare", "--net", "dockerd", "--host", host, "--data-root", str(root),
        "--exec-root", str(folder / "exec"), "--pidfile", str(folder / "pid"),
        "--bridge", "none", "--iptables=false", "--ip-forward=false", "--ip-masq=false",
    ]  # fmt: skip
    with (folder / "dockerd.log").open("wb") as log:
        process = subprocess.Popen(argv, stdout=log, stderr=log, stdin=subprocess.DEVNULL, start_new_session=True)
    engine = OwnEngine(process=process, host=host, folder=folder)
    deadline = time.monotonic() + 40
    while time.monotonic() < deadline and process.poll() is None:
        with socket.socket(socket.AF_UNIX) as probe:
            if probe.connect_ex(str(folder / "docker.sock")) == 0:
                return engine
        time.sleep(0.3)
    said = (folder / "dockerd.log").read_text().strip().rpartition("\n")[2]
    pytest.skip(f"a second dockerd does not start here: {said[:300]}")


def make_base(engine: OwnEngine, folder: Path) -> None:
    root = folder / "base"
    for program in PROGRAMS:
        ldd = subprocess.run(["ldd", program], capture_output=True, text=True, check=False).stdout
        for path in [program, *(word for word in ldd.split() if word.startswith("/"))]:
            target = root / path.lstrip("/")
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(path, target)
    tar = subprocess.run(["tar", "-C", root, "-c", "."], capture_output=True, check=True).stdout
    subprocess.run(["docker", "--host", engine.host, "import", "-", "vdbg/tiny:local"], input=tar, check=True)


def end_all_below(folder: str) -> None:
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if folder.encode() in entry.read_bytes() and int(entry.parent.name) != os.getpid():
                os.kill(int(entry.parent.name), signal.SIGKILL)
        except OSError:
            continue


@pytest.fixture(params=["buildx", "buildkit", "classic"])
def builder(request: pytest.FixtureRequest, own_engine: OwnEngine) -> ImageBuilder:
    return make_builder(request.param, request, own_engine.connect())


def test_an_engine_killed_in_the_middle_is_a_failed_build_with_its_step(
    builder: ImageBuilder, own_engine: OwnEngine
) -> None:
    events = []
    order = small_order("echo before", "echo waiting && sleep 60", base="vdbg/tiny:local", network="none")
    for event in builder.build(order):
        events.append(event)
        if isinstance(event, OutputLine) and event.text == "waiting":
            own_engine.kill()
    failure = failed(events)
    assert "went away" in failure.cause
    assert "sleep 60" in failure.title
    assert failure.next_step


def test_a_full_disk_is_named(builder: ImageBuilder) -> None:
    order = small_order("dd if=/dev/zero of=/big bs=1M count=600", base="vdbg/tiny:local", network="none")
    failure = failed(list(builder.build(order)))
    assert "disk" in failure.cause
    assert "docker system df" in (failure.next_step or "")


def test_saving_and_pushing_say_what_went_wrong_and_leave_nothing(own_engine: OwnEngine, tmp_path: Path) -> None:
    engine = BuildKitBuilder(own_engine.connect(), why="test")
    whole = tmp_path / "whole.tar"
    assert engine.save("vdbg/tiny:local", whole) == whole.stat().st_size > 1 << 20
    with pytest.raises(BadInput, match="cannot write"):
        engine.save("vdbg/tiny:local", tmp_path / "no" / "x.tar")
    with pytest.raises(BadInput, match="none:local"):
        engine.save("vdbg/none:local", tmp_path / "none.tar")
    assert not list(tmp_path.glob("*.partial")) and not (tmp_path / "none.tar").exists()
    assert engine.tag("vdbg/tiny:local", ["localhost:1/tiny:x"], {"dev.vdbg-env.proof": "{}"}).startswith("sha256:")
    with pytest.raises(EngineFailed, match=r"pushing localhost:1/tiny:x failed"):
        list(engine.push("localhost:1/tiny:x"))
    own_engine.kill()
    with pytest.raises(HostNotAble, match="nothing answers"):
        engine.save("vdbg/tiny:local", tmp_path / "late.tar")
    with pytest.raises(HostNotAble, match="nothing answers"):
        own_engine.connect()
