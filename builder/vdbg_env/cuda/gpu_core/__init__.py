"""GPU core dumps (`*.nvcudmp`), read without a GPU, a driver or a debugger."""

from vdbg_env.cuda.gpu_core.faults import Coordinates, Fault, FaultingThread, Scope, find_faults
from vdbg_env.cuda.gpu_core.model import Context, Cta, Device, GpuCore, Metadata, Module, Sm, Warp
from vdbg_env.cuda.gpu_core.names import GpuException
from vdbg_env.cuda.gpu_core.reader import CoreSections, read_core
from vdbg_env.cuda.gpu_core.registers import Registers, read_registers
from vdbg_env.cuda.gpu_core.warp_groups import WarpGroup, group_warps

__all__ = [
    "Context",
    "Coordinates",
    "CoreSections",
    "Cta",
    "Device",
    "Fault",
    "FaultingThread",
    "GpuCore",
    "GpuException",
    "Metadata",
    "Module",
    "Registers",
    "Scope",
    "Sm",
    "Warp",
    "WarpGroup",
    "find_faults",
    "group_warps",
    "read_core",
    "read_registers",
]  # fmt: skip
