"""What CUDA binaries say: fat binaries, cubins, line tables and GPU core dumps; bytes in, values out.

Nothing here opens a file, starts a program or needs a GPU, a driver or a CUDA toolkit. The names below are the public
ones (docs/05-library.md); each is imported on first use, so that reading a log does not load a decompressor.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from vdbg_env.cuda.code_map import CodeMap as CodeMap
    from vdbg_env.cuda.code_map import Function as Function
    from vdbg_env.cuda.code_map import Location as Location
    from vdbg_env.cuda.cubin import Cubin as Cubin
    from vdbg_env.cuda.cubin import read_cubin as read_cubin
    from vdbg_env.cuda.demangling import demangle as demangle
    from vdbg_env.cuda.demangling import short_name as short_name
    from vdbg_env.cuda.device_code import DeviceCode as DeviceCode
    from vdbg_env.cuda.device_code import find_device_code as find_device_code
    from vdbg_env.cuda.elf import Elf as Elf
    from vdbg_env.cuda.fatbin import Entry as Entry
    from vdbg_env.cuda.fatbin import EntryKind as EntryKind
    from vdbg_env.cuda.gpu_core import Fault as Fault
    from vdbg_env.cuda.gpu_core import GpuCore as GpuCore
    from vdbg_env.cuda.gpu_core import Standing as Standing
    from vdbg_env.cuda.gpu_core import find_faults as find_faults
    from vdbg_env.cuda.gpu_core import find_standing as find_standing
    from vdbg_env.cuda.gpu_core import read_core as read_core
    from vdbg_env.cuda.line_table import Place as Place
    from vdbg_env.cuda.lineinfo import Counts as Counts
    from vdbg_env.cuda.lineinfo import FileReport as FileReport
    from vdbg_env.cuda.lineinfo import Verdict as Verdict
    from vdbg_env.cuda.lineinfo import verify as verify
    from vdbg_env.cuda.place_query import PlaceQuery as PlaceQuery
    from vdbg_env.cuda.place_query import matching as matching
    from vdbg_env.cuda.place_query import parse_place as parse_place
    from vdbg_env.cuda.source_frame import Chain as Chain
    from vdbg_env.cuda.source_frame import SourceFrame as SourceFrame

_HOME: Final = {
    "Cubin": "cubin",
    "read_cubin": "cubin",
    "DeviceCode": "device_code",
    "find_device_code": "device_code",
    "Elf": "elf",
    "Entry": "fatbin",
    "EntryKind": "fatbin",
    "Counts": "lineinfo",
    "FileReport": "lineinfo",
    "Verdict": "lineinfo",
    "verify": "lineinfo",
    "CodeMap": "code_map",
    "Function": "code_map",
    "Location": "code_map",
    "demangle": "demangling",
    "short_name": "demangling",
    "Fault": "gpu_core",
    "GpuCore": "gpu_core",
    "Standing": "gpu_core",
    "find_faults": "gpu_core",
    "find_standing": "gpu_core",
    "read_core": "gpu_core",
    "Place": "line_table",
    "PlaceQuery": "place_query",
    "matching": "place_query",
    "parse_place": "place_query",
    "Chain": "source_frame",
    "SourceFrame": "source_frame",
}


def __getattr__(name: str) -> object:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOME])
