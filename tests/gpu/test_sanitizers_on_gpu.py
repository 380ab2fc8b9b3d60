"""On a GPU: all four sanitizer tools name the planted lines, directly and as steps of a runbook, and cry no wolf."""

from __future__ import annotations

import re
from operator import attrgetter
from pathlib import Path

import pytest

from tests.gpu.evidence import Evidence
from tests.gpu.programs import Programs
from tests.gpu.samples import Sample, samples
from tests.gpu.walking import walk
from tests.support.toolchain import cuda_tool
from vdbg_env.evidence.sanitizer import parse_sanitizer

pytestmark = pytest.mark.gpu

SAMPLES = {sample.name: sample for sample in samples()}
SEEN = [s for s in SAMPLES.values() if s.tool and s.kernel]
WITHOUT_CORE = [s for s in SEEN if s.judged_by == "sanitizer"]


@pytest.mark.parametrize("sample", WITHOUT_CORE, ids=attrgetter("name"))
def test_the_runbook_finds_the_planted_line(
    sample: Sample, programs: Programs, evidence: Evidence, tmp_path: Path
) -> None:
    with evidence.judging(sample):
        cuda_tool("compute-sanitizer")
        report = walk(sample, programs.command(sample), tmp_path, runbook="wrong-output")
        evidence.keep_run(sample.name, report, tmp_path / "run")
        found = [f for f in report["findings"] if f["how_known"] == "sanitizer" and f["location"]]
        # A race has two ends: the finding's place is one, its message names both.
        places = [f"{f['message']} {Path(f['location']['file']).name}:{f['location']['line']}" for f in found]
        evidence.tell(f"runbook {sample.name}", "; ".join(places) or "nothing found")
        assert any(re.search(rf"\b{sample.source.name}:{sample.planted}\b", place) for place in places), places


@pytest.mark.parametrize("sample", SEEN, ids=attrgetter("name"))
def test_the_sanitizer_names_the_planted_line(sample: Sample, programs: Programs, evidence: Evidence) -> None:
    program = [cuda_tool("compute-sanitizer"), f"--tool={sample.tool}"]
    command = programs.command(sample)
    ran = evidence.run(f"{sample.tool}-{sample.name}", [*program, "--target-processes=all", *command], {}, limit_s=120)
    report = parse_sanitizer(ran.output)
    lines = sorted({(Path(p.frame.file).name, p.frame.line) for r in report.records for p in r.places if p.frame})
    evidence.tell(f"{sample.tool} {sample.name}", f"{report.verdict}, {report.errors} errors at {lines[:3]}")
    assert report.verdict == "errors", ran.output
    assert (sample.source.name, sample.sanitized) in lines, ran.output


@pytest.mark.parametrize("tool", ["memcheck", "racecheck", "initcheck", "synccheck"])
def test_the_sanitizer_writes_xml(tool: str, programs: Programs, evidence: Evidence) -> None:
    sample = next(s for s in SEEN if s.tool == tool)
    target = evidence.folder / "text" / f"{tool}.xml"
    target.parent.mkdir(exist_ok=True)
    command = [cuda_tool("compute-sanitizer"), f"--tool={tool}", "--xml", "--save", str(target)]
    ran = evidence.run(f"xml-{tool}", [*command, *programs.command(sample)], {}, limit_s=120)
    size = f"{target.stat().st_size} bytes" if target.exists() else f"none: {ran.output[-200:]}"
    evidence.tell(f"XML of {tool}", size)
    assert target.exists(), ran.output


@pytest.mark.parametrize("tool", ["memcheck", "racecheck", "initcheck", "synccheck"])
def test_the_sanitizer_is_silent_about_a_clean_program(tool: str, programs: Programs, evidence: Evidence) -> None:
    command = [cuda_tool("compute-sanitizer"), f"--tool={tool}", *programs.command(SAMPLES["clean"])]
    ran = evidence.run(f"{tool}-clean", command, {}, limit_s=90)
    evidence.tell(f"{tool} clean", parse_sanitizer(ran.output).verdict)
    assert parse_sanitizer(ran.output).verdict == "clean", ran.output
