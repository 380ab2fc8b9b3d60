"""What stands in the way of a dump, run for real on this machine, and the probe on a driver of our own."""

import os
import shutil
import subprocess
from ctypes.util import find_library
from pathlib import Path

import pytest

from tests.support.checks import check_module, run_check, seen_by

NONE, LARGE = "no-core-dump", "core-dump-too-large"
FIVE = "skip_nonrelocated_elf_images,skip_global_memory,skip_shared_memory,skip_local_memory,skip_constbank_memory"


@pytest.fixture
def smi(tmp_path: Path) -> dict[str, str]:
    """A host whose nvidia-smi tells of one GPU with 4 PiB of memory and an old driver."""
    program = tmp_path / "bin" / "nvidia-smi"
    program.parent.mkdir()
    program.write_text('#!/bin/sh\ncase "$1" in *memory*) echo 4294967296;; *) echo 550.54.14;; esac\n')
    program.chmod(0o755)
    return {"PATH": f"{program.parent}:{os.environ['PATH']}"}


def setup(folder: Path | str, status: int = 0, **environment: str) -> str:
    return run_check("dump_setup", str(folder), environment=environment, status=status)


def test_a_sound_place_stands_in_nobodys_way(tmp_path: Path) -> None:
    printed = setup(
        tmp_path,
        CUDA_ENABLE_COREDUMP_ON_EXCEPTION="1",
        CUDA_COREDUMP_FILE=f"{tmp_path}/core.%h.%p.%t",
        CUDA_COREDUMP_PIPE=f"{tmp_path}/pipe.%h.%p",
        CUDA_COREDUMP_GENERATION_FLAGS=FIVE,
    )
    seen = seen_by(NONE, printed)
    assert seen["room"]["folder"] == str(tmp_path)
    assert not seen.keys() & {"folder_problem", "name_problem", "flag_problem", "other_problem"}
    assert seen_by(LARGE, printed).keys() == {"sound"}
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_is_not_there_or_no_folder(tmp_path: Path) -> None:
    assert "is not there" in seen_by(NONE, setup(tmp_path / "no", status=1))["folder_problem"]["what"]
    (tmp_path / "file").touch()
    assert "folder_problem" in seen_by(NONE, setup(tmp_path / "file", status=1))


@pytest.mark.parametrize(
    ("template", "what"),
    [
        ("{here}/core.%t", "has no %p"),
        ("core.%p", "is relative"),
        ("{here}/%h/core.%p", "has a % in its folder"),
        ("{here}/no/core.%p", "which is not there"),
        ("{here}/" + "x" * 1100 + "%p", "the driver takes 1023"),
    ],
)
def test_a_name_that_cannot_work_is_told(tmp_path: Path, template: str, what: str) -> None:
    printed = setup(tmp_path, status=1, CUDA_COREDUMP_FILE=template.format(here=tmp_path))
    assert what in seen_by(NONE, printed)["name_problem"]["what"]


def test_a_command_that_takes_the_dump_is_no_name(tmp_path: Path) -> None:
    assert "name_problem" not in seen_by(NONE, setup(tmp_path, CUDA_COREDUMP_FILE="| gzip > /dumps/x.gz"))


def test_flags_that_are_missing_and_one_that_must_not_be(tmp_path: Path) -> None:
    printed = setup(tmp_path, status=1, CUDA_COREDUMP_GENERATION_FLAGS="skip_global_memory,skip_abort")
    assert "skip_abort" in seen_by(NONE, printed)["flag_problem"]["what"]
    assert "skip_constbank_memory" in seen_by(LARGE, printed)["flags_missing"]["flags"]


def test_an_old_driver_and_a_gpu_larger_than_the_disk(tmp_path: Path, smi: dict[str, str]) -> None:
    seen = seen_by(LARGE, setup(tmp_path, status=1, **smi))
    assert seen["old_driver"]["driver"] == "550.54.14"
    assert seen["does_not_fit"]["gib"] == "4194304"


