"""From a fault in a GPU core to the answer: what the code says, with the numbers of the warp that failed."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from dataclasses import replace
from typing import Final, TypeAlias

from gpucore.code_map import CodeMap
from gpucore.core import (
    Coordinates,
    Fault,
    FaultingThread,
    Scope,
    WarpGroup,
    coordinates,
    find_doubts,
    read_parameters,
)
from gpucore.core_layout import GridRow, LaneRow, SectionType
from gpucore.core_reader import CoreSections, Device, GpuCore, Warp
from gpucore.dwarf import Place
from gpucore.explain.address import Address
from gpucore.explain.barrier import BlockBarrier, Held, barrier_of_block, held_at, reader_of
from gpucore.explain.judgement import Judgement
from gpucore.explain.numbers import Lane, Numbers, Snapshot
from gpucore.explain.program import Program
from gpucore.explain.thread import Holds, choose_thread
from gpucore.explain.wait import Wait, explain_wait
from gpucore.explain.why import Why, explain_place
from gpucore.mangling import short_name
from gpucore.sass import WORD

Programs: TypeAlias = Callable[[CodeMap, Place], Program | None]
"""Gives the disassembled code around a place; None where it cannot be disassembled."""

_MOST_LANES: Final = 32
_MOST_WARPS: Final = 4  # that are asked besides the one of the fault
_FULL_STACK: Final = frozenset({2, 3, 5, 9, 35})  # exceptions that a full stack may raise


def explain_fault(
    core: GpuCore, sections: CoreSections, fault: Fault, programs: Programs, mapped: Holds | None = None
) -> Why | None:
    """Return why the address of a fault was what it was; `mapped` says what a map of the program's memory has.

    None where the faulting instruction is not known exactly, accesses no memory, or cannot be disassembled. Without
    the registers of its threads, and with any doubt about what ran, the answer is the formula alone.
    """
    if fault.pc is None or not fault.precise:
        return None
    found = core.find_code(fault.pc, fault.device, fault.grid.module_handle if fault.grid else None)
    program = programs(*found) if found else None
    if found is None or program is None:
        return None
    code, place = found
    why = explain_place(program, place.offset, _calls(code, place, fault))
    if why is None or fault.grid is None or fault.doubts:
        return why
    if why.address.space == "local" and fault.exception.code in _FULL_STACK:
        why = replace(why, stack=_stack(why, sections, fault))
    if fault.first is None:
        return replace(why, launch=_arguments(core, sections, fault.grid))
    if _may_be_another_call(why, code.place(fault.first.row.virtual_pc)):
        again = explain_place(program, place.offset, ())
        return again and replace(again, calls_hold=False, stack=why.stack)
    snapshot = take_snapshot(core, sections, fault.scope, fault.first, fault.grid, why.address)
    others = _other_warps(core, sections, fault.first, fault.grid, why.address)
    numbers = Numbers(why.address, replace(snapshot, others=others))
    choose_thread(numbers, fault.exception.code, _held_by(sections), mapped)
    return replace(why, numbers=numbers)


def _held_by(sections: CoreSections) -> Holds | None:
    """Return what says whether a core has the global memory of an address; None for one without global memory."""
    memory = sorted(sections.global_memory())
    if not memory:
        return None
    starts = [start for start, _ in memory]

    def holds(address: int, width: int) -> bool:
        k = bisect_right(starts, address) - 1
        return k >= 0 and address + width <= sum(memory[k])

    return holds


def _other_warps(
    core: GpuCore, sections: CoreSections, first: FaultingThread, grid: GridRow, address: Address
) -> tuple[Snapshot, ...]:
    """Return what a core has of some other warps of the launch, which has the same arguments there."""
    found: list[Snapshot] = []
    device = next(one for one in core.devices if grid in one.grids)
    for sm, cta, warp in device.warps():
        here = (sm.row.sm_id, warp.row.warp_id) == (first.at.sm, first.at.warp)
        active = [(k, row) for k, row in warp.threads() if warp.is_active(row)]
        if cta.row.grid_id != grid.grid_id or here or not active:
            continue
        index, row = active[0]
        thread = FaultingThread(at=coordinates(sm, cta, warp, row), warp=warp, row=row, row_index=index)
        there = take_snapshot(core, sections, Scope.WARP, thread, grid, address)
        # Nobody says which calls these threads are in: those in a function with several callers are left out.
        lanes = tuple(one for one in there.lanes if one.at is not None and _stands_in_one_place(address, one.at))
        found.append(replace(there, lanes=lanes))
        if len(found) == _MOST_WARPS:
            break
    return tuple(found)


def _stands_in_one_place(address: Address, at: int) -> bool:
    code = address.slice.code
    return len(code.places(code.instructions[at].offset)) == 1


def _stack(why: Why, sections: CoreSections, fault: Fault) -> Judgement:
    """Return what an address outside of a thread's local memory says about its stack: R1 is the stack pointer."""
    address, program, thread = why.address, why.address.program, fault.first
    function = fault.location.function if fault.location else None
    name = short_name(function.demangled) if function else "the function"
    routine, code = program.routine_at(address.offset), address.slice.code
    within = (i for i in program.instructions if routine and routine.start <= i.offset < routine.end)
    again = any(i.opcode == "CALL" and code.callee(i) == routine for i in within)
    table, below = thread.warp.lane_table if thread else None, 0
    if thread is not None and table is not None:
        held = _words(sections.bytes_of(SectionType.REGISTERS, table, thread.row_index))
        local = sections.local_memory(table, thread.row_index)
        below = local[0] - held[1] if local and len(held) > 1 else 0
    calls = f"{name}, which calls itself," if again else name
    deep = f"{calls} and what called it need more than it has"
    limit = "(cudaLimitStackSize)"
    if below <= 0 and (why.has_index or not again):
        text = f"local memory is the thread's own stack: an index is outside of a local array, or {deep} {limit}"
    else:
        text = f"local memory is the thread's own stack, and that is full: {deep} {limit}"
    return Judgement("stack", text + (f"; the stack pointer is {below:,} bytes below its end" if below > 0 else ""))


