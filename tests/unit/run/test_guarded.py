"""What a guard keeps of earlier runs."""

import json
import resource
from pathlib import Path

import pytest

from vdbg_env.record.run_directory import RunDirectory, RunHead
from vdbg_env.run.guarded import forget_old_runs


def recorded(home: Path, name: str, runbook: str = "guard") -> RunDirectory:
    run = RunDirectory(home / name)
    run.create()
    run.write_head(RunHead(run=name, runbook=runbook))
    return run


def test_the_newest_runs_of_guards_stay_and_nothing_else_is_touched(tmp_path: Path) -> None:
    for hour in range(4):
        recorded(tmp_path, f"20261122-0{hour}0000-guard-abcd")
    recorded(tmp_path, "20261121-000000-guard-abcd", runbook="another")
    recorded(tmp_path, "20261121-000000-illegal-memory-access-abcd")
    (tmp_path / "20261120-000000-guard-link").symlink_to(tmp_path / "20261122-030000-guard-abcd")
    with recorded(tmp_path, "20261119-000000-guard-abcd").locked():
        removed = forget_old_runs(tmp_path, 2)
    assert removed == ("20261122-000000-guard-abcd", "20261122-010000-guard-abcd")
    assert len(list(tmp_path.iterdir())) == 6
    assert forget_old_runs(tmp_path / "missing", 0) == ()


def test_what_ended_well_or_never_began_is_forgotten_before_a_crash(tmp_path: Path) -> None:
    for hour, verdict in enumerate(("failed", "passed", "hang", "inconclusive", "passed")):
        run = recorded(tmp_path, f"20261122-0{hour}0000-guard-abcd")
        (run.path / "report.json").write_text(json.dumps({"verdict": verdict}))
    (recorded(tmp_path, "20261122-050000-guard-abcd").path / "report.json").write_text("cut o")
    assert [name[9:11] for name in forget_old_runs(tmp_path, 4)] == ["01", "03"]
    assert [name[9:11] for name in forget_old_runs(tmp_path, 2)] == ["04", "00"]


def test_runs_that_take_too_much_are_forgotten_though_they_are_few(tmp_path: Path) -> None:
    """Twenty crashes with whole cores fill a disk."""
    for hour, verdict in enumerate(("failed", "passed", "failed")):
        run = recorded(tmp_path, f"20261122-0{hour}0000-guard-abcd")
        (run.path / "report.json").write_text(json.dumps({"verdict": verdict}))
        (run.path / "core").write_bytes(b"x" * (1 << 20))
    assert forget_old_runs(tmp_path, 20, 8 << 20) == ()
    assert [name[9:11] for name in forget_old_runs(tmp_path, 20, 5 << 19)] == ["01"]
    assert [name[9:11] for name in forget_old_runs(tmp_path, 20, 0)] == ["00", "02"]


def test_a_full_disk_keeps_no_command_from_its_start(tmp_path: Path) -> None:
    recorded(tmp_path, "20261122-000000-guard-abcd")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, before[1]))
    try:
        removed = forget_old_runs(tmp_path, 0)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert removed == ("20261122-000000-guard-abcd",)


def test_a_folder_that_is_closed_keeps_no_command_from_its_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_: Path) -> bool:
        raise PermissionError(13, "Permission denied")

    recorded(tmp_path, "20261122-000000-guard-abcd")
    monkeypatch.setattr(Path, "is_dir", refuse)
    assert forget_old_runs(tmp_path, 0) == ()
