"""On a GPU: every planted fault is found by the way a user would take, and what was seen is kept as evidence.

`make gpu` runs this and the two files beside it; it is meant to take under ten minutes on one GPU, with the tools of a
CUDA devel image. Without a GPU each test skips with the reason.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import time
from dataclasses import replace
from operator import attrgetter
from pathlib import Path

import pytest

from tests.gpu.evidence import SKIP_ALL, Evidence, end_session
from tests.gpu.programs import Programs
from tests.gpu.samples import Sample, samples
from tests.gpu.walking import LOST_WHEN_ARMED, assert_planted, exception_of, leading, notes, vdbg_env, wait_for, walk
from vdbg_env.crash.dump import is_complete

pytestmark = pytest.mark.gpu

SAMPLES = {sample.name: sample for sample in samples()}
WITH_CORE = [s for s in SAMPLES.values() if s.judged_by == "GPU core" and s.name != "two-ranks"]
RECORDED = SAMPLES["inlined-templates"]


@pytest.mark.parametrize("sample", WITH_CORE, ids=attrgetter("name"))
def test_the_runbook_finds_the_planted_line(
    sample: Sample, programs: Programs, evidence: Evidence, tmp_path: Path
) -> None:
    with evidence.judging(sample):
        program = programs.command(sample)
        began = time.monotonic()
        report = walk(sample, program, tmp_path)
        evidence.keep_run(sample.name, report, tmp_path / "run")
        said = "; ".join([*notes(report, "cuda-gdb"), *notes(report, "nvdisasm")]) or "no second opinion"
        evidence.tell(f"runbook {sample.name}", f"{leading(report)} in {time.monotonic() - began:.0f} s; {said}")
        assert_planted(report, sample)
    if sample.exceptions and sample.name not in LOST_WHEN_ARMED:
        # Which exception a driver makes of a fault is for it to say: another one than expected is told, and no failure.
        name = exception_of(report)
        evidence.measure("exceptions", sample.name, {"name": name, "expected": name in sample.exceptions})


@pytest.mark.parametrize("sample", [s for s in SAMPLES.values() if s.ends != "hang"], ids=attrgetter("name"))
def test_triage_names_the_class(sample: Sample, programs: Programs, evidence: Evidence) -> None:
    if sample.judged_by != "class":
        return the_class_is_named(sample, programs, evidence)
    with evidence.judging(sample):
        return the_class_is_named(sample, programs, evidence)


def the_class_is_named(sample: Sample, programs: Programs, evidence: Evidence) -> None:
    command = programs.command(sample)
    if sample.ends == "signal":  # the program dies without a word: what a log holds then is what the shell says
        command = ["sh", "-c", '"$@"; exit $?', "sh", *command]
    ran = evidence.run(f"plain-{sample.name}", command, {}, limit_s=90)
    said = json.loads(vdbg_env("triage", "--json", str(evidence.folder / "text" / f"plain-{sample.name}.txt")).stdout)
    evidence.tell(f"triage {sample.name}", f"exit status {ran.status}, class {said['class']}")
    match sample.ends:
        case "clean":
            assert ran.status == 0, ran.output
        case _:
            assert ran.status not in {0, None}, ran.output
            assert said["class"] in sample.classes, ran.output


def test_the_whole_ladder_is_walked_and_recorded(programs: Programs, evidence: Evidence, tmp_path: Path) -> None:
    home = neutral_folder(tmp_path)
    try:
        shutil.copytree(RECORDED.source.parent, home, dirs_exist_ok=True)
        moved = replace(RECORDED, source=home / RECORDED.source.name, planted_in=home / RECORDED.source.name)
        (compiled,) = programs.command(moved)
        shutil.copy2(compiled, home / moved.source.stem)
        options = ("-i", "deep=true", "--record", str(home / "recording"))
        report = walk(moved, [f"./{moved.source.stem}"], home, *options, runbook="illegal-memory-access")
        evidence.keep_run("ladder", report, home / "run")
        evidence.keep_recording(home / "recording")
    finally:
        shutil.rmtree(home)
    walked = {step["id"]: step["outcome"] for step in report["steps"]}
    evidence.tell("whole ladder", ", ".join(f"{name} {outcome}" for name, outcome in walked.items()))
    assert_planted(report, RECORDED)
    assert {"baseline", "blocking", "coredump", "analyse", "memcheck"} <= set(walked)


def neutral_folder(otherwise: Path) -> Path:
    """Return a folder whose name tells nothing of this machine: line tables and recordings keep it for ever."""
    for path in (Path("/src/samples"), Path("/dev/shm/vdbg-env-samples")):
        try:
            path.mkdir(parents=True)
        except OSError:
            continue
        return path
    return otherwise / "samples"


def test_a_plain_build_gives_kernel_and_offset(programs: Programs, evidence: Evidence, tmp_path: Path) -> None:
    report = walk(RECORDED, programs.command(RECORDED, lineinfo=False), tmp_path)
    evidence.keep_run("without-line-info", report, tmp_path / "run")
    evidence.tell("runbook without line info", leading(report))
    assert_planted(report, RECORDED, lines=False)
    # memcheck's place is the core's, with width and thread: either leads, and never the driver's announcement.
    assert "+0x" in leading(report)
    assert any("vdbg-env build --lineinfo" in (step["command"] or "") for step in report["next_steps"])


def test_the_crashing_rank_is_told_from_the_one_that_waits(programs: Programs, evidence: Evidence) -> None:
    sample = SAMPLES["two-ranks"]
    with evidence.judging(sample):
        cores = evidence.folder / "cores" / "two-ranks"
        cores.mkdir(parents=True)
        environment = {
            **os.environ,
            "CUDA_ENABLE_COREDUMP_ON_EXCEPTION": "1",
            "CUDA_COREDUMP_FILE": f"{cores}/core.cuda.%h.%p.nvcudmp",
            "CUDA_COREDUMP_GENERATION_FLAGS": SKIP_ALL,
        }
        process = subprocess.Popen(programs.command(sample), env=environment, start_new_session=True)
        try:
            wait_for(lambda: any(map(is_complete, cores.iterdir())), 30)
            time.sleep(2)  # a second core would be wrong, and has to have the time to show
            assert process.poll() is None, "the other rank waits for ever"
        finally:
            end_session(process)
        document = json.loads(vdbg_env("core", "--json", str(cores)).stdout or "{}")
        faults = [fault for core in document.get("cores", [document]) for fault in core.get("faults", [])]
        places = {(Path(f["file"]).name, f["line"]) for fault in faults for f in fault["chain"][:1]}
        kernels = {(fault["kernel"] or {}).get("name") for fault in faults}
        count = len(list(cores.iterdir()))
        evidence.tell("two ranks", f"{count} core(s), faults in {sorted(map(str, kernels))} at {places}")
        assert places == {("two_ranks.cu", sample.planted)}
