"""The context tar is the same bytes every time, and of the shape BuildKit reads."""

import io
import tarfile
from collections.abc import Iterable
from typing import BinaryIO

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vdbg_env.common.errors import BadInput
from vdbg_env.engine.trees import tar_chunks
from vdbg_env.image.context import BuildContext, FileBytes, FileOnDisk, TreeEntry, TreeOnDisk


def no_walk(_tree: TreeOnDisk) -> Iterable[TreeEntry]:
    raise AssertionError("no folder to walk")


def no_open(_path: str) -> BinaryIO:
    raise AssertionError("no file to open")


def tar_of(*items: FileBytes, epoch: int = 0) -> bytes:
    return b"".join(tar_chunks(BuildContext(items=items, epoch=epoch), walk=no_walk, open_file=no_open))


names = st.text(st.characters(min_codepoint=0x21, exclude_characters="/", codec="utf-8"), min_size=1)
files = st.dictionaries(names.filter(lambda name: name not in {".", ".."}), st.binary(max_size=2000), max_size=6)


@given(files, st.data())
def test_any_order_of_items_gives_the_same_bytes(files: dict[str, bytes], data: st.DataObject) -> None:
    items = [FileBytes(name=name, data=content) for name, content in files.items()]
    turned = data.draw(st.permutations(items))
    made = tar_of(*items)
    assert made == tar_of(*turned)
    with tarfile.open(fileobj=io.BytesIO(made)) as archive:
        read = {m.name: archive.extractfile(m).read() for m in archive if m.isfile()}  # type: ignore[union-attr]
    assert read == files


def test_the_first_header_is_no_pax_header_even_for_a_long_name() -> None:
    made = tar_of(FileBytes(name="d/" + "n" * 150, data=b"x"), epoch=1_700_000_000)
    assert made[156:157] not in {b"x", b"g"}
    with tarfile.open(fileobj=io.BytesIO(made)) as archive:
        folder, file = archive.getmembers()
    assert (folder.name, folder.isdir(), file.name) == ("d", True, "d/" + "n" * 150)
    assert {(m.uid, m.gid, m.uname, m.gname, m.mtime) for m in (folder, file)} == {(0, 0, "", "", 1_700_000_000)}


def test_a_name_given_twice_is_refused() -> None:
    with pytest.raises(BadInput, match="twice"):
        tar_of(FileBytes(name="a", data=b""), FileBytes(name="a", data=b"x"))


def test_a_tree_keeps_its_links_and_its_executables_and_nothing_else_of_its_modes() -> None:
    def walk(tree: TreeOnDisk) -> Iterable[TreeEntry]:
        assert (tree.path, tree.exclude) == ("/src", (".git",))
        yield TreeEntry(relative="run", path="/src/run", kind="file", executable=True)
        yield TreeEntry(relative="also", path="/src/also", kind="link", target="run")

    context = BuildContext(items=(TreeOnDisk(name="source", path="/src", exclude=(".git",)),))
    made = b"".join(tar_chunks(context, walk=walk, open_file=lambda path: io.BytesIO(path.encode())))
    with tarfile.open(fileobj=io.BytesIO(made)) as archive:
        told = [(m.name, m.type, oct(m.mode), m.linkname) for m in archive]
    assert told == [
        ("source", tarfile.DIRTYPE, "0o755", ""),
        ("source/also", tarfile.SYMTYPE, "0o644", "run"),
        ("source/run", tarfile.REGTYPE, "0o755", ""),
    ]


def test_a_file_that_shrinks_while_it_is_read_is_told() -> None:
    class Shrinking(io.BytesIO):
        def read(self, size: int | None = -1) -> bytes:
            return super().read(size)[:1] if self.tell() == 0 else b""

    context = BuildContext(items=(FileOnDisk(name="a", path="/a"),))
    with pytest.raises(BadInput, match="became shorter"):
        b"".join(tar_chunks(context, walk=no_walk, open_file=lambda _: Shrinking(b"long enough")))
