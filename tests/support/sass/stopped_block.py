"""A block that was stopped, as a core has it: every warp where it stood, its registers and its local memory."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from tests.builders.core_builder import LaneSpec, WarpSpec
from tests.support.sass.blocks import Block, Fault, Judge, Warp, block_threads
from tests.support.sass.machine import EXIT, Dim3, Machine, Touch
from tests.support.sass.mapped import Mapped, Zeros
from tests.support.sass.programs import STACK, Program, constant_bank
from tests.support.sass.stopped import go_on

OUT_OF_RANGE, MISALIGNED, ILLEGAL = 5, 6, 14
_LOCAL_END: Final = 1 << 24
LOCAL_SIZE: Final = 16 << 10
"""Bytes of local memory that a thread has, to its end."""
_BLOCKED: Final = 8  # the state of threads that wait for others


def judge(memory: Mapped, shared_size: int) -> Judge:
    """Return how a GPU judges accesses: by alignment, the size of shared and local memory, and what is mapped."""

    def exception(touch: Touch) -> int:
        if touch.address % touch.size:
            return MISALIGNED
        if touch.space == "shared":
            return OUT_OF_RANGE if touch.address + touch.size > shared_size else 0
        if touch.space == "local":
            inside = _LOCAL_END - LOCAL_SIZE <= touch.address <= _LOCAL_END - touch.size
            return 0 if inside else OUT_OF_RANGE
        return 0 if memory.hold(touch.address, touch.size) else ILLEGAL

    return exception


def block_of(
    program: Program, kernel: str, memory: Mapped, *, parameters: bytes, size: Dim3, grid: Dim3 = (1, 1, 1),
    index: Dim3 = (0, 0, 0),
) -> Block:  # fmt: skip
    """Return a block of a launch at its start."""
    machine, constants = program.machine(kernel), constant_bank(program.arch, size, grid, parameters)
    threads = [
        machine.thread(thread=at, block=index, block_size=size, memory=memory, constants=constants)
        for at in block_threads(size)
    ]
    for thread in threads:
        thread.local = Zeros()
    return Block(machine, threads)


def stopped_warps(
    block: Block, faults: Iterable[Fault] = (), *, run_on: int = 0, held: int = 255, local: int = 0,
    shared_size: int = 1024,
) -> tuple[WarpSpec, ...]:  # fmt: skip
    """Return the block's warps that have not exited, for a core; those that faulted run on a little.

    Without a fault it is a hang: a block whose run ended in `Deadlock` or `Endless`. `held` registers of each thread
    are in the core, and `local` bytes of its stack.
    """
    of_warp = {fault.warp.number: fault for fault in faults}
    ends = {number: _run_on(block.machine, fault, run_on) for number, fault in of_warp.items()}
    return tuple(
        _warp(block, warp, of_warp.get(warp.number), ends.get(warp.number, 0), held, local, shared_size)
        for warp in block.warps
        if warp.alive
    )


def _warp(block: Block, warp: Warp, fault: Fault | None, end: int, held: int, local: int, shared_size: int) -> WarpSpec:
    """Return a warp; `fault` is its own, after which its lanes stand at `end`."""
    ends = dict.fromkeys(fault.lanes, end) if fault else {}
    lanes = {}
    for lane in warp.alive:
        thread = warp.threads[lane]
        # Who waits at the block's barrier stands behind it.
        before = 16 if lane in warp.waits and not block.waits_for_block(warp, lane) else 0
        lanes[lane] = LaneSpec(
            offset=ends.get(lane, 16 * warp.at[lane] - before), registers=tuple(thread.r[:held]),
            predicates=tuple(map(int, thread.p[:7])),
            local=(STACK - local, thread.local.read(STACK - local, local)) if local else None,
        )  # fmt: skip
    standing = list(fault.lanes) if fault else warp.next_lanes() or warp.alive
    thread = warp.threads[standing[0]]
    waiting = not fault and all(lane in warp.waits for lane in warp.alive)
    return WarpSpec(
        offset=lanes[standing[0]].offset, error_offset=fault.offset if fault else None,
        exception=fault.exception if fault else 0, marked=_mask(fault.addresses) if fault else 0,
        valid=_mask(warp.alive), active=_mask(standing), lanes=lanes, thread_state=_BLOCKED if waiting else 1,
        uniform=tuple(thread.u[:63]), uniform_predicates=tuple(map(int, thread.q[:7])),
        calls=tuple(call + 16 for call in reversed(thread.calls)), shared_size=shared_size, number=warp.number,
    )  # fmt: skip


def _mask(lanes: Iterable[int]) -> int:
    return sum(1 << lane for lane in lanes)


def _run_on(machine: Machine, fault: Fault, most: int) -> int:
    """Let the lanes that made the access run on for at most so many instructions; returns the offset they reach.

    They go no further than all of them go alike. The registers of those that stand there without an access stay.
    """
    threads = [fault.warp.threads[lane] for lane in fault.addresses]
    before = [(thread.r[:], thread.p[:]) for thread in threads]
    uniform, tests = threads[0].u[:], threads[0].q[:]
    ends: set[int] = set()
    for count in range(most, -1, -1):
        ends = set()
        for thread, (general, predicates) in zip(threads, before, strict=True):
            thread.r, thread.p, thread.u, thread.q = general[:], predicates[:], uniform[:], tests[:]
            ends.add(go_on(machine, thread, fault.offset, count))
        if len(ends) == 1:  # at the latest of those that do not run on at all
            break
    for lane, at in fault.warp.at.items():
        if at != EXIT and lane not in fault.addresses:
            fault.warp.threads[lane].u, fault.warp.threads[lane].q = threads[0].u, threads[0].q
    return ends.pop()
