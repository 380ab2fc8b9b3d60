"""One engine to a run, and a run that says what it is."""

import os
import resource
import sqlite3
from contextlib import closing
from functools import partial
from pathlib import Path

import pytest

from vdbg_env.common.errors import BadInput, HostNotAble
from vdbg_env.record.run_directory import RunDirectory, RunHead
from vdbg_env.record.runs import INDEX, RunIndex


def test_a_second_engine_is_refused_and_the_holder_is_named(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path / "run")
    run.create()
    with run.locked(), pytest.raises(BadInput, match=f"process {os.getpid()} on ") as refused, run.locked():
        pass
    assert refused.value.exit_status == 2
    with run.locked():
        pass


def test_the_lock_of_a_killed_engine_is_free(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path / "run")
    run.create()
    pid = os.fork()
    if pid == 0:
        with run.locked():
            os.kill(os.getpid(), 9)
    os.waitpid(pid, 0)
    with run.locked():
        pass


def test_the_head_is_read_back(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path / "run")
    run.create()
    head = RunHead(run="r", runbook="ima", workload=("vllm", "serve"), inputs={"deep": True}, synthetic=True)
    run.write_head(head)
    assert run.read_head() == head


def test_a_folder_that_is_no_run_is_told(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="is not a run"):
        RunDirectory(tmp_path).read_head()
    (tmp_path / "run.json").write_text('{"schema": "other"}')
    with pytest.raises(BadInput, match="does not follow vdbg-env/run-head/v1"):
        RunDirectory(tmp_path).read_head()


def test_a_folder_that_cannot_be_made_is_told_with_a_way_out(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(HostNotAble, match="no run can be kept in") as failed:
        RunDirectory(tmp_path / "file" / "run").create()
    assert failed.value.next_step == "name another: VDBG_ENV_RUNS=DIR, or --run-dir DIR of a runbook"


def test_a_full_disk_is_told_before_anything_is_begun_and_nothing_is_left(tmp_path: Path) -> None:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, before[1]))
    try:
        with pytest.raises(HostNotAble, match="no run can be kept in") as failed:
            RunDirectory(tmp_path / "run").create()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert failed.value.next_step == "name another: VDBG_ENV_RUNS=DIR, or --run-dir DIR of a runbook", (
        "there is nothing to resume"
    )
    assert not list(tmp_path.iterdir())


def test_a_run_that_becomes_a_link_is_told_and_one_that_was_a_link_all_along_is_not(
    tmp_path: Path,
) -> None:
    (tmp_path / "disk").mkdir()
    (tmp_path / "run").symlink_to("disk")
    run = RunDirectory(tmp_path / "run")
    run.create()
    run.check_in_place("steps/baseline/1")
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "disk" / "steps").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(HostNotAble, match=r"steps/baseline/1 leads to .*elsewhere/baseline/1 now"):
        run.check_in_place("steps/baseline/1")
    (tmp_path / "disk" / "steps").unlink()
    (tmp_path / "disk" / "steps").symlink_to("steps")
    with pytest.raises(HostNotAble, match="leads to nowhere now"):
        run.check_in_place("steps/baseline/1")
    (tmp_path / "disk").rename(tmp_path / "moved")
    (tmp_path / "disk").symlink_to("elsewhere")
    with pytest.raises(HostNotAble, match="it has been replaced by a link"):
        run.check_in_place()


def test_odd_step_names_stay_inside_the_run(tmp_path: Path) -> None:
    path = RunDirectory(tmp_path).attempt("../../etc", 1, "ho/st-0")
    assert path == tmp_path / "steps" / ".._.._etc" / "1" / "ho_st-0"


def test_runs_are_listed_oldest_first(tmp_path: Path) -> None:
    for number, name in enumerate(("b", "a")):
        run = RunDirectory(tmp_path / name)
        run.create()
        run.write_head(RunHead(run=name, runbook="x"))
        os.utime(run.path / "run.json", (number, number))
    (tmp_path / "other").mkdir()
    assert [name for name, _ in RunIndex(tmp_path, "line").names()] == ["b", "a"]
    assert RunIndex(tmp_path / "missing", "line").names() == ()


def test_the_index_counts_while_nothing_has_changed_and_can_be_lost(tmp_path: Path) -> None:
    RunDirectory(tmp_path / "a").create()
    RunDirectory(tmp_path / "a").write_head(RunHead(run="a", runbook="x"))

    def known() -> object:
        index = RunIndex(tmp_path, "line")
        ((name, stamp),) = index.names()
        found = index.get(name, stamp)
        if found is None:
            index.put(name, stamp, {"run": name})
            index.save()
        return found

    assert (known(), known()) == (None, {"run": "a"})
    (tmp_path / "a" / "report.json").write_text("{}")
    assert (known(), known()) == (None, {"run": "a"})
    (tmp_path / INDEX).write_bytes(b"no database at all, " * 99)
    assert (known(), known()) == (None, {"run": "a"})
    (tmp_path / INDEX).unlink()
    assert (known(), known()) == (None, {"run": "a"})
    with closing(sqlite3.connect(tmp_path / INDEX)) as other, other:
        other.execute("DROP TABLE known")
        other.execute("CREATE TABLE known (of TEXT, another TEXT, program TEXT)")
    assert (known(), known()) == (None, {"run": "a"})


def test_an_index_that_another_process_writes_is_left_to_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    connect = sqlite3.connect
    monkeypatch.setattr(sqlite3, "connect", partial(connect, timeout=0.01))
    index = RunIndex(tmp_path, "line")
    index.put("a", "1", {"run": "a"})
    index.save()
    there = (tmp_path / INDEX).stat().st_ino
    with closing(connect(tmp_path / INDEX)) as other:
        other.execute("BEGIN EXCLUSIVE")
        index.put("b", "1", {"run": "b"})
        index.save()
    assert (tmp_path / INDEX).stat().st_ino == there
    assert RunIndex(tmp_path, "line").get("a", "1") == {"run": "a"}
