"""`build --onto` asks an image which architectures its libraries are for, and reads no library to refuse one."""

import io
import tarfile
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import MappingProxyType

import pytest

from gpucore.fatbin import EntryKind
from tests.builders.cubin import cubin
from tests.builders.fatbin import EntrySpec, container, host_library
from tests.engine.step_images import user_image
from tests.support.command_line import vdbg_env
from vdbg_env.common.errors import BadInput
from vdbg_env.engine.client import Engine, connect
from vdbg_env.engine.trees import upload
from vdbg_env.image.context import BuildContext, FileBytes
from vdbg_env_lines.swap import DockerSwaps

pytestmark = pytest.mark.engine

METADATA = "Metadata-Version: 2.1\nName: vllm\nVersion: 1.0\n"
SITE = "usr/lib/python3/dist-packages"
BOTH = host_library(container(EntrySpec(payload=cubin("k"), arch=90), EntrySpec(payload=cubin("k"), arch=80)))
PTX = host_library(container(EntrySpec(payload=b".version 9.0", kind=EntryKind.PTX)))


@contextmanager
def with_vllm(
    engine: Engine,
    libraries: dict[str, bytes],
    *,
    metadata: str = METADATA,
    links: Mapping[str, str] = MappingProxyType({}),
    more: Mapping[str, bytes] = MappingProxyType({}),
    changes: list[str] | None = None,
) -> Iterator[str]:
    """Yield an image that has these libraries as its vLLM; its user may not write. `more` are files next to it."""
    files = {f"vllm/{name}": data for name, data in libraries.items()} | dict(more)
    files["vllm-1.0.dist-info/METADATA"] = metadata.encode()
    items = tuple(FileBytes(name=f"{SITE}/{name}", data=data) for name, data in files.items())
    client, image = engine.client, f"vdbg-test/onto:{uuid.uuid4().hex}"
    made = client.create_container(user_image(engine), ["true"])["Id"]
    try:
        client.put_archive(made, "/", b"".join(upload(BuildContext(items=items))))
        client.put_archive(made, "/", as_links(links))
        client.commit(made, repository="vdbg-test/onto", tag=image.partition(":")[2], changes=changes)
    finally:
        client.remove_container(made)
    yield image
    client.remove_image(image)


def as_links(links: Mapping[str, str]) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.GNU_FORMAT) as archive:
        for name, target in links.items():
            info = tarfile.TarInfo(name)
            info.type, info.linkname = tarfile.SYMTYPE, target
            archive.addfile(info)
    return out.getvalue()


@pytest.fixture
def image(docker_engine: Engine) -> Iterator[str]:
    libraries = {"_C.abi3.so": BOTH, "_ptx.so": PTX, "host.so": host_library(), "no.so": b"x"}
    with with_vllm(docker_engine, libraries) as name:
        yield name


@pytest.fixture
def damaged(docker_engine: Engine) -> Iterator[str]:
    with with_vllm(docker_engine, {"_C.abi3.so": BOTH[:-100]}) as name:
        yield name


def test_an_architecture_without_a_cubin_is_refused_unread(image: str) -> None:
    swaps = DockerSwaps(connect())
    assert swaps.targets(swaps.installed(image, "vllm"), "vllm") == {
        f"/{SITE}/vllm/_C.abi3.so": frozenset({"sm_80", "sm_90"})
    }
    ran = vdbg_env("build", "--onto", image, "--kernel", "k", "--arch", "6.1")
    assert ran.status == 2 and "no cubin of _C runs on 6.1" in ran.stderr
    assert "try: one of sm_80, sm_90\n" in ran.stderr


def test_what_the_image_cannot_say_is_read(damaged: str) -> None:
    swaps = DockerSwaps(connect())
    assert swaps.targets(swaps.installed(damaged, "vllm"), "vllm") == {}
    ran = vdbg_env("build", "--onto", damaged, "--kernel", "k", "--arch", "6.1")
    assert ran.status == 2 and "_C.abi3.so" in ran.stderr


@pytest.mark.parametrize(
    "hook",
    ["print('hello')", "print('{}')", "import atexit; atexit.register(print, 'bye')", "print('[1, 2]', flush=True)"],
    ids=["words", "object", "at the end", "list"],
)
def test_what_hooks_of_the_image_s_python_print_is_not_the_answer(docker_engine: Engine, hook: str) -> None:
    more = {"hook.pth": f"import sys; exec({hook!r})\n".encode()}
    with with_vllm(docker_engine, {"_C.abi3.so": BOTH}, more=more) as image:
        swaps = DockerSwaps(connect())
        found = swaps.installed(image, "vllm")
        assert (found.release.version, found.folder) == ("1.0", f"/{SITE}")
        assert list(swaps.targets(found, "vllm")) == [f"/{SITE}/vllm/_C.abi3.so"]


def test_a_python_that_answers_nothing_is_named(docker_engine: Engine) -> None:
    with with_vllm(
        docker_engine, {"_C.abi3.so": BOTH}, more={"hook.pth": b"import os; print('no'); os._exit(0)\n"}
    ) as image:
        ran = vdbg_env("build", "--onto", image, "--kernel", "k", "--arch", "9.0")
    assert ran.status == 2 and "has no installed vllm" in ran.stderr


@pytest.mark.parametrize(
    ("name", "version", "what"),
    [
        ("vllm", "../../../../escaped", "which is not one"),
        ("vllm", "1.0 @ https://evil.example/x.tar.gz", "which is not one"),
        ("--index-url=https://evil.example/simple", "1.0", "calls itself '--index-url"),
        ("another-package", "1.0", "calls itself 'another-package'"),
    ],
    ids=["folder", "address", "option", "project"],
)
def test_an_image_does_not_choose_what_is_fetched_and_run_here(
    docker_engine: Engine, name: str, version: str, what: str
) -> None:
    metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
    with (
        with_vllm(docker_engine, {"_C.abi3.so": BOTH}, metadata=metadata) as image,
        pytest.raises(BadInput, match=what),
    ):
        DockerSwaps(connect()).installed(image, "vllm")


def test_a_library_that_is_a_link_is_read_where_it_is(docker_engine: Engine) -> None:
    links = {f"{SITE}/vllm/_C.abi3.so": "/usr/lib/python3/dist-packages/store/_C.abi3.so"}
    with with_vllm(docker_engine, {}, links=links, more={"store/_C.abi3.so": BOTH, "vllm/__init__.py": b""}) as image:
        swaps = DockerSwaps(connect())
        found = swaps.installed(image, "vllm")
        with swaps.files(found.image_id, [f"{found.folder}/vllm"]) as files:
            assert [file.name for file in files] == [f"/{SITE}/store/_C.abi3.so"]


def test_an_image_whose_own_steps_would_run_in_the_build_is_refused(docker_engine: Engine) -> None:
    with with_vllm(docker_engine, {"_C.abi3.so": BOTH}, changes=["ONBUILD RUN touch /changed"]) as image:
        ran = vdbg_env("build", "--onto", image, "--kernel", "k", "--arch", "9.0")
    assert ran.status == 2 and "has ONBUILD steps, which every build over it runs: RUN touch /changed" in ran.stderr


def test_an_image_without_vllm_is_refused_in_the_words_of_its_own_python(docker_engine: Engine) -> None:
    ran = vdbg_env("build", "--onto", user_image(docker_engine), "--kernel", "k", "--arch", "9.0")
    assert ran.status == 2 and "has no installed vllm: importlib.metadata.PackageNotFoundError" in ran.stderr
