"""`build --onto`: what it refuses before it asks an engine for the image."""

import pytest

from tests.support.command_line import vdbg_env


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (("--onto", "x:1", "--kernel", "k", "--arch", "nine"), "'nine' is not an architecture"),
        (("--onto", "x:1", "--kernel", "k", "--arch", "9.0,"), "'' is not an architecture"),
        (("--onto", "x:1", "--arch", "9.0"), "nothing says which kernels"),
        (("--onto", "x:1", "--kernel", "k", "--arch", "9.0", "--sbom", "true"), "--sbom has no meaning with --onto"),
        (("--kernel", "k"), "--kernel has no meaning without --onto"),
        (("--compiler", "/"), "--compiler has no meaning without --onto"),
        (("--onto", "x:1", "--kernel", "k", "--arch", "9.0", "--compiler", "/proc"), "/proc/bin/nvcc does not run"),
        (("--onto", "x:1", "--kernel", "k", "--arch", "9.0", "--dep", "cutlass=/nope"), "--dep cutlass=/nope: not VAR"),
    ],
)
def test_what_cannot_be_meant_is_refused_at_once(
    flags: tuple[str, ...], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DOCKER_HOST", "unix:///nowhere/docker.sock")
    ran = vdbg_env("build", *flags)
    assert ran.status == 2 and said in ran.stderr
