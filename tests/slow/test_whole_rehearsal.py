"""The first run on a GPU, rehearsed whole: every test of tests/gpu, stand-ins for what needs a GPU, then the import.

What it shows is that the suite's own code works; of a GPU it proves nothing, and each of its files says so.
"""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.gpu.machine import MARK
from tests.gpu.needs import ROOT
from tests.gpu.samples import samples
from tests.gpu.walking import lead, vdbg_env
from tests.rehearsal.checking import unmarked
from tests.rehearsal.stage import Rehearsed, rehearse

pytestmark = [pytest.mark.nvcc, pytest.mark.slow]

IMPORT = ROOT / "scripts" / "import-gpu-evidence"


@pytest.fixture(scope="module")
def rehearsed(tmp_path_factory: pytest.TempPathFactory) -> Rehearsed:
    return rehearse(tmp_path_factory.mktemp("stage"))


def import_evidence(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, str(IMPORT), *arguments], capture_output=True, text=True)


def test_every_planted_fault_is_found(rehearsed: Rehearsed) -> None:
    assert rehearsed.status == 0, rehearsed.output
    assert f"{MARK}: {len(samples())} of {len(samples())} planted faults found, 0 not found, 0 not judged." in (
        rehearsed.table
    ), rehearsed.table


def test_cuda_gdb_is_asked_where_it_is_there_and_agrees(rehearsed: Rehearsed) -> None:
    there = "cuda-gdb is not here: no second opinion" not in rehearsed.table
    assert ("cuda-gdb agrees: Warp Illegal Address at inlined_templates.cu" in rehearsed.table) == there
    assert "cuda-gdb disagrees" not in rehearsed.table


def test_every_open_question_gets_an_answer(rehearsed: Rehearsed) -> None:
    sheet = (rehearsed.evidence / "answers.md").read_text()
    missing = {"The order of cuda-gdb's banner lines"} if "cuda-gdb is not here" in rehearsed.table else set()
    unanswered = {part.splitlines()[0] for part in sheet.split("## ")[1:] if "Not answered" in part}
    assert unanswered <= missing, sheet
    assert "NOT EXPECTED" not in sheet


def test_nothing_of_it_can_be_taken_for_proof(rehearsed: Rehearsed) -> None:
    assert unmarked(rehearsed.evidence) == []


def test_the_evidence_becomes_test_data_and_a_recording_that_says_what_it_is(
    rehearsed: Rehearsed, tmp_path: Path
) -> None:
    recording = tmp_path / "recording"
    done = import_evidence(str(rehearsed.evidence), "--data", str(tmp_path), "--recording", str(recording))
    assert done.returncode == 0, done.stderr
    taken = tmp_path / f"{MARK}-evidence"
    assert unmarked(taken) == [] and (taken / "cores" / "run-ladder.nvcudmp.gz").exists()
    replay = ("--replay", str(recording), "--run-dir", str(tmp_path / "run"), "--batch", "--json")
    ran = vdbg_env("runbook", "illegal-memory-access", *replay, "--", "./inlined_templates", cwd=tmp_path)
    assert ran.returncode == 3, ran.stderr
    report = json.loads(ran.stdout)
    place = lead(report)["location"]
    planted = next(s for s in samples() if s.name == "inlined-templates").planted
    assert (Path(place["file"]).name, place["line"]) == ("inlined_templates.cu", planted)
    assert report["provenance"] == "synthetic" and MARK in report["origin"]


def test_a_rehearsals_file_among_genuine_evidence_is_refused(rehearsed: Rehearsed, tmp_path: Path) -> None:
    measured = json.loads((rehearsed.evidence / "measured.json").read_text())
    forged = tmp_path / "evidence"
    (forged / "cores").mkdir(parents=True)
    for name in ("versions.txt", "table.md", "answers.md"):
        (forged / name).write_text("seen on a GPU\n")
    (forged / "measured.json").write_text(json.dumps({"where": f"seen on {measured['machine']['driver']}"}))
    core = next((rehearsed.evidence / "cores").glob("run-*.nvcudmp"))
    (forged / "cores" / core.name).write_bytes(core.read_bytes())
    done = import_evidence(str(forged), "--data", str(tmp_path))
    assert done.returncode == 2 and "comes from a rehearsal" in done.stderr
