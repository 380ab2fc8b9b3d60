"""Which unit a fat binary is from, which cubin a GPU runs, and which packages hold a compiler."""

from dataclasses import replace

import pytest

from vdbg_env.common.errors import BadInput
from vdbg_env_lines.units import (
    Unit,
    compiler_packages,
    cubin_for,
    header_package,
    match_by_order,
    missing_header,
    parse_arch,
    torch_arch_list,
)

WIDE = Unit(
    source="wide.cu", extension="_C", folder="/b", argv=(), codes=(("compute_80", "sm_80"), ("compute_90", "sm_90"))
)
NARROW = replace(WIDE, source="narrow.cu", codes=(("compute_90a", "sm_90a"), ("compute_90a", "compute_90a")))


def test_containers_are_matched_in_link_order() -> None:
    assert match_by_order([["sm_90", "sm_80"], ["sm_90a"]], [WIDE, NARROW]) == (WIDE, NARROW)


def test_another_number_of_containers_matches_nothing() -> None:
    assert match_by_order([["sm_80", "sm_90"]], [WIDE, NARROW]) is None


def test_a_container_of_other_architectures_is_not_the_unit_s() -> None:
    assert match_by_order([["sm_90a"], ["sm_80", "sm_90"]], [WIDE, NARROW]) == (None, None)


@pytest.mark.parametrize(
    ("arch", "targets", "chosen"),
    [
        ("9.0", ["sm_80", "sm_90"], "sm_90"),
        ("9.0", ["sm_90", "sm_90a"], "sm_90a"),
        ("8.9", ["sm_80", "sm_86", "sm_90"], "sm_86"),  # the nearest of its major version
        ("9.0", ["sm_80", "compute_80"], None),  # only PTX: the driver compiles it
        ("8.0", ["sm_86"], None),  # not downwards
        ("10.3", ["sm_100", "sm_100f"], "sm_100f"),  # the family runs on
        ("10.3", ["sm_100a"], None),  # `a` runs on its own architecture alone
        ("12.0", ["sm_100f"], None),
    ],
)  # fmt: skip
def test_the_cubin_that_a_gpu_runs(arch: str, targets: list[str], chosen: str | None) -> None:
    assert cubin_for(parse_arch(arch), targets) == chosen


def test_an_architecture_is_read_as_nvcc_and_torch_write_it() -> None:
    assert parse_arch("10.0") == parse_arch("10.0a") == (10, 0)
    with pytest.raises(BadInput, match="not an architecture"):
        parse_arch("hopper")


def test_torch_s_list_has_each_architecture_once_in_order() -> None:
    assert torch_arch_list(["sm_90a", "sm_90", "compute_80", "sm_100f", "sm_75"]) == "7.5 9.0 10.0"


def test_the_compiler_of_a_release_is_pinned_and_its_headers_are_of_its_series() -> None:
    packages = compiler_packages("13.0.88")
    assert {"nvidia-cuda-nvcc==13.0.88", "nvidia-nvvm==13.0.88", "nvidia-cuda-crt==13.0.88"} < set(packages)
    assert "nvidia-cuda-runtime>=13.0.0,<13.1.0" in packages


@pytest.mark.parametrize("release", ["11.8.89", "12.9.86", "13.0", "newest"])
def test_a_compiler_that_no_package_has_is_refused(release: str) -> None:
    with pytest.raises(BadInput, match="no packages are known"):
        compiler_packages(release)


def test_a_missing_header_names_its_package() -> None:
    printed = "src/torch_utils.h:10:10: fatal error: cublas_v2.h: No such file or directory\ncompilation terminated."
    assert missing_header(printed) == "cublas_v2.h"
    assert missing_header("error: identifier x is undefined") is None
    assert header_package("cublas_v2.h", "13.0.88") == "nvidia-cublas"
    assert header_package("nvtx3/nvToolsExt.h", "12.9.86") == "nvidia-nvtx-cu12"
    assert header_package("curand_kernel.h", "12.9.86") == "nvidia-curand-cu12"
    assert header_package("cutlass/array.h", "13.0.88") is None
