"""A real Docker Engine with a plain Debian base image, and every way this program has to build with it."""

import os
import shutil
import subprocess
import time
import uuid
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from docker.errors import APIError

from tests.support.build_orders import OF_THIS_PROCESS
from tests.support.groups import leaves_images_alone
from tests.support.reaper import STAYS
from vdbg_env.build.builder import ImageBuilder
from vdbg_env.build.buildkit import BuildKitBuilder, BuildxBuilder, find_buildx
from vdbg_env.build.host import HostBuilder
from vdbg_env.engine.client import Engine, connect
from vdbg_env.engine.containers import OWNER, PURPOSE

REPOSITORY = Path(__file__).parents[2]
SAMPLE = "dev.vdbg-env.profile=sample"


@pytest.fixture(scope="session")
def docker_engine() -> Iterator[Engine]:
    """An engine that answers, with the base image; started by the script when it may be, and then left running."""
    env = {**os.environ, STAYS: "yes"}
    script = REPOSITORY / "scripts" / "prepare-engine"
    ran = subprocess.run([script], capture_output=True, text=True, check=False, env=env)
    if ran.returncode != 0:
        pytest.skip(ran.stderr.strip().rpartition("\n")[2])
    engine = connect()
    yield engine
    engine.client.close()


@pytest.fixture(scope="session")
def buildx_plugin() -> Iterator[None]:
    """docker-buildx, from Debian's package in a private folder when it is not installed."""
    with pytest.MonkeyPatch.context() as patch:
        if find_buildx() is None:
            folder = REPOSITORY / ".cache" / "buildx"
            script = [REPOSITORY / "scripts" / "buildx-plugin", folder]
            ran = subprocess.run(script, capture_output=True, text=True, check=False)
            if ran.returncode != 0:
                pytest.skip(ran.stderr.strip().rpartition("\n")[2])
            patch.setenv("DOCKER_CONFIG", str(folder))
        yield


@pytest.fixture(params=["buildx", "buildkit", "host"])
def image_engine(request: pytest.FixtureRequest, tmp_path: Path) -> ImageBuilder:
    """Each engine in turn."""
    return make_engine(request.param, request, tmp_path)


@pytest.fixture(params=["buildx", "buildkit"])
def container_engine(request: pytest.FixtureRequest, tmp_path: Path) -> ImageBuilder:
    """Each engine that makes containers, in turn."""
    return make_engine(request.param, request, tmp_path)


def make_engine(name: str, request: pytest.FixtureRequest, tmp_path: Path) -> ImageBuilder:
    if name == "host":
        return HostBuilder(why="test", home=tmp_path / "host")
    return make_builder(name, request, request.getfixturevalue("docker_engine"))


def make_builder(name: str, request: pytest.FixtureRequest, engine: Engine) -> ImageBuilder:
    """Return one of the two ways of building with an engine."""
    if name == "buildkit":
        return BuildKitBuilder(engine, why="test")
    request.getfixturevalue("buildx_plugin")
    found = find_buildx()
    assert found is not None
    return BuildxBuilder(engine, found, why="test")


@pytest.fixture
def source_never_seen(tmp_path: Path) -> Path:
    """Return a copy of the sample's sources that no cache can know: every file that is compiled has a new symbol."""
    source = tmp_path / "source"
    shutil.copytree(REPOSITORY / "images" / "sample", source)
    for file in [*source.rglob("*.cu"), *source.rglob("*.cpp")]:
        with file.open("a") as text:
            text.write(f'\nextern "C" void seen_once_{file.stem}_{uuid.uuid4().hex}() {{}}\n')
    return source


@pytest.fixture(autouse=True)
def nothing_left_behind(request: pytest.FixtureRequest) -> Iterator[None]:
    """After every test the engine holds no container of ours; images without a name that a test made are removed.

    Tests that run while others build look at what is their own.
    """
    if leaves_images_alone(request.node.path) or shutil.which("docker") is None or os.environ.get("DOCKER_HOST"):
        yield
        return
    engine: Engine = request.getfixturevalue("docker_engine")
    before, running = unnamed_images(engine, SAMPLE), set(our_containers(engine))
    yield
    deadline = time.monotonic() + 120  # an engine may be shared: what others run there ends by itself
    while (left := set(our_containers(engine)) - running) and time.monotonic() < deadline:
        time.sleep(0.2)
    assert left == set()
    for image in (unnamed_images(engine) | unnamed_images(engine, SAMPLE)) - before:
        with suppress(APIError):  # another's, which is used or gone by now
            engine.client.remove_image(image)


def our_containers(engine: Engine) -> list[str]:
    """Return the containers of this process and of programs that have ended; those of runbooks have other tests."""
    found = engine.client.containers(all=True, filters={"label": PURPOSE})
    return [
        one["Id"] for one in found
        if one["Labels"][PURPOSE] not in {"step", "look"} and not of_another(one["Labels"].get(OWNER, ""))
    ]  # fmt: skip


def of_another(owner: str) -> bool:
    """Return whether an owner is a program that runs, and not this one: an engine may be shared."""
    _, _, pid = owner.rpartition(" ")[0].rpartition(" ")
    return pid.isdigit() and int(pid) != os.getpid() and Path(f"/proc/{pid}").exists()


def unnamed_images(engine: Engine, label: str = "=".join(OF_THIS_PROCESS)) -> set[str]:
    """Return the images without a name of small orders of this process, or those with another label."""
    return {image["Id"] for image in engine.client.images(filters={"dangling": True, "label": label})}
