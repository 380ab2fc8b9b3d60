"""Many dumps are read side by side, with the same answer as one after the other."""

import json
import os
import signal
import time
from multiprocessing import active_children
from pathlib import Path

import pytest

from tests.builders.core_builder import hang_core, illegal_address_core
from tests.support.command_line import vdbg_env
from tests.support.patience import patience
from vdbg_env.common.errors import BadInput
from vdbg_env.crash.core import cores_json, cores_text, read_cores
from vdbg_env.crash.files import SourceFiles
from vdbg_env.crash.workers import map_in_processes


@pytest.fixture
def dumps(tmp_path: Path) -> Path:
    """Twelve dumps: whole, cut off, and what is none though its name says so."""
    whole = {"fault": illegal_address_core(), "hang": hang_core()}
    for number in range(5):
        for kind, data in whole.items():
            (tmp_path / f"{kind}{number}.nvcudmp").write_bytes(data)
    (tmp_path / "cut.nvcudmp").write_bytes(whole["fault"][:3000])
    (tmp_path / "none.nvcudmp").write_bytes(b"not a core")
    return tmp_path


@pytest.fixture(autouse=True)
def two_processors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})


def test_the_answer_is_the_same_as_one_after_the_other(dumps: Path) -> None:
    one, other = (read_cores([str(dumps)], SourceFiles(), side_by_side=beside) for beside in (False, True))
    assert cores_json(one.readings, one.sources) == cores_json(other.readings, other.sources)
    assert cores_text(one.readings, one.sources) == cores_text(other.readings, other.sources)
    assert [(path, str(error), error.next_step) for path, error in one.problems] == [
        (path, str(error), error.next_step) for path, error in other.problems
    ]
    assert len(one.problems) == 1


def test_the_command_reads_a_folder_so(dumps: Path) -> None:
    ran = vdbg_env("core", "--json", str(dumps))
    assert ran.status == 3 and "none.nvcudmp: not read" in ran.stderr
    assert len(json.loads(ran.stdout)["cores"]) == 11


def test_what_a_killed_process_had_is_done_here() -> None:
    """The kernel kills one that takes too much memory."""
    parent = os.getpid()

    def work(item: int) -> int:
        if item == 5 and os.getpid() != parent:
            os.kill(os.getpid(), signal.SIGKILL)
        return item * item

    assert list(map_in_processes(work, range(20))) == [n * n for n in range(20)]


def test_an_error_of_the_work_is_raised() -> None:
    def work(item: int) -> int:
        if item == 3:
            raise BadInput("no", cause="why", next_step="do")
        return item

    with pytest.raises(BadInput, match="no") as caught:
        list(map_in_processes(work, range(20)))
    assert (caught.value.cause, caught.value.next_step) == ("why", "do")


def test_few_items_need_no_process() -> None:
    assert set(map_in_processes(lambda _: os.getpid(), range(3))) == {os.getpid()}


@pytest.mark.parametrize("stopped", [False, True], ids=["at work", "stopped"])
def test_nothing_waits_for_the_processes_after_ctrl_c(stopped: bool) -> None:
    """As with a core on a file system that does not answer."""
    parent, began = os.getpid(), time.monotonic()

    def work(item: int) -> int:
        if item == 3:
            os.kill(parent, signal.SIGINT)
        if item >= 2:
            os.kill(os.getpid(), signal.SIGSTOP) if stopped else time.sleep(60)
        return item

    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # the tests' own workers die of it
    try:
        with pytest.raises(KeyboardInterrupt):
            list(map_in_processes(work, range(20)))
    finally:
        signal.signal(signal.SIGINT, before)
    for child in active_children():
        child.join(patience(10))
    assert not active_children() and time.monotonic() - began < patience(10)
