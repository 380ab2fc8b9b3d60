"""Plain docker build takes a rendered folder, and what it builds carries line info."""

import re
import shutil
import subprocess
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.build_orders import BASE
from tests.support.command_line import vdbg_env
from vdbg_env.engine.client import Engine

pytestmark = [pytest.mark.engine, pytest.mark.slow]


BELOW_THE_SOURCE = "vdbg-test/rendered:below-the-source"  # what docker build finds in its cache the next time


@pytest.fixture
def image(docker_engine: Engine) -> Iterator[str]:
    """A name of its own, removed with what it names."""
    name = f"vdbg-test/rendered:{uuid.uuid4().hex[:12]}"
    yield name
    if docker_engine.client.images(name):
        docker_engine.client.remove_image(name)


def keep(engine: Engine, layer: str) -> None:
    """Give the layer with the packages and the toolkit a name, by which it outlives the image; an older one goes."""
    before = {image["Id"] for image in engine.client.images(BELOW_THE_SOURCE)}
    engine.client.tag(layer, BELOW_THE_SOURCE)
    for one in before - {image["Id"] for image in engine.client.images(BELOW_THE_SOURCE)}:
        engine.client.remove_image(one)


def test_plain_docker_build_accepts_the_folder_of_the_sample(
    docker_engine: Engine, image: str, source_never_seen: Path, tmp_path: Path
) -> None:
    if shutil.which("docker") is None:
        pytest.skip("the docker command is not installed")
    folder = tmp_path / "sample"
    rendered = vdbg_env(
        "render",
        "--profile",
        "sample",
        "--no-guard",
        "--base",
        BASE,
        "--network",
        "host",
        "--image",
        image,
        "--source",
        str(source_never_seen),
        str(folder),
    )
    assert rendered.status == 0, rendered.stderr
    build, _, verify = rendered.stderr.rpartition("next: ")[2].strip().partition(" && ")
    assert build.split() == ["docker", "build", "--network", "host", "--tag", image, str(folder)]
    # The classic builder: every engine has it, and it takes the fewest instructions.
    built = subprocess.run(["env", "DOCKER_BUILDKIT=0", *build.split()], capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stdout[-3000:] + built.stderr[-3000:]
    layer = re.search(r' ---> (\w+)\nStep \S+ : COPY \["source"', built.stdout)
    assert layer, built.stdout[-3000:]
    keep(docker_engine, layer[1])

    assert verify.split()[0] == "vdbg-env"
    proof = vdbg_env(*verify.split()[1:])
    assert proof.status == 0, proof.stderr
    assert "full" in next(line for line in proof.stdout.splitlines() if "libsample.so" in line)

    started = subprocess.run(
        ["docker", "run", "--rm", image, "sh", "-c", "ulimit -c; sample-crash"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert started.stdout.splitlines()[0] == "unlimited"
    assert "CUDA error: " in started.stderr
