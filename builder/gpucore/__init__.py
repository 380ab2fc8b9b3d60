"""What CUDA binaries say: fat binaries, cubins, line tables and GPU core dumps; bytes in, values out.

Nothing here opens a file, starts a program or needs a GPU, a driver or a CUDA toolkit. The names below are the public
ones; each is imported on first use: reading a log does not load a decompressor.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from gpucore.code_map import CodeMap as CodeMap
    from gpucore.code_map import Function as Function
    from gpucore.code_map import Location as Location
    from gpucore.code_map import PlaceQuery as PlaceQuery
    from gpucore.code_map import matching as matching
    from gpucore.code_map import parse_place as parse_place
    from gpucore.core import Fault as Fault
    from gpucore.core import WarpGroup as WarpGroup
    from gpucore.core import find_faults as find_faults
    from gpucore.core import group_warps as group_warps
    from gpucore.core_reader import GpuCore as GpuCore
    from gpucore.core_reader import read_core as read_core
    from gpucore.cubin import Cubin as Cubin
    from gpucore.cubin import read_cubin as read_cubin
    from gpucore.dwarf import Chain as Chain
    from gpucore.dwarf import Place as Place
    from gpucore.dwarf import SourceFrame as SourceFrame
    from gpucore.elf import Elf as Elf
    from gpucore.errors import GpucoreError as GpucoreError
    from gpucore.errors import UnreadableBinary as UnreadableBinary
    from gpucore.fatbin import DeviceCode as DeviceCode
    from gpucore.fatbin import Entry as Entry
    from gpucore.fatbin import EntryKind as EntryKind
    from gpucore.fatbin import find_device_code as find_device_code
    from gpucore.lineinfo import Counts as Counts
    from gpucore.lineinfo import FileReport as FileReport
    from gpucore.lineinfo import Verdict as Verdict
    from gpucore.lineinfo import verify as verify
    from gpucore.mangling import demangle as demangle
    from gpucore.mangling import short_name as short_name
    from gpucore.sass import ControlFlow as ControlFlow
    from gpucore.sass import Instruction as Instruction
    from gpucore.sass import control_flow as control_flow
    from gpucore.sass import decode as decode
    from gpucore.sass import definitions as definitions
    from gpucore.sass import uses as uses

__version__ = "0.1.0"

_HOME: Final = {
    "CodeMap": "code_map",
    "Function": "code_map",
    "Location": "code_map",
    "PlaceQuery": "code_map",
    "matching": "code_map",
    "parse_place": "code_map",
    "Fault": "core",
    "WarpGroup": "core",
    "find_faults": "core",
    "group_warps": "core",
    "GpuCore": "core_reader",
    "read_core": "core_reader",
    "Cubin": "cubin",
    "read_cubin": "cubin",
    "Chain": "dwarf",
    "Place": "dwarf",
    "SourceFrame": "dwarf",
    "Elf": "elf",
    "GpucoreError": "errors",
    "UnreadableBinary": "errors",
    "DeviceCode": "fatbin",
    "Entry": "fatbin",
    "EntryKind": "fatbin",
    "find_device_code": "fatbin",
    "Counts": "lineinfo",
    "FileReport": "lineinfo",
    "Verdict": "lineinfo",
    "verify": "lineinfo",
    "demangle": "mangling",
    "short_name": "mangling",
    "ControlFlow": "sass",
    "Instruction": "sass",
    "control_flow": "sass",
    "decode": "sass",
    "definitions": "sass",
    "uses": "sass",
}


def __getattr__(name: str) -> object:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOME])
