"""Compares what a core says twice: the grid's kernel, the image's names and line table, and where the PC is.

An image in a dump has no checksum, so one flipped bit can name another kernel or line. A kernel's name is in the symbol
and in the section table, and a line table has to end where its code does; a changed digit in it leaves no trace.
"""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from enum import StrEnum
from operator import attrgetter
from typing import Final

from gpucore.code_map import LineSource, Location, contradictions_of_names, find_contradictions
from gpucore.core_layout import (
    BACKTRACE,
    CONSTANT_BANK,
    EXITED,
    BacktraceRow,
    GpuException,
    GridRow,
    LaneRow,
    SectionType,
    SmRow,
    barrier_scope,
    thread_state,
)
from gpucore.core_reader import CoreSections, Cta, Device, Dim3, GpuCore, Module, Sm, Warp, read_core
from gpucore.elf import Buffer, ParameterPlace, ParameterTable, read_parameter_table
from gpucore.errors import UnreadableBinary
from gpucore.mangling import demangle, parameter_types, short_name


def find_doubts(
    core: GpuCore, device: Device, pc: int | None, grid: GridRow | None, grid_id: int | None
) -> tuple[str, ...]:
    """Return what contradicts the names and the chain found for a PC, in words; empty where all agrees."""
    doubts = []
    if grid is None and grid_id is not None:
        doubts.append(f"its block belongs to launch {grid_id}, which the dump does not list")
    found = core.find_code(pc, device, grid.module_handle if grid else None) if pc is not None else None
    location = found[0].locate(found[1]) if found else None
    if found and location:
        doubts += find_contradictions(*found, location)
    launched = core.find_code(grid.function_entry, device, grid.module_handle) if grid else None
    if grid and launched:
        entry = launched[0].locate(launched[1])
        if entry.kernel is None or entry.offset:
            doubts.append(f"the launch's entry {grid.function_entry:#x} is not the start of a kernel")
        else:
            doubts += contradictions_of_names(launched[0], entry)
        if location and location.kernel and entry.kernel and location.kernel.name != entry.kernel.name:
            doubts.append(f"the PC is in {location.kernel.demangled}, the launch is of {entry.kernel.demangled}")
    elif grid and grid.function_entry and any(module.relocated for module in device.modules):
        doubts.append(f"the launch's entry {grid.function_entry:#x} is in no loaded code")
    return tuple(dict.fromkeys(doubts))


# Says where a GPU core's faults are: in a lane, in a warp, or in an SM whose warps have already exited.
#
# A thread's own exception is the most precise; a warp's error PC covers its active lanes, which then share the SM's
# exception; an SM's row is all that is left when the faulting warps are gone, and such a core may hold no thread at
# all. (The order is that of LLDB's `nvgpu-core`. cuda-gdb 12.4 does not look at the SM and calls such a core clean.)


class Scope(StrEnum):
    """The row that holds the exception, most precise first."""

    LANE = "lane"
    WARP = "warp"
    SM = "sm"


_ORDER: Final = tuple(Scope)
_INSTRUCTION: Final = 16  # bytes, on every architecture since sm_70
_ASSERT: Final = 12
# A thread that traps, or whose assert fails, has no error PC: it is behind the trap, or the call that says so.
_CALLS: Final = frozenset({0x143, 0x144})
_STOPPED_BEHIND: Final[dict[int | None, frozenset[int]]] = {
    None: frozenset({0x15C}),  # BPT
    _ASSERT: _CALLS,
}
_EXCEPTION: Final = attrgetter("exception")


@dataclass(frozen=True, kw_only=True)
class Coordinates:
    """A thread: blockIdx and threadIdx, and the hardware it ran on.

    `cluster` is the index of its block's cluster in the grid, `block_in_cluster` that of the block in the cluster; both
    are None where the launch has no clusters, or the dump is older than they are.
    """

    block: Dim3
    thread: Dim3
    sm: int
    warp: int
    lane: int
    cluster: Dim3 | None = None
    block_in_cluster: Dim3 | None = None


@dataclass(frozen=True, kw_only=True)
class FaultingThread:
    """A thread of a fault, with the rows to look up its registers by."""

    at: Coordinates
    warp: Warp
    row: LaneRow
    row_index: int


@dataclass(frozen=True, kw_only=True)
class Call:
    """A call that a thread is in: where it returns to, and what is at the call; None where no loaded code is there."""

    level: int
    return_pc: int
    return_offset: int
    location: Location | None


