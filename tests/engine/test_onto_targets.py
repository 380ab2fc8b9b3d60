"""`build --onto` asks an image which architectures its libraries are for, and reads no library to refuse one."""

import uuid
from collections.abc import Iterator

import pytest

from tests.builders.cubin import cubin
from tests.builders.fatbin import EntrySpec, container, host_library
from tests.engine.step_images import user_image
from tests.support.command_line import vdbg_env
from vdbg_env.adapters.docker.client import Engine
from vdbg_env.adapters.files.context_tar import upload
from vdbg_env.cli.composition.images import image_swaps
from vdbg_env.cuda.binary.fatbin import EntryKind
from vdbg_env.image.context import BuildContext, FileBytes

pytestmark = pytest.mark.engine

SITE = "usr/lib/python3/dist-packages"
BOTH = host_library(container(EntrySpec(payload=cubin("k"), arch=90), EntrySpec(payload=cubin("k"), arch=80)))
PTX = host_library(container(EntrySpec(payload=b".version 9.0", kind=EntryKind.PTX)))


def with_vllm(engine: Engine, libraries: dict[str, bytes]) -> Iterator[str]:
    """Yield an image that has these libraries as its vLLM; its user may not write."""
    files = {f"vllm/{name}": data for name, data in libraries.items()}
    files["vllm-1.0.dist-info/METADATA"] = b"Metadata-Version: 2.1\nName: vllm\nVersion: 1.0\n"
    items = tuple(FileBytes(name=f"{SITE}/{name}", data=data) for name, data in files.items())
    client, image = engine.client, f"vdbg-test/onto:{uuid.uuid4().hex}"
    made = client.create_container(user_image(engine), ["true"])["Id"]
    try:
        client.put_archive(made, "/", b"".join(upload(BuildContext(items=items))))
        client.commit(made, repository="vdbg-test/onto", tag=image.partition(":")[2])
    finally:
        client.remove_container(made)
    yield image
    client.remove_image(image)


@pytest.fixture
def image(docker_engine: Engine) -> Iterator[str]:
    yield from with_vllm(docker_engine, {"_C.abi3.so": BOTH, "_ptx.so": PTX, "host.so": host_library(), "no.so": b"x"})


@pytest.fixture
def damaged(docker_engine: Engine) -> Iterator[str]:
    yield from with_vllm(docker_engine, {"_C.abi3.so": BOTH[:-100]})


def test_an_architecture_without_a_cubin_is_refused_unread(image: str) -> None:
    swaps = image_swaps()
    assert swaps.targets(swaps.installed(image, "vllm"), "vllm") == {
        f"/{SITE}/vllm/_C.abi3.so": frozenset({"sm_80", "sm_90"})
    }
    ran = vdbg_env("build", "--onto", image, "--kernel", "k", "--arch", "6.1")
    assert ran.status == 2 and "no cubin of _C runs on 6.1" in ran.stderr
    assert "try: one of sm_80, sm_90\n" in ran.stderr


def test_what_the_image_cannot_say_is_read(damaged: str) -> None:
    swaps = image_swaps()
    assert swaps.targets(swaps.installed(damaged, "vllm"), "vllm") == {}
    ran = vdbg_env("build", "--onto", damaged, "--kernel", "k", "--arch", "6.1")
    assert ran.status == 2 and "_C.abi3.so" in ran.stderr
