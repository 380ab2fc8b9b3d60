"""A file that is cut while it is mapped is an error with its cause, and ends no program."""

import hashlib
import mmap
import os
import re
import shutil
import subprocess
import sys
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest

import vdbg_env
from vdbg_env.common.errors import BadInput
from vdbg_env.crash.dump import is_complete
from vdbg_env.crash.files import BinaryFiles, CoreFiles, mapped, mapped_for_good

SIZE = 64 * mmap.PAGESIZE
READERS: dict[str, Callable[[memoryview], object]] = {
    "copy": bytes,
    "checksum, without the interpreter's lock": lambda view: hashlib.sha256(view).digest(),
    "compression": zlib.compress,
    "search": lambda view: re.search(rb"nothing", view),
    "one byte": lambda view: view[SIZE - 1],
}


@pytest.mark.parametrize("read", READERS.values(), ids=READERS)
@pytest.mark.parametrize("left", [0, 3 * mmap.PAGESIZE + 5])
def test_what_is_gone_is_an_error_at_the_end(
    tmp_path: Path, read: Callable[[memoryview], object], left: int, capfd: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"x" * SIZE)
    cut_short = pytest.raises(OSError, match="cut short, or its disk failed")
    with path.open("rb") as file, cut_short, mapped(file.fileno(), path) as view:
        os.truncate(path, left)
        read(view)
        assert bytes(view[left:]) == bytes(SIZE - left)
    assert f"{path}: it was cut short" in capfd.readouterr().err


def test_a_file_that_is_cut_where_nobody_reads_is_no_error(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"x" * SIZE)
    with path.open("rb") as file, mapped(file.fileno(), path) as view:
        os.truncate(path, mmap.PAGESIZE)
        assert bytes(view[:10]) == b"x" * 10


def test_a_file_that_is_emptied_before_it_is_mapped_is_an_empty_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "file"
    monkeypatch.setattr("vdbg_env.crash.files._take_faults", lambda: os.truncate(path, 0))
    path.write_bytes(b"x")
    assert bytes(mapped_for_good(path)) == b""
    path.write_bytes(b"x")
    with path.open("rb") as file, mapped(file.fileno(), path) as view:
        assert bytes(view) == b""


def _cut(path: str) -> None:
    os.truncate(path, 0)


def test_every_reader_of_mapped_files_says_so(tmp_path: Path) -> None:
    core = tmp_path / "a.nvcudmp"
    core.write_bytes(b"\x7fELF" + bytes(SIZE))
    with pytest.raises(BadInput, match="cut short"), CoreFiles().open(str(core)) as found:
        _cut(str(core))
        bytes(found.data)
    library = tmp_path / "lib.so"
    shutil.copy(sys.executable, library)
    with pytest.raises(BadInput, match="cut short"), BinaryFiles().open(str(library)) as binaries:
        for binary in binaries:
            _cut(str(library))
            bytes(binary.data)
    pack = tmp_path / "x.lines"
    pack.write_bytes(b"x" * SIZE)
    data = mapped_for_good(pack)
    _cut(str(pack))
    assert bytes(data) == bytes(SIZE)
    assert not is_complete(core)


def test_any_other_fault_ends_the_program_as_before(tmp_path: Path) -> None:
    code = (
        "import mmap,os,sys; sys.path.insert(0, sys.argv[2])\n"
        "from vdbg_env.crash.files import mapped\n"
        "file=os.open(sys.argv[1],os.O_RDWR)\n"
        "with mapped(file,''): other=mmap.mmap(file,0)\n"
        "os.truncate(file,0); other[0]=1\n"
    )
    (tmp_path / "file").write_bytes(b"x" * SIZE)
    argv = [sys.executable, "-c", code, str(tmp_path / "file"), str(Path(vdbg_env.__file__).parents[1])]
    assert subprocess.run(argv, timeout=60, check=False).returncode == -7
