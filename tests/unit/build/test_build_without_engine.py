"""`vdbg-env build` where no engine responds: nothing is built on this machine unless that is asked for."""

import time
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.build_orders import small_order
from tests.support.command_line import vdbg_env
from vdbg_env.build.build import BuildSettings, build_image
from vdbg_env.build.host import HostBuilder
from vdbg_env.common.errors import HostNotAble, NotProven
from vdbg_env.image.plan import CommandStep, SecretUse

SAMPLE = ("build", "--lineinfo", "--profile", "sample")


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/no.sock")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.mark.parametrize(
    "words", [(), ("--base", "debian:12"), ("--tag", "x:1"), ("--tag", "x:1", "--push"), ("--engine", "buildkit")]
)
def test_it_stops_before_the_first_step_and_names_the_host(cache: Path, words: tuple[str, ...]) -> None:
    ran = vdbg_env(*SAMPLE, *words)
    assert (ran.status, ran.stdout) == (1, "")
    assert "cannot reach" in ran.stderr and "--engine host" in ran.stderr
    assert not cache.exists()


@pytest.mark.parametrize("words", [("--base", "debian:12"), ("--tag", "x:1"), ("--output", "image.tar")])
def test_what_is_for_an_image_is_refused_for_a_folder(cache: Path, words: tuple[str, ...]) -> None:
    ran = vdbg_env(*SAMPLE, "--engine", "host", *words)
    assert (ran.status, f"{words[0]} is for an image" in ran.stderr) == (2, True)
    assert not cache.exists()


def test_the_host_keeps_objects_and_lets_steps_read_secrets(tmp_path: Path) -> None:
    secret = tmp_path / "token"
    secret.write_text("t0ken")
    step = CommandStep(
        id="compile", title="compile", commands=('grep -q t0ken "$TOKEN"', "touch objects/made"),
        secrets=(SecretUse(id="token", target="/run/token", variable="TOKEN"),), cache="objects:mine",
    )  # fmt: skip
    plan = replace(small_order().plan, steps=(step,))
    settings = BuildSettings(secrets={"token": secret})
    builder = HostBuilder(why="test", home=tmp_path / "host")
    with pytest.raises((NotProven, HostNotAble)):  # it compiled nothing
        build_image(plan, settings, builder=builder, tell=lambda _: None, clock=time.monotonic)
    assert (tmp_path / "objects" / "mine" / "made").is_file()
