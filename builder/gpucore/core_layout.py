"""The rows of a GPU core dump's tables, and the section types that hold them.

Source: NVIDIA's `cudacoredump.h`, "Public format description of the CUDA coredump", up to driver branch r575; the
fields of r580 to r615 as LLDB's `nvgpu-core` plug-in reads them. Each branch appended fields, so a row is as long as
the section's `sh_entsize` says and a field exists only where it fits: fields that a file lacks are None.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum
from functools import cached_property, lru_cache, partial
from itertools import repeat
from operator import add
from typing import Final, Generic, NamedTuple, TypeVar

from gpucore.elf import Buffer


class SectionType(IntEnum):
    """Types of a core's sections: SHT_LOUSER plus the number in `cudacoredump.h`."""

    MANAGED_MEMORY = 0x80000001
    GLOBAL_MEMORY = 0x80000002
    LOCAL_MEMORY = 0x80000003
    SHARED_MEMORY = 0x80000004
    REGISTERS = 0x80000005
    IMAGE = 0x80000006
    RELOCATED_IMAGE = 0x80000007
    BACKTRACE = 0x80000008
    DEVICES = 0x80000009
    CONTEXTS = 0x8000000A
    SMS = 0x8000000B
    GRIDS = 0x8000000C
    CTAS = 0x8000000D
    WARPS = 0x8000000E
    LANES = 0x8000000F
    MODULES = 0x80000010
    PREDICATES = 0x80000011
    PARAMETERS = 0x80000012
    UNIFORM_REGISTERS = 0x80000013  # r400
    UNIFORM_PREDICATES = 0x80000014
    CONSTANT_BANKS = 0x80000015  # r550
    METADATA = 0x80000016  # r565
    CONVERGENCE_BARRIERS = 0x80000017  # r575

    @property
    def words(self) -> str:
        """The kind in plain words, such as `uniform registers`."""
        return self.name.lower().replace("_", " ")


PARENTS: Final = {
    SectionType.CONTEXTS: SectionType.DEVICES,
    SectionType.SMS: SectionType.DEVICES,
    SectionType.GRIDS: SectionType.DEVICES,
    SectionType.CTAS: SectionType.SMS,
    SectionType.WARPS: SectionType.CTAS,
    SectionType.LANES: SectionType.WARPS,
    SectionType.MODULES: SectionType.CONTEXTS,
    SectionType.RELOCATED_IMAGE: SectionType.MODULES,
    SectionType.IMAGE: SectionType.MODULES,
}
"""The table on whose rows the sections of a kind hang."""

LEAVES: Final = {
    SectionType.REGISTERS: True,
    SectionType.PREDICATES: True,
    SectionType.BACKTRACE: True,
    SectionType.UNIFORM_REGISTERS: False,
    SectionType.UNIFORM_PREDICATES: False,
    SectionType.CONVERGENCE_BARRIERS: False,
}
"""The kinds that are read when asked for; whether each hangs on a lane's row, else on a warp's."""


class DeviceRow(NamedTuple):
    """A GPU; the three names are offsets in `.strtab`."""

    name: int
    type: int
    sm_type: int
    device_id: int
    pci_bus: int
    pci_device: int
    sms: int
    warps_per_sm: int
    lanes_per_warp: int
    registers_per_lane: int
    predicates_per_lane: int
    sm_major: int
    sm_minor: int
    instruction_size: int
    status: int
    uniform_registers_per_warp: int | None = None  # r400
    uniform_predicates_per_warp: int | None = None
    convergence_barriers_per_warp: int | None = None  # r575


class ContextRow(NamedTuple):
    """A CUDA context; the windows are virtual addresses, `thread_id` the host thread that made it."""

    context_id: int
    shared_window: int
    local_window: int
    global_window: int
    device_index: int
    thread_id: int


class ModuleRow(NamedTuple):
    """A loaded module."""

    handle: int


