"""An image is verified in place: nothing of it runs, and no container stays."""

import json

import pytest

from tests.builders.cubin import cubin
from tests.builders.fatbin import EntrySpec, container, host_library
from tests.engine.imported_image import imported
from tests.support.command_line import vdbg_env
from vdbg_env.adapters.docker.client import Engine

pytestmark = pytest.mark.engine

GOOD = host_library(container(EntrySpec(payload=cubin("k", lines=True))))
BAD = host_library(container(EntrySpec(payload=cubin("k"))))


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
