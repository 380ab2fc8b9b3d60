"""Compares what a core says twice: the grid's kernel, the image's names and line table, and where the PC is.

An image in a dump has no checksum, so one flipped bit can name another kernel or line. A kernel's name is in the symbol
and in the section table, and a line table has to end where its code does; a changed digit in it leaves no trace.
"""

from __future__ import annotations

from typing import Final

from vdbg_env.common.errors import UnreadableBinary
from vdbg_env.cuda.binary.elf import Elf
from vdbg_env.cuda.gpu_core.layout import GridRow
from vdbg_env.cuda.gpu_core.model import Device, GpuCore
from vdbg_env.cuda.lines.code_map import CodeMap, Function, Location
from vdbg_env.cuda.lines.line_table import Place

_CODE: Final = ".text."


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
        doubts += _of_names(found[0], location) + _of_lines(*found)
    launched = core.find_code(grid.function_entry, device, grid.module_handle) if grid else None
    if grid and launched:
        entry = launched[0].locate(launched[1])
        if entry.kernel is None or entry.offset:
            doubts.append(f"the launch's entry {grid.function_entry:#x} is not the start of a kernel")
        else:
            doubts += _of_names(launched[0], entry)
        if location and location.kernel and entry.kernel and location.kernel.name != entry.kernel.name:
            doubts.append(f"the PC is in {location.kernel.demangled}, the launch is of {entry.kernel.demangled}")
    elif grid and grid.function_entry and any(module.relocated for module in device.modules):
        doubts.append(f"the launch's entry {grid.function_entry:#x} is in no loaded code")
    return tuple(dict.fromkeys(doubts))


def _of_names(code: CodeMap, location: Location) -> list[str]:
    doubts = []
    for function in {f.name: f for f in (location.kernel, location.function) if f}.values():
        section = _section_name(code.elf, function)
        # A callee is called `$KERNEL$CALLEE` in its kernel's section, and by its own name in its own.
        outer = section.removeprefix(_CODE)
        own = function.name == outer or outer in function.name.split("$")
        if section.startswith(_CODE) and not own:
            doubts.append(f"the image's symbol is {function.name}, its section {section}: one name is damaged")
    return doubts


def _section_name(elf: Elf, function: Function) -> str:
    try:
        return elf.name(elf.sections[function.section])
    except UnreadableBinary:
        return ""


def _of_lines(code: CodeMap, place: Place) -> list[str]:
    if code.lines is None:
        return []
    section = code.elf.sections[place.section]
    return [*code.lines.notes[:1], *code.lines.contradictions(place, section.size)]
