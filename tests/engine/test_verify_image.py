"""An image is verified in place: nothing of it runs, and no container stays."""

import json
import os
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import pytest

from gpucore.elf import ET_CORE
from tests.builders.cubin import cubin
from tests.builders.elf import ElfSpec, build_elf
from tests.builders.fatbin import EntrySpec, container, host_library
from tests.engine.imported_image import imported
from tests.support.command_line import vdbg_env
from vdbg_env.build.buildkit import EngineBuilder
from vdbg_env.engine.client import Engine
from vdbg_env.engine.images import DockerImages
from vdbg_env.image.plan import LABEL_BUILT

pytestmark = pytest.mark.engine

GOOD = host_library(container(EntrySpec(payload=cubin("k", lines=True))))
BAD = host_library(container(EntrySpec(payload=cubin("k"))))
CORE = build_elf(ElfSpec(type=ET_CORE))


def test_libraries_of_an_image_are_found_by_their_path_in_it(docker_engine: Engine) -> None:
    files = {"usr/lib/good.so": GOOD, "opt/bad.so": BAD, "etc/motd": b"hello", "opt/host.so": host_library()}
    with imported(docker_engine, files) as image:
        ran = vdbg_env("verify", "--json", "--witness", "none", image)
    proof = json.loads(ran.stdout)
    assert (ran.status, proof["verdict"], proof["without_device_code"]) == (3, "partial", 1)
    assert {f["path"]: f["verdict"] for f in proof["files"]} == {
        f"{image}:/usr/lib/good.so": "full",
        f"{image}:/opt/bad.so": "none",
    }


def test_an_image_the_engine_lacks_is_bad_input(docker_engine: Engine) -> None:
    ran = vdbg_env("verify", "vdbg-env-test-no-such-image:1")
    assert ran.status == 2
    assert "the engine has no image 'vdbg-env-test-no-such-image:1'" in ran.stderr


def test_one_folder_of_an_image_is_judged_alone(docker_engine: Engine) -> None:
    with imported(docker_engine, {"opt/ours/good.so": GOOD, "usr/theirs/bad.so": BAD}) as image:
        ran = vdbg_env("verify", "--witness", "none", "--json", f"{image}:/opt/ours")
    assert ran.status == 0
    assert [f["path"] for f in json.loads(ran.stdout)["files"]] == [f"{image}:/opt/ours/good.so"]


def test_of_an_image_of_ours_what_the_build_made_is_judged(docker_engine: Engine) -> None:
    """And of an image that others build over it all is: it has the labels of the one below."""
    client = docker_engine.client
    files = {"opt/vdbg/out/good.so": GOOD, "opt/vdbg/venv/bad.so": BAD, "opt/vdbg/out/core.cuda.1": CORE}
    with imported(docker_engine, files) as image:
        labels = {LABEL_BUILT: json.dumps(["/opt/vdbg/out"])}
        EngineBuilder(docker_engine).tag(image, [f"{image}-ours"], labels)
        with tempfile.TemporaryDirectory() as folder:
            Path(folder, "Dockerfile").write_text(f"FROM {image}-ours\nCOPY Dockerfile /added\n")
            over = ["docker", "build", "--quiet", "--tag", f"{image}-over", folder]
            subprocess.run(over, check=True, capture_output=True, env={**os.environ, "DOCKER_BUILDKIT": "0"})
        try:
            ours, all_of_it, over_it = (
                vdbg_env("verify", "--witness", "none", "--json", f"{image}{rest}")
                for rest in ("-ours", "-ours:/", "-over")
            )
        finally:
            client.remove_image(f"{image}-over")
            client.remove_image(f"{image}-ours")
    proof = json.loads(ours.stdout)
    assert (ours.status, proof["verdict"], len(proof["files"]), proof["cores"]) == (0, "full", 1, 1)
    assert proof["notes"] == [
        f"{image}-ours: judged was what its build made: /opt/vdbg/out "
        f"(vdbg-env verify {image}-ours:/ judges all of the image)"
    ]
    assert (all_of_it.status, over_it.status) == (3, 3)
    assert [len(json.loads(ran.stdout)["files"]) for ran in (all_of_it, over_it)] == [2, 2]


def test_the_engine_does_not_pack_what_it_hands_over(docker_engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """To pack and unpack the files of an image of 1.4 GB took most of a minute, for nothing."""
    asked: list[str] = []
    get = docker_engine.client.get

    def noted(url: str, **options: Any) -> Any:
        response = get(url, **options)
        if url.endswith("/archive"):
            asked.append(response.headers.get("Content-Encoding", "plain"))
        return response

    monkeypatch.setattr(docker_engine.client, "get", noted)
    with imported(docker_engine, {"good.so": GOOD}) as image, DockerImages(docker_engine).files(image, ["/"]) as files:
        assert [file.name for file in files] == ["/good.so"]
    assert asked == ["plain"]