def explain_hang(core: GpuCore, sections: CoreSections, group: WarpGroup, programs: Programs) -> Wait | None:
    """Return what the warps of a group wait for, at a barrier or in a loop; None where they are at none.

    The values are those of the first warp of the group, as far as its registers have them.
    """
    found = core.find_code(group.pc, group.device, group.grid.module_handle if group.grid else None)
    program = programs(*found) if found else None
    if found is None or program is None:
        return None
    offset = found[1].offset
    first = find_thread(group.device, group.first)
    barrier = _block_barrier(core, sections, group, programs)
    if barrier is not None:
        words = ("a block barrier",)
        return Wait(program, barrier.offset, (), (), words, (), None, absent=barrier.absent, barrier=barrier)
    if any(i.offset == offset and i.opcode == "UCGABAR_WAIT" for i in program.instructions):
        absent = _absent(group, range(group.pc, group.pc + WORD))
        if absent:
            return Wait(program, offset, (), (), ("a cluster barrier",), (), None, absent=absent)
    wait = explain_wait(program, offset)
    if wait is None or wait.asked is None or first is None or group.grid is None or _doubtful(core, group):
        return wait
    snapshot = take_snapshot(core, sections, Scope.WARP, first, group.grid, wait.asked)
    return replace(wait, numbers=Numbers(wait.asked, replace(snapshot, faulted=False)))


def _block_barrier(core: GpuCore, sections: CoreSections, group: WarpGroup, programs: Programs) -> BlockBarrier | None:
    """Return the barrier that holds the warps of a group, with who is there of the first thread's block."""
    at, places = group.first, dict[int, tuple[Program, int] | None]()

    def place(pc: int) -> tuple[Program, int] | None:
        if pc not in places:
            found = core.find_code(pc, group.device, group.grid.module_handle if group.grid else None)
            program = programs(*found) if found else None
            places[pc] = (program, found[1].offset) if found and program else None
        return places[pc]

    def held(warp: Warp, index: int, row: LaneRow) -> Held | None:
        found = place(row.virtual_pc)
        return held_at(*found, reader_of(sections, warp, index)) if found else None

    first, found = find_thread(group.device, at), place(group.pc)
    mine = held(first.warp, first.row_index, first.row) if first and first.row.virtual_pc == group.pc else None
    if mine is None or found is None:
        return None
    here = [
        warp
        for sm, cta, warp in group.device.warps()
        if (cta.row.grid_id, sm.row.sm_id, cta.block) == (group.grid_id, at.sm, at.block)
    ]
    return barrier_of_block(mine, found[0], here, held)


def _absent(group: WarpGroup, there: range) -> int:
    """Return how many warps of the first thread's cluster have a thread elsewhere than in a range."""
    at = group.first
    warps = [
        warp
        for _, cta, warp in group.device.warps()
        if cta.row.grid_id == group.grid_id and cta.cluster == at.cluster is not None
    ]
    return sum(any(row.virtual_pc not in there for _, row in warp.threads()) for warp in warps)


def _doubtful(core: GpuCore, group: WarpGroup) -> bool:
    return bool(find_doubts(core, group.device, group.pc, group.grid, group.grid_id))


