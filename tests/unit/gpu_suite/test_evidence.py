"""The evidence folder: a run never takes an earlier one's files for its own, and each verdict stands in the table."""

import os
from pathlib import Path

import pytest

from tests.gpu.evidence import LARGEST_KEPT, Evidence, set_aside
from tests.gpu.machine import MARK, Machine
from tests.gpu.samples import samples

GENUINE = Machine(gpus=("NVIDIA H100",), driver="580.95", arch="sm_90")
REHEARSED = Machine(gpus=(f"{MARK} (no GPU)",), driver="580.95", arch="sm_90")


def test_what_an_earlier_run_left_is_renamed_by_its_time(tmp_path: Path) -> None:
    left = tmp_path / "gpu-evidence"
    left.mkdir()
    (left / "table.md").write_text("before")
    os.utime(left, (1_800_000_000, 1_800_000_000))
    set_aside(left)
    assert [path.name for path in tmp_path.iterdir()] == ["gpu-evidence-20270115-080000"]
    set_aside(left)  # nothing there: nothing to do


def test_found_not_found_and_not_judged_are_told_apart(tmp_path: Path) -> None:
    kept = Evidence(tmp_path / "e", GENUINE)
    found, missed, skipped = samples()[:3]
    with kept.judging(found):
        pass
    with pytest.raises(AssertionError), kept.judging(missed):
        raise AssertionError("another line\nand more")
    with pytest.raises(pytest.skip.Exception), kept.judging(skipped):
        pytest.skip("no nvcc here")
    table = (tmp_path / "e" / "table.md").read_text()
    assert table.startswith("# seen on NVIDIA H100, sm_90, driver 580.95\n")
    assert "On this GPU: 1 of 26 planted faults found, 1 not found, 24 not judged." in table
    assert "| GPU core: line | NOT FOUND: another line |" in table and "| not judged: no nvcc here |" in table


def test_a_program_that_does_not_end_is_killed_with_all_it_started(tmp_path: Path) -> None:
    kept = Evidence(tmp_path / "e", GENUINE)
    ran = kept.run("stuck", ["sh", "-c", "echo begun; sleep 60 & wait"], {}, limit_s=1)
    assert (ran.status, ran.output, ran.core) == (None, "begun\n", None) and ran.seconds < 55


def test_a_genuine_text_is_kept_as_it_is_and_a_rehearsed_one_is_headed(tmp_path: Path) -> None:
    for machine, text in ((GENUINE, "=========\n"), (REHEARSED, f"{MARK}: ")):
        kept = Evidence(tmp_path / machine.gpus[0], machine)
        kept.keep("text/x.txt", "=========\n")
        assert (kept.folder / "text" / "x.txt").read_text().startswith(text)


def test_cores_too_large_to_carry_are_left_out(tmp_path: Path) -> None:
    kept = Evidence(tmp_path / "e", GENUINE)
    (tmp_path / "e" / "cores" / "two-ranks").mkdir(parents=True)
    with (tmp_path / "e" / "cores" / "large").open("wb") as file:
        file.truncate(LARGEST_KEPT + 1)
    (tmp_path / "e" / "cores" / "two-ranks" / "small").write_bytes(b"x")
    kept.tidy()
    assert sorted(path.name for path in (tmp_path / "e" / "cores").rglob("*")) == ["small", "two-ranks"]
