"""Who compiles a kernel at run time or ships it ready-made, by its name, and what gives such kernels line info.

Sources: Triton 3.9 backends/nvidia/compiler.py, FlashInfer 0.7.2 jit/core.py, DeepGEMM's README, vLLM 0.33.0
benchmarks/attention_benchmarks/benchmark.py, PyTorch's and NCCL's own builds.
"""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Maker:
    """A compiler or library that makes kernels, and the way to lines in them."""

    name: str
    remedy: str


_MAKERS: tuple[tuple[str, Maker], ...] = (
    (
        r"^triton_|^_\w+_kernel$",
        Maker(name="Triton", remedy="unset TRITON_DISABLE_LINE_INFO, empty TRITON_CACHE_DIR and run again"),
    ),
    (
        r"flashinfer",
        Maker(name="FlashInfer", remedy="FLASHINFER_JIT_LINEINFO=1 with an empty FLASHINFER_WORKSPACE_BASE"),
    ),
    (
        r"deep_gemm|deepgemm",
        Maker(
            name="DeepGEMM", remedy="NVCC_PREPEND_FLAGS=-lineinfo with an empty cache folder, or VLLM_USE_DEEP_GEMM=0"
        ),
    ),
    (r"^kernel_cutlass_|cute_dsl", Maker(name="CuTe DSL", remedy="CUTE_DSL_LINEINFO=1 and run again")),
    (r"at::native|c10::|at::cuda", Maker(name="PyTorch", remedy="a PyTorch built with NVCC_PREPEND_FLAGS=-lineinfo")),
    (r"^ncclDevKernel|^ncclKernel", Maker(name="NCCL", remedy="an NCCL built with -lineinfo, and VLLM_NCCL_SO_PATH")),
    (
        r"^nvjet_|cublas|^cudnn|^gemmk1_kernel|^ampere_\w+gemm|^sm\d+_xmma",
        Maker(name="cuBLAS or cuDNN", remedy="none: these libraries are closed; look at the call's arguments instead"),
    ),
)


def maker_of(kernel: str) -> Maker | None:
    """Return who made a kernel by its demangled name, None if the name does not show it."""
    return next((maker for pattern, maker in _MAKERS if re.search(pattern, kernel)), None)