@dataclass(frozen=True, kw_only=True)
class Fault:
    """Threads that met one exception at one instruction of one launch.

    `pc` is None when the file holds no PC at all. `precise` says that it is the faulting instruction, not where a
    thread was when it was stopped. `scope` is the most precise row that has the exception. `threads` is 0 where the
    threads are gone; `sms` are hardware numbers. `calls_out` is 0 but where the PC lies in code that the dump does not
    hold: `location` is then that of the call this many calls further out. `doubts` are contradictions between grid,
    image and PC: with any, the names or the chain may be wrong. `calls` are those that the first thread is in, the
    nearest first. `faulted` are the indices of its `blocks`.
    """

    exception: GpuException
    scope: Scope
    device: Device
    pc: int | None
    precise: bool
    grid: GridRow | None
    kernel: str | None
    location: Location | None
    threads: int
    warps: int
    blocks: int
    first: FaultingThread | None
    sms: tuple[int, ...]
    cluster_target: Dim3 | None
    exception_string: str | None
    calls_out: int = 0
    doubts: tuple[str, ...] = ()
    calls: tuple[Call, ...] = ()
    faulted: frozenset[Dim3] = frozenset()


@dataclass(frozen=True, kw_only=True)
class _Sighting:
    """One warp's or SM's share of a fault, before grouping."""

    exception: int | None
    scope: Scope
    pc: int | None
    precise: bool
    grid_id: int | None
    sm: Sm
    cta: Cta | None
    warp: Warp | None
    lanes: tuple[tuple[int, LaneRow], ...]


def find_faults(core: GpuCore) -> tuple[Fault, ...]:
    """Return every fault of a core: lanes before warps before SMs, then those of more threads first."""
    faults = [fault for device in core.devices for fault in _faults_of(core, device)]
    return tuple(sorted(faults, key=lambda f: (f.device.index, _ORDER.index(f.scope), not f.precise, -f.threads)))


def kernel_name(core: GpuCore, device: Device, grid: GridRow | None) -> str | None:
    """Return the mangled name of a launch's kernel: the function at its entry in its module."""
    if grid is None:
        return None
    found = core.find_code(grid.function_entry, device, grid.module_handle)
    if found is None:
        return None
    kernel, inner = found[0].functions_at(found[1])
    outer = kernel or inner
    return outer.name if outer else None


def locate(core: GpuCore, device: Device, pc: int | None, grid: GridRow | None) -> Location | None:
    """Return what is at a PC, in the module of the launch first."""
    found = core.find_code(pc, device, grid.module_handle if grid else None) if pc is not None else None
    return found[0].locate(found[1]) if found else None


def coordinates(sm: Sm, cta: Cta, warp: Warp, lane: LaneRow) -> Coordinates:
    """Return where a thread was."""
    thread = (lane.thread_x, lane.thread_y, lane.thread_z)
    return Coordinates(
        block=cta.block, thread=thread, sm=sm.row.sm_id, warp=warp.row.warp_id, lane=lane.lane,
        cluster=cta.cluster, block_in_cluster=cta.block_in_cluster,
    )  # fmt: skip


def _faults_of(core: GpuCore, device: Device) -> Iterator[Fault]:
    groups: dict[tuple[int | None, int | None, int | None], list[_Sighting]] = {}
    gone = []
    late = _Late(core, device)
    for sighting in _sightings(device):
        if sighting.cta and sighting.warp and late.marks(sighting.cta, sighting.warp):
            gone.append(replace(sighting, scope=Scope.SM, grid_id=None, cta=None, warp=None, lanes=()))
        elif sighting.scope is Scope.SM:
            gone.append(sighting)
        else:
            groups.setdefault((sighting.exception, sighting.pc, sighting.grid_id), []).append(sighting)
    for sighting in gone:  # where threads of another SM met it at the same instruction, it is the same fault
        same = [key for key in groups if key[:2] == (sighting.exception, sighting.pc) and sighting.precise]
        groups.setdefault(same[0] if same else (sighting.exception, sighting.pc, None), []).append(sighting)
    for group in groups.values():
        yield _fault(core, device, group)


