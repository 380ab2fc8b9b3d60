"""Finished runs are listed from an index; a run that is not in it costs three files, read once."""

import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from vdbg_env.record.run_directory import RunDirectory, RunHead
from vdbg_env.record.runs import INDEX
from vdbg_env.run.history import list_lines, list_runs

EVENTS = (
    {"seq": 1, "at": "t", "elapsed_s": 0.5, "kind": "run_started"},
    {"seq": 2, "at": "t", "elapsed_s": 1.5, "kind": "step_finished", "step": "a", "result": {"step": "a"}},
    {"seq": 3, "at": "t", "elapsed_s": 2.5, "kind": "run_finished", "finish": {"verdict": "passed", "why": "w"}},
)
REPORT = {"lead": 1, "findings": [{"id": 1, "message": "it booms", "location": None, "kernel": None}]}
_opened: list[str] | None = None


def _note(event: str, arguments: tuple[object, ...]) -> None:
    if _opened is not None and event == "open" and not str(arguments[0]).endswith(".pyc"):
        _opened.append(str(arguments[0]))


@pytest.fixture(scope="module")
def _auditing() -> None:
    sys.addaudithook(_note)  # there is no way to take one off: it does nothing outside of `opened`


@contextmanager
def opened() -> Iterator[list[str]]:
    """Collect the paths of the files that are opened meanwhile."""
    global _opened
    found: list[str] = []
    _opened = found
    try:
        yield found
    finally:
        _opened = None


def put_run(home: Path, name: str) -> Path:
    run = RunDirectory(home / name)
    run.create()
    run.write_head(RunHead(run=name, runbook="x"))
    run.events.write_text("".join(json.dumps(event) + "\n" for event in EVENTS))
    (run.path / "report.json").write_text(json.dumps(REPORT))
    return run.path


@pytest.mark.usefixtures("_auditing")
def test_a_list_opens_only_the_files_of_runs_that_are_new(tmp_path: Path) -> None:
    place = {"VDBG_ENV_RUNS": str(tmp_path)}
    for number in range(40):
        put_run(tmp_path, f"run-{number}")
    with opened() as first:
        assert len(list_lines(place)[0]) == 40
    assert len([path for path in first if "/run-" in path]) == 3 * 40
    (tmp_path / "run-7" / "report.json").unlink()
    with opened() as second:
        lines, unreadable = list_lines(place)
    assert [Path(path).relative_to(tmp_path).parts[0] for path in second if "/run-" in path] == ["run-7"] * 3
    assert ([line.found for line in lines].count("it booms"), unreadable) == (39, ())
    with opened() as third:
        list_lines(place)
    assert [path for path in third if "/run-" in path] == []


def test_a_line_says_what_the_whole_record_says(tmp_path: Path) -> None:
    place = {"VDBG_ENV_RUNS": str(tmp_path)}
    put_run(tmp_path, "whole")
    cut = put_run(tmp_path, "cut") / "events.jsonl"
    cut.write_text("".join(cut.read_text().splitlines(keepends=True)[:-1]) + '{"seq": 3, "a')
    os.utime(cut.parent / "run.json", (9e9, 9e9))
    for _ in range(2):
        for line, run in zip(list_lines(place)[0], list_runs(place).runs, strict=True):
            assert (line.run, line.condition, line.verdict) == (run.head.run, run.condition, run.verdict)
            assert (line.steps, line.elapsed_s, line.found) == (len(run.steps), run.elapsed_s, run.found)
    assert [line.condition for line in list_lines(place)[0]] == ["finished", "cut off"]


def test_a_run_that_is_gone_leaves_the_index(tmp_path: Path) -> None:
    place = {"VDBG_ENV_RUNS": str(tmp_path)}
    gone = put_run(tmp_path, "gone-run")
    put_run(tmp_path, "kept-run")
    list_lines(place)
    assert b"gone-run" in (tmp_path / INDEX).read_bytes()
    for file in gone.iterdir():
        file.unlink()
    gone.rmdir()
    assert [line.run for line in list_lines(place)[0]] == ["kept-run"]
    with opened() as files:
        assert len(list_lines(place)[0]) == 1
    assert [path for path in files if "/kept-run" in path] == []


def test_a_log_whose_end_says_nothing_is_named_and_the_others_are_listed(tmp_path: Path) -> None:
    put_run(tmp_path, "good")
    log = put_run(tmp_path, "odd") / "events.jsonl"
    log.write_text(log.read_text().replace('"verdict"', '"word"'))
    lines, unreadable = list_lines({"VDBG_ENV_RUNS": str(tmp_path)})
    assert ([line.run for line in lines], len(unreadable)) == (["good"], 1)
    assert "the record is damaged" in str(unreadable[0])
