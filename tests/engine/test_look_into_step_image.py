"""What the tool may ask in an image that steps run in: its programs, its binaries, its sources."""

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.engine.step_images import python_image
from vdbg_env.common.errors import HostNotAble
from vdbg_env.common.programs import Programs
from vdbg_env.common.resources import SHIPPED_DATA
from vdbg_env.crash.files import SourceFiles
from vdbg_env.engine.client import Engine, connect
from vdbg_env.engine.targets import Targets
from vdbg_env.image.settings import DATA, PACKAGES, Gpu, Mount, RunSettings, StepContainer, StepImage
from vdbg_env.run.container import LOOK, ContainerBinaries, ContainerPrograms, ContainerSources, StepContainers, look

pytestmark = pytest.mark.engine


@dataclass(frozen=True)
class Place:
    containers: StepContainers
    image: StepImage
    programs: ContainerPrograms


@pytest.fixture
def place(docker_engine: Engine, tmp_path: Path) -> Iterator[Place]:
    mounted = tmp_path / "mounted"
    mounted.mkdir()
    container = StepContainer(
        settings=RunSettings(image=python_image(docker_engine), gpu=Gpu(by="none"), dumps=None, ulimits=()),
        mounts=(Mount(source=str(mounted), target="/code", read_only=True),),
    )
    containers = StepContainers(connect, container, runbooks=SHIPPED_DATA / "runbooks", tell=lambda _: None)
    image = look(containers, ("python3", "cuda-gdb"))
    yield Place(
        containers, image, ContainerPrograms(containers, image, asked=("python3", "cuda-gdb"), machine=Programs())
    )
    containers.close()


def test_a_first_look_tells_what_steps_will_find(place: Place) -> None:
    assert place.image.image_id.startswith("sha256:")
    assert dict(place.image.tools) == {"python3": "/usr/bin/python3"}
    assert (place.image.user, place.image.folder) == ((0, 0), "/")
    assert place.image.python_version >= (3, 11)


def test_programs_are_those_of_the_image_and_the_kernels_log_is_asked_outside(place: Place) -> None:
    assert place.programs.which("cuda-gdb") is None
    assert place.programs.which("debconf") == "/usr/bin/debconf"
    assert place.programs.which("dmesg") == Programs().which("dmesg")
    ran = place.programs.run(("sh", "-c", "echo out; echo err >&2; ls /run/vdbg-env; exit 3"))
    assert (ran.code, ran.stdout, ran.stderr) == (3, "out\ngpucore\nre2\nrunbooks\nvdbg_env\n", "err\n")


def test_re2_of_this_machine_serves_an_image_of_the_same_python_and_harms_no_other(place: Place) -> None:
    code = (
        f"import sys; sys.path.insert(0, {PACKAGES!r}); from vdbg_env.common import patterns; print(bool(patterns.re2))"
    )
    ran = place.containers.run((place.image.python, "-I", "-S", "-c", code))
    same = place.image.python_version[:2] == sys.version_info[:2]
    assert (ran.code, ran.stdout, ran.stderr) == (0, f"{same}\n", "")


def test_shipped_files_are_there_and_cannot_be_changed(place: Place) -> None:
    ran = place.programs.run(("sh", "-c", f"ls {DATA}/lib/checks && touch {DATA}/lib/x"))
    assert "cuda_init.py" in ran.stdout
    assert "Read-only file system" in ran.stderr


def test_a_runs_folder_can_be_read_under_its_own_name(place: Place, tmp_path: Path) -> None:
    (tmp_path / "core").write_text("found")
    assert place.programs.run(("cat", f"{tmp_path}/core")).code != 0
    assert place.programs.reading(tmp_path).run(("cat", f"{tmp_path}/core")).stdout == "found"


def test_a_program_that_outlasts_its_time_is_ended_and_its_container_is_gone(
    place: Place, docker_engine: Engine
) -> None:
    with pytest.raises(HostNotAble, match="did not end within 1 seconds"):
        place.programs.run(("sleep", "60"), timeout_s=1)
    assert not docker_engine.client.containers(all=True, filters={"label": f"{LOOK}={place.containers.looks}"})


def test_sources_are_found_in_the_image_in_what_is_mounted_and_here(place: Place, tmp_path: Path) -> None:
    (tmp_path / "mounted" / "kernel.cu").write_text("first\nsecond\n")
    (tmp_path / "here.cu").write_text("of this machine\n")
    sources = ContainerSources(place.containers, place.image, SourceFiles((str(tmp_path),)))
    assert sources.line("/code/kernel.cu", 2) == "second"
    assert (sources.line("/etc/os-release", 1) or "").startswith("PRETTY_NAME=")
    assert sources.line("/etc/os-release", 10_000) is None
    assert sources.line("/build/here.cu", 1) == "of this machine"
    assert sources.line("/no/such/file.cu", 1) is None


def test_binaries_are_those_a_container_sees(place: Place, tmp_path: Path) -> None:
    (tmp_path / "mounted" / "lib.so").write_bytes(Path("/bin/sh").resolve().read_bytes())
    binaries = ContainerBinaries(place.containers, place.image, Targets())
    with binaries.open("/usr/bin/debconf") as files:
        assert list(files) == [], "a script holds no device code"
    with binaries.open("/usr/bin/dash") as files:
        assert [file.name for file in files] == ["/usr/bin/dash"]
    with binaries.open("/code") as files:
        assert [Path(file.name).name for file in files] == ["lib.so"]
