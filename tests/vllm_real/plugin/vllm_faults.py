"""Makes a worker of a real vLLM fail, and writes what that worker really has.

vLLM loads this as a general plug-in in each of its processes. VDBG_TEST_FAULT is a JSON object:

    kind      one of FAULTS
    request   the request, counted from 1, whose first step fails; 0 fails while the worker starts
    rank      the rank that fails (0)
    when      conditions that must all hold: "eager", "compiled", "not-blocking" (none)

VDBG_TEST_WITNESS names a folder: each worker writes RANK-PID.json there with its environment, its command line and the
effective configuration. /proc cannot say that, because setproctitle overwrites it.
"""

import ctypes
import json
import os
import resource
import signal
import sys
import threading
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any

FAULT = "VDBG_TEST_FAULT"
WITNESS = "VDBG_TEST_WITNESS"

# The text of PyTorch 2.10 and later (c10/cuda/CUDAMiscFunctions.cpp), the empty last line included.
ILLEGAL_ACCESS = """\
CUDA error: an illegal memory access was encountered
Search for `cudaErrorIllegalAddress' in https://docs.nvidia.com/cuda/cuda-runtime-api/group__CUDART__TYPES.html for more information.
CUDA kernel errors might be asynchronously reported at some other API call, so the stacktrace below might be incorrect.
For debugging consider passing CUDA_LAUNCH_BLOCKING=1
Compile with `TORCH_USE_CUDA_DSA` to enable device-side assertions.
"""  # noqa: E501


def install() -> None:
    """Wrap the worker's two calls that matter; vLLM calls this once or more in each process."""
    if not os.environ.get(FAULT) and not os.environ.get(WITNESS):
        return
    from vllm.v1.worker.worker_base import WorkerWrapperBase

    if hasattr(WorkerWrapperBase.execute_model, "vllm_faults"):
        return
    fault = json.loads(os.environ.get(FAULT) or "null")
    WorkerWrapperBase.init_device = _init_device(WorkerWrapperBase.init_device, fault)
    WorkerWrapperBase.execute_model = _execute_model(WorkerWrapperBase.execute_model, fault)


def _init_device(original: Callable[..., Any], fault: dict[str, Any] | None) -> Callable[..., Any]:
    @wraps(original)
    def init_device(wrapper: Any) -> Any:
        made = original(wrapper)
        if folder := os.environ.get(WITNESS):
            _write_witness(wrapper, Path(folder))
        if fault and fault["request"] == 0 and _is_due(wrapper, fault):
            FAULTS[fault["kind"]]()
        return made

    return init_device


def _execute_model(original: Callable[..., Any], fault: dict[str, Any] | None) -> Callable[..., Any]:
    requests = 0

    @wraps(original)
    def execute_model(wrapper: Any, scheduled: Any) -> Any:
        nonlocal requests
        before, requests = requests, requests + len(scheduled.scheduled_new_reqs)
        if fault and before < fault["request"] <= requests and _is_due(wrapper, fault):
            # In the runner's place, and not here: the stack then has vLLM's own frames down to the model's step.
            wrapper.worker.model_runner.execute_model = lambda *_args, **_named: FAULTS[fault["kind"]]()
        return original(wrapper, scheduled)

    execute_model.vllm_faults = True  # type: ignore[attr-defined]
    return execute_model


def _is_due(wrapper: Any, fault: dict[str, Any]) -> bool:
    held = {
        "eager": not _compiles(wrapper.vllm_config),
        "compiled": _compiles(wrapper.vllm_config),
        "not-blocking": os.environ.get("CUDA_LAUNCH_BLOCKING", "0") != "1",
    }
    return wrapper.global_rank == fault.get("rank", 0) and all(held[name] for name in fault.get("when", []))


def _compiles(config: Any) -> bool:
    return not config.model_config.enforce_eager and config.compilation_config.mode.name != "NONE"


def _write_witness(wrapper: Any, folder: Path) -> None:
    config = wrapper.vllm_config
    compilation = config.compilation_config
    attention = getattr(config, "attention_config", None)
    document = {
        "rank": wrapper.global_rank,
        "pid": os.getpid(),
        "parent": os.getppid(),
        "argv": sys.orig_argv,
        "environment": dict(os.environ),
        "engine": {
            "enforce_eager": config.model_config.enforce_eager,
            "compilation_mode": compilation.mode.name,
            "compilation_backend": compilation.backend,
            "cudagraph_mode": getattr(compilation.cudagraph_mode, "name", None),
            "attention_backend": getattr(getattr(attention, "backend", None), "name", None),
            "tensor_parallel_size": config.parallel_config.tensor_parallel_size,
            "disable_custom_all_reduce": config.parallel_config.disable_custom_all_reduce,
            "executor": str(config.parallel_config.distributed_executor_backend),
        },
    }
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{wrapper.global_rank}-{os.getpid()}.json"
    partial = path.with_suffix(".partial")
    partial.write_text(json.dumps(document, indent=1, sort_keys=True))
    partial.rename(path)


def _raise_illegal_access() -> None:
    import torch

    raise torch.AcceleratorError(ILLEGAL_ACCESS)


def _raise_python_error() -> None:
    import torch

    torch.ones(4, 64) + torch.ones(4, 32)


def _miss_a_weight() -> None:
    raise KeyError("model.layers.0.self_attn.qkv_proj.weight")


def _segfault() -> None:
    ctypes.memset(8, 0, 1)


def _kill_itself() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _run_out_of_memory() -> None:
    import torch

    with Path("/proc/self/statm").open() as file:
        used = int(file.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + (256 << 20), resource.RLIM_INFINITY))
    hoard = [torch.ones(64 << 18) for _ in range(1 << 20)]  # 64 MiB each: the fourth or fifth is refused
    raise AssertionError(f"{len(hoard)} allocations of 64 MiB fitted under the limit")


def _hoard() -> None:
    import torch

    hoard = []
    while True:
        hoard.append(torch.ones(16 << 20))  # 64 MiB, written to


def _spin() -> None:
    number = 0
    while True:
        number += 1


def _stop_itself() -> None:
    os.kill(os.getpid(), signal.SIGSTOP)


def _wait() -> None:
    lock = threading.Lock()
    lock.acquire()
    lock.acquire()


FAULTS: dict[str, Callable[[], None]] = {
    "illegal-access": _raise_illegal_access,
    "python-error": _raise_python_error,
    "missing-weight": _miss_a_weight,
    "segfault": _segfault,
    "abort": os.abort,
    "sigkill": _kill_itself,
    "exit": lambda: os._exit(3),
    "out-of-memory": _run_out_of_memory,
    "hoard": _hoard,
    "spin": _spin,
    "stop": _stop_itself,
    "wait": _wait,
}
