"""What a pack notes of the binaries that it is made from."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from gpucore.errors import UnreadableBinary
from gpucore.line_packs import LinePack
from tests.support.cubins import cubin
from vdbg_env.common.errors import BadInput
from vdbg_env.crash.files import BinaryFile
from vdbg_env.image.plan import LABEL_DIGEST
from vdbg_env.lines.packs import Packed, PackRequest, pack_lines

LABELS = {LABEL_DIGEST: "sha256:1234", "org.opencontainers.image.revision": "vllm 0.33.0"}
LINES, NO_LINES = cubin("inline_chain_sm90"), cubin("no_lines_sm90")


class Image:
    """A BinarySource over files of an image."""

    def __init__(self, *files: BinaryFile) -> None:
        self.files = files

    @contextmanager
    def open(self, target: str) -> Iterator[Iterator[BinaryFile]]:
        del target
        yield iter(self.files)


def file(name: str, data: bytes, *, problem: str | None = None, asked_for: bool = False) -> BinaryFile:
    return BinaryFile(name=f"debug:latest:/opt/{name}", data=data, labels=LABELS, problem=problem, asked_for=asked_for)


def pack(*files: BinaryFile, release: str = "", plan: str = "", archs: tuple[str, ...] = ()) -> Packed:
    request = PackRequest(targets=("debug:latest",), release=release, plan=plan, archs=archs)
    return pack_lines(request, binaries=Image(*files))


def test_the_labels_of_an_image_are_noted() -> None:
    (binary,) = LinePack(pack(file("a.so", LINES)).data).binaries
    assert (binary.binary, binary.release, binary.plan) == ("a.so", "vllm 0.33.0", "sha256:1234")
    assert (binary.compiler, binary.verdict) == ("13.0.88", "full")
    assert "-lineinfo" in binary.options


def test_what_is_given_counts_more_than_labels() -> None:
    (binary,) = pack(file("a.so", LINES), release="mine", plan="sha256:5").binaries
    assert (binary.release, binary.plan) == ("mine", "sha256:5")


def test_binaries_without_lines_are_counted_and_not_packed() -> None:
    result = pack(file("a.so", LINES), file("b.so", NO_LINES))
    assert [(b.binary, b.verdict, b.with_lines) for b in result.binaries] == [("a.so", "full", 2), ("b.so", "none", 0)]
    assert [b.binary for b in LinePack(result.data).binaries] == ["a.so"]


def test_a_file_that_cannot_be_read_is_a_problem_of_an_image_and_an_error_by_itself() -> None:
    result = pack(file("a.so", LINES), file("b.so", b"", problem="permission denied"))
    assert result.problems == ("debug:latest:/opt/b.so: permission denied",)
    with pytest.raises(UnreadableBinary, match="the file at"):
        pack(file("a.so", LINES[:9000], asked_for=True))


def test_an_architecture_that_is_not_there_leaves_nothing() -> None:
    with pytest.raises(BadInput, match="no device code"):
        pack(file("a.so", LINES), archs=("sm_80",))
    assert pack(file("a.so", LINES), archs=("sm_90",)).functions == 2
