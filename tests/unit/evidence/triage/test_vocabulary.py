"""Wordings of programs around vLLM, one line or two each, written after the programs' own sources."""

import pytest

from tests.support.triage import triage_bytes

PREFIX = "(EngineCore pid=7) ERROR 11-03 23:14:03 [core.py:1] "
XID = "[  812.500000] NVRM: Xid (PCI:0000:3b:00): "
AMDGPU = "[  812.500000] amdgpu 0000:0c:00.0: amdgpu: "

NAMED = {
    "rocm-aperture": (
        ":0:rocdevice.cpp :2984: 65 us: Callback: Queue 0x7f10 aborting with error : HSA_STATUS_ERROR_MEMORY_APERTURE_"
        "VIOLATION: The agent attempted to access memory beyond the largest legal address. code: 0x29\n",
        "illegal-memory-access",
    ),
    "amdgpu-page-fault": (
        f"{AMDGPU}[gfxhub0] no-retry page fault (src_id:0 ring:24 vmid:8 pasid:32773)\n"
        f"{AMDGPU}  in page starting at address 0x00007f2000000000 from IH client 0x1b (UTCL2)\n",
        "illegal-memory-access",
    ),
    "amdgpu-fault-status": (f"{AMDGPU}GCVM_L2_PROTECTION_FAULT_STATUS:0x00801031\n", "illegal-memory-access"),
    "channel-ended-after-xid-31": (
        f"{XID}45, pid=71, name=python3, Ch 00000004 caused by previous Xid 31\n",
        "illegal-memory-access",
    ),
    "channel-ended-after-xid-13": (
        f"{XID}45, pid=71, name=python3, Ch 00000004 caused by previous Xid 13\n",
        "misaligned-address",
    ),
    "channel-ended-after-xid-94": (
        f"{XID}45, pid=71, name=python3, Ch 00000004 caused by previous Xid 94\n",
        "driver-problem",
    ),
    "channel-ended-after-xid-149": (
        f"{XID}45, pid=71, name=python3, Ch 00000004 caused by previous Xid 149\n",
        "driver-problem",
    ),
    "stub-driver": (f"{PREFIX}RuntimeError: CUDA error: CUDA driver is a stub library\n", "driver-problem"),
    "cuda-does-not-start": (f"{PREFIX}RuntimeError: CUDA error: initialization error\n", "driver-problem"),
    "symbol-not-on-device": (f"{PREFIX}RuntimeError: CUDA error: named symbol not found\n", "no-kernel-image"),
    "ptx-refused": (f"{PREFIX}RuntimeError: CUDA error: a PTX JIT compilation failed\n", "triton-compile"),
    "no-peer-access": (
        f"{PREFIX}RuntimeError: CUDA error: peer access is not supported between these two devices\n",
        "nccl-failure",
    ),
    "capture-of-another-thread": (
        f"{PREFIX}RuntimeError: CUDA error: attempt to terminate a thread-local capture sequence from another thread\n",
        "cuda-graph-capture",
    ),
    "uncaught-type-of-any-library": (
        "terminate called after throwing an instance of 'torch::jit::JITException'\nAborted (core dumped)\n",
        "host-crash",
    ),
    "key-alone": (
        f"{PREFIX}'layers.3.mlp.up_proj.weight.zeros'\n{PREFIX}Traceback (most recent call last):\n",
        "model-load",
    ),
    "check-of-tensorrt-llm": (
        "  what():  [TensorRT-LLM][ERROR] Assertion failed: beamWidth must be 1 (/src/cpp/runtime/a.cpp:31)\n",
        "not-a-gpu-failure",
    ),
}


@pytest.mark.parametrize("name", sorted(NAMED))
def test_the_first_line_names_the_failure(name: str) -> None:
    text, failure = NAMED[name]
    verdict = triage_bytes(text.encode())
    assert verdict.root_cause is not None
    assert (verdict.failure.name, verdict.root_cause.line) == (failure, 1)


def test_an_error_of_tensorrt_llms_logger_is_an_error_line() -> None:
    for line in (
        "[TensorRT-LLM][ERROR] tokenizer folder is empty\n",
        "[11/03/2026-23:14:03] [TRT-LLM] [RANK 1] [E] tokenizer folder is empty\n",
        "[11/03/2026-23:14:03] [E] tokenizer folder is empty\n",
    ):
        assert triage_bytes(line.encode()).failure.name == "not-a-gpu-failure"
        assert triage_bytes(line.replace("ERROR", "INFO").replace("[E]", "[I]").encode()).failure.name == "unknown"


def test_the_header_of_a_servers_traceback_is_no_cause() -> None:
    verdict = triage_bytes(b"ERROR:    Exception in ASGI application\nTraceback (most recent call last):\n")
    assert verdict.failure.name == "unknown"


def test_the_line_of_code_that_raises_does_not_say_that_the_engine_died() -> None:
    verdict = triage_bytes(b"    raise AsyncEngineDeadError(\nvllm.engine.AsyncEngineDeadError: Task finished.\n")
    assert verdict.root_cause is not None
    assert verdict.root_cause.line == 2
