"""The GPUs of a machine as nvidia-smi prints them, on old drivers too, and what it prints in place of them."""

from collections.abc import Sequence
from dataclasses import dataclass

import pytest

from vdbg_env.build.build import first_gpu
from vdbg_env.common.programs import Completed, cuda_of_driver, cuda_version, parse_gpus, read_gpus

H200 = "NVIDIA H200, 580.95.05, 3, Enabled, 9.0, 62668, 143771\n"
V100 = "Tesla V100, 470.1, [N/A], [N/A]\n"


@dataclass
class Smi:
    """A machine whose nvidia-smi knows `columns` columns; None is a machine without it."""

    rows: str
    columns: int | None = 7
    code: int = 0

    def head(self, program: str) -> bytes:
        return b""

    def which(self, program: str) -> str | None:
        return None if self.columns is None else f"/usr/bin/{program}"

    def run(self, argv: Sequence[str], *, timeout_s: float = 60.0) -> Completed:
        assert self.columns is not None
        asked = len(argv[1].split(",")) if len(argv) > 1 else 0
        if asked > self.columns:
            text = 'Field "compute_cap" is not a valid field to query.\n'
            return Completed(argv=tuple(argv), code=2, stdout=text, stderr="")
        out = self.rows if asked else "| NVIDIA-SMI 580   CUDA UMD Version: 13.0 |"
        return Completed(argv=tuple(argv), code=self.code, stdout=out, stderr="")


def test_a_row_is_a_gpu_with_sizes_in_bytes() -> None:
    (gpu,) = parse_gpus(H200)
    assert (gpu.name, gpu.driver, gpu.compute_capability) == ("NVIDIA H200", "580.95.05", "9.0")
    assert (gpu.ecc_errors, gpu.is_mig, gpu.memory_used, gpu.memory_total) == (3, True, 62668 << 20, 143771 << 20)


def test_what_a_driver_does_not_say_is_unknown() -> None:
    (gpu,) = parse_gpus("Tesla V100, 470.1, [N/A], [N/A], [N/A], [N/A], [N/A]")
    assert (gpu.ecc_errors, gpu.is_mig, gpu.compute_capability, gpu.memory_total) == (None, False, None, None)


@pytest.mark.parametrize("head", ["CUDA Version: 13.0", "CUDA UMD Version: 13.0"])
def test_the_head_of_the_table_has_the_cuda_version(head: str) -> None:
    assert cuda_version(f"| NVIDIA-SMI 580.95.05  Driver Version: 580.95.05  {head}  |") == "13.0"
    assert cuda_version("no table") is None


def test_a_driver_without_the_newer_columns_is_asked_again_without_them() -> None:
    assert [gpu.name for gpu in read_gpus(Smi(V100, columns=4)).gpus] == ["Tesla V100"]


def test_a_machine_without_gpus_says_why() -> None:
    failed = read_gpus(Smi("Failed to initialize NVML: Driver/library version mismatch\n", code=18))
    assert (failed.gpus, failed.problem) == ((), "Failed to initialize NVML: Driver/library version mismatch")
    assert read_gpus(Smi("", code=0)).problem == "nvidia-smi prints nothing"
    absent = read_gpus(Smi("", columns=None))
    assert (absent.is_installed, absent.problem) == (False, None)


def test_a_build_is_for_the_first_gpu_whose_architecture_is_known() -> None:
    found = first_gpu(Smi(H200 + H200))
    assert found and (found.driver, found.arch) == ("580.95.05", "9.0")
    assert first_gpu(Smi(V100, columns=4)) is None
    assert cuda_of_driver(Smi(H200)) == "13.0"
