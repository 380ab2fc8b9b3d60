"""A file is opened where it is one: nothing is waited for, and nothing is written where a link leads."""

import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests.support import not_files
from vdbg_env.common.files import NotAFile, open_file, opened
from vdbg_env.record.redactor import Redactor
from vdbg_env.run.orders import ENDED, STOP
from vdbg_env.run.ranks import NAME as ENDING
from vdbg_env.run.ranks import EndingRule, EndRequest, RankRecords
from vdbg_env.runbook.state import Invocation
from vdbg_env.supervisor import control_files
from vdbg_env.supervisor.control_files import Ending
from vdbg_env.supervisor.helpers import HangActions, Helpers
from vdbg_env.supervisor.process_tree import AttemptTree
from vdbg_env.supervisor.watch import GROWTH, GrowingFiles

STEP = Invocation(step="s", attempt=1, argv=("true",))


def growth(folder: Path) -> None:
    (folder / "core").write_bytes(b"x")
    GrowingFiles(str(folder), ("core",)).show(str(folder))


def hang(folder: Path) -> None:
    job = cast("Any", SimpleNamespace(directory=str(folder), hang_stacks=False, hang_commands=(), env={}, overlay={}))
    actions = HangActions(job, Helpers(job, lambda: 0.0), Redactor())
    actions.begin("it hangs", 1, [], lambda _: None)
    assert "hang.txt could not be written: it is a link" in actions.ran[0]


def ends(folder: Path) -> None:
    (folder / ENDED).mkdir()
    (folder / "1").rename(folder / ENDED / "1")
    seen: dict[int, Any] = {}
    RankRecords(folder, cast("Any", None)).read_ends(seen, 2)
    assert seen == {}


def asked(folder: Path) -> None:
    EndRequest(folder, lambda _times: True).ask(firmly=False)


def stopped(folder: Path) -> None:
    lock = open_file(folder / "lock")
    try:
        assert control_files.beat(lock, str(folder / STOP)) == 0
    finally:
        os.close(lock)


# The name that is taken, and what is done then.
WRITERS: dict[str, tuple[str, Callable[[Path], object]]] = {
    "the lock of a supervisor": (control_files.LOCK, lambda folder: control_files.take_lock(str(folder))),
    "the end": ("ended.json.tmp", lambda folder: Ending(str(folder), Redactor())),
    "the list of processes": ("processes.txt", lambda folder: AttemptTree("", str(folder), ())),
    "the stacks of a hang": ("hang.txt", hang),
    "the growth of a dump": (GROWTH, growth),
    "the alarm": ("alarm", lambda folder: control_files.sound(str(folder / "alarm"))),
    "the request to end": (STOP, asked),
    "the look for that request": (STOP, stopped),
    "the end of a rank": ("1", ends),
    "why ranks were ended": (ENDING, lambda folder: EndingRule(STEP, folder)),
}


@pytest.mark.parametrize("kind", not_files.KINDS)
@pytest.mark.parametrize("what", WRITERS)
def test_what_is_no_file_is_not_waited_for_and_not_followed(tmp_path: Path, kind: str, what: str) -> None:
    name, act = WRITERS[what]
    outside = not_files.put(kind, tmp_path / name)
    with not_files.no_wait_without_end(), suppress(NotAFile):
        act(tmp_path)
    assert outside.read_bytes() == not_files.OUTSIDE


@pytest.mark.parametrize("kind", not_files.KINDS)
def test_what_is_no_file_is_named(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "x"
    not_files.put(kind, path)
    for flags in (os.O_RDONLY, os.O_RDWR, os.O_WRONLY | os.O_CREAT, os.O_RDWR | os.O_CREAT):
        with pytest.raises(NotAFile, match="link, pipe, device, socket or folder in place of a file"):
            open_file(path, flags)
    with pytest.raises(NotAFile), opened(path):
        pass


def test_a_file_is_opened_or_made(tmp_path: Path) -> None:
    made = open_file(tmp_path / "x")
    assert os.fstat(made).st_mode & 0o777 == 0o600
    os.write(made, b"1")
    os.close(made)
    with opened(tmp_path / "x") as file:
        assert file.read() == b"1"
    with pytest.raises(FileNotFoundError):
        open_file(tmp_path / "y", os.O_RDONLY)
