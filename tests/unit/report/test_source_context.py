"""A report is completed with source lines and warps where they can be had, and written whole or not at all."""

from dataclasses import replace
from pathlib import Path

import pytest

from gpucore.dwarf import SourceFrame
from tests.builders.core_builder import hang_core, illegal_address_core
from tests.support import reports
from vdbg_env.crash.files import CoreFiles, SourceFiles
from vdbg_env.evidence.finding import Artifact
from vdbg_env.record.progress import Progress
from vdbg_env.record.redactor import Redactor
from vdbg_env.record.run_directory import RunHead
from vdbg_env.report.assemble import complete, excerpt, run_report
from vdbg_env.report.model import REPORT_FILES, Provenance, Report
from vdbg_env.report.pages import write_report
from vdbg_env.runbook.model import End, Runbook, Status
from vdbg_env.runbook.state import Facts, Finish, RunState, StepRecord, Verdict
from vdbg_env.runbook.workload import Inputs

CUBINS = Path(__file__).parents[2] / "data" / "cubins"


def with_core(folder: Path, core: bytes) -> Report:
    (folder / "core.cuda.n1.7").write_bytes(core)
    left = Artifact(name="cores", path="core.cuda.n1.7", size=len(core))
    return replace(reports.FULL, excerpts=(), steps=(replace(reports.STEPS[4], artifacts=(left,)),))


def completed(folder: Path, core: bytes) -> Report:
    return complete(with_core(folder, core), folder, cores=CoreFiles(), sources=SourceFiles([str(CUBINS)]), redact=str)


def test_the_warps_of_a_hang_and_their_source_lines_are_added(tmp_path: Path) -> None:
    report = completed(tmp_path, hang_core())
    (histogram,) = report.histograms
    assert (histogram.core, histogram.step) == ("core.cuda.n1.7", "coredump")
    assert histogram.groups[0].count == 12 and histogram.groups[0].state == "waiting at a block barrier"
    places = [(e.file.rsplit("/", 1)[-1], e.marked) for e in report.excerpts]
    assert ("inline_chain.cu", 8) in places and ("rope.cu", 5) not in places


def test_a_core_with_a_fault_needs_no_histogram_and_rubbish_is_passed_over(tmp_path: Path) -> None:
    assert completed(tmp_path, illegal_address_core()).histograms == ()
    assert completed(tmp_path, b"rubbish").histograms == ()


def test_an_excerpt_ends_where_the_file_does(tmp_path: Path) -> None:
    (tmp_path / "k.cu").write_text("one\ntwo\nthree\n")
    sources = SourceFiles([str(tmp_path)])
    found = excerpt(SourceFrame(function=None, file="/elsewhere/k.cu", line=2), sources, str)
    assert found and (found.first, found.marked, found.lines) == (1, 2, ("one", "two", "three"))
    assert excerpt(SourceFrame(function=None, file="/elsewhere/k.cu", line=9), sources, str) is None
    assert excerpt(SourceFrame(function=None, file="absent.cu", line=1), sources, str) is None


def test_a_token_beside_the_line_that_failed_is_not_shown(tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text(f'TOKEN = "hf_{"Q" * 24}"\nlaunch()\n')
    frame = SourceFrame(function=None, file="/app/app.py", line=2)
    found = excerpt(frame, SourceFiles([str(tmp_path)]), Redactor().text)
    assert found and found.lines == ('TOKEN = "[redacted hf-token]"', "launch()")


@pytest.mark.parametrize("name", ["shadow", ".netrc", "id_ed25519", "config.json", "key.pem", "app.py/../.env"])
def test_what_is_no_source_file_is_not_shown_whatever_a_workload_calls_it(tmp_path: Path, name: str) -> None:
    (tmp_path / "app.py").mkdir()
    (tmp_path / name).write_text("one\ntwo\n")
    assert SourceFiles().line(str(tmp_path / name), 1) is None
    (tmp_path / "named.py").symlink_to(tmp_path / name)
    assert SourceFiles().line(str(tmp_path / "named.py"), 1) is None


@pytest.mark.parametrize("name", ["k.cu", "K.CUH", "include/cuda/std/atomic", "app.py"])
def test_sources_and_headers_without_a_suffix_are_shown(tmp_path: Path, name: str) -> None:
    (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / name).write_text("one\ntwo\n")
    assert SourceFiles().line(str(tmp_path / name), 2) == "two"


def test_every_format_is_written_and_nothing_half_made_is_left(tmp_path: Path) -> None:
    assert set(write_report(reports.FULL, tmp_path)) == set(REPORT_FILES.values())
    assert {path.name for path in tmp_path.iterdir()} == set(REPORT_FILES.values())
    assert "<!doctype html>" in (tmp_path / "report.html").read_text()


def test_lone_surrogates_of_odd_file_names_do_not_stop_a_report(tmp_path: Path) -> None:
    odd = replace(reports.BARE, notes=("core\udcff",))
    write_report(odd, tmp_path)
    assert "core" in (tmp_path / "report.md").read_text()


@pytest.mark.parametrize(
    ("head", "provenance"),
    [
        (RunHead(run="r", runbook="b"), Provenance.REAL),
        (RunHead(run="r", runbook="b", recorded_on="n1, H200, 580.82"), Provenance.REPLAY),
        (RunHead(run="r", runbook="b", recorded_on="core builder", synthetic=True), Provenance.SYNTHETIC),
    ],
)
def test_a_runs_head_says_where_it_comes_from(tmp_path: Path, head: RunHead, provenance: Provenance) -> None:
    found = {"driver": "580.82", "gpus": 8, "xids": [13]}
    record = StepRecord(step="s", outcome=Status.PASS, next=End(), results=found)  # type: ignore[arg-type]
    finish = Finish(verdict=Verdict.PASSED, why="well")
    state = RunState(
        runbook=Runbook(name="b", title="B", steps=()),
        inputs=Inputs({}),
        facts=Facts(),
        decision=finish,
        trail=(record,),
    )
    report = run_report(head, Progress(state=state), tmp_path, cores=CoreFiles(), sources=SourceFiles(), redact=str)
    assert report.provenance is provenance
    assert dict(report.environment) == {"driver": "580.82", "GPUs": "8"}


def test_lines_that_a_report_has_shown_stay_in_it_without_their_sources(tmp_path: Path) -> None:
    """`runs report --write` on another machine, or after a run in an image, took them out of every format."""
    first = completed(tmp_path, hang_core())
    assert first.excerpts
    write_report(first, tmp_path)
    report = with_core(tmp_path, hang_core())
    again = complete(report, tmp_path, cores=CoreFiles(), sources=SourceFiles(["/nowhere"]), redact=str)
    assert again.excerpts == first.excerpts
    write_report(again, tmp_path)
    marked = first.excerpts[0]
    text = marked.lines[marked.marked - marked.first].strip()
    assert text in (tmp_path / "report.md").read_text() or text in (tmp_path / "report.json").read_text()
