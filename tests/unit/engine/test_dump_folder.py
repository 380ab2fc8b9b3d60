"""Dumps are removed from a folder into which others write at the same time: nothing outside of it is touched."""

import os
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from vdbg_env.common.errors import BadInput
from vdbg_env.engine.dump_folder import FolderDumps

CORE = b"\x7fELF\x02\x01\x01".ljust(16, b"\0") + struct.pack("<HH", 4, 190) + bytes(3000)


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """Return a folder with a dump; next to it is another of the same names, sizes and times, not to be touched."""
    for name in ("dumps", "outside"):
        (tmp_path / name / "rank5").mkdir(parents=True)
        core = tmp_path / name / "rank5" / "core.nvcudmp"
        core.write_bytes(CORE)
        os.utime(core, (1, 1))
    return tmp_path / "dumps"


def test_a_folder_that_became_a_link_since_it_was_listed_leads_nowhere(place: Path) -> None:
    listed = FolderDumps(place).list()
    assert [(dump.path, dump.kind) for dump in listed] == [("rank5/core.nvcudmp", "gpu-core")]
    (place / "rank5").rename(place / "gone")
    (place / "rank5").symlink_to("../outside/rank5")
    with pytest.raises(BadInput, match="changed since it was listed"):
        FolderDumps(place).remove(listed)
    with pytest.raises(BadInput, match="cannot read"), FolderDumps(place).read("rank5/core.nvcudmp"):
        pass
    assert (place.parent / "outside/rank5/core.nvcudmp").exists()
    assert [dump.path for dump in FolderDumps(place).list()] == ["gone/core.nvcudmp"]


def test_a_file_that_became_another_stays(place: Path) -> None:
    listed = FolderDumps(place).list()
    (place / "rank5/core.nvcudmp").write_bytes(b"notes of a person")
    with pytest.raises(BadInput, match="was not removed"):
        FolderDumps(place).remove(listed)
    assert (place / "rank5/core.nvcudmp").exists()


def test_what_is_no_file_is_no_dump_and_holds_nothing_up(place: Path) -> None:
    os.mkfifo(place / "core.pipe")
    (place / "rank5/link").symlink_to("core.nvcudmp")
    (place / "loop").symlink_to(".")
    assert [dump.path for dump in FolderDumps(place).list()] == ["rank5/core.nvcudmp"]
    assert FolderDumps(place / "missing").list() == ()


@contextmanager
def swapping(place: Path) -> Iterator[None]:
    """Make `rank5` now a folder and now a link to the one outside, as fast as can be."""
    stop = threading.Event()
    (place / "link").symlink_to("../outside/rank5")

    def swap() -> None:
        while not stop.is_set():
            (place / "rank5").rename(place / "real")
            (place / "link").rename(place / "rank5")
            (place / "rank5").rename(place / "link")
            (place / "real").rename(place / "rank5")

    thread = threading.Thread(target=swap)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
        (place / "link").unlink()


def test_twenty_races_remove_nothing_outside(place: Path) -> None:
    removed = 0
    for _ in range(20):
        with swapping(place):
            for _ in range(40):
                try:
                    FolderDumps(place).remove(FolderDumps(place).list())
                except BadInput:
                    continue
        core = place / "rank5/core.nvcudmp"
        removed += not core.exists()
        core.write_bytes(CORE)
        assert (place.parent / "outside/rank5/core.nvcudmp").exists()
    assert removed
