"""A dump that is being written: incomplete at every cut, complete with its last byte."""

import gzip
from pathlib import Path

import pytest

from vdbg_env.crash.dump import is_complete

PROGRAM = Path("/bin/true").read_bytes()
ENDS = 64  # cuts that are tried at each end of the file


@pytest.mark.parametrize("pack", [bytes, gzip.compress], ids=["plain", "gzip"])
def test_only_the_whole_file_is_complete(tmp_path: Path, pack: type[bytes]) -> None:
    whole = pack(PROGRAM)
    path = tmp_path / "core"
    path.write_bytes(whole)
    assert is_complete(path)
    for cut in (*range(ENDS), len(whole) // 2, *range(len(whole) - 8, len(whole))):
        path.write_bytes(whole[:cut])
        assert not is_complete(path), cut


@pytest.mark.parametrize("data", [b"not a dump", b"\x1f\x8bnot gzip either"])
def test_what_is_no_dump_is_not_complete(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "core"
    path.write_bytes(data)
    assert not is_complete(path)
    assert not is_complete(tmp_path / "not there")
