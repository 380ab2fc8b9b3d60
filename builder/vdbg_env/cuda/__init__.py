"""What CUDA binaries say: fat binaries, cubins, line tables and GPU core dumps; bytes in, values out.

Nothing here opens a file, starts a program or needs a GPU, a driver or a CUDA toolkit. The names below are the public
ones (docs/05-library.md); each is imported on first use, so that reading a log does not load a decompressor.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from vdbg_env.cuda.binary.cubin import Cubin as Cubin
    from vdbg_env.cuda.binary.cubin import read_cubin as read_cubin
    from vdbg_env.cuda.binary.device_code import DeviceCode as DeviceCode
    from vdbg_env.cuda.binary.device_code import find_device_code as find_device_code
    from vdbg_env.cuda.binary.elf import Elf as Elf
    from vdbg_env.cuda.binary.fatbin import Entry as Entry
    from vdbg_env.cuda.binary.fatbin import EntryKind as EntryKind
    from vdbg_env.cuda.gpu_core import Fault as Fault
    from vdbg_env.cuda.gpu_core import GpuCore as GpuCore
    from vdbg_env.cuda.gpu_core import WarpGroup as WarpGroup
    from vdbg_env.cuda.gpu_core import find_faults as find_faults
    from vdbg_env.cuda.gpu_core import group_warps as group_warps
    from vdbg_env.cuda.gpu_core import read_core as read_core
    from vdbg_env.cuda.lines.code_map import CodeMap as CodeMap
    from vdbg_env.cuda.lines.code_map import Function as Function
    from vdbg_env.cuda.lines.code_map import Location as Location
    from vdbg_env.cuda.lines.line_table import Place as Place
    from vdbg_env.cuda.lines.lineinfo import Counts as Counts
    from vdbg_env.cuda.lines.lineinfo import FileReport as FileReport
    from vdbg_env.cuda.lines.lineinfo import Verdict as Verdict
    from vdbg_env.cuda.lines.lineinfo import verify as verify
    from vdbg_env.cuda.lines.place_query import PlaceQuery as PlaceQuery
    from vdbg_env.cuda.lines.place_query import matching as matching
    from vdbg_env.cuda.lines.place_query import parse_place as parse_place
    from vdbg_env.cuda.lines.source_frame import Chain as Chain
    from vdbg_env.cuda.lines.source_frame import SourceFrame as SourceFrame
    from vdbg_env.cuda.symbols.demangling import demangle as demangle
    from vdbg_env.cuda.symbols.demangling import short_name as short_name

_HOME: Final = {
    "Cubin": "binary.cubin",
    "read_cubin": "binary.cubin",
    "DeviceCode": "binary.device_code",
    "find_device_code": "binary.device_code",
    "Elf": "binary.elf",
    "Entry": "binary.fatbin",
    "EntryKind": "binary.fatbin",
    "Counts": "lines.lineinfo",
    "FileReport": "lines.lineinfo",
    "Verdict": "lines.lineinfo",
    "verify": "lines.lineinfo",
    "CodeMap": "lines.code_map",
    "Function": "lines.code_map",
    "Location": "lines.code_map",
    "demangle": "symbols.demangling",
    "short_name": "symbols.demangling",
    "Fault": "gpu_core",
    "GpuCore": "gpu_core",
    "WarpGroup": "gpu_core",
    "find_faults": "gpu_core",
    "group_warps": "gpu_core",
    "read_core": "gpu_core",
    "Place": "lines.line_table",
    "PlaceQuery": "lines.place_query",
    "matching": "lines.place_query",
    "parse_place": "lines.place_query",
    "Chain": "lines.source_frame",
    "SourceFrame": "lines.source_frame",
}


def __getattr__(name: str) -> object:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOME])
