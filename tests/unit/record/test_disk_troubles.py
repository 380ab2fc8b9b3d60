"""What the disk refuses is said with its own cause; a run that is moved or removed by two is never half of one."""

from __future__ import annotations

import errno
import os
import shutil
from contextlib import suppress
from pathlib import Path

import pytest

from vdbg_env.common.errors import BadInput, HostNotAble
from vdbg_env.common.files import refusal_cause
from vdbg_env.record.event_log import EventLog
from vdbg_env.record.redactor import Redactor
from vdbg_env.record.run_directory import RunDirectory, RunHead
from vdbg_env.record.runs import remove_run, run_folders


def _run(path: Path) -> RunDirectory:
    run = RunDirectory(path)
    run.create()
    with run.locked():
        run.write_head(RunHead(run=path.name, runbook="x"))
    return run


@pytest.mark.parametrize(
    ("number", "words"),
    [
        (errno.ENOSPC, "disk is full"),
        (errno.EDQUOT, "no more of the disk"),
        (errno.EROFS, "read-only"),
        (errno.EIO, "disk fails"),
        (errno.ESTALE, "file server"),
        (errno.EPERM, "immutable"),
    ],
)
def test_an_event_that_cannot_be_written_names_the_cause(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, words: str
) -> None:
    log = EventLog(tmp_path / "events.jsonl", Redactor(), lambda: 0.0, lambda: 0.0)
    log.append("run_started")

    def refuse(_: int) -> None:
        raise OSError(number, os.strerror(number))

    (tmp_path / "events.reserve").unlink()
    with monkeypatch.context() as patched:
        patched.setattr(os, "fdatasync", refuse)
        with pytest.raises(HostNotAble) as caught:
            log.append("step_finished")
    assert words in (caught.value.cause or "")
    assert words in refusal_cause(OSError(number, ""))
    assert [event.kind for event in log.recorded()] == ["run_started"], "what was not made durable is not in the log"


def test_a_run_whose_folder_was_moved_is_not_continued_in_another(tmp_path: Path) -> None:
    run = _run(tmp_path / "run")
    run.path.rename(tmp_path / "elsewhere")
    with pytest.raises(HostNotAble, match="no longer the folder"):
        run.begin_attempt("steps/a/1/n-0", ["true"], {})
    assert not run.path.exists()
    run.path.mkdir()
    with pytest.raises(HostNotAble, match="no longer the folder"):
        run.begin_attempt("steps/a/1/n-0", ["true"], {})
    assert not list(run.path.iterdir())
    shutil.rmtree(run.path)
    (tmp_path / "elsewhere").rename(run.path)
    run.begin_attempt("steps/a/1/n-0", ["true"], {})


def test_a_run_that_two_remove_at_once_is_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _run(tmp_path / "run")
    (folder,) = run_folders(tmp_path).ended

    def emptied_while_another_begins(path: Path) -> None:
        for file in path.iterdir():
            file.unlink()
        with suppress(BadInput):
            remove_run(tmp_path, folder)  # the other, which listed the same run
        path.rmdir()

    monkeypatch.setattr(shutil, "rmtree", emptied_while_another_begins)
    remove_run(tmp_path, folder)
    assert not list(tmp_path.iterdir())


def test_a_run_that_cannot_be_removed_keeps_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _run(tmp_path / "run")
    (folder,) = run_folders(tmp_path).ended

    def refuse(_: Path) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(shutil, "rmtree", refuse)
    with pytest.raises(BadInput, match="cannot be removed"):
        remove_run(tmp_path, folder)
    assert [path.name for path in tmp_path.iterdir()] == ["run"]
