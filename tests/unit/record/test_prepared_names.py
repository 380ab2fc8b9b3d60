"""What another user, or the person, has under a name that we write: never followed, written over or removed."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from vdbg_env.build.bundle import write_tar
from vdbg_env.common.errors import BadInput, HostNotAble, VdbgError
from vdbg_env.engine.dump_folder import DumpExport, FolderDumps
from vdbg_env.image.context import BuildContext
from vdbg_env.record.event_log import EventLog
from vdbg_env.record.redactor import Redactor
from vdbg_env.record.run_directory import LOCK, RunDirectory
from vdbg_env.record.runs import INDEX, RunIndex
from vdbg_env.run.recordings import RecordingHead, write_recording


@pytest.fixture
def precious(tmp_path: Path) -> Path:
    path = tmp_path / "precious"
    path.write_text("thesis")
    return path


def _begin(run: RunDirectory) -> None:
    run.create()


def _hold(run: RunDirectory) -> None:
    with run.locked():
        pass


def _log(run: RunDirectory) -> None:
    log = EventLog(run.events, Redactor(), lambda: 0.0, lambda: 0.0)
    log.append("run_started")
    log.close()


def _index(run: RunDirectory) -> None:
    index = RunIndex(run.path, "line")
    index.put("x", "1", {})
    index.save()


@pytest.mark.parametrize(
    ("name", "act"),
    [(".probe", _begin), (LOCK, _hold), ("events.jsonl", _log), ("events.reserve", _log), (INDEX, _index)],
    ids=["probe", "lock", "events", "reserve", "index"],
)
@pytest.mark.parametrize("there", [True, False], ids=["a file", "nothing"])
def test_a_link_in_a_run_s_folder_is_not_followed(
    tmp_path: Path, precious: Path, name: str, act: Callable[[RunDirectory], None], there: bool
) -> None:
    run = RunDirectory(tmp_path / "run")
    run.path.mkdir()
    (run.path / name).symlink_to(precious if there else tmp_path / "new")
    try:
        act(run)
    except (OSError, VdbgError) as error:
        assert "it is a link" in str(error)
    assert precious.read_text() == "thesis"
    assert not (tmp_path / "new").exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder to another user")
def test_no_run_begins_in_another_user_s_folder(tmp_path: Path) -> None:
    theirs = tmp_path / "theirs"
    theirs.mkdir(mode=0o777)
    os.chown(theirs, 1234, 1234)
    with pytest.raises(HostNotAble, match="another user"):
        RunDirectory(theirs).create()
    RunDirectory(tmp_path).create()


def test_the_folder_of_a_run_is_closed_to_others(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path / "run")
    run.create()
    assert run.path.stat().st_mode & 0o077 == 0


def test_a_lock_that_is_no_file_keeps_no_list_waiting(tmp_path: Path) -> None:
    makes: tuple[Callable[[Path], None], ...] = (os.mkfifo, Path.mkdir, lambda path: path.symlink_to("/dev/zero"))
    for number, make in enumerate(makes):
        run = RunDirectory(tmp_path / str(number))
        run.path.mkdir()
        make(run.path / LOCK)
        assert not run.is_worked_on()
        with pytest.raises(HostNotAble, match="it is a link, pipe"), run.alone():
            pass


def test_a_lock_is_looked_at_where_nothing_can_be_written(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path / "run")
    run.create()
    with run.locked():
        (run.path / LOCK).chmod(0o400)
        assert run.is_worked_on()
    assert not run.is_worked_on()


def _export_tar(path: Path) -> None:
    dumps = FolderDumps(path.parent / "dumps")
    DumpExport(path).write(dumps.list(), dumps, lambda _: None)


def _bundle(path: Path) -> None:
    write_tar(path, lambda tar: tar.write_bytes(bytes(10240)), "{}", BuildContext(items=()))


def _recording(path: Path) -> None:
    head = RecordingHead(runbook="x", recorded_on="h", recorded_at="", synthetic=False)
    write_recording(path.parent / "run", path, head)


@pytest.mark.parametrize(
    ("target", "act"),
    [("out.tar", _export_tar), ("out", _export_tar), ("bundle.tar", _bundle), ("recording", _recording)],
    ids=["dumps export to a tar", "dumps export to a folder", "bundle", "runbook --record"],
)
@pytest.mark.parametrize("kind", ["file", "folder", "link"])
def test_what_is_next_to_an_output_stays(
    tmp_path: Path, precious: Path, target: str, act: Callable[[Path], None], kind: str
) -> None:
    (tmp_path / "dumps").mkdir()
    (tmp_path / "dumps" / "core").write_bytes(b"\x7fELF" + bytes(100))
    run = RunDirectory(tmp_path / "run")
    (run.path / "steps").mkdir(parents=True)
    for name in (f"{target}.partial", f".{target}.{os.getpid()}.new"):
        other = tmp_path / name
        if kind == "folder":
            other.mkdir()
            (other / "mine").write_text("thesis")
        elif kind == "file":
            other.write_text("thesis")
        else:
            other.symlink_to(precious)
    before = {path: path.is_file() and path.read_text() for path in tmp_path.glob("*.partial*")}
    act(tmp_path / target)
    assert (tmp_path / target).exists()
    assert precious.read_text() == "thesis"
    assert before == {path: path.is_file() and path.read_text() for path in tmp_path.glob("*.partial*")}
    assert kind != "folder" or (tmp_path / f"{target}.partial" / "mine").read_text() == "thesis"
    assert not list(tmp_path.glob(".vdbg-*"))


def test_a_failed_recording_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises((OSError, BadInput)):
        _recording(tmp_path / "recording")  # there is no run
    assert not list(tmp_path.iterdir())