def find_thread(device: Device, at: Coordinates) -> FaultingThread | None:
    """Return the rows of a thread by where it was; None where the core has them not."""
    for sm, cta, warp in device.warps():
        if (sm.row.sm_id, warp.row.warp_id, cta.block) == (at.sm, at.warp, at.block):
            for index, row in warp.threads():
                if row.lane == at.lane:
                    return FaultingThread(at=at, warp=warp, row=row, row_index=index)
    return None


def _calls(code: CodeMap, place: Place, fault: Fault) -> tuple[int, ...]:
    """Return the offsets of the calls in the same section that led to a place, the outermost first."""
    offsets = []
    for call in fault.calls:
        back = code.place(call.return_pc)
        if back is not None and back.section == place.section:
            offsets.append(back.offset - WORD)
    return tuple(reversed(offsets))


def _may_be_another_call(why: Why, at: Place | None) -> bool:
    """Say whether a thread may stand in a later call of the function than the one whose store failed.

    A store stops nothing. Its thread may return and call the function again; then the calls that it is in, and what
    its registers hold, are those of the later call.
    """
    address, code = why.address, why.address.slice.code
    if address.stops or at is None or at.section != address.program.section:
        return False
    outer = address.program.kernel
    if outer is not None and code.root.name != outer.name:
        return code.place(at.offset) is not None
    own = address.instruction
    stands = code.place(at.offset, code.contexts[own])
    return stands is not None and any(
        other != own and code.block_of(stands) in code.reachable_from(other) for other in code.places(address.offset)
    )


def take_snapshot(
    core: GpuCore, sections: CoreSections, scope: Scope, first: FaultingThread, grid: GridRow, address: Address
) -> Snapshot:
    """Return what a core has of the warp that a thread is in; `scope` says what its exception is marked in."""
    warp = first.warp
    rows = [(k, row) for k, row in warp.threads() if warp.is_active(row)]
    rows.sort(key=lambda found: (found[0] != first.row_index, found[0]))
    return Snapshot(
        block=first.at.block,
        lanes=tuple(_lane(sections, scope, first, k, row, address) for k, row in rows[:_MOST_LANES]),
        uniform=_words(sections.bytes_of(SectionType.UNIFORM_REGISTERS, warp.table, warp.index)),
        special=_dimensions(grid),
        parameters=_arguments(core, sections, grid),
        shared_size=warp.row.shared_memory or None,
        shared=sections.shared_memory(warp),
        together=len({row.virtual_pc for _, row in rows}) == 1 and len(rows) == _threads_of_warp(first, grid),
        others_left=len(rows) < _threads_of_warp(first, grid),
    )  # fmt: skip


def _threads_of_warp(first: FaultingThread, grid: GridRow) -> int:
    x, y, z = first.at.thread
    before = (x + grid.block_x * (y + grid.block_y * z)) // _MOST_LANES * _MOST_LANES
    return min(_MOST_LANES, grid.block_x * grid.block_y * grid.block_z - before)


def _dimensions(grid: GridRow) -> dict[str, int]:
    found = {"blockDim.x": grid.block_x, "blockDim.y": grid.block_y, "blockDim.z": grid.block_z}
    if grid.grid_x:
        found |= {"gridDim.x": grid.grid_x, "gridDim.y": grid.grid_y, "gridDim.z": grid.grid_z}
    return found


def _arguments(core: GpuCore, sections: CoreSections, grid: GridRow) -> bytes | None:
    device = next(one for one in core.devices if grid in one.grids)
    launch = read_parameters(core, device, device.grids.index(grid), sections)
    return launch.data if launch.problem is None else None


def _lane(
    sections: CoreSections, scope: Scope, first: FaultingThread, index: int, row: LaneRow, address: Address
) -> Lane:
    table = first.warp.lane_table
    held = None if table is None else sections.bytes_of(SectionType.REGISTERS, table, index)
    code = address.slice.code
    place = address.program.code_map.place(row.virtual_pc)
    at = None
    if place is not None and place.section == address.program.section:
        at = code.place(place.offset, code.contexts[address.instruction])
        if at is None and len(places := code.places(place.offset)) == 1:  # a store's thread may have returned since
            at = places[0]
    failed = scope is not Scope.LANE or row.exception == first.row.exception
    local = None if table is None else sections.local_memory(table, index)
    return Lane(row.lane, (row.thread_x, row.thread_y, row.thread_z), at, _words(held), failed, local)


def _words(data: memoryview | None) -> tuple[int, ...]:
    return tuple(int.from_bytes(data[at : at + 4], "little") for at in range(0, len(data) // 4 * 4, 4)) if data else ()
