"""A launch with its memory, run by the interpreter until its first warp faults."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from tests.builders.core_builder import (
    BlockSpec,
    CoreSpec,
    DeviceSpec,
    Dim3,
    LaunchSpec,
    ModuleSpec,
    SmSpec,
    WarpSpec,
    build_core,
)
from tests.support.sass.machine import Touch
from tests.support.sass.memory import Allocations
from tests.support.sass.programs import Program, constant_bank
from tests.support.sass.stopped import Stopped, stop


@dataclass(frozen=True, kw_only=True)
class Launched:
    """A launch as a program makes it, and the block whose first warp faults.

    `parameters` are their bytes, `sizes` the allocations by address, `contents` what was copied into them. `shared` is
    what shared memory holds by address, of `shared_size` bytes with those that the driver keeps for itself.
    """

    parameters: bytes
    sizes: Mapping[int, int]
    contents: Mapping[int, bytes] = field(default_factory=dict)
    grid: Dim3 = (1, 1, 1)
    block: Dim3 = (64, 1, 1)
    block_index: Dim3 = (0, 0, 0)
    shared: Mapping[int, bytes] = field(default_factory=dict)
    shared_size: int = 1024


@dataclass(frozen=True)
class Executed:
    """A launch, and its warp that faulted."""

    launch: Launched
    stopped: Stopped

    def core(self, cubin: bytes, kernel: str, *, exception: int = 14, warp: WarpSpec | None = None) -> bytes:
        """Return a core without parameters and memory, with another warp in it where one is given."""
        launch, warp = self.launch, replace(warp or self.stopped.warp, shared_size=self.launch.shared_size)
        device = DeviceSpec(
            modules=[ModuleSpec(cubin=cubin)],
            launches=[LaunchSpec(kernel=kernel, grid=launch.grid, block=launch.block)],
            blocks=[BlockSpec(block=launch.block_index, warps=[warp])],
            sms={0: SmSpec(exception=exception, error_offset=self.stopped.offset)},
        )
        return build_core(CoreSpec(devices=[device]))


def run_to_fault(
    program: Program, kernel: str, launch: Launched, *, run_on: int = 0, exception: int = 14, held: int = 255,
    stop_at: str = "",
) -> Executed:  # fmt: skip
    """Run the first warp of a launch until it leaves its memory or is misaligned; a run without a fault is an error.

    The first access by the instruction `stop_at` counts as a fault too.
    """
    machine = program.machine(kernel)
    memory = Allocations(launch.sizes, launch.contents)
    constants = constant_bank(program.arch, launch.block, launch.grid, launch.parameters)
    threads = [
        machine.thread(
            thread=(n, 0, 0), block=launch.block_index, block_size=launch.block, memory=memory, constants=constants
        )
        for n in range(32)
    ]
    shared = Allocations({0: launch.shared_size}, launch.shared)
    for thread in threads:
        thread.shared = shared

    def allowed(touch: Touch) -> bool:
        if touch.address % touch.size or machine.code.lines[touch.offset // 16].name == stop_at:
            return False
        if touch.space == "shared":
            return touch.address + touch.size <= launch.shared_size
        return touch.space != "global" or memory.hold(touch.address, touch.size)

    stopped = stop(machine, threads, allowed, run_on=run_on, exception=exception, held=held)
    assert stopped, f"the interpreter runs {kernel} without a fault"
    return Executed(launch, stopped)
