"""A runbook without a workload proves what this machine is able to do, and says what it ran."""

import json
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest

from tests.support.command_line import vdbg_env
from tests.unit.run.test_steps import Answer, Programs
from vdbg_env.cli import main
from vdbg_env.common.errors import HostNotAble
from vdbg_env.common.resources import SHIPPED_DATA
from vdbg_env.engine.request import RunRequest
from vdbg_env.image.settings import RunSettings
from vdbg_env.run.begin import (
    SAMPLE,
    ContainerRequest,
    RunbookRequest,
    names_workload,
    with_sample,
    with_sample_mounted,
)
from vdbg_env.run.recordings import bundled_recording

IMA = RunbookRequest(runbook="illegal-memory-access")
RECORDING = SHIPPED_DATA / "runbooks" / "recordings" / "illegal-memory-access"
GPU = MappingProxyType({"nvidia-smi": "NVIDIA H200, 580.82.07, 0, Disabled\n"})


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def planted_line() -> int:
    lines = (SHIPPED_DATA / "images" / "samples" / f"{SAMPLE}.cu").read_text().splitlines()
    return next(number for number, line in enumerate(lines, 1) if line.endswith("// PLANTED"))


def test_without_a_gpu_the_recording_leads_to_the_planted_line_and_says_where_it_was_made(tmp_path: Path) -> None:
    done = vdbg_env("runbook", "illegal-memory-access", "--json", "--run-dir", str(tmp_path / "run"))
    report = json.loads(done.stdout)
    assert done.status == 3, done.stderr
    assert "this is the replay of the bundled sample inlined_templates" in done.stderr
    assert report["provenance"] == "replay" and "H100" in report["origin"]
    lead = next(finding for finding in report["findings"] if finding["id"] == report["lead"])
    place = lead["location"]
    assert (place["file"].rsplit("/", 1)[-1], place["line"]) == (f"{SAMPLE}.cu", planted_line())
    assert lead["how_known"] == "gpu-core" and len(lead["chain"]) == 4
    (loaded,) = lead["address"]["loads"]
    assert (loaded["value"], loaded["line"]) == (1 << 32, f"{SAMPLE}.cu:34"), "the wild row of the sample"
    assert lead["address"]["evidence"]["disagree"] == 0
    assert any(source["marked"] == planted_line() for source in report["sources"])
    shown = vdbg_env("runs", "show", str(tmp_path / "run"), "--json")
    (run,) = json.loads(shown.stdout)["runs"]
    assert run["elapsed_s"] == report["duration_s"], "the list and the report tell one duration"
    lengths = {step["id"]: step["duration_s"] for step in report["steps"]}
    assert all(abs(step["duration_s"] - lengths[step["id"]]) < 0.5 for step in run["steps"])
    page = (tmp_path / "run" / "report.html").read_text()
    assert "H100" in page and "// PLANTED" in page


def test_the_plan_without_a_workload_is_that_of_the_sample() -> None:
    done = vdbg_env("runbook", "illegal-memory-access", "--plan")
    assert done.status == 0, done.stderr
    assert f"this is the plan of the bundled sample {SAMPLE}" in done.stderr
    assert f"./{SAMPLE}" in done.stdout
    without_sample = vdbg_env("runbook", "kernel-hang", "--plan")
    assert without_sample.status == 2
    assert "needs a command to run" in without_sample.stderr


def test_the_recording_names_nothing_of_where_it_was_made() -> None:
    for path in (SHIPPED_DATA / "runbooks" / "recordings").rglob("*"):
        if path.is_file():
            data = path.read_bytes()
            assert not any(word in data for word in (b"/home/", b"/root/", b"/tmp/", b"/opt/")), path


@pytest.mark.parametrize(
    "request_",
    [
        RunbookRequest(runbook="illegal-memory-access", argv=("prog",)),
        RunbookRequest(runbook="illegal-memory-access", resume="r"),
        RunbookRequest(runbook="illegal-memory-access", inputs={"argv": "[]"}),
    ],
)
def test_a_request_that_names_its_workload_needs_no_sample(request_: RunbookRequest) -> None:
    assert names_workload(request_) and not names_workload(IMA)


