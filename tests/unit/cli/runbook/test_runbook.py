"""`vdbg-env runbook` on real processes: begun, recorded, replayed, resumed, refused."""

import json
import os
import shlex
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.command_line import Ran, vdbg_env
from vdbg_env.cli import main
from vdbg_env.common.errors import EngineFailed
from vdbg_env.common.resources import SHIPPED_DATA
from vdbg_env.record.run_directory import RunDirectory
from vdbg_env.run.begin import Places
from vdbg_env.run.placement import Layout, StartedAttempt
from vdbg_env.runbook.state import Invocation

RUNBOOK = """\
apiVersion: vdbg-env/v1
kind: Runbook
metadata: {name: tiny, title: A tiny runbook}
spec:
  inputs:
    argv: {type: array, required: true, description: The workload.}
  matchers:
    boom: {regex: 'boom (?P<what>[a-z]+)'}
  commands:
    workload: {argv: "${{ inputs.argv }}", timeout: 20s}
  steps:
    - id: baseline
      name: Does it fail?
      run: workload
      outcomes:
        - reproduced:
            when: has(matched.boom)
            rule: T001
            level: error
            message: "boom ${{ matched.boom.groups.what }}"
            next: changed
        - not_reproduced: {when: ended.clean, next: changed}
        - unresolved: {next: changed}
    - id: changed
      name: Does it fail otherwise?
      run: workload
      env: {CALM: "1"}
      outcomes:
        - reproduced: {when: has(matched.boom), next: enough}
        - not_reproduced: {when: ended.clean, message: calm helps, next: enough}
        - unresolved: {next: enough}
    - id: enough
      name: Ask
      manual: {prompt: Enough?, choices: {yes: report}, timeout: 1s, default: yes}
    - id: report
      name: Report
      uses: builtin/report@v1
      outcomes: [{pass: {next: end}}]
"""
SHARED = """\
apiVersion: vdbg-env/v1
kind: Step
metadata: {name: calm, title: Does it fail calmly?}
spec:
  explain: Runs it calmly.
  run: workload
  env: {CALM: "1"}
"""
TAKES_A_SHARED_STEP = """
    - id: calmer
      from: calm
      outcomes:
        - not_reproduced: {when: ended.clean, next: enough}
        - unresolved: {next: enough}
    - id: enough"""
WORKLOAD = "import os,sys\nif os.environ.get('CALM'): sys.exit(0)\nprint('boom badly', *sys.argv[1:]); sys.exit(1)"


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("VDBG_ENV_RUNS", raising=False)
    (tmp_path / "tiny.yaml").write_text(RUNBOOK)
    return tmp_path


def run(*flags: str, workload: tuple[str, ...] = (sys.executable, "-c", WORKLOAD)) -> int:
    return main(["runbook", "-f", "tiny.yaml", "tiny", "--batch", *flags, *(["--", *workload] if workload else [])])


def steps(document: str) -> list[tuple[str, str | None]]:
    return [(step["id"], step["outcome"]) for step in json.loads(document)["steps"]]


