"""A CUDA error as every program words it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vdbg_env.evidence.log_line import parse_cuda_error


@pytest.mark.parametrize(
    ("text", "name", "messenger"),
    [
        (
            "RuntimeError: CUDA error: an illegal memory access was encountered",
            "cudaErrorIllegalAddress",
            False,
        ),
        ("torch.AcceleratorError: CUDA error: device-side assert triggered", "cudaErrorAssert", False),
        (
            "RuntimeError: Triton Error [CUDA]: an illegal memory access was encountered",
            "cudaErrorIllegalAddress",
            False,
        ),
        (
            "Failed: Cuda error /workspace/csrc/custom_all_reduce.cuh:455 'an illegal memory access was encountered'",
            "cudaErrorIllegalAddress",
            True,
        ),
        (
            "[rank1]:[E1103 x] Process group watchdog thread terminated with exception: CUDA error: misaligned address",
            "cudaErrorMisalignedAddress",
            True,
        ),
        (
            "CUDA Error: out of memory at /workspace/csrc/cumem_allocator.cpp:62",
            "cudaErrorMemoryAllocation",
            True,
        ),
        ("RuntimeError: CUDART error: invalid argument", "cudaErrorInvalidValue", True),
        (
            "NCCL WARN Cuda failure 700 'an illegal memory access was encountered'",
            "cudaErrorIllegalAddress",
            True,
        ),
        (
            "CUDA error: operation not permitted when stream is capturing".join(["RuntimeError: ", ""]),
            "cudaErrorStreamCaptureUnsupported",
            False,
        ),
        ("cuModuleLoadData failed: CUDA_ERROR_NO_BINARY_FOR_GPU", "CUDA_ERROR_NO_BINARY_FOR_GPU", False),
        (
            "CUDA error 700 at t.cu:62: an illegal memory access was encountered",
            "cudaErrorIllegalAddress",
            False,
        ),
    ],
)
def test_every_wording_is_known(text: str, name: str, messenger: bool) -> None:
    error = parse_cuda_error(text)
    assert error is not None
    assert (error.name, error.messenger) == (name, messenger)


def test_a_line_without_an_error_is_none() -> None:
    assert parse_cuda_error("For debugging consider passing CUDA_LAUNCH_BLOCKING=1") is None


@given(st.text())
def test_any_text_is_read(text: str) -> None:
    parse_cuda_error(text)
