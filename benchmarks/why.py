"""Explains one access of a function of 20,000 instructions, and one of a cubin of 3.3 MB with nvdisasm.

    python -m benchmarks.why

Processor time and memory are those of a process of its own: at most 1 s and 300 MB by our decoder, 3 s with nvdisasm.
Needs nvcc and nvdisasm, which gets the bytes of one function. The cubin is compiled once and kept under .cache/bench.
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
from vdbg_env.crash.places import by_nvdisasm

KEPT = Path(__file__).parents[1] / ".cache" / "bench" / "why-large.cubin"
_TURNS = {"wide": 700, **{f"part{k}": 130 for k in range(12)}}
_TURN = """
  row = rows[(i + {k} * width) % n];
  sum = sum * 0.5f + in[row * stride + max({k} - row, 0)];
  if (sum > {k}.5f) out[(long long)row * width + {k}] = sum;
"""
_KERNEL = """
__global__ void {name}(float* out, const float* in, const int* rows, int n, long long stride, int width) {{
  int i = blockIdx.x * blockDim.x + threadIdx.x, row;
  if (i >= n) return;
  float sum = 0;
  {turns}
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
        kernels = [
            _KERNEL.format(name=name, turns="".join(_TURN.format(k=k) for k in range(turns)))
            for name, turns in _TURNS.items()
        ]
        source.write_text("".join(kernels))
        made = KEPT.with_suffix(".new")
        subprocess.run([tool("nvcc"), "-lineinfo", "-arch=sm_90", "-cubin", "-o", made, source], check=True)
        made.replace(KEPT)
    return KEPT.read_bytes()


def main() -> None:
    """Print the figures."""
    data = compiled()
    start = time.process_time()
    code = CodeMap(data)
    kernel = next(one for one in code.kernels if one.demangled.startswith("wide("))
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
    with_nvdisasm(data)


def with_nvdisasm(data: bytes) -> None:
    """Print what the same takes for a smaller function of the cubin where nvdisasm disassembles it."""
    os.environ["PATH"] += os.pathsep + str(Path(tool("nvdisasm")).parent)
    clock, used = time.monotonic(), sum(os.times()[:4])
    code = CodeMap(data)
    kernel = next(one for one in code.kernels if one.demangled.startswith("part7("))
    instructions = by_nvdisasm(code, kernel.section)
    accesses = [one.offset for one in instructions if access_of(one)]
    assert explain_place(Program(code, kernel.section, instructions), accesses[-2]) is not None
    used, clock = sum(os.times()[:4]) - used, time.monotonic() - clock
    print(f"with nvdisasm, {len(instructions)} instructions of a cubin of {len(data) / 1e6:.1f} MB: ", end="")
    print(f"{used:.2f} s of processor, {clock:.2f} s by the clock")


if __name__ == "__main__":
    main()