def test_a_run_ends_in_a_report_and_its_verdicts_status(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--json", "--run-dir", "r") == 3
    shown = capsys.readouterr()
    assert steps(shown.out) == [
        ("baseline", "reproduced"),
        ("changed", "not_reproduced"),
        ("enough", None),
        ("report", "pass"),
    ]
    assert {p.name for p in (here / "r").glob("report.*")} == {
        "report.html",
        "report.md",
        "report.json",
    }
    assert "baseline #1: Does it fail?" in shown.err


def test_a_recording_has_the_runbook_and_the_command(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Both may be left out: the runbook of a recording where it is a shipped one, the command always."""
    assert run("--record", "kept", "--run-dir", "own") == 3
    command = RunDirectory(here / "own").read_head().workload
    for replayed in ("again", "older"):
        assert main(["runbook", "./tiny.yaml", "--replay", "kept", "--run-dir", replayed]) == 3
        assert RunDirectory(here / replayed).read_head().workload == command
        head = json.loads((here / "kept" / "recording.json").read_text())
        (here / "kept" / "recording.json").write_text(json.dumps({**head, "workload": []}))  # as older ones are
    shipped = str(SHIPPED_DATA / "runbooks" / "recordings" / "illegal-memory-access")
    assert main(["runbook", "--replay", shipped, "--run-dir", "shipped"]) == 3
    assert RunDirectory(here / "shipped").read_head().workload == ("./inlined_templates",)


def test_bisect_has_its_own_statuses(here: Path) -> None:
    assert run("--bisect") == 1
    assert run("--bisect", workload=("true",)) == 0
    assert run("--bisect", workload=("false",)) == 125


def test_a_recording_is_replayed_without_the_workload_and_says_where_it_was_made(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("--record", "kept", "--run-dir", "r") == 3
    capsys.readouterr()
    assert run("--replay", "kept", "--json", workload=("no-such-program",)) == 3
    document = json.loads(capsys.readouterr().out)
    assert document["provenance"] == "replay"
    assert document["origin"].startswith(json.loads((here / "kept/recording.json").read_text())["recorded_on"])
    assert document["findings"][0]["message"] == "boom badly"
    assert run("--record", "kept") == 2
    assert run("--replay", "r") == 2
    assert run("--replay", "kept", "--total-time", "1ms", "--run-dir", "again") == 124
    shown = capsys.readouterr()
    assert "continue with" not in shown.err and "--resume" not in shown.out
    assert run("--resume", "again", workload=()) == 2
    assert "is a replay of a recording" in capsys.readouterr().err


def test_a_run_that_is_out_of_time_says_so_first_and_is_continued_as_it_says(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    slow = (sys.executable, "-c", f"import time; time.sleep(1)\n{WORKLOAD}")  # not over before its time is
    assert run("--run-dir", "r", "--total-time", "1ms", workload=slow) == 124
    shown = capsys.readouterr()
    assert "the 0.001 s allowed for the whole run are spent\n\nNext\n  1. resume it" in shown.out
    command = next(line for line in shown.out.splitlines() if "$ " in line).split("$ ")[1]
    assert f"continue with: {command}" in shown.err
    assert main([*shlex.split(command)[1:], "--batch", "--json"]) == 3
    assert steps(capsys.readouterr().out)[0] == ("baseline", "reproduced")


def test_a_recording_by_hand_needs_little_and_is_called_synthetic(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    attempt = here / "hand/steps/baseline/1/host-0"
    attempt.mkdir(parents=True)
    (attempt / "stdout").write_text("boom softly\n")
    (attempt / "ended.json").write_text('{"by": "exit", "code": 1}')
    head = {"schema": "vdbg-env/recording/v1", "runbook": "tiny", "recorded_on": "a desk", "synthetic": True}
    (here / "hand/recording.json").write_text(json.dumps(head))
    assert run("--replay", "hand", "--json") == 3
    document = json.loads(capsys.readouterr().out)
    assert document["provenance"] == "synthetic"
    assert [s["outcome"] for s in document["steps"]][:2] == ["reproduced", "error"]
    assert "holds no step 'changed'" in document["steps"][1]["message"]


def test_a_finished_run_is_resumed_to_the_same_report(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--json", "--run-dir", "r") == 3
    first = capsys.readouterr().out
    assert run("--json", "--resume", "r", workload=()) == 3
    assert steps(capsys.readouterr().out) == steps(first)


def test_a_resumed_run_needs_no_name_its_record_has_it(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--run-dir", "r") == 3
    assert main(["runbook", "--resume", "r"]) == 3
    assert main(["runbook"]) == 2
    assert "Missing argument 'NAME'" in capsys.readouterr().err


def test_a_resumed_run_must_be_the_same_run(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run("--run-dir", "r")
    assert run("--run-dir", "r") == 2
    assert "has a run already" in capsys.readouterr().err
    assert run("--resume", "x") == 2
    assert "no run 'x'" in capsys.readouterr().err


def test_a_run_is_resumed_and_reported_in_any_folder_by_the_runbook_that_it_began_with(
    here: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A file given with a relative path could not be found again from another folder."""
    (here / "lib").mkdir()
    (here / "lib" / "calm.yaml").write_text(SHARED)
    (here / "tiny.yaml").write_text(
        RUNBOOK.replace("next: enough", "next: calmer").replace("\n    - id: enough", TAKES_A_SHARED_STEP)
    )
    (here / "other.yaml").write_text(RUNBOOK.replace("name: tiny", "name: other"))
    assert run("-f", "other.yaml", "--run-dir", "r") == 3
    assert sorted(str(one.relative_to(here / "r/runbooks")) for one in (here / "r/runbooks").rglob("*.yaml")) == [
        "lib/calm.yaml",
        "other.yaml",
        "tiny.yaml",
    ]
    (elsewhere := tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(elsewhere)
    capsys.readouterr()
    assert main(["runbook", "--resume", str(here / "r"), "--json"]) == 3
    first = steps(capsys.readouterr().out)
    assert "calmer" in {step for step, _ in first}
    (here / "tiny.yaml").write_text("changed: since")
    (here / "lib" / "calm.yaml").unlink()
    assert main(["runs", "report", str(here / "r"), "--format", "json"]) == 3
    assert steps(capsys.readouterr().out) == first


def test_a_run_of_an_earlier_release_has_no_copy_and_needs_its_file(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run("--run-dir", "r")
    (here / "r/runbooks/tiny.yaml").unlink()
    assert run("--resume", "r") == 3
    (here / "tiny.yaml").write_text(RUNBOOK.replace("calm helps", "calm helped"))
    assert run("--resume", "r") == 2
    assert "has changed since" in capsys.readouterr().err


def test_a_runbook_with_a_secret_is_not_copied_into_the_record(here: Path) -> None:
    (here / "tiny.yaml").write_text(RUNBOOK.replace('CALM: "1"', 'CALM: "1", HF_TOKEN: hf_abcdefghijklmnopqrstuvwxyz'))
    assert run("--run-dir", "r") == 3
    assert not [p for p in (here / "r").rglob("*") if p.is_file() and b"hf_abcdef" in p.read_bytes()]
    assert run("--resume", "r") == 3


def test_what_was_redacted_must_be_given_again(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    secret = ("--api-key", "hf_abcdefghijklmnopqrstuvwxyz")
    workload = (sys.executable, "-c", WORKLOAD, *secret)
    assert run("--run-dir", "r", workload=workload) == 3
    assert not [p for p in (here / "r").rglob("*") if p.is_file() and secret[1].encode() in p.read_bytes()]
    capsys.readouterr()
    assert run("--resume", "r", workload=()) == 2
    assert "the record of run 'r' has no secrets" in capsys.readouterr().err
    assert run("--resume", "r", workload=(*workload, "--other")) == 2
    assert "differs from the one that run 'r' was begun with" in capsys.readouterr().err
    assert run("--resume", "r", workload=workload) == 3


def test_a_second_engine_on_a_run_is_refused(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--run-dir", "r") == 3
    capsys.readouterr()
    with RunDirectory(here / "r").locked():
        assert run("--resume", "r") == 2
    assert f"another process works on {here / 'r'}: process {os.getpid()} on" in capsys.readouterr().err


def test_a_workload_that_puts_a_link_in_the_records_place_is_told_and_nothing_is_written_there(here: Path) -> None:
    (here / "elsewhere").mkdir()
    swap = "import os; print('boom badly', flush=True); os.rename('run', 'moved'); os.symlink('elsewhere', 'run')"
    ran = _run("--run-dir", "run", "--", sys.executable, "-c", swap)
    assert ran.status == 1
    assert "it has been replaced by a link" in ran.stderr
    assert "Traceback" not in ran.stderr
    assert list((here / "elsewhere").iterdir()) == []


def test_a_folder_that_cannot_hold_a_run_is_a_clear_error(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (here / "file").write_text("")
    assert run("--run-dir", "file/r") == 1
    assert "name another: VDBG_ENV_RUNS=DIR, or --run-dir DIR of a runbook" in capsys.readouterr().err


def _run(*argv: str) -> Ran:
    return vdbg_env("runbook", "tiny", "-f", "tiny.yaml", "--batch", *argv)


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        (("--run-dir", "file/run"), "no run can be kept in"),
        (("-i", "nonsense=1"), "nonsense"),
        (("--no-such-flag",), "No such option"),
    ],
)
def test_bisect_stops_where_the_tool_itself_fails(here: Path, flags: tuple[str, ...], told: str) -> None:
    """git takes 1 to 127 for a bad revision: what the host or the user did wrong must not name a culprit."""
    (here / "file").write_text("")
    workload = ("--", sys.executable, "-c", WORKLOAD)
    ran = _run("--bisect", *flags, *workload)
    assert ran.status == 128
    assert told in ran.stderr
    assert _run(*flags, *workload).status in {1, 2}


def test_a_bug_of_ours_is_no_bad_revision(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object, **__: object) -> None:
        raise ZeroDivisionError("a bug")

    monkeypatch.setattr("vdbg_env.run.session.prepare", broken)
    ran = _run("--bisect", "--", "true")
    assert ran.status == 128
    assert "ZeroDivisionError" in ran.stderr


def test_a_workload_that_removes_the_record_does_not_take_the_verdict_along(here: Path) -> None:
    remove = "import shutil; print('boom badly', flush=True); shutil.rmtree('run'); raise SystemExit(1)"
    ran = _run("--run-dir", "run", "--", sys.executable, "-c", remove)
    assert "Traceback" not in ran.stderr
    assert "no report could be kept in" in ran.stderr
    assert "A tiny runbook" in ran.stdout


@pytest.mark.parametrize("place", ["file/recording", "file"])
def test_where_no_recording_can_lie_is_told_before_the_run(here: Path, place: str) -> None:
    (here / "file").write_text("")
    ran = _run("--record", place, "--run-dir", "run", "--", sys.executable, "-c", WORKLOAD)
    assert ran.status == 2
    assert not (here / "run").exists()


def test_a_link_planted_among_the_artifacts_is_not_followed_into_the_recording(here: Path) -> None:
    (here / "private").write_text("not for the recording")
    script = here / "plant.py"
    script.write_text(
        "import glob, os\n"
        "folder = glob.glob('run/steps/baseline/1/*')[0]\n"
        "if not os.path.exists(folder + '/pipe'):\n"
        "    os.symlink(os.path.abspath('private'), folder + '/leak')\n"
        "    os.mkfifo(folder + '/pipe')\n"
    )
    _run("--record", "kept", "--run-dir", "run", "--", sys.executable, str(script))
    assert (here / "kept" / "recording.json").is_file()
    assert not [p for p in (here / "kept").rglob("*") if p.name in {"leak", "pipe"}]


class EngineAway:
    """A placement whose engine went away before its first step."""

    def layout(self, invocation: Invocation) -> Layout:
        return Layout(folder="localhost-0")

    def start(self, invocation: Invocation, directory: Path) -> StartedAttempt:
        raise EngineFailed("the engine is away")

    def adopt(self, invocation: Invocation, directory: Path) -> StartedAttempt | None:
        return None


def test_a_run_whose_engine_went_away_says_how_to_go_on(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    here_ = Places.here
    with monkeypatch.context() as patch:
        patch.setattr(Places, "here", lambda self, **_: replace(here_(self), placement=lambda *_: EngineAway()))
        assert run("--run-dir", "r") == 1
    told = capsys.readouterr().err
    assert "error: the engine is away" in told
    assert json.loads((here / "r" / "report.json").read_text())["why"] == "the engine is away"
    assert f"continue with: vdbg-env runbook tiny --resume {shlex.quote(str(here / 'r'))}" in told
    assert run("--resume", "r", workload=()) == 3


def test_no_job_is_queued_for_a_folder_that_has_a_run_nor_for_what_bisects(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (here / "r").mkdir()
    (here / "r" / "run.json").write_text("{}")
    assert run("--run-dir", "r", "--on", "slurm", "--submit", "--plan") == 2
    assert f"{here / 'r'} has a run already" in capsys.readouterr().err
    assert run("--on", "slurm", "--submit", "--plan", "--bisect") == 128  # bisecting stops
    assert "leave out" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "why"),
    [((), "add -i request=FILE (recorded)"), (("-i", "request=gone.jsonl"), "No such file or directory")],
)
def test_no_job_waits_in_a_queue_for_a_run_that_would_not_begin(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], words: tuple[str, ...], why: str
) -> None:
    (here / "sbatch").write_text(f"#!/bin/sh\ntouch '{here}/queued'\necho 7\n")
    (here / "sbatch").chmod(0o755)
    monkeypatch.setattr(os, "execvp", lambda *_: pytest.fail("salloc waits for nodes"))
    monkeypatch.setenv("PATH", str(here), prepend=":")
    begins = ["runbook", "illegal-memory-access", "--on", "slurm", "--nodes", "2", "--batch", *words]
    for how in ((), ("--submit",), ("--submit", "--plan")):
        assert main([*begins, *how, "--", "vllm", "serve", "M"]) == 2
        assert why in capsys.readouterr().err
    assert not (here / "queued").exists()
    if not words:
        assert main([*begins, "-i", "request=synthetic", "--submit", "--", "vllm", "serve", "M"]) == 0
        assert (here / "queued").exists()
