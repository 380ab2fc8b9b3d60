"""The trap, for real: a compiler cache hands back objects without line info, and the proof refuses the image."""

import re
import uuid
from pathlib import Path

import pytest

from tests.support.build_orders import BASE
from tests.support.command_line import Ran, vdbg_env
from vdbg_env.engine.client import Engine

pytestmark = [pytest.mark.engine, pytest.mark.slow]
ROOT = Path(__file__).parents[2]
PROFILES = ROOT / "tests" / "data" / "images"


@pytest.fixture(autouse=True)
def profiles_of_the_trap(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VDBG_IMAGES", str(PROFILES))


def build(profile: str, tag: str) -> Ran:
    flags = ("--engine", "buildkit", "--base", BASE, "--network", "host")
    return vdbg_env("build", "--lineinfo", "--profile", profile, "--no-guard", *flags, "--tag", tag)


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


def build_keeping_objects(profile: str, source: Path, tag: str, *flags: str) -> Ran:
    own = ("--engine", "buildkit", "--base", BASE, "--network", "host", "--object-cache", "vdbg-test-trap", "--verbose")
    flags = ("--no-guard", "--source", str(source), *own, *flags)
    return vdbg_env("build", "--lineinfo", "--profile", profile, *flags, "--tag", tag)


def hits(ran: Ran) -> tuple[int, int]:
    """Return how many compilations the object cache spared, and of how many, by its count after the compile step.

    A compile step that the builder's own layer cache returned prints no count: the sources must be new to it.
    """
    found = re.search(r"Hits:\s+(\d+) /\s+(\d+)", ran.stderr)
    assert found, ran.stderr[-3000:]
    return int(found[1]), int(found[2])


def test_the_object_cache_keeps_objects_with_and_without_line_info_apart(
    docker_engine: Engine, source_never_seen: Path
) -> None:
    """The trap with `--object-cache`: filled by the very same command lines, without the flag in the environment."""
    tag = f"vdbg-test/objects:{uuid.uuid4().hex[:8]}"
    filled = build_keeping_objects("without-the-flag", source_never_seen, tag, "--jobs", "1")
    assert filled.status == 3, filled.stderr[-3000:]
    assert "0 of 2 cubins with code carry line info: none" in filled.stderr
    assert docker_engine.client.images(tag) == []

    proven = build_keeping_objects("flag-in-the-environment", source_never_seen, tag, "--jobs", "1")
    assert proven.status == 0, proven.stderr[-3000:]
    assert docker_engine.client.images(tag)
    assert hits(filled) == hits(proven) == (0, 3), "an object without line info is not the answer to a build with it"

    # Another number of jobs: the builder's layer cache does not know the step, and it runs again.
    again = build_keeping_objects("flag-in-the-environment", source_never_seen, tag, "--jobs", "2")
    assert again.status == 0, again.stderr[-3000:]
    assert hits(again) == (3, 3), "both kernels and the host's code come from the cache, with their lines"
    docker_engine.client.remove_image(tag)
