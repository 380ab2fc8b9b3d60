"""Finds the CUDA tools the tests compile with: CUDA_HOME, then the PATH, then what scripts/cuda-toolchain left."""

import os
import shutil
from pathlib import Path

import pytest

_KEPT = Path(__file__).parents[2] / ".cache" / "cuda" / "bin"
_NEWEST = Path(__file__).parents[2] / ".cache" / "cuda-newest" / "bin"
_KEPT_GDB = Path(__file__).parents[2] / ".cache" / "cuda-gdb" / "cuda-gdb"


def cuda_tool(name: str) -> str:
    """Return the full path of nvcc, cuobjdump, nvdisasm ...; skips the test, with the reason, where there is none."""
    home = os.environ.get("CUDA_HOME")
    places = [*([str(Path(home) / "bin")] if home else []), os.environ.get("PATH", ""), str(_KEPT)]
    for place in places:
        found = shutil.which(name, path=place)
        if found:
            return found
    pytest.skip(f"no {name} here: run scripts/cuda-toolchain .cache/cuda")


def newest_cuda_tool(name: str) -> str:
    """Return the full path of a tool of the newest CUDA that is kept; skips the test, with the reason, without it."""
    found = shutil.which(name, path=str(_NEWEST))
    if found is None:
        pytest.skip(f"no {name} of the newest CUDA here: run scripts/cuda-toolchain .cache/cuda-newest 13.5")
    return found


def cuda_gdb() -> str:
    """Return the full path of cuda-gdb; skips the test, with the reason, where there is none."""
    found = str(_KEPT_GDB) if _KEPT_GDB.exists() else shutil.which("cuda-gdb")
    if found is None:
        pytest.skip("no cuda-gdb here: run `make oracle-gdb`, where a Debian mirror can be reached")
    return found
