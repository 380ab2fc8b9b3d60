"""An image is verified in place: nothing of it runs, and no container stays."""

import io
import json
import tarfile

import pytest

from tests.builders.cubin import cubin
from tests.builders.fatbin import EntrySpec, container, host_library
from tests.support.command_line import vdbg_env
from vdbg_env.adapters.docker.client import Engine

pytestmark = pytest.mark.engine

GOOD = host_library(container(EntrySpec(payload=cubin("k", lines=True))))
BAD = host_library(container(EntrySpec(payload=cubin("k"))))


def image_of(engine: Engine, files: dict[str, bytes]) -> str:
    """Import a file system as an image; it holds no program, so nothing of it could run."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as tar:
        for name, data in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
    told = engine.client.import_image_from_data(packed.getvalue(), repository="vdbg-env-test-verify", tag="1")
    return str(json.loads(told)["status"])


def test_libraries_of_an_image_are_found_by_their_path_in_it(docker_engine: Engine) -> None:
    files = {"usr/lib/good.so": GOOD, "opt/bad.so": BAD, "etc/motd": b"hello", "opt/host.so": host_library()}
    image_of(docker_engine, files)
    try:
        ran = vdbg_env("verify", "--json", "--witness", "none", "vdbg-env-test-verify:1")
        proof = json.loads(ran.stdout)
        assert (ran.status, proof["verdict"], proof["without_device_code"]) == (3, "partial", 1)
        assert {f["path"]: f["verdict"] for f in proof["files"]} == {
            "vdbg-env-test-verify:1:/usr/lib/good.so": "full",
            "vdbg-env-test-verify:1:/opt/bad.so": "none",
        }
    finally:
        docker_engine.client.remove_image("vdbg-env-test-verify:1")


def test_an_image_the_engine_lacks_is_bad_input(docker_engine: Engine) -> None:
    ran = vdbg_env("verify", "vdbg-env-test-no-such-image:1")
    assert ran.status == 2
    assert "the engine has no image vdbg-env-test-no-such-image:1" in ran.stderr


def test_one_folder_of_an_image_is_judged_alone(docker_engine: Engine) -> None:
    image_of(docker_engine, {"opt/ours/good.so": GOOD, "usr/theirs/bad.so": BAD})
    try:
        ran = vdbg_env("verify", "--witness", "none", "--json", "vdbg-env-test-verify:1:/opt/ours")
        assert ran.status == 0
        assert [f["path"] for f in json.loads(ran.stdout)["files"]] == ["vdbg-env-test-verify:1:/opt/ours/good.so"]
    finally:
        docker_engine.client.remove_image("vdbg-env-test-verify:1")
