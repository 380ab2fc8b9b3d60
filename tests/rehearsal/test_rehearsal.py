"""The first run on a GPU, rehearsed with a few samples; `tests/slow/test_whole_rehearsal.py` does it with all."""

from pathlib import Path

import pytest

from tests.gpu.machine import MARK
from tests.rehearsal.checking import unmarked
from tests.rehearsal.stage import Rehearsed, rehearse

pytestmark = [pytest.mark.nvcc, pytest.mark.slow]

RUNBOOK = "tests/gpu/test_on_gpu.py::test_the_runbook_finds_the_planted_line"
FEW = (
    f"{RUNBOOK}[misaligned]",
    f"{RUNBOOK}[hang-in-templates]",
    "tests/gpu/test_on_gpu.py::test_triage_names_the_class[launch-config]",
    "tests/gpu/test_dumps_on_gpu.py::test_what_each_generation_flag_does[log only]",
    "tests/gpu/test_dumps_on_gpu.py::test_how_much_fires_the_pipe[1048576]",
    "tests/gpu/test_sanitizers_on_gpu.py::test_the_sanitizer_names_the_planted_line[shared-race]",
    "tests/gpu/test_sanitizers_on_gpu.py::test_the_sanitizer_writes_xml[racecheck]",
)


@pytest.fixture(scope="module")
def rehearsed(tmp_path_factory: pytest.TempPathFactory) -> Rehearsed:
    return rehearse(tmp_path_factory.mktemp("stage"), *FEW)


def test_the_suite_passes_with_stand_ins(rehearsed: Rehearsed) -> None:
    assert rehearsed.status == 0, rehearsed.output
    assert f"{len(FEW)} passed" in rehearsed.output
    for found in ("misaligned.cu:5 | GPU core: line | found", "hang_in_templates.cu:9 | GPU core: line | found"):
        assert found in rehearsed.table


def test_nothing_of_it_can_be_taken_for_proof(rehearsed: Rehearsed) -> None:
    assert MARK in rehearsed.evidence.name
    assert unmarked(rehearsed.evidence) == []
    assert f"{MARK}: 3 of 26 planted faults found" in rehearsed.output


def test_open_questions_are_answered_or_said_not_to_be(rehearsed: Rehearsed) -> None:
    sheet = (rehearsed.evidence / "answers.md").read_text()
    assert "1048576 byte(s), 65536 taken: fired after" in sheet
    assert f"racecheck.xml: <{MARK}> of record." in sheet
    assert "Names of pipe and file when none are given\n\nNot answered" in sheet


def test_the_stage_leaves_the_tree_as_it_was(rehearsed: Rehearsed) -> None:
    assert not Path("gpu-evidence").exists() and not Path(f"gpu-evidence-{MARK}").exists()