class _Late:
    """Knows the warps that are marked for what a kernel before theirs did.

    A kernel does not wait for its stores. Where one fails after its warps have gone, the warp that is then in their
    place is marked: its error PC is in another kernel than that of its launch, where it is itself.
    """

    def __init__(self, core: GpuCore, device: Device) -> None:
        self._core, self._device = core, device
        self._known: dict[tuple[int, int, int], bool] = {}

    def marks(self, cta: Cta, warp: Warp) -> bool:
        """Return whether the exception of a warp is not its own."""
        at = next((lane.virtual_pc for _, lane in warp.threads()), None) if warp.row.error_pc_valid else None
        if at is None:
            return False
        key = (cta.row.grid_id, warp.row.error_pc, at)
        if key not in self._known:
            grid = self._device.grids_by_id.get(cta.row.grid_id)
            failed, own, stands = (
                self._kernel(pc, grid) for pc in (warp.row.error_pc, grid.function_entry if grid else 0, at)
            )
            self._known[key] = bool(failed and own and failed != own and stands == own)
        return self._known[key]

    def _kernel(self, pc: int, grid: GridRow | None) -> str | None:
        found = self._core.find_code(pc, self._device, grid.module_handle if grid else None)
        kernel = found[0].functions_at(found[1])[0] if found else None
        return kernel.name if kernel else None


def _sightings(device: Device) -> Iterator[_Sighting]:
    for sm in device.sms:
        seen = [s for cta in sm.ctas for warp in cta.warps for s in _of_warp(sm, cta, warp)]
        row = sm.row
        pc = row.error_pc if row.error_pc_valid else None
        # One exception is marked in up to three rows: a lane's has no error PC, an SM's has no thread.
        shared = [] if any(s.precise and pc in (None, s.pc) for s in seen) else _without_error_pc(seen, row)
        yield from (s for s in seen if s not in shared)
        for sighting in shared:
            marked = replace(sighting, exception=row.exception or sighting.exception)
            yield marked if pc is None else replace(marked, pc=pc, precise=True)
        explained = shared or any(pc in (None, s.pc) and s.exception is not None for s in seen)
        if (row.exception or pc is not None) and not explained:
            yield _Sighting(
                exception=row.exception or 0, scope=Scope.SM, pc=pc, precise=pc is not None, grid_id=None,
                sm=sm, cta=None, warp=None, lanes=(),
            )  # fmt: skip


def _without_error_pc(seen: list[_Sighting], row: SmRow) -> list[_Sighting]:
    """Return what the SM's mark may be of: lanes with its exception, else broken warps where no warp has any."""
    if not row.exception:
        return []
    lanes = [s for s in seen if not s.precise and s.exception == row.exception]
    return lanes or ([] if any(s.exception is not None for s in seen) else seen)


def _of_warp(sm: Sm, cta: Cta, warp: Warp) -> Iterator[_Sighting]:
    row = warp.row
    faulting: dict[tuple[int, int], list[tuple[int, LaneRow]]] = {}
    for index, lane in warp.threads() if any(map(_EXCEPTION, warp.lanes)) else ():
        if lane.exception:
            pc = row.error_pc if row.error_pc_valid else lane.virtual_pc
            faulting.setdefault((lane.exception, pc), []).append((index, lane))
    grid = cta.row.grid_id
    for (exception, place), lanes in faulting.items():
        yield _Sighting(
            exception=exception, scope=Scope.LANE, pc=place, precise=bool(row.error_pc_valid), grid_id=grid,
            sm=sm, cta=cta, warp=warp, lanes=tuple(lanes),
        )  # fmt: skip
    if faulting:
        return
    if not (row.error_pc_valid or row.broken):
        return
    active = tuple((index, lane) for index, lane in warp.threads() if warp.is_active(lane))
    if row.error_pc_valid:
        yield _Sighting(
            exception=sm.row.exception or 0, scope=Scope.WARP, pc=row.error_pc, precise=True, grid_id=grid,
            sm=sm, cta=cta, warp=warp, lanes=active,
        )  # fmt: skip
    else:
        # There is no exception number for a trap: "broken" without any other mark is all the hardware has.
        stopped = active[0][1].virtual_pc if active else None
        yield _Sighting(
            exception=None, scope=Scope.WARP, pc=stopped, precise=False, grid_id=grid,
            sm=sm, cta=cta, warp=warp, lanes=active,
        )  # fmt: skip