@pytest.mark.parametrize(
    ("variable", "value", "what"),
    [("CUDA_MPS_PIPE_DIRECTORY", "/run/mps", "MPS"), ("CUDA_DEVICE_WAITS_ON_EXCEPTION", "1", "waits for a debugger")],
)
def test_what_the_host_does_otherwise(tmp_path: Path, variable: str, value: str, what: str) -> None:
    assert what in seen_by(NONE, setup(tmp_path, status=1, **{variable: value}))["other_problem"]["what"]


class Driver:
    """A driver that answers each call with a number."""

    def __init__(self, **answers: int) -> None:
        self.answers = answers
        self.called: list[str] = []

    def __getattr__(self, name: str) -> object:
        self.called.append(name)
        return lambda *_words: self.answers.get(name, 0)


def test_a_driver_that_goes_on_after_the_fault_does_not_dump(capsys: pytest.CaptureFixture[str]) -> None:
    driver = Driver(cuCtxSynchronize=700)
    assert check_module("dump_probe").probe(driver) == 1
    seen = seen_by(NONE, capsys.readouterr().out)
    assert seen["probe_alive"]["code"] == "700"
    assert "probe_starts" in seen
    assert driver.called[-1] == "cuCtxSynchronize"


def test_a_host_without_a_gpu_starts_no_kernel(capsys: pytest.CaptureFixture[str]) -> None:
    assert check_module("dump_probe").probe(Driver(cuInit=100)) == 2
    seen = seen_by(NONE, capsys.readouterr().out)
    assert seen["probe_none"]["what"] == "kernel can be started here: cuInit gives 100"
    assert "probe_starts" not in seen


@pytest.mark.skipif(find_library("cuda") is not None, reason="a driver is here: the probe would start its kernel")
def test_the_probe_says_so_where_no_driver_is() -> None:
    assert "probe_none" in seen_by(NONE, run_check("dump_probe", status=2))


# As much of a driver as the probe calls; it answers by number only, and dumps as a driver does where it is armed.
DRIVER = """
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
int cuInit(unsigned flags) { return 0; }
int cuDeviceGet(int *device, int number) { *device = 0; return 0; }
int cuCtxCreate_v2(void **context, unsigned flags, int device) { *context = (void *)1; return 0; }
int cuModuleLoadData(void **module, const char *text) {
  *module = (void *)2; return strstr(text, ".visible .entry vdbg_probe") ? 0 : 218; }
int cuModuleGetFunction(void **kernel, void *module, const char *name) {
  *kernel = (void *)3; return module == (void *)2 && !strcmp(name, "vdbg_probe") ? 0 : 500; }
int cuLaunchKernel(void *kernel, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
                   unsigned shared, void *stream, void **parameters, void **extra) {
  return kernel == (void *)3 && gx * gy * gz * bx * by * bz == 1 ? 0 : 400; }
int cuCtxSynchronize(void) {
  FILE *core = getenv("CUDA_COREDUMP_FILE") ? fopen(getenv("CUDA_COREDUMP_FILE"), "w") : NULL;
  if (!core) return 700;
  fputs("core", core); fclose(core); abort(); }
"""


@pytest.mark.skipif(shutil.which("gcc") is None, reason="no C compiler here")
@pytest.mark.parametrize(("armed", "status"), [(True, -6), (False, 1)])
def test_the_probe_calls_a_driver_as_a_driver_wants_it(tmp_path: Path, armed: bool, status: int) -> None:
    (tmp_path / "driver.c").write_text(DRIVER)
    library = tmp_path / "libcuda.so.1"
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", library, tmp_path / "driver.c"], check=True, timeout=60)
    environment = {"LD_LIBRARY_PATH": str(tmp_path)} | ({"CUDA_COREDUMP_FILE": f"{tmp_path}/core"} if armed else {})
    seen = seen_by(NONE, run_check("dump_probe", environment=environment, status=status))
    assert "probe_starts" in seen
    assert ("probe_alive" in seen) is not armed
    assert (tmp_path / "core").exists() is armed
