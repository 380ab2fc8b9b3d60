"""Which folders `runs prune` may remove: records of ours that no process works on, and nothing else."""

import fcntl
import os
import resource
from pathlib import Path

import pytest

from vdbg_env.common.errors import BadInput
from vdbg_env.record.run_directory import RunDirectory, RunHead
from vdbg_env.record.runs import JOB_SCRIPT, find_run, remove_run, run_folders


def make(home: Path, name: str, *, runbook: str = "guard", age_s: float = 0.0, size: int = 100) -> RunDirectory:
    run = RunDirectory(home / name)
    run.create()
    run.write_head(RunHead(run=name, runbook=runbook))
    run.events.write_bytes(b"x" * size)
    os.utime(run.events, (1e9 - age_s, 1e9 - age_s))
    return run


def test_only_records_of_runs_are_looked_at(tmp_path: Path) -> None:
    home = tmp_path / "runs"
    make(home, "one", age_s=5)
    (home / "not-ours").mkdir()
    (home / "not-ours" / "data").write_text("x")
    (home / "damaged").mkdir()
    (home / "damaged" / "run.json").write_text("{")
    make(tmp_path, "elsewhere")
    (home / "link").symlink_to(tmp_path / "elsewhere")
    found = run_folders(home)
    assert [(run.path, run.runbook, run.modified) for run in found.ended] == [("one", "guard", 1e9 - 5)]
    assert found.ended[0].size > 100
    assert (found.running, found.unreadable) == ((), ("damaged",))
    assert run_folders(tmp_path / "none").ended == ()


def test_a_run_that_a_process_holds_stays(tmp_path: Path) -> None:
    run = make(tmp_path, "one")
    (before,) = run_folders(tmp_path).ended
    with (run.path / "run.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert (run_folders(tmp_path).ended, run_folders(tmp_path).running) == ((), ("one",))
        with pytest.raises(BadInput, match="another process works"):
            remove_run(tmp_path, before)
    assert run.exists
    remove_run(tmp_path, before)
    assert not run.path.exists()
    remove_run(tmp_path, before)  # gone already


def test_what_changed_since_it_was_listed_is_not_removed(tmp_path: Path) -> None:
    run = make(tmp_path / "runs", "one")
    (before,) = run_folders(tmp_path / "runs").ended
    with run.events.open("ab") as file:
        file.write(b"one more")
    with pytest.raises(BadInput, match="changed since"):
        remove_run(tmp_path / "runs", before)

    (before,) = run_folders(tmp_path / "runs").ended
    run.path.rename(tmp_path / "moved")
    run.path.symlink_to(tmp_path / "moved")
    with pytest.raises(BadInput, match="changed since"):
        remove_run(tmp_path / "runs", before)
    assert (tmp_path / "moved" / "run.json").exists()


def test_a_link_in_a_record_is_removed_and_not_followed(tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    kept.mkdir()
    (kept / "data").write_text("x" * 10_000)
    run = make(tmp_path / "runs", "one")
    (run.path / "out").symlink_to(kept)
    (folder,) = run_folders(tmp_path / "runs").ended
    assert folder.size < 10_000
    remove_run(tmp_path / "runs", folder)
    assert not run.path.exists() and (kept / "data").exists()


def test_runs_are_removed_from_a_full_disk(tmp_path: Path) -> None:
    """That is when they are removed: nothing may be written first."""
    run = make(tmp_path, "one")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, before[1]))
    try:
        for folder in run_folders(tmp_path).ended:
            remove_run(tmp_path, folder)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert not run.path.exists()


def test_a_run_whose_lock_cannot_be_taken_is_named_and_left(tmp_path: Path) -> None:
    """As another user's, in a folder of all users' runs."""
    make(tmp_path, "one")
    other = make(tmp_path, "other")
    (other.path / "run.lock").mkdir()
    found = run_folders(tmp_path)
    assert ([run.path for run in found.ended], found.unreadable) == (["one"], ("other",))


def test_a_folder_of_another_user_is_named_and_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make(tmp_path, "one")
    make(tmp_path, "secret")
    is_file = Path.is_file

    def refuse(path: Path) -> bool:
        if path.parent.name == "secret":
            raise PermissionError(13, "Permission denied")
        return is_file(path)

    monkeypatch.setattr(Path, "is_file", refuse)
    found = run_folders(tmp_path)
    assert ([run.path for run in found.ended], found.unreadable) == (["one"], ("secret",))
    monkeypatch.setenv("VDBG_ENV_RUNS", str(tmp_path))
    with pytest.raises(BadInput, match="no run 'secret'"):
        find_run("secret", os.environ)


def test_a_run_whose_job_is_queued_has_not_begun(tmp_path: Path) -> None:
    (tmp_path / "queued").mkdir()
    (tmp_path / "queued" / JOB_SCRIPT).touch()
    with pytest.raises(BadInput, match="queued has not begun"):
        find_run(str(tmp_path / "queued"), {"VDBG_ENV_RUNS": str(tmp_path / "runs")})


def test_a_folder_of_runs_is_told_from_a_run(tmp_path: Path) -> None:
    make(tmp_path, "one")
    with pytest.raises(BadInput, match="is a folder of runs, not a run") as refused:
        find_run(str(tmp_path), {"VDBG_ENV_RUNS": str(tmp_path / "other")})
    assert refused.value.next_step == f"VDBG_ENV_RUNS={tmp_path} vdbg-env runs list"


def test_the_latest_run_is_the_one_that_began_last(tmp_path: Path) -> None:
    home = {"VDBG_ENV_RUNS": str(tmp_path)}
    with pytest.raises(BadInput, match="no run 'latest'"):
        find_run("latest", home)
    for number, name in enumerate(("b", "c", "a")):
        os.utime(make(tmp_path, name).path / "run.json", (number, number))
    assert find_run("latest", home).path.name == "a"
    make(tmp_path, "latest")  # a name goes first
    os.utime(tmp_path / "latest" / "run.json", (0, 0))
    assert find_run("latest", home).path.name == "latest"
