"""Follows the return addresses of a fault's first thread, by the backtrace of its lane, the nearest call first.

A thread in a system call is in no loaded module, so its PC alone names no line: the call that led there, which is the
instruction before the return address, does. A function that was not inlined has its callers here too.
"""

from __future__ import annotations

from dataclasses import replace

from vdbg_env.cuda.binary.elf import Buffer
from vdbg_env.cuda.gpu_core.faults import Call, Fault, FaultingThread, locate
from vdbg_env.cuda.gpu_core.model import GpuCore
from vdbg_env.cuda.gpu_core.reader import CoreSections
from vdbg_env.cuda.gpu_core.registers import backtrace

_INSTRUCTION = 16  # bytes, on every architecture since sm_70


def with_callers(core: GpuCore, data: Buffer, faults: tuple[Fault, ...]) -> tuple[Fault, ...]:
    """Return the faults with their calls; those outside of all loaded code with the place they were called from."""
    if not any(fault.first for fault in faults):
        return faults
    sections = CoreSections(data)
    return tuple(_with_calls(core, sections, fault, fault.first) if fault.first else fault for fault in faults)


def _with_calls(core: GpuCore, sections: CoreSections, fault: Fault, first: FaultingThread) -> Fault:
    width = fault.device.row.instruction_size or _INSTRUCTION
    calls = tuple(
        Call(
            level=row.level, return_pc=row.return_pc, return_offset=row.return_offset,
            location=locate(core, fault.device, row.return_pc - width, fault.grid),
        )
        for row in backtrace(sections, first)
    )  # fmt: skip
    fault = replace(fault, calls=calls)
    if fault.location is not None:
        return fault
    for number, call in enumerate(calls, 1):
        if call.location:
            kernel = call.location.kernel.name if call.location.kernel else None
            return replace(fault, location=call.location, kernel=fault.kernel or kernel, calls_out=number)
    return fault
