"""Sets the stage for a rehearsal of the GPU suite: a PATH of stand-ins, and the suite itself, unchanged, upon it.

Stand-ins are exactly what needs a GPU: nvidia-smi, compute-sanitizer, PyTorch, and the programs that nvcc links. The
compiler, cuobjdump, nvdisasm and cuda-gdb (`scripts/cuda-gdb`) are the real ones, and so is all of vdbg-env.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from tests.gpu.machine import MARK
from tests.gpu.needs import ROOT
from tests.gpu.samples import samples
from tests.gpu.walking import python_path
from tests.rehearsal.nvcc import starter
from tests.support.toolchain import cuda_tool

_HERE = Path(__file__).parent
_CUDA_GDB = ROOT / ".cache" / "cuda-gdb" / "cuda-gdb"
_LIMIT_S = 3000
_SUITE = tuple(f"tests/gpu/test_{name}on_gpu.py" for name in ("", "dumps_", "sanitizers_"))  # the rest needs no GPU
_PTX = """\
.version 8.0
.target sm_90
.address_size 64
.visible .entry put(.param .u64 pointer, .param .u64 far)
{{
  .reg .b64 %rd<6>;
  .loc 1 {before} 0
  ld.param.u64 %rd1, [pointer];
  ld.param.u64 %rd2, [far];
  shl.b64 %rd3, %rd2, 2;
  add.s64 %rd4, %rd1, %rd3;
  .loc 1 {line} 0
  st.global.u32 [%rd4], 0;
  .loc 1 {before} 0
  ret;
}}
.file 1 "{file}"
"""


@dataclass(frozen=True, kw_only=True)
class Rehearsed:
    """How the suite ended, all it printed, the folder of its evidence, and how long it took."""

    status: int
    output: str
    evidence: Path
    seconds: float

    @property
    def table(self) -> str:
        """The tables of the evidence."""
        return (self.evidence / "table.md").read_text()


def rehearse(folder: Path, *selection: str) -> Rehearsed:
    """Run the GPU suite, or what `selection` (arguments of pytest) leaves of it, with stand-ins in `folder`."""
    nvcc = Path(cuda_tool("nvcc"))
    bins = folder / "bin"
    bins.mkdir(parents=True)
    (folder / "linked").mkdir()
    for name, module in (("nvidia-smi", "nvidia_smi"), ("compute-sanitizer", "sanitizer"), ("nvcc", "nvcc"),
                         ("torch-python", "torch_python")):  # fmt: skip
        (bins / name).write_text(starter(module))
        (bins / name).chmod(0o755)
    for name in ("cuobjdump", "nvdisasm"):
        (bins / name).symlink_to(cuda_tool(name))
    if _CUDA_GDB.exists():
        (bins / "cuda-gdb").symlink_to(_CUDA_GDB)
    _torch_kernels(nvcc, folder)
    evidence = folder / f"evidence-{MARK}"
    environment = {name: value for name, value in os.environ.items() if name != "CI"} | {
        "PATH": f"{bins}{os.pathsep}{os.environ['PATH']}",
        "CUDA_HOME": str(folder),
        "GPU_EVIDENCE": str(evidence),
        "GPU_SAMPLES_CACHE": str(folder / "compiled"),
        "GPU_PYTHON": str(bins / "torch-python"),
        "REAL_NVCC": str(nvcc),
        "STAND_INS": str(folder / "linked"),
        "TORCH_KERNELS": str(folder),
        "PYTHONPATH": python_path(),
    }
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--basetemp={folder / 'tmp'}"]
    began = time.monotonic()
    done = subprocess.run(
        [*command, *(selection or _SUITE)], cwd=ROOT, env=environment, capture_output=True, text=True,
        timeout=_LIMIT_S,
    )  # fmt: skip
    seconds = time.monotonic() - began
    return Rehearsed(status=done.returncode, output=done.stdout + done.stderr, evidence=evidence, seconds=seconds)


def _torch_kernels(nvcc: Path, folder: Path) -> None:
    """Compile what stands for PyTorch's kernels, and for the one Triton would make of its sample."""
    triton = next(s for s in samples() if s.name == "torch-triton")
    assert triton.planted
    ptx = folder / "triton.ptx"
    ptx.write_text(_PTX.format(file=triton.planted_in, line=triton.planted, before=triton.planted - 1))
    for command in (
        [str(nvcc), "-arch=sm_90", "-cubin", "-o", str(folder / "torch.cubin"), str(_HERE / "torch_kernels.cu")],
        [str(nvcc.with_name("ptxas")), "-arch=sm_90", "-lineinfo", "-o", str(folder / "triton.cubin"), str(ptx)],
    ):
        subprocess.run(command, check=True, capture_output=True)