def test_only_some_runbooks_have_a_recording() -> None:
    assert bundled_recording("illegal-memory-access") == RECORDING
    assert bundled_recording("no-recording-of-this-one") is None


def test_the_workload_of_a_project_file_is_run(elsewhere: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (elsewhere / "vdbg.yaml").write_text("workload: {argv: [/bin/true]}\n")
    assert main(["runbook", "illegal-memory-access", "--batch", "--total-time", "1ms", "--json"]) == 124
    assert json.loads(capsys.readouterr().out)["workload"] == ["/bin/true"]


def with_gpu(**more: Answer) -> Programs:
    return Programs({**GPU, **more})


def test_on_a_gpu_the_program_itself_is_built_and_run(tmp_path: Path) -> None:
    programs = with_gpu(nvcc="")
    sample = with_sample(IMA, RECORDING, programs, tmp_path)
    assert sample.request.argv == (str(tmp_path / SAMPLE),) and sample.request.replay is None
    assert sample.notice and "was built here" in sample.notice
    assert "-lineinfo" in programs.asked[-1]


def in_image(runbook: str = "illegal-memory-access", **fields: Any) -> RunbookRequest:
    container = ContainerRequest(run=RunRequest(settings=RunSettings(image="debug:1"), image="debug:1"))
    return RunbookRequest(runbook=runbook, container=container, **fields)


def test_in_an_image_the_sample_is_built_by_the_images_compiler_where_containers_see_it(tmp_path: Path) -> None:
    request = with_sample_mounted(in_image(), tmp_path)
    assert request.container is not None
    mounts = [(mount.source, mount.read_only) for mount in request.container.mounts]
    assert mounts == [(str(tmp_path), False), (str(SHIPPED_DATA / "images" / "samples"), True)]
    sample = with_sample(request, RECORDING, with_gpu(nvcc=""), tmp_path)
    assert sample.request.argv == (str(tmp_path / SAMPLE),) and sample.request.container
    assert sample.notice and "was built in the image" in sample.notice


def test_steps_of_this_machine_need_no_mount(tmp_path: Path) -> None:
    assert with_sample_mounted(IMA, tmp_path) is IMA


def test_an_image_without_a_gpu_gives_the_replay_which_runs_in_no_container(tmp_path: Path) -> None:
    sample = with_sample(in_image(), RECORDING, Programs(), tmp_path)
    assert sample.request.replay and sample.request.container is None
    assert sample.notice and "no GPU responds in the image" in sample.notice


def test_a_gpu_without_a_compiler_gives_the_replay_and_says_why(tmp_path: Path) -> None:
    sample = with_sample(IMA, RECORDING, with_gpu(), tmp_path)
    assert sample.request.replay and sample.notice and "there is no nvcc here" in sample.notice


def test_a_compiler_that_fails_is_reported_with_its_last_lines(tmp_path: Path) -> None:
    with pytest.raises(HostNotAble, match="could not be built"):
        with_sample(IMA, RECORDING, with_gpu(nvcc="FAILED"), tmp_path)


def test_a_driver_that_does_not_respond_is_not_a_gpu(tmp_path: Path) -> None:
    programs = Programs({"nvidia-smi": HostNotAble("no answer"), "nvcc": ""})
    assert with_sample(IMA, RECORDING, programs, tmp_path).request.replay


def test_the_steps_of_a_replay_follow_each_other_and_are_as_long_as_they_were(tmp_path: Path) -> None:
    """Recorded attempts on the time of the replay overlapped in the timeline."""
    done = vdbg_env("runbook", "illegal-memory-access", "--json", "--run-dir", str(tmp_path / "run"))
    report = json.loads(done.stdout)
    end = 0.0
    for step in (step for step in report["steps"] if step["started_s"] is not None):
        assert step["started_s"] >= end - 1e-5
        lengths = {attempt["attempt"]: attempt["duration_s"] for attempt in step["attempts"]}
        assert step["duration_s"] >= sum(lengths.values()) - 1e-5
        end = step["started_s"] + step["duration_s"]
    assert report["duration_s"] >= end - 1e-5
