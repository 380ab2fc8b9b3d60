"""Tars, packed or not, and saved images: what is a candidate, what an upper layer hides, what is damaged."""

import gzip
import io
import json
import lzma
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Literal

import pytest
import zstandard

from tests.builders.cubin import cubin
from tests.builders.fatbin import EntrySpec, container, host_library
from vdbg_env.common.errors import BadInput
from vdbg_env.crash import archives
from vdbg_env.crash.files import BinaryFiles

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


SKIPPED = b"\x50\x2a\x4d\x18" + (4).to_bytes(4, "little") + bytes(4)
PLAIN = {"lib/x.so": NEW, "readme.txt": b"hello", "empty": b""}


@pytest.mark.parametrize(
    "name", ["a.tar", "a.tgz", "a.tar.xz", "a.tar.bz2", "a.tar.zst", "b.tar.zst", "a.txz", "no-suffix"]
)
def test_a_tar_is_read_whatever_packs_it(tmp_path: Path, name: str) -> None:
    packed = {
        "a.tar": tar(PLAIN), "a.tgz": tar(PLAIN, "w:gz"), "a.tar.xz": tar(PLAIN, "w:xz"),
        "a.tar.bz2": tar(PLAIN, "w:bz2"), "a.tar.zst": zstandard.ZstdCompressor().compress(tar(PLAIN)),
        "b.tar.zst": SKIPPED + b"".join(map(zstandard.compress, (tar(PLAIN)[:700], tar(PLAIN)[700:]))),  # as by pzstd
        "a.txz": tar(PLAIN, "w:xz"), "no-suffix": tar(PLAIN, "w:gz"),
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


def links(members: dict[str, bytes], **link: str) -> bytes:
    """Return a tar of files, then of hard links: `b="opt/a.so"` is `opt/b.so`, the same file as `opt/a.so`."""
    out = io.BytesIO(tar(members))
    with tarfile.open(fileobj=out, mode="a") as archive:
        for name, target in link.items():
            header = tarfile.TarInfo(f"opt/{name}.so")
            header.type, header.linkname = tarfile.LNKTYPE, target
            archive.addfile(header)
    return out.getvalue()


def test_another_name_of_a_file_that_an_upper_layer_replaced_is_not_lost(tmp_path: Path) -> None:
    lower = links({"opt/a.so": OLD, "opt/other.so": OLD}, b="opt/a.so", c="opt/a.so", d="opt/other.so")
    (tmp_path / "image.tar").write_bytes(saved(lower, tar({"opt/a.so": NEW})))
    assert found(tmp_path / "image.tar") == {"/opt/a.so": NEW, "/opt/b.so": OLD, "/opt/other.so": OLD}


def test_a_layer_that_comes_twice_counts_where_it_is_uppermost(tmp_path: Path) -> None:
    first, second = tar({"opt/a.so": OLD}), tar({"opt/a.so": NEW})
    manifest = json.dumps([{"Layers": ["one", "two", "one"]}]).encode()
    (tmp_path / "image.tar").write_bytes(tar({"one": first, "two": second, "manifest.json": manifest}))
    assert found(tmp_path / "image.tar") == {"/opt/a.so": OLD}


def test_no_image_of_several_hides_another(tmp_path: Path) -> None:
    manifest = json.dumps([{"Layers": ["one"]}, {"Layers": ["two"]}]).encode()
    members = {
        "one": tar({"opt/a.so": OLD}),
        "two": tar({"opt/a.so": NEW, "opt/.wh.b.so": b""}),
        "manifest.json": manifest,
    }
    (tmp_path / "images.tar").write_bytes(tar(members))
    assert found(tmp_path / "images.tar") == {"image 1:/opt/a.so": OLD, "image 2:/opt/a.so": NEW}


def zipped(members: dict[str, bytes]) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    return out.getvalue()


def test_archives_in_archives_are_read(tmp_path: Path) -> None:
    wheel = zipped(
        {"p/x.so": NEW, "p/data.tgz": tar({"y.so": OLD}, "w:gz"), "p/notes.zip": b"no zip", "p/a.tar": b"none"}
    )
    (tmp_path / "a.tar").write_bytes(tar({"dist/p.whl": wheel}))
    assert found(tmp_path / "a.tar") == {
        "dist/p.whl:p/x.so": NEW,
        "dist/p.whl:p/data.tgz:y.so": OLD,
        "dist/p.whl:p/notes.zip": "File is not a zip file",
    }
    (tmp_path / "image.tar").write_bytes(saved(tar({"root/p.zip": zipped({"x.so": NEW})})))
    assert found(tmp_path / "image.tar") == {"/root/p.zip:x.so": NEW}
    (tmp_path / "a.tar").unlink()
    assert found(tmp_path) == {"/image.tar:/root/p.zip:x.so": NEW}


def test_a_tower_of_archives_is_refused(tmp_path: Path) -> None:
    tower = zipped({"x.so": NEW})
    for _ in range(20):
        tower = zipped({"a.zip": tower})
    (tmp_path / "a.zip").write_bytes(tower)
    (problem,) = found(tmp_path / "a.zip").values()
    assert problem == "8 archives, each in the next"


def lying(**wrong: object) -> bytes:
    """Return a tar of one library whose header says something that is not so."""
    member = tarfile.TarInfo("lib.so")
    member.size = 2004
    for name, value in wrong.items():
        setattr(member, name, value)
    return member.tobuf(tarfile.PAX_FORMAT) + b"\x7fELF" + bytes(2000)


def negative() -> bytes:
    """Return a tar whose member has -1 bytes by its header, whose checksum is right."""
    header = bytearray(lying())
    header[124:136] = b"\xff" * 12
    header[148:156] = b"%06o\0 " % (256 + sum(header[:148]) + sum(header[156:512]))
    return bytes(header)


def sparse(holes: str, size: str) -> bytes:
    return lying(pax_headers={"GNU.sparse.map": holes, "GNU.sparse.size": size}) + bytes(20 << 10)


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (lying(size=8 << 30), "a member whose header names more than there is in 3,540 bytes"),
        (lying(pax_headers={"size": "9" * 30}), "a member whose header names more than there is"),
        (negative(), "lib.so should have -1 bytes"),
        (sparse("0," + "9" * 5000, "1000"), "a damaged archive"),
        (sparse("9,1,5,1", "1000"), "the list of holes of lib.so is in no order"),
        (sparse("0,4", str(9 << 30)), "with lib.so it expands to over 1,073,741,824 bytes"),
    ],
)
def test_a_header_that_lies_is_told_in_words(tmp_path: Path, data: bytes, why: str) -> None:
    (tmp_path / "liar.tar").write_bytes(data)
    with pytest.raises(BadInput, match=why), BinaryFiles().open(str(tmp_path / "liar.tar")) as files:
        assert list(files) == []


@pytest.mark.parametrize("pack", [gzip.compress, lzma.compress, zstandard.ZstdCompressor().compress])
def test_a_packed_tar_of_almost_nothing_is_not_expanded_to_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pack: Callable[[bytes], bytes]
) -> None:
    monkeypatch.setattr(archives, "_SMALL", 1 << 20)
    (tmp_path / "a.tar").write_bytes(pack(lying(name="zeros", size=64 << 20) + bytes(64 << 20)))
    with (
        pytest.raises(BadInput, match="it expands to over "),
        BinaryFiles().open(str(tmp_path / "a.tar")) as files,
    ):
        assert list(files) == []


def test_a_member_without_an_end_of_its_names_is_not_read_into_memory(tmp_path: Path) -> None:
    long = tarfile.TarInfo("././@LongLink")
    long.type, long.size = tarfile.GNUTYPE_LONGNAME, 1 << 33
    (tmp_path / "a.tar").write_bytes(lying() + bytes(44) + long.tobuf(tarfile.GNU_FORMAT) + bytes(4096))
    why = "attributes of 8,589,934,592 bytes"
    with pytest.raises(BadInput, match=why), BinaryFiles().open(str(tmp_path / "a.tar")) as files:
        list(files)
