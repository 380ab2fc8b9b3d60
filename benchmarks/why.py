"""Explains one access of a function of 20,000 instructions: processor time and memory of a process of its own.

    python -m benchmarks.why

Needs nvcc. The cubin is compiled once and kept under .cache/bench. The code is decoded here, without nvdisasm.
"""

from __future__ import annotations

import json
import os
import resource
import shutil
import subprocess
import sys
import time
from pathlib import Path

from gpucore.code_map import CodeMap
from gpucore.explain import Program, explain_place, why_json
from gpucore.explain.address import access_of
from gpucore.sass import decode

KEPT = Path(__file__).parents[1] / ".cache" / "bench" / "why.cubin"
_TURNS = 700
_TURN = """
  row = rows[(i + {k} * width) % n];
  sum = sum * 0.5f + in[row * stride + max({k} - row, 0)];
  if (sum > {k}.5f) out[(long long)row * width + {k}] = sum;
"""
_SOURCE = f"""
__global__ void wide(float* out, const float* in, const int* rows, int n, long long stride, int width) {{
  int i = blockIdx.x * blockDim.x + threadIdx.x, row;
  if (i >= n) return;
  float sum = 0;
  {"".join(_TURN.format(k=k) for k in range(_TURNS))}
  out[i] = sum;
}}
"""


def tool(name: str) -> str:
    """Return a CUDA tool of the PATH, or of what scripts/cuda-toolchain left; ends the benchmark without it."""
    places = os.pathsep.join([os.environ.get("PATH", ""), str(KEPT.parents[1] / "cuda" / "bin")])
    return shutil.which(name, path=places) or sys.exit(f"no {name} here: run scripts/cuda-toolchain .cache/cuda")


def compiled() -> bytes:
    """Return the cubin; compiles it on the first call."""
    if not KEPT.exists():
        KEPT.parent.mkdir(parents=True, exist_ok=True)
        source = KEPT.with_suffix(".cu")
        source.write_text(_SOURCE)
        subprocess.run([tool("nvcc"), "-lineinfo", "-arch=sm_90", "-cubin", "-o", KEPT, source], check=True)
    return KEPT.read_bytes()


def main() -> None:
    """Print the figures."""
    data = compiled()
    start = time.process_time()
    code = CodeMap(data)
    (kernel,) = code.kernels
    instructions = decode(code.elf.contents(code.elf.sections[kernel.section]), 90)
    read = time.process_time()
    accesses = [one.offset for one in instructions if access_of(one)]
    program = Program(code, kernel.section, instructions)
    why = explain_place(program, accesses[-2])
    assert why is not None
    size = len(json.dumps(why_json(why)))
    first = time.process_time()
    for offset in accesses[:: max(len(accesses) // 20, 1)]:
        explain_place(program, offset)
    rest = time.process_time()
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"{len(instructions)} instructions, {len(accesses)} accesses, load {os.getloadavg()[0]:.1f}")
    print(f"decoded: {read - start:.2f} s of processor")
    print(f"an access near the end explained: {first - read:.2f} s of processor, {size} bytes of JSON")
    print(f"20 more of the same function: {(rest - first) / 20:.3f} s each; memory at most {memory:.0f} MiB")


if __name__ == "__main__":
    main()
