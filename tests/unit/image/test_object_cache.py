"""The object cache: what is in its key, and who refuses to keep one."""

import os
import subprocess
from pathlib import Path

import pytest

from tests.support.golden import assert_golden
from tests.support.image_library import planned
from vdbg_env.common.errors import BadInput
from vdbg_env.image.manifests import apptainer
from vdbg_env.image.plan import CommandStep, dockerfile
from vdbg_env.image.profile import BuildRequest

LAUNCHER = Path(__file__).parents[3] / "templates" / "object-cache.sh"
SAMPLE = BuildRequest(profile="sample", object_cache="team")


@pytest.fixture
def toolkit(tmp_path: Path) -> Path:
    """A root with the launcher, a toolkit, and a ccache that prints how it was called."""
    for name in ("cuda/bin/nvcc", "cuda/bin/ptxas", "cuda/nvvm/bin/cicc"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(name)
    (tmp_path / "object-cache.sh").symlink_to(LAUNCHER)
    ccache = tmp_path / "bin" / "ccache"
    ccache.parent.mkdir()
    ccache.write_text('#!/bin/sh\nenv | grep "^CCACHE_" | sort\necho "$@"\n')
    ccache.chmod(0o755)
    return tmp_path


def started(root: Path, **environment: str) -> dict[str, str]:
    """Return the settings with which the launcher starts ccache."""
    path = f"{root / 'bin'}:{os.environ['PATH']}"
    ran = subprocess.run(
        [root / "object-cache.sh", "nvcc", "-c", "a b.cu"],
        env={"PATH": path, "CUDA_HOME": str(root / "cuda"), **environment},
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    *settings, command = ran.stdout.splitlines()
    assert command == "nvcc -c a b.cu"
    return dict(line.split("=", 1) for line in settings)


def test_what_nvcc_reads_from_the_environment_is_in_the_key(toolkit: Path) -> None:
    environments = [
        {}, {"NVCC_PREPEND_FLAGS": "-lineinfo"}, {"NVCC_APPEND_FLAGS": "-lineinfo"}, {"NVCC_PREPEND_FLAGS": "-G"},
        {"NVCC_CCBIN": "g++-13"},
    ]  # fmt: skip
    keys = [started(toolkit, **env)["CCACHE_NAMESPACE"] for env in environments]
    assert len(set(keys)) == len(environments)
    assert keys[1] == started(toolkit, NVCC_PREPEND_FLAGS="-lineinfo", NVCC_THREADS="4", OTHER="x")["CCACHE_NAMESPACE"]


def test_the_programs_that_nvcc_starts_are_in_the_key_and_missing_ones_are_not(toolkit: Path) -> None:
    named = started(toolkit)["CCACHE_EXTRAFILES"].split(":")
    assert [Path(name).name for name in named] == ["nvcc", "ptxas", "cicc"]
    assert all(Path(name).is_file() for name in named)


def test_no_setting_from_outside_loosens_the_cache_or_turns_it_off(toolkit: Path) -> None:
    outside = {"CCACHE_DISABLE": "1", "CCACHE_SLOPPINESS": "time_macros", "CCACHE_DIR": "/x", "CCACHE_NOHASHDIR": "1"}
    assert started(toolkit, **outside) == started(toolkit)


def test_the_compile_step_alone_sees_the_objects() -> None:
    kept = [s for s in planned(SAMPLE).steps if isinstance(s, CommandStep) and s.objects]
    assert [(s.id, s.objects) for s in kept] == [("compile", "team")]
    assert_golden("image/sample-objects.Dockerfile", dockerfile(planned(SAMPLE), "buildkit"))


def test_the_whole_of_vllm_and_one_extension_of_it_compile_through_the_launcher() -> None:
    for target in (None, "_C_stable_libtorch"):
        request = BuildRequest(profile="pypi-cu130", target=target, object_cache="team")
        step = next(s for s in planned(request).steps if isinstance(s, CommandStep) and s.id == "compile")
        text = "\n".join(step.commands)
        assert "COMPILER_LAUNCHER" in text and "COMPILER_LAUNCHER= " not in text
        assert text.index("probe.cu") < text.index("setup.py" if target is None else "cmake -S")


def test_who_cannot_keep_objects_refuses() -> None:
    with pytest.raises(BadInput, match="keeps no compiled objects"):
        dockerfile(planned(SAMPLE), "classic")
    with pytest.raises(BadInput, match="keeps no compiled objects"):
        apptainer(planned(SAMPLE))


@pytest.mark.parametrize("name", ["", "/a/folder", "a b", "A", "-x"])
def test_a_folder_is_not_the_name_of_a_cache(name: str) -> None:
    with pytest.raises(BadInput, match="object-cache"):
        planned(BuildRequest(profile="sample", object_cache=name))
