"""Files that are written anew where a workload has been: nothing is written through what it left there."""

from pathlib import Path

import pytest

from vdbg_env.record.masking import redact_run
from vdbg_env.record.redactor import Redactor
from vdbg_env.record.run_directory import replacement

SECRET = b"the token is hf_" + b"AbCdEfGhIjKlMnOpQrStUvWxYz012345\n"


def test_a_file_is_replaced_whole_and_keeps_its_permissions(tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    path.write_bytes(b"old")
    path.chmod(0o640)
    with replacement(path) as file:
        file.write(b"new")
        assert path.read_bytes() == b"old"
    assert (path.read_bytes(), path.stat().st_mode & 0o777) == (b"new", 0o640)
    assert [p.name for p in tmp_path.iterdir()] == ["report.html"]


def test_a_failure_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    path.write_bytes(b"old")
    with pytest.raises(RuntimeError, match="full"), replacement(path):
        raise RuntimeError("full")
    assert path.read_bytes() == b"old"
    assert [p.name for p in tmp_path.iterdir()] == ["report.html"]


def test_a_new_file_has_the_permissions_it_is_given(tmp_path: Path) -> None:
    with replacement(tmp_path / "new", mode=0o600) as file:
        file.write(b"x")
    assert (tmp_path / "new").stat().st_mode & 0o777 == 0o600


def test_no_link_that_a_workload_has_laid_is_written_through(tmp_path: Path) -> None:
    outside, run = tmp_path / "outside", tmp_path / "run"
    outside.write_bytes(b"untouched")
    run.mkdir()
    files = {"stdout": SECRET, "env.json": b'{"x": "' + SECRET.strip() + b'"}'}
    for name, data in files.items():
        (run / name).write_bytes(data)
        (run / f".{name}.new").symlink_to(outside)
    assert redact_run(run, Redactor()).changed == ("env.json", "stdout")
    assert outside.read_bytes() == b"untouched"
    assert SECRET.strip() not in (run / "stdout").read_bytes()
