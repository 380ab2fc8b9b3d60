"""Finds one PC's inline chain in a cubin of over 10 MB, against `nvdisasm -gi` of the whole: the usual way today.

    python -m benchmarks.locate                        the cubin
    python -m benchmarks.locate LIBRARY NAME...        functions of these names, somewhere in a library

Needs nvcc and nvdisasm. The cubin is compiled once (two minutes) and kept under .cache/bench.
"""

from __future__ import annotations

import os
import shutil
import statistics
import subprocess
import sys
import time
from pathlib import Path

from benchmarks.paired import compare
from gpucore.code_map import CodeMap
from gpucore.dwarf import Place

KERNELS = 96
KEPT = Path(__file__).parents[1] / ".cache" / "bench" / "large.cubin"

_SOURCE = """
template <int K, int D> struct Mix {
  __device__ __forceinline__ static float go(float x, const float* p, int i) {
    float s = Mix<K, D - 1>::go(x * p[i + D], p, i + K);
    return s * s + __sinf(s) + p[i * D];
  }
};
template <int K> struct Mix<K, 0> {
  __device__ __forceinline__ static float go(float x, const float* p, int i) { return x + p[i]; }
};
template <int K> __global__ void mix(float* o, const float* p, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  float a = 0;
#pragma unroll
  for (int k = 0; k < 24; ++k) a += Mix<K, 12>::go(a, p, i + k * n);
  o[i] = a;
}
"""


def tool(name: str) -> str:
    """Return a CUDA tool of the PATH, or of what scripts/cuda-toolchain left; ends the benchmark without it."""
    places = os.pathsep.join([os.environ.get("PATH", ""), str(KEPT.parents[1] / "cuda" / "bin")])
    return shutil.which(name, path=places) or sys.exit(f"no {name} here: run scripts/cuda-toolchain .cache/cuda")


def large_cubin() -> Path:
    """Return the cubin, compiled on the first call."""
    if not KEPT.exists():
        KEPT.parent.mkdir(parents=True, exist_ok=True)
        source = KEPT.with_suffix(".cu")
        instances = (f"template __global__ void mix<{k}>(float*, const float*, int);\n" for k in range(KERNELS))
        source.write_text(_SOURCE + "".join(instances))
        subprocess.run([tool("nvcc"), "-lineinfo", "-arch=sm_90", "-cubin", "-o", KEPT, source], check=True)
    return KEPT


def one_place(data: bytes) -> tuple[float, int]:
    """Return the seconds it takes the library to open the cubin and find one chain, and the chain's depth."""
    start = time.perf_counter()
    code = CodeMap(data)
    kernel = next(function for function in code.functions if function.name.startswith("_Z3mixILi77E"))
    chain = code.locate(Place(section=kernel.section, offset=kernel.size // 2 // 16 * 16)).chain
    return time.perf_counter() - start, len(chain)


_TIMES = """
import resource, subprocess, sys, time
start = time.perf_counter()
subprocess.run(sys.argv[1:], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
wall = time.perf_counter() - start
used = resource.getrusage(resource.RUSAGE_CHILDREN)
print(used.ru_utime + used.ru_stime, wall)
"""


def by_name(library: str, names: list[str]) -> None:
    """Print what `locate` by name takes, five times each, and what a name takes that no function has.

    Each is a new process, and nothing is kept between them; other jobs of the machine raise wall time above processor
    time.
    """
    print(f"{Path(library).name}, load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
    for asked in (*names, "no_function_has_this_name"):
        argv = [sys.executable, "-m", "vdbg_env", "locate", "0x10", "--kernel", asked, library]
        ran = [subprocess.run([sys.executable, "-c", _TIMES, *argv], capture_output=True, text=True) for _ in range(5)]
        used, wall = (sorted(figures) for figures in zip(*(map(float, one.stdout.split()) for one in ran), strict=True))
        print(
            f"{asked}: processor {used[0]:.2f} s least, {used[2]:.2f} median; "
            f"wall {wall[0]:.2f} s least, {wall[2]:.2f} median"
        )


def main() -> None:
    """Print the figures."""
    if len(sys.argv) > 2:
        by_name(sys.argv[1], sys.argv[2:])
        return
    path = large_cubin()
    data = path.read_bytes()
    code = CodeMap(data)
    instructions = sum(section.size for section in code.code_sections) // 16
    print(f"{path.name}: {len(data) / 1e6:.1f} MB, {len(code.kernels)} kernels, {instructions} instructions")
    ours = [sys.executable, "-m", "vdbg_env", "locate", "0x1000", "--kernel", "mix<77>", str(path)]
    command = compare(
        ("vdbg-env locate, the whole command", ours),
        ("nvdisasm -ndf -c -gi", [tool("nvdisasm"), "-ndf", "-c", "-gi", str(path)]),
    )
    print(command)
    runs = [one_place(data) for _ in range(9)]
    library = statistics.median(seconds for seconds, _ in runs)
    print(f"the library alone, from bytes to a chain of {runs[0][1]}: {library * 1000:.1f} ms, ", end="")
    print(f"nvdisasm takes {command.peer.median_s / library:.0f} times as long")


if __name__ == "__main__":
    main()
