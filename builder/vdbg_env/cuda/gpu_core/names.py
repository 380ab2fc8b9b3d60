"""The names of the numbers in a GPU core dump; a number without a name is shown as a number, never dropped.

Source: `cudadebugger.h` (CUDBGException_t and others) up to CUDA 13.3, and LLDB's `nvgpu-core` plug-in.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

# Exceptions that CUDA 13.1 and later no longer raise keep their number: older cores hold them.
_EXCEPTIONS: Final[dict[int, str]] = {
    0: "None",
    1: "Lane Illegal Address",
    2: "Lane User Stack Overflow",
    3: "Device Hardware Stack Overflow",
    4: "Warp Illegal Instruction",
    5: "Warp Out-of-range Address",
    6: "Warp Misaligned Address",
    7: "Warp Invalid Address Space",
    8: "Warp Invalid PC",
    9: "Warp Hardware Stack Overflow",
    10: "Device Illegal Address",
    11: "Lane Misaligned Address",
    12: "Warp Assert",
    13: "Lane Syscall Error",
    14: "Warp Illegal Address",
    15: "Lane Nonmigratable Atomsys",
    16: "Lane Invalid Atomsys",
    17: "Cluster Out-of-range Address",
    18: "Cluster Block Not Present",
    19: "Warp Stack Canary",
    20: "Warp Tensor Memory Access Check",
    21: "Warp Tensor Memory Leak",
    22: "Warp Call Requires Newer Driver",
    23: "Warp Misaligned PC",
    24: "Warp PC Overflow",
    25: "Warp Misaligned Register",
    26: "Warp Illegal Instruction Encoding",
    27: "Warp Illegal Instruction Parameter",
    28: "Warp Out-of-range Register",
    29: "Warp Invalid Constant Address",
    30: "Warp MMU Fault",
    31: "Warp Barrier Arrival Mismatch",
    32: "Cluster Shared Memory Issue",
    33: "Warp API Stack Error",
    34: "Warp Block Not Present",
    35: "Warp User Stack Overflow",
    36: "TMA Syscall",
    0xFFFFFFFF: "Unknown Exception",
}

# Where the constant is not the phrase: cuda-gdb prints the phrase, the driver's progress lines the constant.
_CONSTANTS: Final[dict[int, str]] = {
    20: "Warp Tmem Access Check",
    21: "Warp Tmem Leak",
    25: "Warp Misaligned Reg",
    26: "Warp Illegal Instr Encoding",
    27: "Warp Illegal Instr Param",
    29: "Warp Invalid Const Addr LDC",
    31: "Warp Arrive",
    32: "Cluster Poison",
    0xFFFFFFFF: "Unknown",
}

# What to think of first; one line each, for the exceptions people meet.
_MEANINGS: Final[dict[int, str]] = {
    1: "a thread used an address that is not mapped",
    2: "a thread's stack is full: deep recursion or large local arrays",
    4: "the instruction is not valid here: corrupted code, or code for another architecture",
    5: "an address outside the range of shared or local memory",
    6: "an address that is not a multiple of the access size",
    7: "the instruction cannot use that kind of memory",
    8: "a jump to an address that holds no code: a bad function pointer or a smashed return address",
    9: "the call stack of the hardware is full",
    12: "a device-side assert() failed; its text is on the program's standard output",
    14: "a thread used an address that is not mapped: out of bounds, freed, or of another device",
    17: "a distributed shared memory access outside the cluster",
    18: "a distributed shared memory access to a block that has exited",
    19: "a stack canary was overwritten",
    30: "the memory management unit refused an access",
    35: "a thread's stack is full: deep recursion or large local arrays",
}

_BARRIER_SCOPES: Final = {
    0: None,
    1: "warp",
    2: "warp group",
    3: "block",
    4: "cluster",
    5: "kernel",
}
EXITED: Final = "exited"
_THREAD_STATES: Final = {
    0: EXITED,
    1: "ready",
    2: "yielded",
    3: "sleeping",
    4: "sleeping, yielded",
    5: "ready at next",
    6: "blocked plus",
    7: "blocked all",
    8: "blocked collective",
}
_FIRST_BARRIER, _LAST_BARRIER = 9, 24
_KERNEL_TYPES: Final = {0: "unknown", 1: "system", 2: "application"}
_GRID_STATUSES: Final = {0: "invalid", 1: "pending", 2: "active", 3: "sleeping", 4: "terminated", 5: "undetermined"}
_ORIGINS: Final = {0: "cpu", 1: "gpu"}
_FLAGS: Final = {
    0: "skip_nonrelocated_elf_images",
    1: "skip_global_memory",
    2: "skip_shared_memory",
    3: "skip_local_memory",
    4: "skip_abort",
    5: "skip_constbank_memory",
    6: "gzip_compress",
    7: "faulted_contexts_only",
    30: "no_errbar_at_exit",
    31: "log_only",
}


@dataclass(frozen=True, kw_only=True)
class GpuException:
    """A GPU exception (CUDBGException_t); `code` is None for a trap or breakpoint, which has no number."""

    code: int | None

    @property
    def name(self) -> str:
        """The phrase cuda-gdb prints, such as `Warp Illegal Address`."""
        if self.code is None:
            return "Trap Or Breakpoint"
        return _EXCEPTIONS.get(self.code, f"Exception {self.code}")

    @property
    def identifier(self) -> str | None:
        """The constant of `cudadebugger.h`, as the driver's progress lines print it; None without a known number."""
        if self.code not in _EXCEPTIONS:
            return None
        return "CUDBG_EXCEPTION_" + _CONSTANTS.get(self.code or 0, self.name).upper().replace("-", "_").replace(
            " ", "_"
        )

    @property
    def meaning(self) -> str | None:
        """The usual cause in one line, where there is one."""
        if self.code is None:
            return "a trap instruction: __trap(), an unreachable branch, or a debugger's breakpoint"
        return _MEANINGS.get(self.code)


def barrier_scope(number: int | None) -> str | None:
    """Return what a warp waits for at a barrier, such as `block`; None when it does not wait or the file cannot say."""
    return None if number is None else _BARRIER_SCOPES.get(number, f"scope {number}")


def thread_state(number: int | None) -> str | None:
    """Return the state the convergence barrier unit has for a thread; None when the file cannot say."""
    if number is None:
        return None
    if _FIRST_BARRIER <= number <= _LAST_BARRIER:
        return f"blocked on barrier B{number - _FIRST_BARRIER}"
    return _THREAD_STATES.get(number, f"state {number}")


def kernel_type(number: int) -> str:
    """Return whether a kernel is the application's or the system's."""
    return _KERNEL_TYPES.get(number, f"type {number}")


def grid_status(number: int) -> str:
    """Return the state of a grid."""
    return _GRID_STATUSES.get(number, f"status {number}")


def grid_origin(number: int) -> str:
    """Return who launched a grid."""
    return _ORIGINS.get(number, f"origin {number}")


def generation_flags(bits: int) -> tuple[str, ...]:
    """Return the words of CUDA_COREDUMP_GENERATION_FLAGS that a metadata row's flags stand for."""
    return tuple(_FLAGS.get(bit, f"bit {bit}") for bit in range(32) if bits >> bit & 1)
