"""Driver, toolkit, torch and vLLM that do not fit one another are told, with the numbers of both."""

from pathlib import Path

import pytest

from tests.unit.run.test_steps import Bench, Programs, promised
from vdbg_env.run.stale import Versions, mismatches, shipped_tables

FIT = {"vllm": "0.33.0", "torch": "2.14.0+cu130", "toolkit": "13.0", "driver": "580.65.06"}


def told(**changed: str | None) -> list[str]:
    return [finding.message for finding in mismatches(Versions(**(FIT | changed)), shipped_tables())]


def test_what_fits_is_met_with_silence() -> None:
    assert told() == []
    assert mismatches(Versions(), shipped_tables()) == ()


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"torch": "2.13.0+cu130"}, "vLLM 0.33.0 is built against torch 2.14.0, and 2.13.0+cu130 is installed"),
        ({"torch": "2.14.0+cpu"}, "torch 2.14.0+cpu is built without CUDA"),
        ({"driver": "570.26"}, "torch's CUDA 13.0 needs driver 580.65.06 or newer, and 570.26 is here"),
        ({"toolkit": "12.4"}, "nvcc is of CUDA 12.4 and torch of CUDA 13.0: what is compiled at run time will not fit"),
    ],
)
def test_each_pair_that_does_not_fit_is_told(changed: dict[str, str], message: str) -> None:
    assert told(**changed) == [message]


def test_an_older_cuda_runs_on_the_same_driver() -> None:
    assert told(torch="2.14.0+cu129", driver="570.26", toolkit="12.9") == []


def test_releases_of_no_table_are_no_finding() -> None:
    assert told(vllm="0.99.0", torch="9.9.0", driver="570.26", toolkit=None) == []


def test_torchs_cuda_is_that_of_its_runtime_where_its_version_does_not_say() -> None:
    assert Versions(torch="2.14.0", runtime="13.0.96").torch_cuda == "13.0"
    assert Versions(torch="2.14.0+cu129", runtime="13.0.96").torch_cuda == "12.9"
    assert Versions(torch="2.14.0").torch_cuda is None


@pytest.mark.parametrize("runtime", ["nvidia-cuda-runtime", "nvidia-cuda-runtime-cu13"])
def test_collect_env_tells_it_with_the_toolkit_at_hand(tmp_path: Path, runtime: str) -> None:
    programs = Programs(
        {
            "python3": f'{{"vllm": "0.33.0", "torch": "2.14.0", "{runtime}": "13.0.96"}}',
            "nvcc": "Cuda compilation tools, release 12.4, V12.4.131",
        }
    )
    done = Bench(tmp_path, programs).use("collect-env")
    promised("collect-env", done)
    assert done.results["toolkit"] == "12.4"
    assert len(done.results["mismatches"]) == 2  # type: ignore[arg-type]  # the toolkit, and driver 580.1 of the bench
    assert {finding.rule for finding in done.findings} == {"versions-do-not-fit"}


def test_the_gpus_are_told_with_architecture_and_memory(tmp_path: Path) -> None:
    row = "NVIDIA H200, 580.82.07, 0, Disabled, 9.0, 62668, 143771"
    done = Bench(tmp_path, Programs({"nvidia-smi": row})).use("gpu-health")
    promised("gpu-health", done)
    assert done.results["memory_used"] == 62668 << 20
    assert done.results["memory_total"] == 143771 << 20
    assert "GPU 0: NVIDIA H200 (sm_90), 61.2 of 140.4 GiB in use" in done.notes


def test_an_old_nvidia_smi_tells_less(tmp_path: Path) -> None:
    done = Bench(tmp_path, Programs({"nvidia-smi": "Tesla V100, 470.1, 0, [N/A], [N/A], [N/A], [N/A]"})).use(
        "gpu-health"
    )
    assert "memory_used" not in done.results
    assert "GPU 0: Tesla V100" in done.notes
