"""Says where every warp of a GPU core stands, grouped by place: the picture of a hang."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from vdbg_env.cuda.gpu_core.faults import Coordinates, coordinates, kernel_name, locate
from vdbg_env.cuda.gpu_core.layout import GridRow, LaneRow, WarpRow
from vdbg_env.cuda.gpu_core.model import Cta, Device, Dim3, GpuCore, Sm, Warp
from vdbg_env.cuda.gpu_core.names import EXITED, barrier_scope, thread_state
from vdbg_env.cuda.lines.code_map import Location


@dataclass(frozen=True, kw_only=True)
class WarpGroup:
    """Warps of one launch that stand at one instruction in one state.

    A warp whose lanes have diverged is counted once at each place it stands. `state` is the most telling word for it,
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


@dataclass
class _Tally:
    first: Coordinates
    warps: int = 0
    threads: int = 0
    blocks: set[Dim3] = field(default_factory=set)
    states: Counter[str] = field(default_factory=Counter)


_Key = tuple[int, int, str, str | None, str | None]


def group_warps(core: GpuCore) -> tuple[WarpGroup, ...]:
    """Return where all warps stand, the place of most warps first."""
    found = [group for device in core.devices for group in _of_device(core, device)]
    return tuple(sorted(found, key=lambda s: (-s.warps, -s.threads, s.device.index, s.pc)))


def _of_device(core: GpuCore, device: Device) -> Iterator[WarpGroup]:
    tallies: dict[_Key, _Tally] = {}
    for sm, cta, warp in device.warps():
        _count(tallies, sm, cta, warp)
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


def _count(tallies: dict[_Key, _Tally], sm: Sm, cta: Cta, warp: Warp) -> None:
    barrier = barrier_scope(warp.row.barrier_scope)
    counted: set[_Key] = set()
    for (pc, active, number), lanes in _alike(warp).items():
        known = _thread_state(number, active)
        state = _state(warp.row, active, known, barrier)
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


def _state(row: WarpRow, active: bool, known: str | None, barrier: str | None) -> str:
    if row.error_pc_valid and active:
        return "faulted"
    if barrier and active:
        return f"waiting at a {barrier} barrier"
    if known and known != "ready":
        return known
    return "running" if active else "diverged, waiting its turn"


def _thread_state(number: int | None, active: bool) -> str | None:
    """Return the state of threads; a lane that executes has not exited, whatever a table filled with zeros says."""
    known = thread_state(number)
    return None if known == EXITED and active else known
