"""Who compiles a kernel at run time or ships it ready-made, by its name, and what gives such kernels line info.

Sources: Triton 3.9 backends/nvidia/compiler.py, FlashInfer 0.7.2 jit/core.py, DeepGEMM's README, vLLM 0.33.0
benchmarks/attention_benchmarks/benchmark.py, TileLang 0.1.12 contrib/nvcc.py and jit/adapter/libgen.py, cuda-tile 1.7.0
_compile.py, PyTorch's and NCCL's own builds.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final


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
    (
        r"tilelang|^main_kernel(?:_\d+)?$",
        Maker(
            name="TileLang",
            remedy="its kernels have lines of the CUDA code that it generates: TILELANG_CLEANUP_TEMP_FILES=0 keeps "
            "that, with an empty TILELANG_CACHE_DIR",
        ),
    ),
    (
        r"cutile|cuda_tile|\w_Kt[12](?:_|$)",  # the function's name, its calling convention, its parameters
        Maker(
            name="cuTile", remedy="its kernels have lines of their Python source: run with an empty CUDA_TILE_CACHE_DIR"
        ),
    ),
    (
        r"quack",  # its kernels are CuTe DSL's
        Maker(name="quack", remedy="CUTE_DSL_LINEINFO=1 and run again"),
    ),
    (r"^kernel_cutlass_|cute_dsl", Maker(name="CuTe DSL", remedy="CUTE_DSL_LINEINFO=1 and run again")),
    (r"at::native|c10::|at::cuda", Maker(name="PyTorch", remedy="a PyTorch built with NVCC_PREPEND_FLAGS=-lineinfo")),
    (r"^ncclDevKernel|^ncclKernel", Maker(name="NCCL", remedy="an NCCL built with -lineinfo, and VLLM_NCCL_SO_PATH")),
    (
        r"^nvjet_|cublas|^cudnn|^gemmk1_kernel|^ampere_\w+gemm|^sm\d+_xmma",
        Maker(name="cuBLAS or cuDNN", remedy="none: these libraries are closed; look at the call's arguments instead"),
    ),
)


# The kernels of vLLM 0.33.0's wheel, by the first words of their names; `_C` was renamed with torch's stable ABI.
_C: Final = "_C or _C_stable_libtorch"
_MOE: Final = "_moe_C or _moe_C_stable_libtorch"
_LIBRARIES: Final = (
    (r"cutlass::device_kernel<flash::|flash::prepare_varlen_", "_vllm_fa3_C"),
    (r"flash::flash_fwd_splitkv_mla_|get_mla_metadata_kernel", "_flashmla_extension_C"),
    (r"flash::flash_(?:fwd|bwd)_", "_vllm_fa2_C"),
    (r"(?:legacy::)?sm(?:90|100|xx)::(?:decode|prefill)::", "_flashmla_C"),
    (r"cutlass::device_kernel<cutlass::fmha::kernel::Sm100FmhaFwdKernel", "_flashmla_C"),
    (r"topk_select_(?:bf16|fp32)", "_deepselect_C"),
    (r"_flash_kda_", "_flashkda_C"),
    (r"cutlass::Kernel<cutlass::gemm::kernel::GemmQuant(?:Nv|Mx)", "_qutlass_C"),
    (r"vllm::moe::|marlin_moe_wna16::|moe_wna16_gemm_kernel", _MOE),
    (r"vllm::|marlin::|machete::|hadacore::|cutlass::device_kernel<vllm::", _C),
    (r"cutlass::(?:Kernel2|device_kernel)<enable_sm|selective_scan_fwd_kernel|per_token_group_quant_8bit", _C),
    (r"cutlass::device_kernel<cutlass::fmha::kernel::Sm100FmhaMla", _C),
    (r"cutlass::device_kernel<\(anonymous namespace\)::cutlass_3x_group_gemm", _C),
    (r"tensorrt_llm::kernels::fusedQKNormRope|\(anonymous namespace\)::kda_decode_fusion", _C),
)
_RETURNED: Final = re.compile(r"^(?:void|std::enable_if<.*?>::type) ")


def vllm_library(kernel: str) -> str | None:
    """Return which library of vLLM's wheel has a kernel, by its demangled name; None where that does not show it."""
    name = _RETURNED.sub("", kernel)
    return next((library for pattern, library in _LIBRARIES if re.match(pattern, name)), None)


def maker_of(kernel: str) -> Maker | None:
    """Return who made a kernel by its demangled name, None if the name does not show it.

    The types that a kernel of vLLM's is an instance for, such as `c10::Half`, do not make it another's.
    """
    if vllm_library(kernel):
        return None
    return next((maker for pattern, maker in _MAKERS if re.search(pattern, kernel)), None)
