"""A run that `--from` names may have been written by anyone: it gives no answer, or an error, and never a traceback."""

import json
import os
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support import small_run
from vdbg_env.common.errors import BadInput
from vdbg_env.record.event_log import read_events
from vdbg_env.record.redactor import Redactor
from vdbg_env.record.run_directory import RunDirectory, RunHead, part_of
from vdbg_env.run.begin import RunbookRequest, with_recorded_workload
from vdbg_env.run.placement import PlacementRequest
from vdbg_env.run.recordings import AnsweredSteps, Replay
from vdbg_env.runbook.state import Invocation

STEP = Invocation(step="guarded", attempt=1, argv=("sh", "-c", "exit 7"))
DEEP = b"[" * 200_000 + b"]" * 200_000
Change = Callable[[Path], object]


def recorded(folder: Path) -> Path:
    """Write a run with one attempt, and return the attempt's folder."""
    rank = folder / "run/steps/guarded/1/localhost-0"
    rank.mkdir(parents=True)
    (folder / "run/run.json").write_text(json.dumps({"schema": "vdbg-env/run-head/v1", "run": "r", "runbook": "guard"}))
    (rank / "argv.json").write_text(json.dumps({"argv": STEP.argv}))
    (rank / "env.json").write_text(json.dumps({"delta": {}}))
    (rank / "ended.json").write_text(json.dumps({"by": "exit", "code": 7}))
    (rank / "stdout").write_text("boom\n")
    return rank


def pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def huge(path: Path) -> None:
    os.truncate(path, 40 << 30)


FILES: dict[str, Change] = {
    "a pipe": pipe,
    "40 GB": huge,
    "nested without end": lambda path: path.write_bytes(DEEP),
    "a list": lambda path: path.write_text('{"delta": [1], "argv": 5}'),
    "no JSON": lambda path: path.write_bytes(b"\xff{"),
}


@pytest.mark.parametrize("name", FILES)
def test_a_head_that_is_not_ours_is_refused(tmp_path: Path, name: str) -> None:
    recorded(tmp_path)
    FILES[name](tmp_path / "run/run.json")
    with pytest.raises(BadInput):
        RunDirectory(tmp_path / "run").read_head()


@pytest.mark.parametrize("file", ["argv.json", "env.json"])
@pytest.mark.parametrize("name", FILES)
def test_an_attempt_that_is_not_ours_answers_nothing(tmp_path: Path, name: str, file: str) -> None:
    rank = recorded(tmp_path)
    steps = AnsweredSteps(tmp_path / "run", small_run.execution(tmp_path / "new").placement, Redactor())
    assert [one.step for one in steps._recorded] == ["guarded"]
    FILES[name](rank / file)
    steps = AnsweredSteps(tmp_path / "run", small_run.execution(tmp_path / "new").placement, Redactor())
    assert [one.argv for one in steps._recorded] == []


def test_folders_of_odd_names_are_no_attempts_and_no_ranks(tmp_path: Path) -> None:
    rank = recorded(tmp_path)
    for name in ("\u00b2", "9" * 200, "x"):
        (rank.parents[1] / name).mkdir()
    for name in ("a-b", "c-\u00b2"):
        (rank.parent / name).mkdir()
        (rank.parent / name / "ended.json").write_text('{"by": "exit", "code": 3}')
    ranks = Replay(tmp_path / "run")
    assert ranks.layout(STEP).ranks == 3
    (attempt := tmp_path / "new/steps/guarded/1").mkdir(parents=True)
    seen = ranks.start(STEP, attempt).wait()
    assert seen is not None
    assert [one.ended.code for one in seen] == [3, 3, 7]


def test_folders_in_folders_without_end_are_not_copied(tmp_path: Path) -> None:
    rank = recorded(tmp_path)
    folder = os.open(rank, os.O_DIRECTORY)
    for _ in range(1500):
        os.mkdir("d", dir_fd=folder)
        below = os.open("d", os.O_DIRECTORY, dir_fd=folder)
        os.close(folder)
        folder = below
    os.close(folder)
    (place := tmp_path / "new/steps/guarded/1/localhost-0").mkdir(parents=True)
    try:
        seen = Replay(tmp_path / "run").rank(STEP, place).wait()
        assert seen is not None
        assert seen.ended.code == 7
        assert (place / "d/d/d").is_dir()
    finally:  # pytest's own removal of old folders ends in a RecursionError here
        subprocess.run(["rm", "-rf", tmp_path], check=True)


def test_a_sparse_core_is_copied_with_its_holes(tmp_path: Path) -> None:
    rank = recorded(tmp_path)
    with (rank / "core.1").open("wb") as core:
        core.write(b"\x7fELF")
        core.truncate(1 << 40)
        core.seek(1 << 39)
        core.write(b"middle")
    (place := tmp_path / "new/steps/guarded/1/localhost-0").mkdir(parents=True)
    Replay(tmp_path / "run").rank(STEP, place).wait()
    about = (place / "core.1").stat()
    assert about.st_size == 1 << 40
    assert about.st_blocks * 512 < 1 << 20
    with (place / "core.1").open("rb") as copy:
        assert os.pread(copy.fileno(), 4, 0) + os.pread(copy.fileno(), 6, 1 << 39) == b"\x7fELFmiddle"


@pytest.mark.parametrize("word", ["a\0b", "\ud800"])
def test_a_command_that_cannot_be_started_is_refused(word: str) -> None:
    head = RunHead(run="r", runbook="guard", workload=("sh", word))
    with pytest.raises(BadInput, match="cannot be started"):
        with_recorded_workload(RunbookRequest(runbook="host-crash"), head)
    kept = replace(head, workload=("sh", "\udcff"))  # a byte that is not UTF-8
    assert with_recorded_workload(RunbookRequest(runbook="host-crash"), kept).argv == kept.workload


def test_a_place_that_is_not_ours_is_refused() -> None:
    head = RunHead(run="r", runbook="guard", placement={"on": 7, "ranks": "many"})
    with pytest.raises(BadInput, match="the placement of run 'r' is damaged"):
        part_of(head, "placement", PlacementRequest)


@pytest.mark.parametrize("name", ["a pipe", "40 GB", "no JSON"])
def test_a_log_that_is_not_ours_is_not_waited_for(tmp_path: Path, name: str) -> None:
    recorded(tmp_path)
    log = tmp_path / "run/events.jsonl"
    log.write_text("{}\n{}\n")
    FILES[name](log)
    try:
        assert list(read_events(log)) == []
    except BadInput:
        return
    assert name != "a pipe"
