import pytest

from vdbg_env.engine.containers import gpu_access

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
