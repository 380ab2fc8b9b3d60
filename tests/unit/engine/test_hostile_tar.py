"""A bundle from elsewhere writes nothing outside of its folder, whatever its members are called and lead to."""

import io
import os
from pathlib import Path

import pytest

from vdbg_env.build.bundle import _unpack
from vdbg_env.common.tar import tarfile
from vdbg_env.engine.trees import Unpacking


def member(name: str, kind: bytes = tarfile.REGTYPE, link: str = "", mode: int = 0o644) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname, info.mode = kind, link, mode
    info.size = 2 if kind == tarfile.REGTYPE else 0
    return info


def unpack(folder: Path, *members: tarfile.TarInfo) -> None:
    """Unpack a tar with these members, the files with two bytes each, as a bundle's context."""
    inner = io.BytesIO()
    with tarfile.open(fileobj=inner, mode="w") as archive:
        for info in members:
            archive.addfile(info, io.BytesIO(b"hi") if info.isfile() else None)
    outer = io.BytesIO()
    with tarfile.open(fileobj=outer, mode="w") as archive:
        info = tarfile.TarInfo("vdbg-env/context.tar")
        info.size = len(inner.getvalue())
        archive.addfile(info, io.BytesIO(inner.getvalue()))
    outer.seek(0)
    folder.mkdir()
    with tarfile.open(fileobj=outer) as archive:
        _unpack(archive, folder, set())


LINK, HARD = tarfile.SYMTYPE, tarfile.LNKTYPE


@pytest.mark.parametrize(
    "members",
    [
        [member("../outside")],
        [member("a/../../outside")],
        [member("{top}/outside")],
        [member("a", LINK, ".."), member("a/outside")],
        [member("a", LINK, "{top}"), member("a/outside", LINK, "x")],
        [member("a", LINK, "b"), member("b", LINK, ".."), member("a/outside", LINK, "x")],
        [member("a", LINK, "b"), member("b", LINK, "a"), member("a/c", LINK, "x")],
        [member("a", HARD, "{top}/kept")],
        [member("a", HARD, "../kept"), member("a")],
        [member("a", tarfile.FIFOTYPE)],
        [member("a", tarfile.CHRTYPE)],
        [member("a"), member("a")],
        [member("a"), member("a/b")],
        [member("a", LINK, "../kept"), member("a")],
        [member("a\nb/../../outside")],
        # A path so long that it cannot be resolved, as in CVE-2025-4517.
        [member("/".join(["d" * 200] * 20)), member("e", LINK, "/".join(["d" * 200] * 25) + "/.."), member("e/../x")],
    ],
    ids=lambda members: "+".join(f"{m.name[:40]}:{m.type.decode()}" for m in members),
)
def test_nothing_is_written_outside(tmp_path: Path, members: list[tarfile.TarInfo]) -> None:
    (tmp_path / "kept").write_text("as it was")
    for info in members:
        info.name, info.linkname = (text.replace("{top}", str(tmp_path)) for text in (info.name, info.linkname))
    with pytest.raises((tarfile.TarError, OSError)):
        unpack(tmp_path / "folder", *members)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["folder", "kept"]
    assert (tmp_path / "kept").read_text() == "as it was"
    assert (tmp_path / "kept").stat().st_nlink == 1


def test_what_a_context_has_is_unpacked_with_its_modes_and_links(tmp_path: Path) -> None:
    unpack(
        tmp_path / "folder",
        member("tree", tarfile.DIRTYPE),
        member("tree/link", LINK, "b"),
        member("tree/b", mode=0o6777),
        member("tree/below/c"),
    )
    folder = tmp_path / "folder" / "tree"
    assert (folder / "link").read_text() == "hi"
    assert (folder / "link").readlink() == Path("b")
    assert (folder / "b").stat().st_mode & 0o7777 == 0o755
    assert (folder / "below" / "c").stat().st_mode & 0o7777 == 0o644


def test_a_member_that_holds_more_than_a_pipe_is_copied_whole(tmp_path: Path) -> None:
    data = os.urandom(3 << 20)
    unpacking = Unpacking(tmp_path)
    unpacking.add(member("big"), io.BytesIO(data))
    unpacking.finish()
    assert (tmp_path / "big").read_bytes() == data
