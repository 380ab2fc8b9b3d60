"""On a GPU: every planted fault is found, every tool is asked, and what was seen is kept as evidence.

`make gpu` runs this; it takes under ten minutes on one GPU and needs the tools of a CUDA devel image. Without a GPU
each test skips with the reason.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import time
from pathlib import Path

import pytest

from tests.gpu.conftest import Builder
from tests.gpu.evidence import SKIP_ALL, Evidence
from tests.gpu.samples import Sample, samples
from tests.gpu.walking import assert_planted, notes, vdbg_env, walk
from tests.support.toolchain import cuda_tool
from vdbg_env.evidence.sanitizer import parse_sanitizer

pytestmark = pytest.mark.gpu

SAMPLES = {sample.name: sample for sample in samples()}
WITH_CORE = [s for s in SAMPLES.values() if (s.exceptions or s.ends == "hang") and s.name != "two-ranks"]
ON_EXCEPTION = {"CUDA_ENABLE_COREDUMP_ON_EXCEPTION": "1"}
FLAGS = {
    "none": "",
    "skip nonrelocated images only": "skip_nonrelocated_elf_images",
    "all five skips": SKIP_ALL,
    "all but nonrelocated images": SKIP_ALL.partition(",")[2],
    "gzip": f"{SKIP_ALL},gzip_compress",
    "faulted contexts only": f"{SKIP_ALL},faulted_contexts_only",
    "log only": f"{SKIP_ALL},log_only",
    "a flag nobody knows": f"{SKIP_ALL},no_such_flag",
}


def named(sample: Sample) -> str:
    return sample.name


@pytest.mark.parametrize("sample", [s for s in SAMPLES.values() if s.ends != "hang"], ids=named)
def test_triage_names_the_class(sample: Sample, builder: Builder, evidence: Evidence) -> None:
    ran = evidence.run(f"plain-{sample.name}", builder.program(sample), {})
    said = json.loads(vdbg_env("triage", "--json", str(evidence.folder / "text" / f"plain-{sample.name}.txt")).stdout)
    evidence.tell(f"triage {sample.name}", f"exit status {ran.status}, class {said['class']}")
    if sample.says or sample.ends == "clean":
        assert said["class"] in sample.classes or sample.ends == "clean", ran.output


@pytest.mark.parametrize("sample", WITH_CORE, ids=named)
def test_the_runbook_finds_the_planted_line(
    sample: Sample, builder: Builder, evidence: Evidence, tmp_path: Path
) -> None:
    began = time.monotonic()
    report = walk(sample, builder.program(sample), tmp_path)
    evidence.keep(f"runs/{sample.name}.json", json.dumps(report, indent=1))
    said = "; ".join([*notes(report, "cuda-gdb"), *notes(report, "nvdisasm")]) or "no second opinion"
    first = report["findings"][0]["message"] if report["findings"] else "nothing found"
    evidence.tell(f"runbook {sample.name}", f"{first} in {time.monotonic() - began:.0f} s; {said}")
    assert_planted(report, sample)


def test_a_plain_build_gives_kernel_and_offset(builder: Builder, evidence: Evidence, tmp_path: Path) -> None:
    sample = SAMPLES["inlined-templates"]
    report = walk(sample, builder.program(sample, lineinfo=False), tmp_path)
    evidence.tell("runbook without line info", report["findings"][0]["message"])
    assert_planted(report, sample, lines=False)


def test_the_crashing_rank_is_told_from_the_one_that_waits(
    builder: Builder, evidence: Evidence, tmp_path: Path
) -> None:
    template = str(tmp_path / "core.cuda.%h.%p.nvcudmp")
    environment = {
        **os.environ,
        **ON_EXCEPTION,
        "CUDA_COREDUMP_FILE": template,
        "CUDA_COREDUMP_GENERATION_FLAGS": SKIP_ALL,
    }
    process = subprocess.Popen(builder.program(SAMPLES["two-ranks"]), env=environment, start_new_session=True)
    try:
        process.wait(20)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, 9)
        process.wait()
    document = json.loads(vdbg_env("core", "--json", str(tmp_path)).stdout)
    cores = document.get("cores", [document])
    faults = [fault for core in cores for fault in core["faults"]]
    evidence.tell("two ranks", f"{len(cores)} core(s), faults in {sorted({f['kernel']['name'] for f in faults})}")
    assert [Path(f["chain"][0]["file"]).name for f in faults] == ["two_ranks.cu"]
    assert faults[0]["chain"][0]["line"] == SAMPLES["two-ranks"].planted


@pytest.mark.parametrize("flags", FLAGS)
def test_what_each_generation_flag_does(flags: str, builder: Builder, evidence: Evidence) -> None:
    name = "flags-" + re.sub(r"\W+", "-", flags)
    program = builder.program(SAMPLES["inlined-templates"])
    environment = {**ON_EXCEPTION, "CUDA_COREDUMP_GENERATION_FLAGS": FLAGS[flags]}
    ran = evidence.run(name, program, environment, limit_s=120, gzip=flags == "gzip")
    size = f"{ran.core.stat().st_size} bytes" if ran.core else "no file"
    unknown = re.findall(r"unknown coredump flag '(\w+)'", ran.output)
    refused = f", refused: {', '.join(unknown)}" if unknown else ""
    identity = "" if flags == "gzip" else f", identity {ran.identity}"
    evidence.tell(f"flags: {flags}", f"{size} in {ran.seconds:.1f} s, exit status {ran.status}{identity}{refused}")
    if flags == "all five skips":
        assert ran.core and ran.status == -6
    if ran.core:
        document = json.loads(vdbg_env("core", "--json", str(ran.core)).stdout)
        assert document["faults"][0]["chain"][0]["line"] == SAMPLES["inlined-templates"].planted


@pytest.mark.parametrize("size", [1, 1 << 16, 1 << 20])
def test_how_much_fires_the_pipe(size: int, builder: Builder, evidence: Evidence, tmp_path: Path) -> None:
    pipe, core = tmp_path / "pipe", tmp_path / "hang.nvcudmp"
    environment = {
        **os.environ,
        "CUDA_ENABLE_USER_TRIGGERED_COREDUMP": "1",
        "CUDA_COREDUMP_PIPE": str(pipe),
        "CUDA_COREDUMP_FILE": str(core),
        "CUDA_COREDUMP_GENERATION_FLAGS": SKIP_ALL,
        "CUDA_COREDUMP_SHOW_PROGRESS": "1",
    }
    process = subprocess.Popen(builder.program(SAMPLES["spin-grid"]), env=environment, stderr=subprocess.PIPE)
    try:
        wait_for(pipe.exists, 20)
        time.sleep(2)
        descriptor = os.open(pipe, os.O_WRONLY | os.O_NONBLOCK)
        written = os.write(descriptor, b"\0" * size)
        os.close(descriptor)
        began = time.monotonic()
        fired = wait_for(lambda: core.exists() and core.stat().st_size > 0, 30)
        wait = time.monotonic() - began
        alive = process.poll() is None
        evidence.tell(
            f"pipe, {size} bytes", f"{written} taken, fired: {fired} after {wait:.1f} s, still alive: {alive}"
        )
    finally:
        process.kill()
        process.communicate()
    if size == 1 << 20:
        assert fired, "a mebibyte must fire the pipe: it is what vdbg-env dump writes"


def wait_for(condition: object, limit_s: float) -> bool:
    assert callable(condition)
    until = time.monotonic() + limit_s
    while time.monotonic() < until:
        if condition():
            return True
        time.sleep(0.1)
    return False


@pytest.mark.parametrize("sample", [s for s in SAMPLES.values() if s.tool and s.kernel], ids=named)
def test_the_sanitizer_names_the_planted_line(sample: Sample, builder: Builder, evidence: Evidence) -> None:
    program = cuda_tool("compute-sanitizer")
    command = [program, f"--tool={sample.tool}", "--target-processes=all", *builder.program(sample)]
    ran = evidence.run(f"{sample.tool}-{sample.name}", command, {}, limit_s=120)
    report = parse_sanitizer(ran.output)
    places = [place.frame for record in report.records for place in record.places if place.frame]
    lines = sorted({(Path(frame.file).name, frame.line) for frame in places})
    evidence.tell(f"{sample.tool} {sample.name}", f"{report.verdict}, {report.errors} errors at {lines[:3]}")
    xml = [program, f"--tool={sample.tool}", "--xml", "--save", str(evidence.folder / "text" / f"{sample.name}.xml")]
    evidence.run(f"xml-{sample.name}", [*xml, *builder.program(sample)], {}, limit_s=120)
    assert report.verdict == "errors"
    assert (sample.source.name, sample.planted) in lines


def test_the_sanitizer_is_silent_about_a_clean_program(builder: Builder, evidence: Evidence) -> None:
    program = cuda_tool("compute-sanitizer")
    for tool in ("memcheck", "racecheck", "initcheck", "synccheck"):
        ran = evidence.run(
            f"{tool}-clean", [program, f"--tool={tool}", *builder.program(SAMPLES["clean"])], {}, limit_s=90
        )
        assert parse_sanitizer(ran.output).verdict == "clean", ran.output


def test_what_it_costs_to_have_dumps_armed(builder: Builder, evidence: Evidence) -> None:
    program = builder.program(SAMPLES["clean"])
    bare = min(evidence.run("cost-bare", program, {}).seconds for _ in range(5))
    armed = min(evidence.run("cost-armed", program, ON_EXCEPTION).seconds for _ in range(5))
    evidence.tell("dumps armed", f"a clean program takes {armed:.2f} s armed, {bare:.2f} s bare (best of 5)")