class GridRow(NamedTuple):
    """A kernel launch; its name is not stored but found by `function_entry` in the module's relocated image.

    Driver 580 writes the grid (1,1,1) for cooperative launches: the reader has that of constant bank 0, or zeros.
    """

    grid_id: int
    context_id: int
    function: int
    function_entry: int
    module_handle: int
    parent_grid_id: int
    parameters_offset: int
    kernel_type: int
    origin: int
    status: int
    registers: int
    grid_x: int
    grid_y: int
    grid_z: int
    block_x: int
    block_y: int
    block_z: int
    launch_blocking: int
    host_thread_id: int
    cluster_x: int | None = None  # r525
    cluster_y: int | None = None
    cluster_z: int | None = None
    preferred_cluster_x: int | None = None  # r565
    preferred_cluster_y: int | None = None
    preferred_cluster_z: int | None = None


class ConstantBankRow(NamedTuple):
    """A constant bank of a grid (r550)."""

    address: int
    size: int
    bank: int


class SmRow(NamedTuple):
    """A streaming multiprocessor; from r555 it keeps an exception even when its warps have exited."""

    sm_id: int
    exception: int | None = None  # r555
    error_pc_valid: int | None = None
    error_pc: int | None = None
    cluster_target_valid: int | None = None  # r565
    cluster_target_x: int | None = None
    cluster_target_y: int | None = None
    cluster_target_z: int | None = None
    exception_string: int | None = None  # r580, an offset in `.strtab`


class CtaRow(NamedTuple):
    """A thread block that was resident."""

    grid_id: int
    block_x: int
    block_y: int
    block_z: int
    cluster_index_x: int | None = None  # r525
    cluster_index_y: int | None = None
    cluster_index_z: int | None = None
    cluster_x: int | None = None  # r565
    cluster_y: int | None = None
    cluster_z: int | None = None


class WarpRow(NamedTuple):
    """A warp; masks have bit n for lane n, `error_pc` is the faulting instruction where `error_pc_valid`."""

    error_pc: int
    warp_id: int
    valid_lanes: int
    active_lanes: int
    broken: int
    error_pc_valid: int
    registers: int | None = None  # r525
    shared_memory: int | None = None  # r570
    in_syscall_lanes: int | None = None  # r575
    convergence_active_lanes: int | None = None
    convergence_exited_lanes: int | None = None
    convergence_collective_lanes: int | None = None
    barrier_scope: int | None = None  # r590
    barrier_info: int | None = None  # an offset in `.strtab`


class LaneRow(NamedTuple):
    """A thread; `virtual_pc` is its program counter, usually some instructions past the faulting one."""

    virtual_pc: int
    physical_pc: int
    lane: int
    thread_x: int
    thread_y: int
    thread_z: int
    exception: int
    call_depth: int
    syscall_depth: int
    condition_codes: int
    thread_state: int | None = None  # r575
    rpc_low: int | None = None  # r615
    rpc_high: int | None = None


class BacktraceRow(NamedTuple):
    """A caller of a thread's function; `return_offset` is an offset in the caller."""

    return_offset: int
    return_pc: int
    level: int


class MetadataRow(NamedTuple):
    """What wrote the file (r565); the generator's name is an offset in `.strtab`, `timestamp` seconds of the epoch."""

    generator: int
    driver_major: int
    driver_minor: int
    cuda_major: int
    cuda_minor: int
    flags: int
    timestamp: int


RowT = TypeVar("RowT", bound=tuple[int | None, ...])


