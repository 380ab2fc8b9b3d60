"""A runbook without a workload proves what this machine is able to do, and says what it ran."""

import json
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest

from tests.support.command_line import vdbg_env
from tests.unit.application.builtins.test_steps import Answer, Programs
from vdbg_env.application.image.run import RunRequest
from vdbg_env.application.run.request import RunbookRequest
from vdbg_env.application.run.sample import SAMPLE, with_bundled_sample, with_sample_in_sight
from vdbg_env.application.run.target import ContainerRequest
from vdbg_env.common.errors import HostNotAble
from vdbg_env.common.resources import data_dir
from vdbg_env.image.container.run_settings import RunSettings

IMA = RunbookRequest(runbook="illegal-memory-access")
GPU = MappingProxyType({"nvidia-smi": "GPU 0: NVIDIA H200 (UUID: GPU-1)\n"})


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def planted_line() -> int:
    lines = (data_dir("images") / "samples" / f"{SAMPLE}.cu").read_text().splitlines()
    return next(number for number, line in enumerate(lines, 1) if line.endswith("// PLANTED"))


def test_without_a_gpu_the_recording_leads_to_the_planted_line_and_is_called_synthetic(tmp_path: Path) -> None:
    done = vdbg_env("runbook", "illegal-memory-access", "--json", "--run-dir", str(tmp_path / "run"))
    report = json.loads(done.stdout)
    assert done.status == 3, done.stderr
    assert "this is the replay of the bundled sample inlined_templates" in done.stderr
    assert report["provenance"] == "synthetic" and "REHEARSAL" in report["origin"]
    lead = next(finding for finding in report["findings"] if finding["id"] == report["lead"])
    place = lead["location"]
    assert (place["file"].rsplit("/", 1)[-1], place["line"]) == (f"{SAMPLE}.cu", planted_line())
    assert lead["how_known"] == "gpu-core" and len(lead["chain"]) == 4
    assert any(source["marked"] == planted_line() for source in report["sources"])
    page = (tmp_path / "run" / "report.html").read_text()
    assert "Synthetic recording" in page and "// PLANTED" in page


def test_the_recording_names_nothing_of_where_it_was_made() -> None:
    for path in (data_dir("runbooks") / "recordings").rglob("*"):
        if path.is_file():
            data = path.read_bytes()
            assert not any(word in data for word in (b"/home/", b"/root/", b"/tmp/", b"/opt/")), path


@pytest.mark.parametrize(
    "request_",
    [
        RunbookRequest(runbook="illegal-memory-access", argv=("prog",)),
        RunbookRequest(runbook="illegal-memory-access", resume="r"),
        RunbookRequest(runbook="illegal-memory-access", inputs={"argv": "[]"}),
        RunbookRequest(runbook="no-recording-of-this-one"),
    ],
)
def test_what_the_user_named_is_left_alone(request_: RunbookRequest, tmp_path: Path) -> None:
    bundled = with_bundled_sample(request_, Programs(), tmp_path)
    assert bundled.request is request_ and bundled.said is None


def test_the_workload_of_a_project_file_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "vdbg.yaml").write_text("workload: {argv: [prog]}\n")
    assert with_bundled_sample(IMA, Programs(), tmp_path).said is None


def with_gpu(**more: Answer) -> Programs:
    return Programs({**GPU, **more})


def test_on_a_gpu_the_program_itself_is_built_and_run(tmp_path: Path) -> None:
    programs = with_gpu(nvcc="")
    bundled = with_bundled_sample(IMA, programs, tmp_path)
    assert bundled.request.argv == (str(tmp_path / SAMPLE),) and bundled.request.replay is None
    assert bundled.said and "was built here" in bundled.said
    assert "-lineinfo" in programs.asked[-1]


def in_image(runbook: str = "illegal-memory-access", **fields: Any) -> RunbookRequest:
    container = ContainerRequest(run=RunRequest(settings=RunSettings(image="debug:1"), image="debug:1"))
    return RunbookRequest(runbook=runbook, container=container, **fields)


def test_in_an_image_the_sample_is_built_by_the_images_compiler_where_containers_see_it(tmp_path: Path) -> None:
    folder = tmp_path / "runs" / "sample"
    request = with_sample_in_sight(in_image(), folder)
    assert request.container is not None
    mounts = [(mount.source, mount.read_only) for mount in request.container.mounts]
    assert mounts == [(str(folder), False), (str(data_dir("images") / "samples"), True)]
    assert folder.is_dir(), "what is not there cannot be mounted"
    bundled = with_bundled_sample(request, with_gpu(nvcc=""), folder)
    assert bundled.request.argv == (str(folder / SAMPLE),) and bundled.request.container
    assert bundled.said and "was built in the image" in bundled.said


def test_an_image_without_a_gpu_gives_the_replay_which_runs_in_no_container(tmp_path: Path) -> None:
    bundled = with_bundled_sample(in_image(), Programs(), tmp_path)
    assert bundled.request.replay and bundled.request.container is None
    assert bundled.said and "no GPU answers in the image" in bundled.said


@pytest.mark.parametrize("request_", [in_image(argv=("prog",)), in_image(runbook="no-recording-of-this-one"), IMA])
def test_containers_that_need_no_sample_see_none(request_: RunbookRequest, tmp_path: Path) -> None:
    assert with_sample_in_sight(request_, tmp_path / "sample") is request_
    assert not (tmp_path / "sample").exists()


def test_a_gpu_without_a_compiler_gives_the_replay_and_says_why(tmp_path: Path) -> None:
    bundled = with_bundled_sample(IMA, with_gpu(), tmp_path)
    assert bundled.request.replay and bundled.said and "no nvcc is at hand" in bundled.said


def test_a_compiler_that_fails_is_told_with_its_last_words(tmp_path: Path) -> None:
    with pytest.raises(HostNotAble, match="could not be built"):
        with_bundled_sample(IMA, with_gpu(nvcc="FAILED"), tmp_path)


def test_a_driver_that_does_not_answer_is_no_gpu(tmp_path: Path) -> None:
    programs = Programs({"nvidia-smi": HostNotAble("no answer"), "nvcc": ""})
    assert with_bundled_sample(IMA, programs, tmp_path).request.replay
