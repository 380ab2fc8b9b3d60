"""The trap, for real: a compiler cache hands back objects without line info, and the proof refuses the image."""

from pathlib import Path

import pytest

from tests.support.build_orders import BASE
from tests.support.command_line import Ran, vdbg_env
from vdbg_env.adapters.docker.client import Engine

pytestmark = [pytest.mark.engine, pytest.mark.slow]
PROFILES = Path(__file__).parents[1] / "data" / "images"


@pytest.fixture(autouse=True)
def profiles_of_the_trap(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VDBG_IMAGES", str(PROFILES))


def build(profile: str, tag: str) -> Ran:
    flags = ("--engine", "classic", "--base", BASE, "--network", "host")
    return vdbg_env("build", "--lineinfo", "--profile", profile, *flags, "--tag", tag)


@pytest.mark.parametrize(
    ("profile", "told"),
    [
        ("trap", "0 of 2 cubins with code carry line info: none"),
        ("trap-partial", "1 of 2 cubins with code carry line info"),
    ],
)
def test_what_the_cache_hands_back_is_refused_and_not_tagged(docker_engine: Engine, profile: str, told: str) -> None:
    tag = f"vdbg-test/{profile}:never"
    ran = build(profile, tag)
    assert ran.status == 3, ran.stderr[-3000:]
    assert told in ran.stderr
    assert "cache" in next(line for line in ran.stderr.splitlines() if "usual cause:" in line)
    assert docker_engine.client.images(tag) == []


def test_with_the_shipped_settings_the_same_source_is_proven_and_tagged(docker_engine: Engine) -> None:
    tag = "vdbg-test/untrapped:1"
    ran = build("sample", tag)
    assert ran.status == 0, ran.stderr[-3000:]
    assert docker_engine.client.images(tag)
    docker_engine.client.remove_image(tag)
