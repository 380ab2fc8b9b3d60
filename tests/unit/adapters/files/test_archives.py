"""Tars, packed or not, and saved images: what is a candidate, what an upper layer hides, what is damaged."""

import gzip
import io
import json
import tarfile
from pathlib import Path
from typing import Literal

import pytest
import zstandard

from tests.builders.cubin import cubin
from tests.builders.fatbin import EntrySpec, container, host_library
from vdbg_env.adapters.files.binaries import BinaryFiles
from vdbg_env.common.errors import BadInput

OLD = host_library(container(EntrySpec(payload=cubin("old"))))
NEW = host_library(container(EntrySpec(payload=cubin("new"))))


def tar(members: dict[str, bytes], mode: Literal["w", "w:gz", "w:xz", "w:bz2"] = "w") -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode=mode) as archive:
        for name, data in members.items():
            header = tarfile.TarInfo(name)
            header.size = len(data)
            archive.addfile(header, io.BytesIO(data))
    return out.getvalue()


def saved(*layers: bytes) -> bytes:
    """Return an image as `docker save` writes it: layers by their digest, the manifest last."""
    names = [f"blobs/sha256/{number}" for number in range(len(layers))]
    manifest = json.dumps([{"Config": "c", "RepoTags": ["a:1"], "Layers": names}]).encode()
    return tar({**dict(zip(names, layers, strict=True)), "manifest.json": manifest})


def found(target: Path) -> dict[str, bytes | str]:
    with BinaryFiles().open(str(target)) as files:
        return {f.name.removeprefix(str(target)).lstrip(":"): f.problem or bytes(f.data) for f in files}


PLAIN = {"lib/x.so": NEW, "readme.txt": b"hello", "empty": b""}


@pytest.mark.parametrize("name", ["a.tar", "a.tgz", "a.tar.xz", "a.tar.bz2", "a.tar.zst", "no-suffix"])
def test_a_tar_is_read_whatever_packs_it(tmp_path: Path, name: str) -> None:
    packed = {
        "a.tar": tar(PLAIN), "a.tgz": tar(PLAIN, "w:gz"), "a.tar.xz": tar(PLAIN, "w:xz"),
        "a.tar.bz2": tar(PLAIN, "w:bz2"), "a.tar.zst": zstandard.ZstdCompressor().compress(tar(PLAIN)),
        "no-suffix": tar(PLAIN, "w:gz"),
    }  # fmt: skip
    (tmp_path / name).write_bytes(packed[name])
    assert found(tmp_path / name) == {"lib/x.so": NEW}


def test_a_tar_in_a_folder_is_read_too(tmp_path: Path) -> None:
    (tmp_path / "a.tgz").write_bytes(tar(PLAIN, "w:gz"))
    (tmp_path / "core.gz").write_bytes(gzip.compress(b"no tar"))
    assert found(tmp_path) == {"/a.tgz:lib/x.so": NEW}


@pytest.mark.parametrize("pack", [bytes, gzip.compress, zstandard.ZstdCompressor().compress])
def test_a_saved_image_has_the_files_of_its_final_file_system(tmp_path: Path, pack: type[bytes]) -> None:
    lower = tar({"opt/a.so": OLD, "opt/b.so": OLD, "opt/c/d.so": OLD, "opt/keep.so": OLD, "o/x.so": OLD})
    upper = tar({"opt/a.so": NEW, "opt/.wh.b.so": b"", "opt/c/.wh..wh..opq": b"", "opt/c/new.so": NEW, ".wh.o": b""})
    (tmp_path / "image.tar").write_bytes(saved(pack(lower), pack(upper)))
    assert found(tmp_path / "image.tar") == {"/opt/a.so": NEW, "/opt/c/new.so": NEW, "/opt/keep.so": OLD}


def test_a_damaged_archive_is_no_folder_of_nothing(tmp_path: Path) -> None:
    (tmp_path / "a.tgz").write_bytes(tar({"lib/x.so": NEW, "pad": bytes(range(256)) * 400}, "w:gz")[:-900])
    with pytest.raises(BadInput, match="cannot be read: a damaged archive"):
        found(tmp_path / "a.tgz")
    assert any("damaged archive" in str(problem) for problem in found(tmp_path).values())


def test_a_saved_image_without_one_of_its_layers_is_damaged(tmp_path: Path) -> None:
    manifest = json.dumps([{"Layers": ["gone"]}]).encode()
    (tmp_path / "image.tar").write_bytes(tar({"manifest.json": manifest}))
    with pytest.raises(BadInput, match=r"damaged archive: .*gone"):
        found(tmp_path / "image.tar")


def test_a_packed_file_that_is_no_tar_is_yielded_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "notes.gz").write_bytes(gzip.compress(b"hello"))
    assert found(tmp_path / "notes.gz") == {"": (tmp_path / "notes.gz").read_bytes()}
