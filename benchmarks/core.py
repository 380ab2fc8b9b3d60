"""Reads a GPU core dump of a full H200, some 275,000 sections: time and peak memory of `vdbg-env core`.

The core is synthetic: 132 SMs, 32 warps each, every lane with its register and predicate file; one warp has faulted.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
from pathlib import Path

from benchmarks.paired import run_once
from gpucore.elf import Elf
from tests.builders.core_builder import BlockSpec, CoreSpec, DeviceSpec, LaunchSpec, WarpSpec, build_core, sample_module

SMS, WARPS = 132, 32
KEPT = Path(__file__).parents[1] / ".cache" / "bench" / "full-h200.nvcudmp"

_READ = """
import mmap, sys, time
from gpucore.core import decode_core
with open(sys.argv[1], "rb") as file:
    data = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
    start, busy = time.perf_counter(), time.process_time()
    core = decode_core(data)
    took, busy = time.perf_counter() - start, time.process_time() - busy
assert len(core.faults) == 1 and core.warps == 132 * 32
with open("/proc/self/status") as status:  # not getrusage: its peak starts at that of the parent, across exec
    peak = next(int(line.split()[1]) for line in status if line.startswith("VmHWM:"))
print(took, busy, peak / 1024)
"""


def full_core() -> bytes:
    """Return the core of a full GPU, one warp of it with an illegal address."""
    still, faulting = WarpSpec(), WarpSpec(offset=0x150, error_offset=0x140, exception=14)
    blocks = [
        BlockSpec(block=(sm, 0, 0), sm=sm, warps=[faulting if (sm, w) == (77, 3) else still for w in range(WARPS)])
        for sm in range(SMS)
    ]
    launch = LaunchSpec(grid=(SMS, 1, 1), block=(1024, 1, 1))
    return build_core(CoreSpec(devices=[DeviceSpec(modules=[sample_module()], launches=[launch], blocks=blocks)]))


def core_file() -> Path:
    """Return the file, made on the first call."""
    if not KEPT.exists():
        KEPT.parent.mkdir(parents=True, exist_ok=True)
        KEPT.write_bytes(full_core())
    return KEPT


def read_in_a_process(path: Path) -> tuple[float, float, float]:
    """Return wall and processor seconds of reading alone, and the peak memory of the whole process in MiB."""
    env = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    ran = subprocess.run([sys.executable, "-c", _READ, str(path)], capture_output=True, text=True, check=True, env=env)
    wall, busy, mib = map(float, ran.stdout.split())
    return wall, busy, mib


def main() -> None:
    """Print the figures: medians of five runs, and the largest peak."""
    path = core_file()
    print(f"{path.name}: {path.stat().st_size / 2**20:.0f} MiB, {Elf(path.read_bytes()).section_count} sections")
    runs = [read_in_a_process(path) for _ in range(5)]
    wall, busy = (statistics.median(run[i] for run in runs) for i in (0, 1))
    print(
        f"reading, faults, where warps stand  {wall:6.3f} s wall  {busy:6.3f} s processor  {runs[0][2]:6.1f} MiB peak"
    )
    wholes = [run_once([sys.executable, "-m", "vdbg_env", "core", str(path)]) for _ in range(5)]
    wall, mib = statistics.median(seconds for seconds, _ in wholes), max(mib for _, mib in wholes)
    print(f"vdbg-env core, the whole command    {wall:6.3f} s wall                     {mib:6.1f} MiB peak")


if __name__ == "__main__":
    main()
