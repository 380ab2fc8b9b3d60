"""Finds the caller of code that the dump does not hold: the driver's own, such as what a device assert ends in.

A thread in a system call stands in no loaded module, so its PC alone names no line. The backtrace of its lane holds the
return addresses of the calls it is in, the nearest first; the call is the instruction before.
"""

from __future__ import annotations

from dataclasses import replace

from vdbg_env.cuda.binary.elf import Buffer
from vdbg_env.cuda.gpu_core.faults import Fault, locate
from vdbg_env.cuda.gpu_core.model import GpuCore
from vdbg_env.cuda.gpu_core.reader import CoreSections
from vdbg_env.cuda.gpu_core.registers import backtrace

_INSTRUCTION = 16  # bytes, on every architecture since sm_70


def with_callers(core: GpuCore, data: Buffer, faults: tuple[Fault, ...]) -> tuple[Fault, ...]:
    """Return the faults, those outside of all loaded code with the place their first thread was called from."""
    lost = [fault for fault in faults if fault.location is None and fault.first]
    if not lost:
        return faults
    sections = CoreSections(data)
    return tuple(_with_caller(core, sections, fault) if fault in lost else fault for fault in faults)


def _with_caller(core: GpuCore, sections: CoreSections, fault: Fault) -> Fault:
    if fault.first is None:
        return fault
    for calls, row in enumerate(backtrace(sections, fault.first), 1):
        call = row.return_pc - (fault.device.row.instruction_size or _INSTRUCTION)
        location = locate(core, fault.device, call, fault.grid)
        if location:
            kernel = location.kernel.name if location.kernel else None
            return replace(fault, location=location, kernel=fault.kernel or kernel, calls_out=calls)
    return fault
