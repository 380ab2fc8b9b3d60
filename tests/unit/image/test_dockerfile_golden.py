"""Every shipped profile on every platform and for every dialect renders to its golden, and hadolint finds nothing."""

import shutil
import subprocess
import sys
from itertools import product
from pathlib import Path

import pytest

from tests.support.golden import assert_golden
from tests.support.image_library import PACKAGE, planned, shipped
from vdbg_env.image.plan import dockerfile
from vdbg_env.image.profile import BuildRequest, Dialect, PipIndex, Platform, Site, parse_source

PROFILES = sorted(path.stem for path in (Path(__file__).parents[3] / "images").glob("*.yaml"))
PLATFORMS: tuple[Platform, ...] = ("linux/amd64", "linux/arm64")
DIALECTS: tuple[Dialect, ...] = ("classic", "buildkit")

CORPORATE = Site(
    ca_bundle=b"-----BEGIN CERTIFICATE-----\n-----END CERTIFICATE-----\n",
    pip=PipIndex(index_url="https://pypi.example.org/simple", trusted_hosts=("pypi.example.org",)),
    apt_mirror="https://apt.example.org/debian",
)
OTHERS = {
    "vllm-cu130-mirror.Dockerfile": BuildRequest(
        profile="vllm-cu130", site=Site(apt_mirror="http://apt.example.org/ubuntu")
    ),
    "pypi-cu130-target.Dockerfile": BuildRequest(profile="pypi-cu130", target="_flashmla_C", arch=("9.0", "10.0")),
    "sample-corporate.Dockerfile": BuildRequest(profile="sample", site=CORPORATE),
    "sample-device-debug.Dockerfile": BuildRequest(profile="sample", debug="device-debug"),
    "vllm-cu130-git.Dockerfile": BuildRequest(
        profile="vllm-cu130", source=parse_source("git+https://github.com/vllm-project/vllm@v0.33.0")
    ),
}


def test_every_profile_in_the_folder_is_shipped() -> None:
    assert sorted(shipped().profiles) == PROFILES


@pytest.mark.parametrize(("profile", "platform", "dialect"), [*product(PROFILES, PLATFORMS, DIALECTS)])
def test_a_profile_renders_to_its_golden(profile: str, platform: Platform, dialect: Dialect) -> None:
    asked = None if platform == "linux/amd64" else platform
    text = dockerfile(planned(BuildRequest(profile=profile, platform=asked, guard=PACKAGE)), dialect)
    assert_golden(f"image/{profile}.{platform.removeprefix('linux/')}.{dialect}.Dockerfile", text)


@pytest.mark.parametrize("name", OTHERS)
def test_a_wish_renders_to_its_golden(name: str) -> None:
    assert_golden(f"image/{name}", dockerfile(planned(OTHERS[name])))


def test_hadolint_finds_nothing_in_any_golden() -> None:
    beside = Path(sys.executable).parent / "hadolint"
    program = str(beside) if beside.exists() else shutil.which("hadolint")
    assert program, "hadolint comes with `pip install .[test]`"
    goldens = sorted((Path(__file__).parents[2] / "golden" / "image").glob("*.Dockerfile"))
    assert len(goldens) >= 20
    ran = subprocess.run([program, "--no-color", *map(str, goldens)], capture_output=True, text=True, check=False)
    assert (ran.returncode, ran.stdout) == (0, "")
