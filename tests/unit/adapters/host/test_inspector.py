import pytest

from vdbg_env.adapters.docker.containers import gpu_access
from vdbg_env.adapters.host.inspector import read_nvidia_smi


def test_nvidia_smi_gives_names_driver_cuda_and_the_sum_of_memory() -> None:
    query = "NVIDIA H200, 580.95.05, 143771\nNVIDIA H200, 580.95.05, 143771\n"
    found = read_nvidia_smi(query, "| NVIDIA-SMI 580.95.05  Driver Version: 580.95.05  CUDA Version: 13.0  |")
    assert (found.names, found.driver, found.cuda) == (("NVIDIA H200",) * 2, "580.95.05", "13.0")
    assert found.memory == 2 * 143771 << 20
    assert found.problem is None


@pytest.mark.parametrize("said", ["Failed to initialize NVML: Driver/library version mismatch\n", "", None])
def test_what_nvidia_smi_says_instead_of_gpus_is_the_problem(said: str | None) -> None:
    found = read_nvidia_smi(said, said)
    assert found.names == ()
    assert found.problem


CDI: dict[str, object] = {"DiscoveredDevices": [{"Source": "cdi", "ID": "nvidia.com/gpu=0"}], "Runtimes": {"runc": {}}}
RUNTIME: dict[str, object] = {"Runtimes": {"runc": {}, "nvidia": {}}}


@pytest.mark.parametrize(
    ("info", "has_gpu", "by"),
    [
        (CDI, True, "cdi"),
        (CDI | RUNTIME, False, "cdi"),
        (RUNTIME, True, "runtime"),
        (RUNTIME, False, "none"),
        ({"Runtimes": None, "DiscoveredDevices": None}, True, "none"),
        ({"DiscoveredDevices": [{"Source": "cdi", "ID": "amd.com/gpu=0"}]}, False, "none"),
    ],
)
def test_a_registered_runtime_alone_is_no_gpu(info: dict[str, object], has_gpu: bool, by: str) -> None:
    found = gpu_access(info, has_gpu=has_gpu)
    assert found.by == by
    assert found.why
