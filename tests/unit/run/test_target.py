"""Which containers a run goes on in, what is kept of them, and what an image's labels say."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from vdbg_env.common.errors import BadInput
from vdbg_env.common.programs import Completed
from vdbg_env.crash.files import BinaryFiles, BinarySource, SourceFiles, SourceText
from vdbg_env.engine.request import RunRequest
from vdbg_env.image.settings import DumpVolume, Gpu, Mount, RunSettings, StepContainer, StepImage
from vdbg_env.record.redactor import Pseudonyms, Redactor
from vdbg_env.record.run_directory import RunHead
from vdbg_env.run.begin import ContainerRequest, container_record, resumed_container, with_image_facts
from vdbg_env.run.placement import StepPlace, StepPlacement
from vdbg_env.runbook.state import Facts

SETTINGS = RunSettings(
    image="debug:1",
    env=(("HF_TOKEN", "hf-very-secret-1"), ("CUDA_LAUNCH_BLOCKING", "0")),
    gpu=Gpu(by="cdi", devices=("nvidia.com/gpu=0",)),
    dumps=DumpVolume(source="/dumps", kind="bind"),
)
CONTAINER = StepContainer(
    settings=SETTINGS, mounts=(Mount(source="/models", target="/models", read_only=True),), memory=1 << 30
)
IMAGE = StepImage(name="debug:1", image_id="sha256:aa", digest="registry/debug@sha256:bb")


class NoPrograms:
    def head(self, program: str) -> bytes:
        return b""

    def which(self, program: str) -> str | None:
        return None

    def run(self, argv: Sequence[str], *, timeout_s: float = 60.0) -> Completed:
        raise AssertionError("nothing is to be run")


def no_runner(_run: Path, _sensitive: tuple[str, ...], _names: Pseudonyms | None) -> StepPlacement:
    raise AssertionError("nothing is to be started")


def place(**fields: Any) -> StepPlace:
    binaries: BinarySource = BinaryFiles()
    sources: SourceText = SourceFiles()
    return StepPlace(
        programs=NoPrograms(), reading=lambda _: NoPrograms(), binaries=binaries, sources=sources, environment={},
        data_dir="/d", placement=no_runner, close=lambda: None, **fields,
    )  # fmt: skip


def recorded() -> RunHead:
    kept = container_record(place(container=CONTAINER, image=IMAGE), Redactor())
    return RunHead(run="r", runbook="ima", **json.loads(json.dumps(kept)))


def asked(image: str | None = None, *env: tuple[str, str]) -> ContainerRequest:
    return ContainerRequest(run=RunRequest(settings=RunSettings(image=image or "", env=env), image=image))


def test_the_record_holds_no_secret_and_names_the_image_for_good() -> None:
    head = recorded()
    assert "hf-very-secret-1" not in json.dumps(dict(head.container))
    assert head.image == {"name": "debug:1", "id": "sha256:aa", "digest": "registry/debug@sha256:bb"}


def test_a_run_goes_on_in_the_same_containers_of_the_same_image() -> None:
    again = resumed_container(recorded(), asked(None, ("HF_TOKEN", "hf-very-secret-1"), ("OTHER", "1")))
    assert again is not None
    assert again.settings.image == "sha256:aa", "a name may mean another image by now"
    assert again.settings.env == SETTINGS.env
    assert (again.mounts, again.memory, again.settings.gpu) == (CONTAINER.mounts, 1 << 30, SETTINGS.gpu)
    assert again.settings.dumps == SETTINGS.dumps


def test_a_secret_is_asked_for_again_by_its_name() -> None:
    with pytest.raises(BadInput) as refused:
        resumed_container(recorded(), None)
    assert refused.value.next_step == "give it again, from your own environment: --env HF_TOKEN"


@pytest.mark.parametrize("image", ["debug:1", "sha256:aa", None])
def test_the_image_may_be_named_again(image: str | None) -> None:
    assert resumed_container(recorded(), asked(image, ("HF_TOKEN", "hf-very-secret-1")))


def test_another_image_is_refused() -> None:
    with pytest.raises(BadInput, match=r"begun in containers of debug:1, not of debug:2"):
        resumed_container(recorded(), asked("debug:2"))


def test_a_run_of_this_machine_goes_on_here() -> None:
    here = RunHead(run="r", runbook="ima")
    assert resumed_container(here, None) is None
    with pytest.raises(BadInput, match="ran on this machine"):
        resumed_container(here, asked("debug:1"))
    assert container_record(place(), Redactor()) == {}
    assert place().in_words == {}


def test_an_image_of_ours_says_what_it_was_built_of() -> None:
    labels = (
        ("dev.vdbg-env.cuda", "13.0"),
        ("dev.vdbg-env.proof", "full: 3 of 3 cubins with code carry .debug_line"),
        ("org.opencontainers.image.source", "pkg:pypi/vllm@0.33.0"),
    )
    image = StepImage(name="debug:1", image_id="sha256:aa", labels=labels)
    facts = with_image_facts(Facts(torch="2.14.0"), image)
    assert (facts.on, facts.cuda, facts.vllm, facts.lineinfo, facts.torch) == (
        "docker",
        "13.0",
        "0.33.0",
        True,
        "2.14.0",
    )


def test_a_proof_that_is_not_full_is_no_line_info_and_without_a_label_nothing_is_known() -> None:
    partial = StepImage(name="x", image_id="y", labels=(("dev.vdbg-env.proof", "partial: 1 of 3"),))
    assert with_image_facts(Facts(), partial).lineinfo is False
    assert with_image_facts(Facts(), StepImage(name="x", image_id="y")).lineinfo is None
    assert with_image_facts(Facts(), None) == Facts()


def test_what_was_asked_in_the_image_counts_more_than_its_labels() -> None:
    image = StepImage(name="x", image_id="y", labels=(("dev.vdbg-env.cuda", "13.0"),))
    assert with_image_facts(Facts(cuda="12.9"), image).cuda == "12.9"
