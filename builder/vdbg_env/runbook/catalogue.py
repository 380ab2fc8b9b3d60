"""The built-in steps and readers a runbook may name: what each takes and what it gives.

A *step* does work of the tool's own (`uses:`); a *reader* turns what a run left behind into typed results and
findings (`readers:`). The work is done in `vdbg_env.application`; here stands only the contract that lint holds
runbooks to, so that a misspelt result is found before anything starts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

Kind = Literal["string", "int", "float", "bool", "list", "any"]


@dataclass(frozen=True, kw_only=True)
class BuiltinContract:
    """One built-in of one version: its parameters and results by name and kind.

    `by_hand` is what a person without this program types for much the same.
    """

    name: str
    version: int
    role: Literal["step", "reader"]
    does: str
    parameters: Mapping[str, Kind] = field(default_factory=dict)
    results: Mapping[str, Kind] = field(default_factory=dict)
    by_hand: tuple[str, ...] = ()


BUILTINS: tuple[BuiltinContract, ...] = (
    BuiltinContract(
        name="gpu-health",
        version=1,
        role="step",
        does="Reads the driver, the GPUs, ECC, MIG and the kernel log's Xid lines before anything is started.",
        by_hand=("nvidia-smi", "dmesg | grep Xid", "cat /proc/sys/kernel/yama/ptrace_scope"),
        results={
            "gpus": "int",
            "driver": "string",
            "cuda": "string",
            "xids": "list",
            "ecc_errors": "int",
            "mig": "bool",
            "ptrace": "bool",
            "free_disk": "int",
            "memory_used": "int",
            "memory_total": "int",
        },
    ),
    BuiltinContract(
        name="decode-gpu-core",
        version=1,
        role="step",
        does="Reads GPU core dumps: exception, kernel, source line, inline chain; asks cuda-gdb too when present.",
        parameters={"cores": "list", "cuda_gdb": "bool"},
        by_hand=(
            "cuda-gdb -batch -ex 'target cudacore FILE' -ex 'info cuda kernels' -ex bt -ex 'info line *$errorpc'",
        ),
        results={
            "cores": "int",
            "exception": "string",
            "kernel": "string",
            "pc": "string",
            "source": "string",
            "chain": "list",
            "has_lines": "bool",
            "warps": "int",
            "spinning": "bool",
        },
    ),
    BuiltinContract(
        name="locate",
        version=1,
        role="step",
        does="Looks a PC up in the line tables of the binaries on disk, beside nvdisasm's listing.",
        parameters={"kernel": "string", "cores": "list", "binaries": "list"},
        by_hand=(
            "cuobjdump -lelf LIBRARY && cuobjdump -xelf NAME.cubin LIBRARY",
            "nvdisasm -ndf -c -gi NAME.cubin        # look for the kernel and the offset in it",
        ),
        results={"source": "string", "chain": "list", "agrees": "bool", "file": "string"},
    ),
    BuiltinContract(
        name="collect-env",
        version=1,
        role="step",
        does="Records the versions in play, the GPUs, and the variables that change behaviour.",
        by_hand=("vllm collect-env", "env | grep -E '^(CUDA|VLLM|NCCL|TORCH|PYTORCH|TRITON|FLASHINFER)_'"),
        results={
            "vllm": "string",
            "torch": "string",
            "cuda": "string",
            "driver": "string",
            "toolkit": "string",
            "mismatches": "list",
            "stale_variables": "list",
        },
    ),
    BuiltinContract(
        name="core-sizes",
        version=1,
        role="step",
        does="Sums up what a GPU core dump holds by kind of memory, and names the flags that leave the most of it out.",
        parameters={"core": "string"},
        by_hand=("readelf -SW CORE        # LOUSER+2 is global memory, +3 local, +4 shared, +15 constant banks",),
        results={
            "size": "int",
            "text": "string",
            "largest": "string",
            "share": "float",
            "flags": "list",
            "saved": "string",
            "savings": "float",
            "whole": "bool",
        },
    ),
    BuiltinContract(
        name="core-lines",
        version=1,
        role="step",
        does="Finds the file a core's faulting kernel came from, and proves whether that file has line info.",
        parameters={"core": "string", "binaries": "list"},
        by_hand=(
            "cuda-gdb -batch -ex 'target cudacore CORE' -ex bt        # the kernel, and its line if it has one",
            "cuobjdump -elf LIBRARY | grep -E 'Fatbin elf|identifier|[.]text[.]|PROGBITS.* [.]debug_line'",
        ),
        results={
            "kernel": "string",
            "has_lines": "bool",
            "source": "string",
            "maker": "string",
            "remedy": "string",
            "file": "string",
            "same": "bool",
            "file_has_lines": "bool",
            "located": "string",
            "verdict": "string",
            "missing": "int",
            "caches": "list",
        },
    ),
    BuiltinContract(
        name="report",
        version=1,
        role="step",
        does="Writes the report of all steps so far.",
        parameters={"formats": "list"},
        results={"files": "list"},
    ),
    BuiltinContract(
        name="sanitizer-report",
        version=1,
        role="reader",
        does="Reads compute-sanitizer's text; without a SUMMARY line the sanitizer itself failed, whatever its status.",
        parameters={"artifact": "string"},
        results={
            "summary": "bool",
            "errors": "int",
            "warnings": "int",
            "tool": "string",
            "kernel": "string",
            "first": "string",
            "source": "string",
        },
    ),
    BuiltinContract(
        name="python-traceback",
        version=1,
        role="reader",
        does="Finds the last Python traceback of the output and its innermost frame outside of torch.",
        results={"error": "string", "frame": "string", "source": "string", "stack": "list"},
    ),
    BuiltinContract(
        name="triage",
        version=1,
        role="reader",
        does="Names the failure that the log of the last attempt that ended badly shows, and the runbook for it.",
        results={
            "failure": "string",
            "runbook": "string",
            "title": "string",
            "text": "string",
            "line": "int",
            "confidence": "float",
            "rank": "int",
            "kernel": "string",
        },
    ),
    BuiltinContract(
        name="coredump-progress",
        version=1,
        role="reader",
        does="Reads the driver's core-dump progress lines: exceptions seen, files written, whether all were done.",
        results={"exceptions": "list", "files": "list", "done": "bool"},
    ),
    BuiltinContract(
        name="nccl-log",
        version=1,
        role="reader",
        does="Reads NCCL_DEBUG output: transports chosen, interfaces, warnings, and the collective each rank was in.",
        results={"warnings": "list", "transport": "string", "ranks": "int"},
    ),
    BuiltinContract(
        name="function-trace",
        version=1,
        role="reader",
        does="Reads vLLM's function trace: the last call each thread entered and did not leave.",
        parameters={"artifact": "string"},
        results={"last_call": "string", "source": "string"},
    ),
    BuiltinContract(
        name="hang-stacks",
        version=1,
        role="reader",
        does="Reads the stacks taken when a hang was seen: what each process and thread was waiting in.",
        results={"waiting_in": "list", "processes": "int"},
    ),
)


def contract(name: str, version: int) -> BuiltinContract | None:
    """Return the contract of a built-in, or None when there is none of that name and version."""
    return next((b for b in BUILTINS if (b.name, b.version) == (name, version)), None)


TOOLS: tuple[str, ...] = (
    "compute-sanitizer",
    "cuda-gdb",
    "cuobjdump",
    "nvdisasm",
    "nvidia-smi",
    "py-spy",
    "dcgmi",
    "ncu",
    "nsys",
    "gdb",
    "git",
    "python3",
    "vllm",
)
"""Programs a runbook may require: those the tool knows how to look for and how to advise about."""
