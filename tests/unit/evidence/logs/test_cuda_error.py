"""A CUDA error as every program words it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vdbg_env.evidence.logs.cuda_error import parse_cuda_error


@pytest.mark.parametrize(
    ("text", "carrier", "name", "messenger"),
    [
        (
            "RuntimeError: CUDA error: an illegal memory access was encountered",
            "torch",
            "cudaErrorIllegalAddress",
            False,
        ),
        ("torch.AcceleratorError: CUDA error: device-side assert triggered", "torch", "cudaErrorAssert", False),
        (
            "RuntimeError: Triton Error [CUDA]: an illegal memory access was encountered",
            "triton",
            "cudaErrorIllegalAddress",
            False,
        ),
        (
            "Failed: Cuda error /workspace/csrc/custom_all_reduce.cuh:455 'an illegal memory access was encountered'",
            "vllm-custom-collective",
            "cudaErrorIllegalAddress",
            True,
        ),
        (
            "[rank1]:[E1103 x] Process group watchdog thread terminated with exception: CUDA error: misaligned address",
            "nccl-watchdog",
            "cudaErrorMisalignedAddress",
            True,
        ),
        (
            "CUDA Error: out of memory at /workspace/csrc/cumem_allocator.cpp:62",
            "vllm-cumem",
            "cudaErrorMemoryAllocation",
            True,
        ),
        ("RuntimeError: CUDART error: invalid argument", "vllm-cudart", "cudaErrorInvalidValue", True),
        (
            "NCCL WARN Cuda failure 700 'an illegal memory access was encountered'",
            "nccl",
            "cudaErrorIllegalAddress",
            True,
        ),
        (
            "CUDA error: operation not permitted when stream is capturing".join(["RuntimeError: ", ""]),
            "torch",
            "cudaErrorStreamCaptureUnsupported",
            False,
        ),
        ("cuModuleLoadData failed: CUDA_ERROR_NO_BINARY_FOR_GPU", "cuda-python", "CUDA_ERROR_NO_BINARY_FOR_GPU", False),
        (
            "CUDA error 700 at t.cu:62: an illegal memory access was encountered",
            "program",
            "cudaErrorIllegalAddress",
            False,
        ),
    ],
)
def test_every_carrier_is_known(text: str, carrier: str, name: str, messenger: bool) -> None:
    error = parse_cuda_error(text)
    assert error is not None
    assert (error.carrier, error.name, error.messenger) == (carrier, name, messenger)


def test_the_macros_file_and_line_are_read() -> None:
    error = parse_cuda_error("Failed: Cuda error /w/custom_all_reduce.cuh:455 'misaligned address'")
    assert error is not None
    assert (error.file, error.source_line) == ("/w/custom_all_reduce.cuh", 455)


def test_a_line_without_an_error_is_none() -> None:
    assert parse_cuda_error("For debugging consider passing CUDA_LAUNCH_BLOCKING=1") is None


def test_the_line_number_is_carried_over() -> None:
    error = parse_cuda_error("RuntimeError: CUDA error: unspecified launch failure", line=2)
    assert error is not None
    assert (error.line, error.name) == (2, "cudaErrorLaunchFailure")


@given(st.text())
def test_any_text_is_read(text: str) -> None:
    parse_cuda_error(text)
