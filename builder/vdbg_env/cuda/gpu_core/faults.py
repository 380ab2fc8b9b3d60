"""Says where a GPU core's faults are: in a lane, in a warp, or in an SM whose warps have already exited.

A thread's own exception is the most precise; a warp's error PC covers its active lanes, which then share the SM's
exception; an SM's row is all that is left when the faulting warps are gone, and such a core may hold no thread at all.
(The order is that of LLDB's `nvgpu-core`. cuda-gdb 12.4 does not look at the SM and calls such a core clean.)
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import StrEnum
from operator import attrgetter
from typing import Final

from vdbg_env.cuda.gpu_core.doubts import find_doubts
from vdbg_env.cuda.gpu_core.layout import GridRow, LaneRow, SmRow
from vdbg_env.cuda.gpu_core.model import Cta, Device, Dim3, GpuCore, Sm, Warp
from vdbg_env.cuda.gpu_core.names import GpuException
from vdbg_env.cuda.lines.code_map import Location


class Scope(StrEnum):
    """The row that holds the exception, most precise first."""

    LANE = "lane"
    WARP = "warp"
    SM = "sm"


_ORDER: Final = tuple(Scope)
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
    thread stood when it was stopped. `scope` is the most precise row that has the exception. `threads` is 0 where the
    threads are gone; `sms` are hardware numbers. `calls_out` is 0 but where the PC lies in code that the dump does not
    hold: `location` is then that of the call this many calls further out. `doubts` are contradictions between grid,
    image and PC: with any, the names or the chain may be wrong. `calls` are those that the first thread is in, the
    nearest first.
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
    """Return the mangled name of a launch's kernel: the function at its entry in the module it came from."""
    if grid is None:
        return None
    found = core.find_code(grid.function_entry, device, grid.module_handle)
    if found is None:
        return None
    kernel, inner = found[0].functions_at(found[1])
    outer = kernel or inner
    return outer.name if outer else None


def locate(core: GpuCore, device: Device, pc: int | None, grid: GridRow | None) -> Location | None:
    """Return what stands at a PC, in the module of the launch first."""
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
    for sighting in _sightings(device):
        if sighting.scope is Scope.SM:
            gone.append(sighting)
        else:
            groups.setdefault((sighting.exception, sighting.pc, sighting.grid_id), []).append(sighting)
    for sighting in gone:  # where threads of another SM met it at the same instruction, it is the same fault
        same = [key for key in groups if key[:2] == (sighting.exception, sighting.pc) and sighting.precise]
        groups.setdefault(same[0] if same else (sighting.exception, sighting.pc, None), []).append(sighting)
    for group in groups.values():
        yield _fault(core, device, group)


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
    )


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
