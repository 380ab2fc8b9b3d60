"""Finds the CUDA tools the tests compile with: CUDA_HOME, then the PATH, then what scripts/cuda-toolchain left."""

import os
import shutil
from pathlib import Path

import pytest

_KEPT = Path(__file__).parents[2] / ".cache" / "cuda" / "bin"


def cuda_tool(name: str) -> str:
    """Return the full path of nvcc, cuobjdump, nvdisasm ...; skips the test, with the reason, where there is none."""
    home = os.environ.get("CUDA_HOME")
    places = [*([str(Path(home) / "bin")] if home else []), os.environ.get("PATH", ""), str(_KEPT)]
    for place in places:
        found = shutil.which(name, path=place)
        if found:
            return found
    pytest.skip(f"no {name} here: run scripts/cuda-toolchain .cache/cuda")