def _fault(core: GpuCore, device: Device, group: list[_Sighting]) -> Fault:
    one = min(group, key=lambda s: _ORDER.index(s.scope))
    grid = device.grids_by_id.get(one.grid_id) if one.grid_id is not None else None
    if not one.precise and one.exception in _STOPPED_BEHIND and one.pc is not None:
        before = one.pc - _INSTRUCTION
        if _opcode(core, device, before, grid) in _STOPPED_BEHIND[one.exception]:
            one = replace(one, pc=before, precise=True)
    location = locate(core, device, one.pc, grid)
    enclosing = location.kernel.name if location and location.kernel else None
    if grid is None and enclosing:
        # The warps are gone, and with them the link to their launch; only one launch of that kernel leaves no doubt.
        launches = [g for g in device.grids if kernel_name(core, device, g) == enclosing]
        grid = launches[0] if len(launches) == 1 else None
    return Fault(
        exception=GpuException(code=one.exception),
        scope=one.scope,
        device=device,
        pc=one.pc,
        precise=one.precise,
        grid=grid,
        kernel=kernel_name(core, device, grid) or enclosing,
        location=location,
        threads=sum(len(s.lanes) for s in group),
        warps=sum(s.warp is not None for s in group),
        blocks=len({(s.grid_id, s.cta.block) for s in group if s.cta}),
        first=_first(group),
        sms=tuple(sorted({s.sm.row.sm_id for s in group})),
        cluster_target=next((t for t in (_cluster_target(s.sm.row) for s in group) if t), None),
        exception_string=next((s.sm.exception_string for s in group if s.sm.exception_string), None),
        doubts=find_doubts(core, device, one.pc, grid, one.grid_id),
        faulted=frozenset(s.cta.block for s in group if s.cta),
    )


def _opcode(core: GpuCore, device: Device, pc: int, grid: GridRow | None) -> int | None:
    """Return the low 9 bits of the instruction at a PC, which name it; None where its code is not held."""
    found = core.find_code(pc, device, grid.module_handle if grid else None)
    if found is None:
        return None
    code, place = found
    try:
        held = code.elf.contents(code.elf.sections[place.section])[place.offset : place.offset + _INSTRUCTION]
    except UnreadableBinary:
        return None
    return int.from_bytes(held[:2], "little") & 0x1FF if held else None


def _first(group: list[_Sighting]) -> FaultingThread | None:
    threads = [
        FaultingThread(at=coordinates(s.sm, s.cta, s.warp, lane), warp=s.warp, row=lane, row_index=index)
        for s in group
        if s.cta and s.warp
        for index, lane in s.lanes
    ]
    return min(threads, key=lambda t: (t.at.block[::-1], t.at.thread[::-1]), default=None)


def _cluster_target(row: SmRow) -> Dim3 | None:
    if not row.cluster_target_valid:
        return None
    return row.cluster_target_x or 0, row.cluster_target_y or 0, row.cluster_target_z or 0


# The registers of one thread of a GPU core, and of the warp it is in.


@dataclass(frozen=True, kw_only=True)
class Registers:
    """Register files by number, 32 bits each; predicates are 0 or 1. A file that the core lacks is empty."""

    general: tuple[int, ...]
    predicates: tuple[int, ...]
    uniform: tuple[int, ...]
    uniform_predicates: tuple[int, ...]
    barriers: tuple[int, ...]
    backtrace: tuple[BacktraceRow, ...]


def backtrace(sections: CoreSections, thread: FaultingThread) -> tuple[BacktraceRow, ...]:
    """Return the calls a thread is in, the nearest first; empty where the dump holds none."""
    table = thread.warp.lane_table
    rows = None if table is None else sections.bytes_of(SectionType.BACKTRACE, table, thread.row_index)
    found = BACKTRACE.rows(rows, BACKTRACE.smallest) if rows else ()
    return tuple(sorted((row for row in found if row.return_pc), key=lambda row: row.level))


def read_registers(sections: CoreSections, thread: FaultingThread) -> Registers:
    """Return the registers of a thread and of its warp."""

    def of_lane(kind: SectionType) -> memoryview | None:
        table = thread.warp.lane_table
        return None if table is None else sections.bytes_of(kind, table, thread.row_index)

    def of_warp(kind: SectionType) -> memoryview | None:
        return sections.bytes_of(kind, thread.warp.table, thread.warp.index)

    return Registers(
        general=_words(of_lane(SectionType.REGISTERS)),
        predicates=_words(of_lane(SectionType.PREDICATES)),
        uniform=_words(of_warp(SectionType.UNIFORM_REGISTERS)),
        uniform_predicates=_words(of_warp(SectionType.UNIFORM_PREDICATES)),
        barriers=_words(of_warp(SectionType.CONVERGENCE_BARRIERS)),
        backtrace=backtrace(sections, thread),
    )


