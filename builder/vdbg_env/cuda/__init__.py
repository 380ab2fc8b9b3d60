"""What CUDA binaries say: fat binaries, cubins, line tables and GPU core dumps; bytes in, values out.

Nothing here opens a file, starts a program or needs a GPU, a driver or a CUDA toolkit. The names below are the public
ones (docs/library.md); each is imported on first use, so that reading a log does not load a decompressor.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from vdbg_env.cuda.cubin import Cubin as Cubin
    from vdbg_env.cuda.cubin import read_cubin as read_cubin
    from vdbg_env.cuda.device_code import DeviceCode as DeviceCode
    from vdbg_env.cuda.device_code import find_device_code as find_device_code
    from vdbg_env.cuda.elf import Elf as Elf
    from vdbg_env.cuda.fatbin import Entry as Entry
    from vdbg_env.cuda.fatbin import EntryKind as EntryKind
    from vdbg_env.cuda.lineinfo import Counts as Counts
    from vdbg_env.cuda.lineinfo import FileReport as FileReport
    from vdbg_env.cuda.lineinfo import Verdict as Verdict
    from vdbg_env.cuda.lineinfo import verify as verify

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
}


def __getattr__(name: str) -> object:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOME])