@dataclass(frozen=True)
class Layout(Generic[RowT]):
    """The fields of one table in file order: Q is 8 bytes, I is 4, p is 4 bytes of padding.

    Blanks part what each driver branch appended; the part before the first is there in every file.
    """

    row: type[RowT]
    fields: str
    since: tuple[int, ...] = ()  # the branches that appended the parts after the first

    def branches(self, entry_size: int) -> tuple[int, int]:
        """Return the driver branches, first and one past the last, that write rows of a size."""
        fits = sum(size <= entry_size for size in self.sizes)
        limits = (0, *self.since, _NEVER)
        return limits[fits - 1], limits[fits]

    @cached_property
    def sizes(self) -> tuple[int, ...]:
        """Row sizes in bytes after each driver branch, oldest first."""
        parts = self.fields.split()
        return tuple(sum(_SIZE[c] for c in "".join(parts[: n + 1])) for n in range(len(parts)))

    @property
    def smallest(self) -> int:
        """The size in bytes of the oldest row known."""
        return self.sizes[0]

    def form(self, entry_size: int) -> struct.Struct:
        """Return how a row of `entry_size` bytes is packed: the fields that fit, then bytes without a known name."""
        return _form(self.fields.replace(" ", ""), entry_size)

    def rows(self, table: Buffer, entry_size: int) -> Iterator[RowT]:
        """Yield the whole rows of a table; `entry_size` must not be below `smallest`."""
        if entry_size > len(table):
            return
        form = self.form(entry_size)
        missing: tuple[int | None, ...] = (None,) * (_count(self.fields) - _count(form.format))
        values: Iterator[tuple[int | None, ...]] = form.iter_unpack(
            memoryview(table)[: len(table) - len(table) % entry_size]
        )
        # A core has a row for each thread: `self.row(*values)` takes four times as long.
        yield from map(partial(tuple.__new__, self.row), map(add, values, repeat(missing)) if missing else values)


def _count(fields: str) -> int:
    """Return how many fields a form has, padding left out."""
    return fields.count("Q") + fields.count("I")


_SIZE = {"Q": 8, "I": 4, "p": 4}


@lru_cache(maxsize=256)
def _form(fields: str, entry_size: int) -> struct.Struct:
    packed, used = "<", 0
    for field in fields:
        if used + _SIZE[field] > entry_size:
            break
        packed += "4x" if field == "p" else field
        used += _SIZE[field]
    return struct.Struct(f"{packed}{entry_size - used}x")


_NEVER: Final = 1 << 16
DEVICE = Layout(DeviceRow, "QQQIIIIIIIIIIII II Ip", (400, 575))
CONTEXT = Layout(ContextRow, "QQQQII")
MODULE = Layout(ModuleRow, "Q")
GRID = Layout(GridRow, "QQQQQQQIIIIIIIIIIII IIIp IIIp", (525, 565))
CONSTANT_BANK = Layout(ConstantBankRow, "QII")
SM = Layout(SmRow, "Ip IIQ IIII Q", (555, 565, 580))
CTA = Layout(CtaRow, "QIIIp IIIp IIIp", (525, 565))
WARP = Layout(WarpRow, "QIIIIIp Ip Ip IIII IpQ", (525, 570, 575, 590))
LANE = Layout(LaneRow, "QQIIIIIIII Ip II", (575, 615))
BACKTRACE = Layout(BacktraceRow, "QQIp")
METADATA = Layout(MetadataRow, "QIIIIII")


# The names of the numbers in a GPU core dump; a number without a name is shown as a number, never dropped.
#
# Source: `cudadebugger.h` (CUDBGException_t and others) up to CUDA 13.3, and LLDB's `nvgpu-core` plug-in.


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
    4: "the instruction, or what it was given, is not valid: a bad mbarrier or tensor map, or corrupted code",
    5: "an address outside the range of its memory: an index, a stack that is full, or a pointer that no memory has",
    6: "an address that is not a multiple of the access size",
    7: "an address where shared or local memory is mapped, often far out of bounds",
    8: "a jump to an address that holds no code: a bad function pointer or a smashed return address",
    9: "the call stack of the hardware is full",
    12: "a device-side assert() failed; its text is on the program's standard error",
    14: "a thread used an address that is not mapped: out of bounds, freed, or of another device",
    17: "a distributed shared memory access outside the cluster",
    18: "a distributed shared memory access to a block that has exited",
    19: "a stack canary was overwritten",
    30: "the memory management unit refused an access",
    35: "a thread's stack is full: deep recursion or large local arrays",
}

_UNMAPPED: Final = frozenset({1, 10, 14})

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
    def unmapped(self) -> bool:
        """Whether it says that the GPU found no memory at an address that it may access."""
        return self.code in _UNMAPPED

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
