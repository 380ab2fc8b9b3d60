"""One file or folder that cannot be read: the rest is shown, it is named, and the exit status says so."""

import json
import os
import shutil
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.builders.core_builder import illegal_address_core
from tests.support.command_line import vdbg_env_without_rights

HOST_CORE = b"\x7fELF\x02\x01\x01".ljust(16, b"\0") + struct.pack("<HH", 4, 62) + bytes(3000)
CLOSED = ["closed.nvcudmp", "theirs", "x\nforged line.nvcudmp"]

pytestmark = pytest.mark.skipif(os.geteuid() == 0 and not shutil.which("setpriv"), reason="root may read everything")


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    place = tmp_path / "dumps"
    (place / "theirs" / "deeper").mkdir(parents=True)
    (place / "theirs" / "deeper" / "hidden.nvcudmp").write_bytes(HOST_CORE)
    for name in ("closed.nvcudmp", "x\nforged line.nvcudmp", "core.17"):
        (place / name).write_bytes(HOST_CORE)
    (place / ".vdbg-dumps").touch()
    for name in CLOSED:
        (place / name).chmod(0)
    yield place
    for name in CLOSED:
        (place / name).chmod(0o700)


def test_a_list_of_dumps_shows_the_others(folder: Path) -> None:
    ran = vdbg_env_without_rights("dumps", "list", "--dumps", str(folder))
    assert (ran.status, "host-core" in ran.stdout, "1 dump," in ran.stdout) == (4, True, True)
    assert [line.partition(": not read: ")[::2] for line in sorted(ran.stderr.splitlines())] == [
        ("closed.nvcudmp", "Permission denied"),
        ("theirs", "Permission denied"),
        ("x\\nforged line.nvcudmp", "Permission denied"),
    ]
    listed = json.loads(vdbg_env_without_rights("dumps", "list", "--json", "--dumps", str(folder)).stdout)["dumps"]
    assert {one["path"]: (one["kind"], one["problem"]) for one in listed} == {
        "core.17": ("host-core", ""),
        **dict.fromkeys(CLOSED, ("unreadable", "Permission denied")),
    }


def test_what_cannot_be_read_is_not_pruned(folder: Path) -> None:
    ran = vdbg_env_without_rights("dumps", "prune", "--keep", "0", "--yes", "--dumps", str(folder))
    assert (ran.status, "removed 1 dump" in ran.stdout, ran.stderr.count("not read")) == (4, True, 3)
    assert sorted(path.name for path in folder.iterdir()) == [".vdbg-dumps", *CLOSED]


@pytest.mark.parametrize("with_a_core", [True, False])
def test_the_cores_of_a_folder_are_read_without_those_below_a_closed_one(folder: Path, with_a_core: bool) -> None:
    if with_a_core:
        (folder / "rank0.nvcudmp").write_bytes(illegal_address_core())
    ran = vdbg_env_without_rights("core", str(folder))
    assert ran.status == (3 if with_a_core else 2)
    for name in ("closed.nvcudmp", "theirs", "x\\nforged line.nvcudmp"):
        assert f"{folder}/{name}" in ran.stderr
    assert "\nforged" not in ran.stderr


def test_a_folder_whose_names_alone_can_be_read_hides_no_core_beside_it(folder: Path) -> None:
    (folder / "rank0.nvcudmp").write_bytes(illegal_address_core())
    (folder / "theirs" / "rank1.nvcudmp").write_bytes(illegal_address_core())
    (folder / "theirs").chmod(0o400)
    ran = vdbg_env_without_rights("core", str(folder))
    assert ran.status == 3
    assert f"{folder}/theirs/rank1.nvcudmp" in ran.stderr
