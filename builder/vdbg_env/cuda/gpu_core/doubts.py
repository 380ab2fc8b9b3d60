"""Compares what a core says twice: the grid's kernel, the image's names and line table, and where the PC is.

An image in a dump has no checksum, so one flipped bit can name another kernel or line. A kernel's name is in the symbol
and in the section table, and a line table has to end where its code does; a changed digit in it leaves no trace.
"""

from __future__ import annotations

from vdbg_env.cuda.gpu_core.layout import GridRow
from vdbg_env.cuda.gpu_core.model import Device, GpuCore
from vdbg_env.cuda.lines.contradictions import contradictions_of_names, find_contradictions


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
