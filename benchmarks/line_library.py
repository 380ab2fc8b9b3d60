"""Builds a library with line info as large as an inference engine's extension: CUB's device-wide algorithms.

The headers come with the CUDA toolkit. It is compiled once, for some minutes, and kept under .cache/bench.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

KEPT = Path(__file__).parents[1] / ".cache" / "bench"
ARCHS = ("80", "90", "100")
KEYS = ("unsigned char", "unsigned short", "unsigned", "unsigned long long", "float", "double")

_SOURCE = """
#include <cub/cub.cuh>
using Key = {key};
struct Wide {{ double a, b; }};
struct Less {{ __device__ bool operator()(Key a, Key b) const {{ return a < b; }} }};
extern "C" void run_{number}(void* t, size_t& n, Key* a, Key* b, Wide* v, int* c, int m, cudaStream_t s) {{
  cub::DeviceRadixSort::SortPairs(t, n, a, b, v, v, m, 0, sizeof(Key) * 8, s);
  cub::DeviceRadixSort::SortKeysDescending(t, n, a, b, m, 0, sizeof(Key) * 8, s);
  cub::DeviceSegmentedSort::SortPairs(t, n, a, b, v, v, m, 8, c, c + 1, s);
  cub::DeviceMergeSort::SortPairs(t, n, a, v, m, Less(), s);
  cub::DeviceReduce::Sum(t, n, a, b, m, s);
  cub::DeviceScan::InclusiveSum(t, n, a, b, m, s);
  cub::DeviceSelect::Unique(t, n, a, b, c, m, s);
  cub::DeviceRunLengthEncode::Encode(t, n, a, b, c, c + 1, m, s);
}}
"""


def tool(name: str) -> str:
    """Return a CUDA tool of the PATH, or of what scripts/cuda-toolchain left; ends the benchmark without it."""
    places = os.pathsep.join([os.environ.get("PATH", ""), str(KEPT.parent / "cuda" / "bin")])
    return shutil.which(name, path=places) or sys.exit(f"no {name} here: run scripts/cuda-toolchain .cache/cuda")


def line_library() -> Path:
    """Return the library, compiled on the first call."""
    library = KEPT / "libcub_lines.so"
    if not library.exists():
        KEPT.mkdir(parents=True, exist_ok=True)
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            objects = list(pool.map(_compile, range(len(KEYS))))
        subprocess.run([tool("nvcc"), "-shared", "-o", library, *objects], check=True)
    return library


def _compile(number: int) -> Path:
    source = KEPT / f"cub_{number}.cu"
    source.write_text(_SOURCE.format(key=KEYS[number], number=number))
    built = source.with_suffix(".o")
    if built.exists():
        return built
    archs = [f"-gencode=arch=compute_{arch},code=sm_{arch}" for arch in ARCHS]
    options = ["-std=c++17", "-O3", "-lineinfo", "--compress-mode=size", "-Xcompiler=-fPIC", *archs]
    subprocess.run([tool("nvcc"), *options, "-c", "-o", built, source], check=True)
    return built


if __name__ == "__main__":
    print(line_library())
