"""The flags that say where steps run: what they mean together, and what they do not."""

import json
from pathlib import Path
from typing import Any

import click
import pytest

from tests.support.command_line import vdbg_env
from vdbg_env.cli.places import ALL, PlaceFlags
from vdbg_env.cli.runbook import container_request
from vdbg_env.common.flags import takes_some
from vdbg_env.image.settings import CAPABILITIES, DumpVolume, Gpu, Mount
from vdbg_env.run.begin import ContainerRequest

ASKED: list[ContainerRequest | None] = []


@click.command()
@takes_some(PlaceFlags, ALL)
@click.pass_context
def command(context: click.Context, /, **flags: Any) -> None:
    ASKED.append(container_request(context, PlaceFlags(**flags)))


def asked(*words: str) -> ContainerRequest | None:
    command.main(args=list(words), standalone_mode=False)
    return ASKED.pop()


def test_an_image_is_enough_and_without_one_steps_run_here() -> None:
    assert asked() is None
    assert asked("--on", "local") is None
    request = asked("--image", "debug:1")
    assert request is not None and request.run.image == "debug:1"
    newest = asked("--on", "docker")
    assert newest is not None and newest.run.image is None


def test_every_flag_says_its_part(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_TOKEN", "secret-value")
    request = asked(
        *("--image", "debug:1", "--mount", ".", "--mount", "/models:ro", "-e", "HF_TOKEN", "-e", "A=b=c"),
        *("--gpu", "cdi:nvidia.com/gpu=0", "--dumps", "/var/dumps", "--user", "0", "--memory", "2g"),
        *("--ipc", "host", "--cap-add", "SYS_NICE", "--seccomp", "default", "--stop-grace", "7"),
    )
    assert request is not None
    settings = request.run.settings
    assert request.mounts == (
        Mount(source=str(tmp_path), target=str(tmp_path)),
        Mount(source="/models", target="/models", read_only=True),
    )
    assert request.folder == str(tmp_path)
    assert (request.user, request.memory) == ("0", 2 << 30)
    assert settings.env == (("HF_TOKEN", "secret-value"), ("A", "b=c"))
    assert request.run.gpu == Gpu(by="cdi", devices=("nvidia.com/gpu=0",))
    assert settings.dumps == DumpVolume(source="/var/dumps", kind="bind")
    assert (settings.ipc, settings.seccomp, settings.stop_grace_s) == ("host", "default", 7)
    assert settings.capabilities == (*CAPABILITIES, "SYS_NICE")


def test_a_flag_of_containers_without_containers_is_bad_usage() -> None:
    with pytest.raises(click.UsageError, match="--memory is for steps in containers: add --on docker"):
        asked("--memory", "1g")
    with pytest.raises(click.UsageError, match="--image is for steps in containers"):
        asked("--on", "local", "--image", "debug:1")


def test_a_variable_that_is_not_set_here_cannot_be_handed_on() -> None:
    ran = vdbg_env("runbook", "illegal-memory-access", "--image", "debug:1", "-e", "NO_SUCH_VARIABLE_1", "--", "x")
    assert ran.status == 2
    assert "there is no such variable here" in ran.stderr


def test_a_plan_says_that_steps_start_in_the_image_and_asks_no_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_HOST", "unix:///no/such/socket")
    words = ("runbook", "driver-problem", "--image", "debug:1", "--plan")
    text = vdbg_env(*words, "--", "python3", "x.py").stdout
    assert "in a separate container, of debug:1" in text
    assert "/run/vdbg-env/runbooks/lib/checks/cuda_init.py" in text, "as containers see the shipped checks"
    document = json.loads(vdbg_env(*words, "--json", "--", "python3", "x.py").stdout)
    assert document["image"] == "debug:1"


def test_a_recording_is_not_replayed_in_an_image(tmp_path: Path) -> None:
    ran = vdbg_env("runbook", "driver-problem", "--image", "debug:1", "--replay", str(tmp_path), "--", "x")
    assert ran.status == 2
    assert "--replay runs nothing" in ran.stderr


def test_triage_hands_the_place_on_only_to_a_run(tmp_path: Path) -> None:
    ran = vdbg_env("triage", "--image", "debug:1", str(tmp_path))
    assert ran.status == 2
    assert "--image is for the runbook that --run starts" in ran.stderr
