"""A shell completes commands, runs, profiles and kernels."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import vdbg_env as package
from tests.builders.core_builder import CUBINS


def completed(line: str, **more: str) -> list[str]:
    words = {"COMP_WORDS": line, "COMP_CWORD": str(line.count(" ")), "_VDBG_ENV_COMPLETE": "bash_complete"}
    environment = os.environ | words | more | {"PYTHONPATH": str(Path(package.__file__).parents[1])}
    ran = subprocess.run(
        [sys.executable, "-m", "vdbg_env"], env=environment, capture_output=True, text=True, check=True
    )
    return [found.partition(",")[2] for found in ran.stdout.splitlines()]


@pytest.mark.parametrize("option", ["runs show ", "runs report ", "runbook --resume ", "runbook --from "])
def test_runs_are_completed(tmp_path: Path, option: str) -> None:
    for name in ("20261124-a", "20261124-b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "run.json").touch()
    (tmp_path / "no-run").mkdir()
    assert completed(f"vdbg-env {option}2026", VDBG_ENV_RUNS=str(tmp_path)) == ["20261124-b", "20261124-a"]
    assert completed(f"vdbg-env {option}l", VDBG_ENV_RUNS=str(tmp_path)) == ["latest"]


def test_profiles_runbooks_and_kernels_are_completed() -> None:
    assert completed("vdbg-env build --profile vllm-") == ["vllm-cu129", "vllm-cu130"]
    assert completed("vdbg-env runbook illegal") == ["illegal-memory-access"]
    library = os.path.relpath(CUBINS / "inline_chain_sm90.cubin")
    assert completed(f"vdbg-env locate 0x80 {library} --kernel kern") == ["'kern<double>'", "'kern<float>'"]
