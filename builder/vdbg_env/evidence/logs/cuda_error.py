"""Read one line that reports a CUDA error, from any program: PyTorch old and new, Triton, vLLM's macros, NCCL.

The same driver error reaches a log in a dozen wordings. What they share is the error's text (cudaGetErrorString) or its
name; some programs (custom all-reduce, a watchdog) only pass on another's fault.
"""

from __future__ import annotations

import re
from typing import NamedTuple

# cudaGetErrorString's text -> the enum's name (CUDA 13.0 driver_types.h; same order as there).
ERROR_TEXTS: dict[str, str] = {
    "invalid argument": "cudaErrorInvalidValue",
    "out of memory": "cudaErrorMemoryAllocation",
    "initialization error": "cudaErrorInitializationError",
    "driver shutting down": "cudaErrorCudartUnloading",
    "invalid configuration argument": "cudaErrorInvalidConfiguration",
    "invalid pitch argument": "cudaErrorInvalidPitchValue",
    "invalid device symbol": "cudaErrorInvalidSymbol",
    "CUDA driver version is insufficient for CUDA runtime version": "cudaErrorInsufficientDriver",
    "no CUDA-capable device is detected": "cudaErrorNoDevice",
    "invalid device ordinal": "cudaErrorInvalidDevice",
    "device kernel image is invalid": "cudaErrorInvalidKernelImage",
    "invalid device context": "cudaErrorDeviceUninitialized",
    "invalid device function": "cudaErrorInvalidDeviceFunction",
    "no kernel image is available for execution on the device": "cudaErrorNoKernelImageForDevice",
    "uncorrectable ECC error encountered": "cudaErrorECCUncorrectable",
    "uncorrectable NVLink error detected during the execution": "cudaErrorNvlinkUncorrectable",
    "a PTX JIT compilation failed": "cudaErrorInvalidPtx",
    "the provided PTX was compiled with an unsupported toolchain.": "cudaErrorUnsupportedPtxVersion",
    "PTX JIT compiler library not found": "cudaErrorJitCompilerNotFound",
    "shared object initialization failed": "cudaErrorSharedObjectInitFailed",
    "invalid resource handle": "cudaErrorInvalidResourceHandle",
    "named symbol not found": "cudaErrorSymbolNotFound",
    "an illegal memory access was encountered": "cudaErrorIllegalAddress",
    "too many resources requested for launch": "cudaErrorLaunchOutOfResources",
    "the launch timed out and was terminated": "cudaErrorLaunchTimeout",
    "peer access is already enabled": "cudaErrorPeerAccessAlreadyEnabled",
    "peer access is not supported between these two devices": "cudaErrorPeerAccessUnsupported",
    "device-side assert triggered": "cudaErrorAssert",
    "hardware stack error": "cudaErrorHardwareStackError",
    "an illegal instruction was encountered": "cudaErrorIllegalInstruction",
    "misaligned address": "cudaErrorMisalignedAddress",
    "operation not supported on global/shared address space": "cudaErrorInvalidAddressSpace",
    "invalid program counter": "cudaErrorInvalidPc",
    "unspecified launch failure": "cudaErrorLaunchFailure",
    "too many blocks in cooperative launch": "cudaErrorCooperativeLaunchTooLarge",
    "operation not permitted": "cudaErrorNotPermitted",
    "operation not supported": "cudaErrorNotSupported",
    "system not yet initialized": "cudaErrorSystemNotReady",
    "system has unsupported display driver / cuda driver combination": "cudaErrorSystemDriverMismatch",
    "forward compatibility was attempted on non supported HW": "cudaErrorCompatNotSupportedOnDevice",
    "operation not permitted when stream is capturing": "cudaErrorStreamCaptureUnsupported",
    "operation failed due to a previous error during capture": "cudaErrorStreamCaptureInvalidated",
    "operation would result in a merge of separate capture sequences": "cudaErrorStreamCaptureMerge",
    "capture was not ended in the same stream as it began": "cudaErrorStreamCaptureWrongThread",
    "capturing stream has unjoined work": "cudaErrorStreamCaptureUnjoined",
    "dependency created on uncaptured work in another stream": "cudaErrorStreamCaptureIsolation",
    "operation would make the legacy stream depend on a capturing blocking stream": "cudaErrorStreamCaptureImplicit",
    "unknown error": "cudaErrorUnknown",
}


class CudaError(NamedTuple):
    """A CUDA error as one line reports it. `messenger`: its writer only met the error, at some later call."""

    name: str | None
    message: str
    messenger: bool


# How each program words it, the first that fits; True for one that only passes on another's error.
_WORDINGS: tuple[tuple[re.Pattern[str], bool], ...] = (
    # csrc/custom_all_reduce.cuh of vLLM, printed on stdout before exit(EXIT_FAILURE)
    (re.compile(r"Failed: C(?:uda|UDA) error \S+:\d+ '(?P<message>[^']*)'"), True),
    # ProcessGroupNCCL's watchdog
    (
        re.compile(r"watchdog thread terminated with exception: (?:\[Rank \d+\] )?CUDA error: (?P<message>.+)"),
        True,
    ),
    # torch: c10/cuda/CUDAException.cpp; torch.AcceleratorError since 2.8 (pytorch#152023), RuntimeError before
    (
        re.compile(r"(?:torch\.AcceleratorError|RuntimeError|c10::(?:Accelerator)?Error): CUDA error: (?P<message>.+)"),
        False,
    ),
    (re.compile(r"RuntimeError: CUDA driver error: (?P<message>.+)"), False),
    (re.compile(r"Triton Error \[CUDA\]: (?P<message>.+)"), False),
    # csrc/cumem_allocator.cpp of vLLM, and its wrapper of the CUDA runtime
    (re.compile(r"CUDA Error: (?P<message>.+) at \S+:\d+"), True),
    (re.compile(r"CUDART error: (?P<message>.+)"), True),
    (re.compile(r"NCCL WARN (?:Cuda failure|CUDA failure)(?: \d+)? '(?P<message>[^']*)'"), True),
    (re.compile(r"NCCL error: (?P<message>unhandled cuda error.*)"), True),
    # cuda-python, then any other program
    (re.compile(r"(?P<message>CUDA_ERROR_[A-Z_]+)"), False),
    (re.compile(r"(?i:cuda (?:runtime )?(?:error|failure))\b.*?: ?(?P<message>[^:]+)$"), False),
)


def parse_cuda_error(text: str) -> CudaError | None:
    """Return the CUDA error one line reports, or None."""
    for pattern, messenger in _WORDINGS:
        if found := pattern.search(text):
            message = found["message"].strip().rstrip("'\"")
            return CudaError(error_name(message), message, messenger)
    return None


_ENUM = re.compile(r"\b(cudaError\w+|CUDA_ERROR_[A-Z_]+)\b")
_LONGEST_FIRST = sorted(ERROR_TEXTS, key=len, reverse=True)


def error_name(message: str) -> str | None:
    """Return the enum name of an error's text; the driver API's names are returned unchanged."""
    if match := _ENUM.search(message):
        return match[1]
    text = next((known for known in _LONGEST_FIRST if known in message), None)
    return ERROR_TEXTS[text] if text else None
