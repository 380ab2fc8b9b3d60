"""Which files are headers of CUDA: what is done there is done by the line that calls them."""

import pytest

from gpucore.dwarf import SourceFrame
from gpucore.toolkit import is_toolkit_header, own_frame


@pytest.mark.parametrize(
    "file",
    [
        "/usr/local/cuda-13.0/bin/../targets/x86_64-linux/include/device_atomic_functions.hpp",
        "/usr/local/cuda/bin/..//include/sm_32_intrinsics.hpp",
        "/opt/venv/lib/python3.12/site-packages/nvidia/cuda_runtime/include/cuda_fp16.hpp",
        "/usr/local/cuda/include/cuda_bf16.hpp", "/usr/local/cuda/include/cuda_fp8.hpp",
        "/usr/local/cuda/include/crt/mma.hpp", "/usr/local/cuda/include/cooperative_groups.h",
        "/usr/local/cuda/include/cooperative_groups/details/reduce.h",
        "/usr/local/cuda/include/cuda_pipeline_helpers.h",
        "/usr/local/cuda/include/cub/block/block_load.cuh", "/usr/local/cuda/include/cccl/cub/warp/warp_scan.cuh",
        "/src/third_party/cccl/thrust/thrust/system/cuda/detail/for_each.h",
        "/usr/local/cuda/include/cuda/std/detail/libcxx/include/atomic",
        "/usr/local/cuda/include/cuda/std/__atomic/api/owned.h",
        "/usr/local/cuda/include/cuda/atomic", "/usr/local/cuda/include/cuda/__ptx/instructions/cp_async_bulk.h",
        "/usr/local/cuda/include/curand_kernel.h", "/usr/local/cuda/include/vector_functions.hpp",
        "/opt/conda/targets/x86_64-linux/include/vector_functions.hpp",
    ],
)  # fmt: skip
def test_a_header_of_cuda(file: str) -> None:
    assert is_toolkit_header(file)


@pytest.mark.parametrize(
    "file",
    [
        "/src/csrc/cache_kernels.cu", "/src/csrc/attention/dtype_float16.cuh", "/src/csrc/cuda_utils.h",
        "/src/cutlass/include/cutlass/gemm/kernel/gemm.h", "/src/cutlass/include/cute/atom/mma_atom.hpp",
        "/src/flashinfer/include/flashinfer/mma.cuh", "/src/torch/include/ATen/cuda/Atomic.cuh",
        "/home/me/cuda/kernel.cu",
        "/home/me/cub/mine.cu", "/src/my_atomic_functions.hpp", "/src/include/mma.h", "/src/include/cuda/reduce.cuh",
        "/src/vec_functions.h", "", "/src/thrust.h", "/src/std/vector.h", "/src/include/math_functions.h",
    ],
)  # fmt: skip
def test_a_file_of_a_project(file: str) -> None:
    assert not is_toolkit_header(file)


def frame(file: str, line: int) -> SourceFrame:
    return SourceFrame(function=None, file=file, line=line)


def test_the_own_frame_is_the_caller_s_and_that_of_cuda_where_there_is_no_other() -> None:
    header, cub, own = (
        frame("/cuda/include/sm_32_intrinsics.hpp", 3),
        frame("/x/cub/util_type.cuh", 4),
        frame("a.cu", 5),
    )
    outer = frame("b.cu", 6)
    assert own_frame((header, cub, own, outer)) is own
    assert own_frame((own, header, outer)) is own
    assert own_frame((header, cub)) is header
    assert own_frame(()) is None
