"""What guard puts into the environment of its command, how each is switched off, and whether the cores have room."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from gpucore.arming import CoreSize
from vdbg_env.application.ports.this_host import Room
from vdbg_env.common.size import size_text

# Bytes of one rank's core. Two published ones without global memory had 232 and 523 MB; light ones have some MB.
_NEEDED: Mapping[CoreSize, int] = {"light": 64 << 20, "default": 1 << 30}
_OFF = {
    "CUDA_ENABLE_COREDUMP_ON_EXCEPTION": "0",
    "CUDA_ENABLE_USER_TRIGGERED_COREDUMP": "0",
    "CUDA_COREDUMP_SHOW_PROGRESS": "0",
    "PYTHONFAULTHANDLER": "",
    "TORCH_NCCL_TRACE_BUFFER_SIZE": "0",
    "TORCH_NCCL_DUMP_ON_TIMEOUT": "0",
    "VLLM_RAY_EXTRA_ENV_VAR_PREFIXES_TO_COPY": "",
}
_WHY = {
    "CUDA_ENABLE_COREDUMP_ON_EXCEPTION": "a GPU core when a kernel faults",
    "CUDA_ENABLE_USER_TRIGGERED_COREDUMP": "a GPU core of a hang",
    "CUDA_COREDUMP_FILE": "where cores go; your own is not read by the report",
    "CUDA_COREDUMP_PIPE": "where a core of a hang is asked for",
    "CUDA_COREDUMP_SHOW_PROGRESS": "the driver says on stderr what it dumps",
    "CUDA_COREDUMP_GENERATION_FLAGS": "what a core leaves out: --core light|default|full",
    "PYTHONFAULTHANDLER": "Python's stacks when a process gets a fatal signal",
    "TORCH_NCCL_TRACE_BUFFER_SIZE": "the flight recorder of collectives",
    "TORCH_NCCL_DUMP_ON_TIMEOUT": "written when its watchdog gives up",
    "TORCH_NCCL_DEBUG_INFO_TEMP_FILE": "where it is written",
    "VLLM_RAY_EXTRA_ENV_VAR_PREFIXES_TO_COPY": "vLLM hands these on to Ray's workers",
    "SPT_NOENV": "a process that renames itself keeps its environment",
    "VDBG_ENV_STEP": "by which the command's processes are found again",
}


def fitting(size: CoreSize, ranks: int, room: Room) -> tuple[CoreSize, str | None]:
    """Return the size of cores that has room for all ranks, or the smallest, and words where that is another one."""
    if not room.gpu_memory or _needed(size, ranks, room) <= room.free:
        return size, None
    cores = f"{ranks} GPU cores" if ranks > 1 else "a GPU core"
    words = f"{cores} ({size}) may need {size_text(_needed(size, ranks, room))}, and {size_text(room.free)} is free in "
    words += f"{room.folder} above --disk-floor: "
    if size == "light" or _needed("light", ranks, room) > room.free:
        return "light", words + "a core may be lost; make room, or give --runs on a larger volume"
    return "light", words + "--core light is taken, which leaves out all memory"


def _needed(size: CoreSize, ranks: int, room: Room) -> int:
    return ranks * _NEEDED.get(size, room.gpu_memory)


def listed(variables: Mapping[str, str], given: Mapping[str, str]) -> Iterator[str]:
    """Yield each variable as a line, with what it is for and how it is switched off; `given` is the user's own."""
    for name, value in sorted(variables.items()):
        why = _WHY.get(name, "")
        if name in given:
            yield f"{name}={given[name]}  # {why}; set by you, and left as it is"
        elif name in _OFF:
            yield f"{name}={value}  # {why}; off: {name}={_OFF[name]}"
        else:
            yield f"{name}={value}  # {why}"
