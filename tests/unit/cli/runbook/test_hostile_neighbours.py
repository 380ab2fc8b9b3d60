"""Records of other runs, edited or written by another program: lists leave them out, and nothing else changes."""

import contextlib
import json
import re
import shutil
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.command_line import vdbg_env_without_rights
from tests.unit.cli.runbook.test_guard import environment, guard_command, guarded, the_run
from vdbg_env.cli import main

HOSTILE = [
    "[]",
    "3",
    "null",
    '{"findings": 3, "lead": 1, "fingerprint": {"id": 3}}',
    '{"findings": [3], "lead": 1, "fingerprint": {"id": "a", "frames": 5}}',
    '{"fingerprint": {"id": "a", "base": "b", "frames": "x"}, "steps": [3]}',
    '{"fingerprint": {"id": "a", "base": "b"}, "steps": [{"attempts": [{"rank": "x", "reproduced": true}]}]}',
    '{"fingerprint": {"id": "a", "base": "b", "frames": [["x"]], "kernel": {"a": 1}}}',
    "[" * 100_000,
]


@pytest.fixture(scope="module")
def crashed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of a guarded command that raised."""
    folder = tmp_path_factory.mktemp("crashed")
    assert guarded(folder, "raise ValueError('no such expert')").status == 1
    return the_run(folder)


@pytest.fixture
def runs(tmp_path: Path, crashed: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    shutil.copytree(crashed, tmp_path / "runs" / "0-sound")
    monkeypatch.setenv("VDBG_ENV_RUNS", str(tmp_path / "runs"))
    return tmp_path / "runs"


@pytest.mark.parametrize("report", HOSTILE, ids=range(len(HOSTILE)))
def test_a_report_that_is_none_is_left_out(
    runs: Path, crashed: Path, report: str, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(crashed, runs / "1-hostile")
    (runs / "1-hostile" / "report.json").write_text(report)
    for words in (["list"], ["list", "--json"], ["list", "--group"], ["list", "--group", "--json"]):
        (runs / ".runs.sqlite").unlink(missing_ok=True)
        assert main(["runs", *words]) == 0
    assert main(["runs", "diff", "0-sound", "1-hostile"]) in {2, 4}
    assert "Traceback" not in capsys.readouterr().err


@pytest.mark.parametrize("number", ["NaN", "-Infinity", "1e999"])
@pytest.mark.parametrize(("file", "before"), [("events.jsonl", '"elapsed_s": '), ("report.json", '"duration_s": ')])
def test_a_number_that_is_none_in_json_is_not_passed_on(
    runs: Path, file: str, before: str, number: str, capsys: pytest.CaptureFixture[str]
) -> None:
    text = (runs / "0-sound" / file).read_text()
    assert before in text
    (runs / "0-sound" / file).write_text(re.sub(f"{before}[0-9.]+", before + number, text))
    for words in (["list", "--json"], ["show", "--json", "0-sound"], ["report", "--format", "json", "0-sound"]):
        main(["runs", *words])
        said = capsys.readouterr()
        assert "Traceback" not in said.err
        assert not re.search(r"NaN|Infinity", said.out)


@pytest.mark.parametrize("facts", ['{"python_path": 3}', '{"nodes": []}', "[]"])
def test_facts_of_other_types_are_damage(runs: Path, facts: str, capsys: pytest.CaptureFixture[str]) -> None:
    head = json.loads((runs / "0-sound" / "run.json").read_text())
    (runs / "0-sound" / "run.json").write_text(json.dumps({**head, "facts": json.loads(facts)}))
    assert main(["runs", "report", "0-sound"]) == 2
    assert "damaged" in capsys.readouterr().err


@pytest.mark.parametrize("document", ["3", "[]", '{"x": 1}', "no JSON", '{"run": 3}'])
def test_an_index_that_another_program_wrote_is_made_anew(
    runs: Path, document: str, capsys: pytest.CaptureFixture[str]
) -> None:
    def lists() -> list[str]:
        for words in (["list"], ["list", "--json"], ["list", "--group"]):
            assert main(["runs", *words]) == 0
        return capsys.readouterr().out.splitlines()

    sound = lists()
    with sqlite3.connect(runs / ".runs.sqlite") as index:
        assert index.execute("UPDATE known SET document = ?", (document,)).rowcount == 3
    index.close()
    assert lists() == sound


ENDLESS = "WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n)"
FOREIGN = {
    "a view that never ends": "DROP TABLE known; CREATE VIEW known AS "
    f"{ENDLESS} SELECT 'line' kind, 'a' || x name, 's' stamp, '' document FROM n",
    "a trigger that never ends": "DELETE FROM known; CREATE TABLE other (x); CREATE TRIGGER t AFTER INSERT ON known "
    f"BEGIN INSERT INTO other SELECT x FROM ({ENDLESS} SELECT x FROM n); END",
}


@pytest.mark.parametrize("script", FOREIGN.values(), ids=FOREIGN)
def test_an_index_with_other_tables_is_made_anew(runs: Path, script: str) -> None:
    def lists() -> str:
        argv = [sys.executable, "-m", "vdbg_env", "runs", "list"]
        return subprocess.run(argv, capture_output=True, text=True, timeout=60, check=True).stdout

    sound = lists()
    with contextlib.closing(sqlite3.connect(runs / ".runs.sqlite")) as index:
        index.executescript(script)
    assert lists() == sound
    with contextlib.closing(sqlite3.connect(runs / ".runs.sqlite")) as index:
        assert index.execute("SELECT kind, name FROM known").fetchall() == [("line", "0-sound")]


def test_an_index_that_another_command_keeps_is_done_without(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["runs", "list"]) == 0
    sound = capsys.readouterr().out
    with contextlib.closing(sqlite3.connect(runs / ".runs.sqlite", isolation_level=None)) as index:
        index.execute("BEGIN EXCLUSIVE")
        assert main(["runs", "list"]) == 0
    assert capsys.readouterr().out == sound


def test_a_run_that_may_not_be_read_is_named(runs: Path, crashed: Path) -> None:
    shutil.copytree(crashed, runs / "1-closed")
    (runs / "1-closed").chmod(0)
    ran = vdbg_env_without_rights("runs", "list")
    (runs / "1-closed").chmod(0o700)
    assert (ran.status, len(ran.stdout.splitlines())) == (0, 1)
    assert f"left out: {runs / '1-closed'} is not a run: its run.json cannot be read" in ran.stderr


def test_the_status_of_a_guarded_command_does_not_depend_on_other_runs(tmp_path: Path, crashed: Path) -> None:
    shutil.copytree(crashed, tmp_path / "runs" / crashed.name)
    (tmp_path / "runs" / crashed.name / "report.json").write_text(HOSTILE[4])
    done = guarded(tmp_path, "import os; open('x', 'w'); raise ValueError('no such expert')")
    assert done.status == 1
    assert done.said and json.dumps(done.said)


def test_a_guard_whose_stderr_has_no_reader_returns_the_status_of_its_command(tmp_path: Path) -> None:
    process = subprocess.Popen(
        guard_command("sh", "-c", "exit 7"), env=environment(tmp_path), cwd=tmp_path,
        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
    )  # fmt: skip
    assert process.stderr
    process.stderr.close()
    assert process.wait() == 7


def test_words_of_another_encoding_are_run_and_recorded(tmp_path: Path) -> None:
    """As file names and variables of an older system have them: RE2 takes none of these."""
    done = subprocess.run(
        guard_command("sh", "-c", 'printf %s "$0"; exit 3', "\udcff"),
        env=environment(tmp_path, OTHER="\udcfe"), cwd=tmp_path, capture_output=True, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (3, b"\xff")
    assert b"could not be explained" not in done.stderr and b"without its guard" not in done.stderr
