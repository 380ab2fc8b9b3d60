"""Folders that a workload nests without end, before they are searched, listed, redacted and removed."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.command_line import vdbg_env
from vdbg_env.common.nesting import limit_nesting

SECRET = "hunter2-hunter2"


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Path]:
    """A folder that is removed at the end by a program that does not call itself for each level."""
    (tmp_path / "place").mkdir()
    yield tmp_path / "place"
    subprocess.run(["rm", "-rf", tmp_path / "place"], check=True)


def nest(folder: Path, levels: int) -> None:
    """Put folders into folders, with a file at the bottom, whose path may be longer than the system takes."""
    here = os.open(folder, os.O_DIRECTORY)
    for _ in range(levels):
        os.mkdir("nested", dir_fd=here)
        below = os.open("nested", os.O_DIRECTORY, dir_fd=here)
        os.close(here)
        here = below
    bottom = os.open("bottom", os.O_CREAT | os.O_WRONLY, 0o600, dir_fd=here)
    os.write(bottom, SECRET.encode())
    os.close(bottom)
    os.close(here)


@pytest.mark.parametrize(("levels", "moved"), [(1, 0), (63, 0), (64, 1), (3000, 47)])
def test_what_is_nested_too_deeply_is_moved_and_nothing_is_lost(place: Path, levels: int, moved: int) -> None:
    (place / "deep-1").write_text("a file of that name")
    nest(place, levels)
    assert limit_nesting(place) == moved
    assert limit_nesting(place) == 0
    (bottom,) = place.rglob("bottom")
    assert bottom.read_text() == SECRET
    assert (place / "deep-1").read_text() == "a file of that name"
    assert sum(path.is_dir() for path in place.rglob("*")) == levels
    assert max(len(path.relative_to(place).parents) for path in place.rglob("*")) <= 65


def test_a_link_is_not_followed(place: Path, tmp_path: Path) -> None:
    (tmp_path / "outside").mkdir()
    nest(tmp_path / "outside", 80)
    (place / "link").symlink_to(tmp_path / "outside")
    assert limit_nesting(place) == 0
    assert [path.name for path in (tmp_path / "outside").iterdir()] == ["nested"]


WORKLOAD = """
import os, sys
attempt = os.path.dirname(os.path.dirname(os.environ["CUDA_COREDUMP_FILE"].split("%")[0]))
here = os.open(next(place for place, _, names in os.walk(attempt) if "stdout" in names), os.O_DIRECTORY)
for _ in range(1500):
    os.mkdir("nested", dir_fd=here)
    here, above = os.open("nested", os.O_DIRECTORY, dir_fd=here), here
    os.close(above)
os.write(os.open("bottom", os.O_CREAT | os.O_WRONLY, dir_fd=here), os.environ["API_TOKEN"].encode())
sys.exit(3)
"""


def test_a_workload_that_nests_folders_is_reported_searched_redacted_and_pruned(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VDBG_ENV_RUNS", str(place))
    monkeypatch.setenv("API_TOKEN", SECRET)
    argv = [sys.executable, "-m", "vdbg_env", "guard", "--", sys.executable, "-c", WORKLOAD]
    assert subprocess.run(argv, check=False).returncode == 3
    (run,) = place.glob("*-guard-*")
    (bottom,) = run.rglob("bottom")
    assert SECRET not in bottom.read_text()
    assert "nested deeper than 64" in (run / "report.md").read_text()
    nest(run, 1500)  # now by another, after the attempt
    listed = vdbg_env("runs", "list")
    assert listed.status == 0 and run.name in listed.stdout
    assert vdbg_env("runs", "report", str(run)).status == 3
    assert vdbg_env("runs", "redact", str(run)).status == 0
    assert [path for path in run.rglob("bottom") if SECRET in path.read_text()] == []
    (run / "again").mkdir()
    nest(run / "again", 1500)
    assert vdbg_env("runs", "prune", "--keep", "0", "--yes").status == 0
    assert not run.exists()
