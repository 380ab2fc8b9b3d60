"""`vdbg-env build` where no engine responds: nothing is built on this machine unless that is asked for."""

from pathlib import Path

import pytest

from tests.support.command_line import vdbg_env

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
    assert "nothing answers at" in ran.stderr and "--engine host" in ran.stderr
    assert not cache.exists()


@pytest.mark.parametrize("words", [("--base", "debian:12"), ("--tag", "x:1"), ("--output", "image.tar")])
def test_what_is_for_an_image_is_refused_for_a_folder(cache: Path, words: tuple[str, ...]) -> None:
    ran = vdbg_env(*SAMPLE, "--engine", "host", *words)
    assert (ran.status, f"{words[0]} is for an image" in ran.stderr) == (2, True)
    assert not cache.exists()
