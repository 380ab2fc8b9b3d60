"""Without a GPU: stand-ins walk the very paths that `test_on_gpu` walks, and are judged by the same assertions.

A stand-in's core is synthetic, but the machine code in it is what nvcc makes of the sample, and the faulting PC is an
instruction of the planted line: what is proven is everything from the driver's file on to the report.
"""

import json
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from tests.gpu.samples import Sample, samples
from tests.gpu.stand_in_cores import program_of, synthetic_core
from tests.gpu.walking import assert_planted, lead, vdbg_env, walk

pytestmark = [pytest.mark.nvcc, pytest.mark.slow]

FAULTING = [s for s in samples() if s.ends == "fault" and s.kernel and not s.python]
HANGING = [s for s in samples() if s.ends == "hang" and not s.exceptions]


def named(sample: Sample) -> str:
    return sample.name


@pytest.mark.parametrize("sample", FAULTING, ids=named)
def test_the_runbook_finds_the_planted_line(sample: Sample, tmp_path: Path) -> None:
    report = walk(sample, program_of(sample, tmp_path, synthetic_core(sample, tmp_path)), tmp_path)
    if sample.name == "trap":  # a trap has no exception number of its own: the stand-in's core says illegal instruction
        sample = replace(sample, exceptions=(*sample.exceptions, "Warp Illegal Instruction"))
    assert_planted(report, sample)
    assert report["verdict"] == "reproduced" and report["exit_status"] == 3


def test_without_line_info_kernel_and_offset_are_named_and_the_rebuild_is_advised(tmp_path: Path) -> None:
    sample = FAULTING[0]
    report = walk(sample, program_of(sample, tmp_path, synthetic_core(sample, tmp_path, lines=False)), tmp_path)
    assert_planted(report, sample, lines=False)
    assert any("vdbg-env build --lineinfo" in (step["command"] or "") for step in report["next_steps"])


@pytest.mark.parametrize("sample", HANGING, ids=named)
def test_a_hang_is_caught_and_the_spinning_line_is_named(sample: Sample, tmp_path: Path) -> None:
    report = walk(sample, program_of(sample, tmp_path, synthetic_core(sample, tmp_path)), tmp_path)
    assert_planted(report, sample)
    assert report["hangs"][0]["total"] == 3
    assert lead(report)["rule"] == "gpu-core-hang"


@pytest.mark.parametrize("name", ["out-of-memory", "launch-config", "clean"])
def test_what_leaves_no_core_is_not_given_one(name: str, tmp_path: Path) -> None:
    sample = next(s for s in samples() if s.name == name)
    report = walk(sample, program_of(sample, tmp_path, None), tmp_path)
    assert not any(f["how_known"] == "gpu-core" for f in report["findings"])


def test_triage_names_the_class_of_what_a_stand_in_prints(tmp_path: Path) -> None:
    sample = FAULTING[0]
    done = subprocess.run(program_of(sample, tmp_path, None), capture_output=True, text=True, cwd=tmp_path)
    (tmp_path / "log").write_text(done.stdout + done.stderr)
    said = json.loads(vdbg_env("triage", "--json", str(tmp_path / "log")).stdout)
    assert said["class"] == "illegal-memory-access"