def _words(data: memoryview | None) -> tuple[int, ...]:
    return tuple(int.from_bytes(data[at : at + 4], "little") for at in range(0, len(data) // 4 * 4, 4)) if data else ()


# Follows the return addresses of a fault's first thread, by the backtrace of its lane, the nearest call first.
#
# A thread in a system call is in no loaded module, so its PC alone names no line: the call that led there, which is the
# instruction before the return address, does. A function that was not inlined has its callers here too.


def with_callers(core: GpuCore, data: Buffer, faults: tuple[Fault, ...]) -> tuple[Fault, ...]:
    """Return the faults with their calls; those outside of all loaded code with the place they were called from."""
    if not any(fault.first for fault in faults):
        return faults
    sections = CoreSections(data)
    return tuple(_with_calls(core, sections, fault, fault.first) if fault.first else fault for fault in faults)


def _with_calls(core: GpuCore, sections: CoreSections, fault: Fault, first: FaultingThread) -> Fault:
    width = fault.device.row.instruction_size or _INSTRUCTION
    rows = [_in_kernel(core, fault, row) for row in backtrace(sections, first)]
    calls = tuple(
        Call(
            level=row.level, return_pc=row.return_pc, return_offset=row.return_offset,
            location=locate(core, fault.device, row.return_pc - width, fault.grid),
        )
        for row in rows
    )  # fmt: skip
    here = locate(core, fault.device, first.row.virtual_pc, fault.grid)
    if fault.location is not None and here is not None and here.function != fault.location.function:
        return fault  # the thread has returned since, and its calls are those of another function
    fault = replace(fault, calls=calls)
    if fault.location is not None:
        return fault
    for number, call in enumerate(calls, 1):
        if call.location:
            kernel = call.location.kernel.name if call.location.kernel else None
            return replace(fault, location=call.location, kernel=fault.kernel or kernel, calls_out=number)
    return fault


def _in_kernel(core: GpuCore, fault: Fault, row: BacktraceRow) -> BacktraceRow:
    """Return a row with the PC in the kernel where the driver wrote the offset alone, and a call is there.

    Driver 580 does so for a thread that jumped to what is no code.
    """
    if row.return_pc != row.return_offset or fault.grid is None:
        return row
    pc = fault.grid.function_entry + row.return_offset
    is_call = _opcode(core, fault.device, pc - _INSTRUCTION, fault.grid) in _CALLS
    return row._replace(return_pc=pc) if is_call else row


# The parameters and constant banks of a kernel launch, decoded by the parameter table of its cubin.
#
# `paramsOffset` of a grid is where its parameters start in constant bank 0; the section of parameter memory starts
# there too, as NVIDIA's libcudacore reads it. Without that section, bank 0 itself may be in the dumped memory.


_LARGEST: Final = 1 << 15  # bytes: CUDA passes 32,764 at most
_MOST_BANKS: Final = 256
_NUMBERS: Final = {
    "char": "b", "signed char": "b", "unsigned char": "B", "short": "h", "unsigned short": "H", "int": "i",
    "unsigned int": "I", "long": "q", "unsigned long": "Q", "long long": "q", "unsigned long long": "Q", "float": "f",
    "double": "d",
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Parameter:
    """A parameter; `offset` and `size` in bytes, `type` as the kernel's name has it, `data` None where it is not held.

    `value` is its text where the type says how to read it: numbers in decimal, pointers in hex.
    """

    index: int
    type: str | None
    offset: int
    size: int
    data: bytes | None

    @property
    def value(self) -> str | None:
        """The value as text; None for a type that is not a number, a pointer or a bool."""
        if self.data is None or self.type is None or not self.data:
            return None
        kind = self.type.removesuffix(" const")
        if kind.endswith(("*", "&")) and len(self.data) == 8:
            return f"{int.from_bytes(self.data, 'little'):#x}"
        if kind == "bool" and len(self.data) == 1:
            return "true" if self.data[0] else "false"
        form = _NUMBERS.get(kind)
        if form is None or struct.calcsize(f"<{form}") != len(self.data):
            return None
        return f"{struct.unpack(f'<{form}', self.data)[0]}"


@dataclass(frozen=True, kw_only=True)
class ConstantBank:
    """A constant bank of a launch: `address` is global, `held` says whether the dump has its contents."""

    number: int
    address: int
    size: int
    held: bool


@dataclass(frozen=True, kw_only=True)
class LaunchParameters:
    """What a dump holds of a launch's parameters; `problem` says why less than all of it is known.

    `data` are the bytes of all parameters as they are; None where the dump has none.
    """

    parameters: tuple[Parameter, ...]
    data: bytes | None
    banks: tuple[ConstantBank, ...]
    problem: str | None


def read_parameters(core: GpuCore, device: Device, index: int, sections: CoreSections) -> LaunchParameters:
    """Return the parameters and constant banks of the launch that is number `index` of a device."""
    grid, (table, row) = device.grids[index], device.grid_places[index]
    banks = tuple(_banks(sections, table, row))
    held = sections.bytes_of(SectionType.PARAMETERS, table, row)
    places, types, problem = _table(core, device, grid)
    data = bytes(held[:_LARGEST]) if held is not None else _in_bank(sections, banks, grid, places)
    if places and places.bank_offset not in (None, grid.parameters_offset):
        problem = (
            f"the launch's parameters start at {grid.parameters_offset:#x} of constant bank 0, "
            f"the kernel's at {places.bank_offset:#x}: they may be another kernel's"
        )
    if data is None:
        problem = problem or "the dump has neither its parameter memory nor constant bank 0 (a flag left them out)"
    elif places and places.size is not None and len(data) < places.size:
        problem = problem or f"{len(data)} of {places.size} bytes of parameters are in the dump"
    parameters = tuple(_parameter(at, types, data) for at in (places.parameters if places else ()))
    return LaunchParameters(parameters=parameters, data=data, banks=banks, problem=problem)


def _parameter(at: ParameterPlace, types: tuple[str, ...], data: bytes | None) -> Parameter:
    end = at.offset + at.size
    return Parameter(
        index=at.ordinal,
        type=types[at.ordinal] if at.ordinal < len(types) else None,
        offset=at.offset,
        size=at.size,
        data=data[at.offset : end] if data is not None and end <= len(data) else None,
    )


def _table(core: GpuCore, device: Device, grid: GridRow) -> tuple[ParameterTable | None, tuple[str, ...], str | None]:
    """Return the parameter table of a launch's kernel, its parameters' types, and why there is none."""
    found = core.find_code(grid.function_entry, device, grid.module_handle)
    location = found[0].locate(found[1]) if found else None
    if found is None or location is None or location.kernel is None:
        return None, (), "the dump holds no image of its kernel"
    name = location.kernel.name
    try:
        table = read_parameter_table(found[0].elf, name)
    except UnreadableBinary as error:
        return None, (), f"the parameter table of its kernel is not readable: {error.what}"
    if table is None:
        return None, (), "the image has no parameter table for its kernel"
    types = parameter_types(demangle(name))
    return table, types if len(types) == len(table.parameters) else (), None


def _banks(sections: CoreSections, table: int, row: int) -> Iterator[ConstantBank]:
    rows = sections.bytes_of(SectionType.CONSTANT_BANKS, table, row)
    if not rows:
        return
    for bank in list(CONSTANT_BANK.rows(rows[: _MOST_BANKS * CONSTANT_BANK.smallest], CONSTANT_BANK.smallest)):
        held = sections.memory(bank.address, bank.size) is not None
        yield ConstantBank(number=bank.bank, address=bank.address, size=bank.size, held=held)


def _in_bank(
    sections: CoreSections, banks: tuple[ConstantBank, ...], grid: GridRow, places: ParameterTable | None
) -> bytes | None:
    bank = next((bank for bank in banks if bank.number == 0), None)
    if bank is None or bank.size <= grid.parameters_offset:
        return None
    size = bank.size - grid.parameters_offset
    if places and places.size is not None:
        size = min(size, places.size)
    held: Buffer | None = sections.memory(bank.address + grid.parameters_offset, min(size, _LARGEST))
    return bytes(held) if held is not None else None


# Says where every warp of a GPU core is, grouped by place: the picture of a hang.


@dataclass(frozen=True, kw_only=True)
class WarpGroup:
    """Warps of one launch that are at one instruction in one state.

    A warp whose lanes have diverged is counted once at each place it is. `state` is the most telling word for it,
    `barrier` what it waits for at a barrier, `barrier_words` the driver's message on it (r590 and later),
    `thread_states` the convergence unit's states of the threads (r575 and later) with their counts.
    """

    device: Device
    pc: int
    grid_id: int
    grid: GridRow | None
    kernel: str | None
    location: Location | None
    state: str
    barrier: str | None
    barrier_words: str | None
    thread_states: tuple[tuple[str, int], ...]
    warps: int
    threads: int
    blocks: int
    first: Coordinates

    @property
    def waits_for_others(self) -> bool:
        """Whether other threads hold it up: of a hang it is not the cause."""
        return bool(self.barrier) or self.state.startswith(("blocked", "waiting"))


@dataclass
class _Tally:
    first: Coordinates
    warps: int = 0
    threads: int = 0
    blocks: set[Dim3] = field(default_factory=set)
    states: Counter[str] = field(default_factory=Counter)


_FAULTED: Final = "faulted"
_Key = tuple[int, int, str, str | None, str | None]


def group_warps(core: GpuCore) -> tuple[WarpGroup, ...]:
    """Return where all warps are: those that faulted first, then the place of most warps."""
    found = [group for device in core.devices for group in _of_device(core, device)]
    return tuple(sorted(found, key=lambda s: (s.state != _FAULTED, -s.warps, -s.threads, s.device.index, s.pc)))


def _of_device(core: GpuCore, device: Device) -> Iterator[WarpGroup]:
    tallies: dict[_Key, _Tally] = {}
    late = _Late(core, device)
    for sm, cta, warp in device.warps():
        _count(tallies, sm, cta, warp, marked=not late.marks(cta, warp))
    kernels: dict[int, str | None] = {}
    for (grid_id, pc, state, barrier, words), tally in tallies.items():
        grid = device.grids_by_id.get(grid_id)
        location = locate(core, device, pc, grid)
        if grid_id not in kernels:
            kernels[grid_id] = kernel_name(core, device, grid)
        enclosing = location.kernel.name if location and location.kernel else None
        yield WarpGroup(
            device=device, pc=pc, grid_id=grid_id, grid=grid, kernel=kernels[grid_id] or enclosing, location=location,
            state=state, barrier=barrier, barrier_words=words, thread_states=tuple(tally.states.most_common()),
            warps=tally.warps, threads=tally.threads, blocks=len(tally.blocks), first=tally.first,
        )  # fmt: skip


def _count(tallies: dict[_Key, _Tally], sm: Sm, cta: Cta, warp: Warp, *, marked: bool) -> None:
    barrier = barrier_scope(warp.row.barrier_scope)
    counted: set[_Key] = set()
    for (pc, active, number), lanes in _alike(warp).items():
        known = _thread_state(number, active)
        failed = marked and (warp.row.error_pc_valid or warp.row.broken or any(map(_EXCEPTION, lanes)))
        state = _FAULTED if failed and active else _state(active, known, barrier)
        key = (cta.row.grid_id, pc, state, barrier, warp.barrier_words)
        tally = tallies.get(key)
        if tally is None:
            tally = tallies[key] = _Tally(first=coordinates(sm, cta, warp, lanes[0]))
        tally.warps += key not in counted
        counted.add(key)
        tally.threads += len(lanes)
        tally.blocks.add(cta.block)
        if known:
            tally.states[known] += len(lanes)


def _alike(warp: Warp) -> dict[tuple[int, bool, int | None], list[LaneRow]]:
    """Return the valid lanes by PC, by whether they are active, and by thread state: few kinds among many lanes."""
    valid, executing = warp.row.valid_lanes, warp.row.active_lanes
    found: dict[tuple[int, bool, int | None], list[LaneRow]] = {}
    for lane in warp.lanes:
        pc, bit = lane[0], 1 << (lane[2] & 31)
        if valid & bit and (pc or any(lane)):
            found.setdefault((pc, executing & bit != 0, lane[10]), []).append(lane)
    return found


def _state(active: bool, known: str | None, barrier: str | None) -> str:
    if barrier and active:
        return f"waiting at a {barrier} barrier"
    if known and known.startswith("blocked"):
        return "waiting for other threads of its warp"
    if known and known != "ready":
        return known
    return "running" if active else "diverged, waiting its turn"


def _thread_state(number: int | None, active: bool) -> str | None:
    """Return the state of threads; a lane that executes has not exited, whatever a table filled with zeros says."""
    known = thread_state(number)
    return None if known == EXITED and active else known


# All that is reported of one GPU core dump: the value in the middle that every report of it is written from.


_GROUPS_CHECKED: Final = 64
_UNLOADED: Final = (
    "its kernel had ended, and the module was unloaded, before its exception was seen: a kernel does not wait for "
    "its stores; memcheck of compute-sanitizer checks each access where it is made"
)


@dataclass(frozen=True, kw_only=True)
class Launch:
    """A grid that was on a device, with the mangled name of its kernel where that could be found.

    `parameters` are None where they were not asked for.
    """

    device: Device
    grid: GridRow
    kernel: str | None
    parameters: LaunchParameters | None = None


@dataclass(frozen=True, kw_only=True)
class DecodedCore:
    """A core read to its end: nothing in here still looks at the file's bytes.

    `registers` are those of each fault's first thread, in the order of `faults`, where they were asked for and exist.
    `loaded` names the kernels of modules that hang on no device: all that is known of a core without its tables.
    `modified` is the file's time in seconds of the epoch, for cores that carry none themselves.
    """

    file: str
    modified: float | None
    core: GpuCore
    faults: tuple[Fault, ...]
    warp_groups: tuple[WarpGroup, ...]
    launches: tuple[Launch, ...]
    registers: tuple[Registers | None, ...]
    loaded: tuple[str, ...]
    notes: tuple[str, ...]

    @property
    def written(self) -> float:
        """When the dump was written, in seconds of the epoch: by its metadata, else by the file's time."""
        metadata = self.core.metadata
        return float(metadata.row.timestamp) if metadata and metadata.row.timestamp else self.modified or 0.0

    @property
    def warps(self) -> int:
        """How many warps were resident; a diverged one is at several places but counts once."""
        return sum(1 for device in self.core.devices for _ in device.warps())


def decode_core(
    data: Buffer,
    *,
    file: str = "",
    modified: float | None = None,
    registers: bool = False,
    parameters: bool = False,
    lines: LineSource | None = None,
) -> DecodedCore:
    """Read a GPU core dump to its end; `lines` is asked for the lines of code that was built without them.

    Raises UnreadableBinary when the bytes are not a GPU core; a damaged or truncated one is reported in `notes`.
    """
    core = read_core(data, lines)
    faults = with_callers(core, data, find_faults(core))
    groups = group_warps(core)
    return DecodedCore(
        file=file,
        modified=modified,
        core=core,
        faults=faults,
        warp_groups=groups,
        launches=tuple(_launches(core, CoreSections(data) if parameters and core.devices else None)),
        registers=_registers(data, faults) if registers else (),
        loaded=tuple(dict.fromkeys(f.name for m in core.stray_modules if m.code for f in m.code.kernels)),
        notes=(*core.notes, *_doubts(core, faults, groups), *_notes_on_code(core, faults)),
    )


def _launches(core: GpuCore, sections: CoreSections | None) -> Iterator[Launch]:
    for device in core.devices:
        for index, grid in enumerate(device.grids):
            read = read_parameters(core, device, index, sections) if sections else None
            yield Launch(device=device, grid=grid, kernel=kernel_name(core, device, grid), parameters=read)


def _registers(data: Buffer, faults: tuple[Fault, ...]) -> tuple[Registers | None, ...]:
    if not any(fault.first for fault in faults):
        return (None,) * len(faults)
    sections = CoreSections(data)

    def of(thread: FaultingThread | None) -> Registers | None:
        return read_registers(sections, thread) if thread else None

    return tuple(of(fault.first) for fault in faults)


def _doubts(core: GpuCore, faults: tuple[Fault, ...], groups: tuple[WarpGroup, ...]) -> tuple[str, ...]:
    """Return what contradicts the names and chains shown; where warps are, only the places shown first count."""
    found = [doubt for fault in faults for doubt in fault.doubts]
    for group in groups[:_GROUPS_CHECKED] if not faults else ():
        found += find_doubts(core, group.device, group.pc, group.grid, group.grid_id)
    return tuple(f"names and lines may be wrong: {doubt}" for doubt in dict.fromkeys(found))


def _notes_on_code(core: GpuCore, faults: tuple[Fault, ...]) -> tuple[str, ...]:
    """Say why a place has no source line, once for each reason."""
    notes: dict[str, None] = {}
    modules = [module for device in core.devices for module in device.modules]
    for fault in faults:
        if fault.pc is None:
            notes["a fault has no PC: the dump holds neither an error PC nor a thread for it"] = None
        elif fault.calls_out:
            notes[f"PC {fault.pc:#x} lies in no loaded code; the place given is the call that led there"] = None
        elif fault.location is None:
            why = _UNLOADED if fault.scope is Scope.SM and fault.grid is None else _why_no_code(modules)
            notes[f"PC {fault.pc:#x} lies in no loaded code: {why}"] = None
        elif not fault.location.chain:
            name = short_name(demangle(fault.kernel)).partition("<")[0] if fault.kernel else "the code"
            notes[f"{name} has no line info: a line pack of the same code gives this dump its lines (--lines PACK)"] = (
                None
            )
    notes |= dict.fromkeys(note for module in modules if module.code for note in module.code.notes)
    return tuple(notes)


def _why_no_code(modules: list[Module]) -> str:
    if not modules:
        return "the dump lists no modules"
    without = sum(not module.relocated for module in modules)
    if without:
        return f"of {without} of the {len(modules)} modules the dump has no relocated image"
    return "a jump to an address that is no code, or code the driver does not put into dumps"
