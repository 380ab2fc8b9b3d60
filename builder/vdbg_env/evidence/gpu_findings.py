"""Turn the content of a GPU core dump into findings, and say who compiled a kernel and how it gets line info."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from gpucore.code_map import Location
from gpucore.core import Fault, WarpGroup
from gpucore.dwarf import Chain, SourceFrame
from gpucore.mangling import demangle, short_name
from vdbg_env.evidence.finding import Finding, HowKnown, Level, NextStep

_REBUILD = NextStep("build with line info, and run this again in that image", "vdbg-env build --lineinfo")


def gpu_core_findings(
    faults: Sequence[Fault], groups: Sequence[WarpGroup], artifact: str | None = None
) -> tuple[Finding, ...]:
    """Return a finding for each fault; without faults, one that says where the warps are; none for an empty core."""
    if faults:
        return tuple(_fault(fault, artifact) for fault in faults)
    return (_hang(groups, artifact),) if groups else ()


def place_of(frame: SourceFrame) -> str:
    """Return file name and line, without the folders."""
    return f"{frame.file.rsplit('/', 1)[-1]}:{frame.line}"


def _fault(fault: Fault, artifact: str | None) -> Finding:
    chain = fault.location.chain if fault.location else ()
    kernel = demangle(fault.kernel) if fault.kernel else None
    return Finding(
        rule="gpu-core-" + fault.exception.name.lower().replace(" ", "-"),
        level=Level.ERROR,
        message=f"{_what(fault)} {_where(fault, chain, kernel)}{_who(fault)}{_borrowed(fault.location)}",
        how_known=HowKnown.GPU_CORE,
        confidence=_confidence(fault, chain),
        location=chain[0] if chain else None,
        chain=chain,
        kernel=kernel,
        artifact=artifact,
        next_step=_next(chain, kernel, artifact),
        around=blocks_around(fault),
    )


_INVALID_ADDRESS_SPACE: Final = 7
_ACROSS: Final = 29  # blocks of a row that are shown
_DOWN: Final = 7  # rows


def blocks_around(fault: Fault) -> dict[str, Any] | None:
    """Return the first block that faulted and its neighbours in the grid, as `faults[].around` of the core schema.

    None where the grid has one block, or neither grid nor block is known.
    """
    grid, first = fault.grid, fault.first
    if grid is None or first is None or grid.grid_x * grid.grid_y * grid.grid_z <= 1:
        return None
    x, y, z = first.at.block
    resident = {cta.block for sm in fault.device.sms for cta in sm.ctas if cta.row.grid_id == grid.grid_id}
    across, down = _window(x, grid.grid_x, _ACROSS), _window(y, grid.grid_y, _DOWN)

    def mark(at: tuple[int, int, int]) -> str:
        return "X" if at in fault.faulted else "o" if at in resident else "."

    return {
        "grid": [grid.grid_x, grid.grid_y, grid.grid_z],
        "first": [x, y, z],
        "from": [across.start, down.start],
        "rows": ["".join(mark((column, row, z)) for column in across) for row in down],
    }


def _window(at: int, size: int, most: int) -> range:
    start = max(0, min(at - most // 2, size - most))
    return range(start, min(start + most, size))


def _what(fault: Fault) -> str:
    """Return the exception, with what is meant where its name suggests another kind of fault."""
    exception = fault.exception
    return f"{exception.name} ({exception.meaning})" if exception.code == _INVALID_ADDRESS_SPACE else exception.name


def _where(fault: Fault, chain: Chain, kernel: str | None) -> str:
    word = "in code called from" if fault.calls_out else "at" if fault.precise else "near"
    named = short_name(kernel) if kernel else None
    if chain:
        leaf = chain[0]
        function = short_name(leaf.function) if leaf.function else None
        into = f", inlined into {named}" if named and len(chain) > 1 else ""
        within = f" in {function or named}" if function or named else ""
        return f"{word} {place_of(leaf)}{within}{into}"
    if fault.pc is None:
        return f"in {named}" if named else "at an unknown place"
    offset = f"{named}+{fault.location.offset:#x}" if named and fault.location else named or "unknown code"
    return f"{word} {offset} (PC {fault.pc:#x}, no line info)"


def _who(fault: Fault) -> str:
    if fault.first is None:
        return "; which of its warps failed is not known" if warps_left(fault) else "; its warps had already exited"
    threads = f"{fault.threads} thread{'s' if fault.threads != 1 else ''}"
    blocks = f" of {fault.blocks} blocks" if fault.blocks > 1 else ""
    first = fault.first.at
    return f"; {threads}{blocks}, the first is thread {_axes(first.thread)} of block {_axes(first.block)}"


def warps_left(fault: Fault) -> list[tuple[int, int, int]]:
    """Return the block of each warp of the launch on the SMs that have the mark: any of them may have failed."""
    grid = fault.grid.grid_id if fault.grid else None
    return [cta.block for sm, cta, _ in fault.device.warps() if sm.row.sm_id in fault.sms and cta.row.grid_id == grid]


def _borrowed(location: Location | None) -> str:
    """Say how lines are known that are not those of the code itself."""
    borrowed = location.borrowed if location else None
    if borrowed is None:
        return ""
    headers = f"; {borrowed.headers}" if borrowed.headers else ""
    return f"; by the {borrowed.how_known} ({borrowed.build}){headers}"


def _confidence(fault: Fault, chain: Chain) -> float:
    if fault.doubts:
        return 0.5
    if fault.pc is None:
        return 0.6
    if not fault.precise:
        return 0.75 if chain else 0.7
    if not chain:
        return 0.9
    return 0.95 if fault.location and fault.location.siblings else 0.98


def _next(chain: Chain, kernel: str | None, artifact: str | None) -> NextStep:
    if not chain:
        return _to_lines(kernel)
    file = shlex.quote(artifact) if artifact else "FILE"
    return NextStep("see every thread of it, and its registers", f"vdbg-env core {file}")


def _to_lines(kernel: str | None) -> NextStep:
    """Return what leads on from a kernel without lines: no build of vLLM gives any to the kernels of others."""
    maker = maker_of(kernel) if kernel else None
    if maker is None:
        return _REBUILD
    if maker.name == "PyTorch":
        return NextStep(
            "run it with CUDA_LAUNCH_BLOCKING=1: the Python stack then has the call that launched this kernel of "
            f"PyTorch's own, which a build of vLLM gives no lines (only {maker.remedy} has them)"
        )
    return NextStep(f"this kernel is {maker.name}'s, which a build of vLLM gives no lines; for lines: {maker.remedy}")


def _hang(groups: Sequence[WarpGroup], artifact: str | None) -> Finding:
    """Blame the warps that do not wait: those at a barrier wait for the ones that still run."""
    waiting = [s for s in groups if s.waits_for_others]
    running = [s for s in groups if s not in waiting]
    suspect = running[0] if running else groups[0]
    chain = suspect.location.chain if suspect.location else ()
    kernel = demangle(suspect.kernel) if suspect.kernel else None
    at = str(place_of(chain[0])) if chain else f"PC {suspect.pc:#x}"
    verb = "stands" if suspect.warps == 1 else "stand"
    message = f"no exception: {_warps(suspect.warps)} of {short_name(kernel) if kernel else 'a kernel'} {verb} at {at}"
    if waiting and running:
        held = sum(s.warps for s in waiting)
        message += f", while {_warps(held)} wait{'s' if held == 1 else ''} at a barrier"
    words = next((s.barrier_words for s in waiting if s.barrier_words), None)
    if words:
        message += f" (the driver: {words})"
    message += _borrowed(suspect.location)
    return Finding(
        rule="gpu-core-hang",
        level=Level.ERROR,
        message=message,
        how_known=HowKnown.GPU_CORE,
        # Surer than that a process runs at a place unknown: as a rule it polls for what the GPU has not finished.
        confidence=0.85 if waiting and running else 0.75 if running and kernel else 0.7,
        location=chain[0] if chain else None,
        chain=chain,
        kernel=kernel,
        artifact=artifact,
        next_step=_next(chain, kernel, artifact),
    )


def _warps(count: int) -> str:
    return f"{count} warp{'s' if count != 1 else ''}"


def _axes(axes: tuple[int, int, int]) -> str:
    return f"({axes[0]},{axes[1]},{axes[2]})"


# Who compiles a kernel at run time or ships it ready-made, by its name, and what gives such kernels line info.
#
# Sources: Triton 3.9 backends/nvidia/compiler.py, FlashInfer 0.7.2 jit/core.py, DeepGEMM's README, vLLM 0.33.0
# benchmarks/attention_benchmarks/benchmark.py, TileLang 0.1.12 contrib/nvcc.py and jit/adapter/libgen.py, cuda-tile
# 1.7.0 _compile.py, PyTorch's and NCCL's own builds.


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
