"""Says of a cubin what a proof of line info needs: its architecture, its kernels, and which debug sections it has.

A cubin has line info when one of its *section headers* bears exactly the name `.debug_line`. The name alone proves
nothing: nvcc leaves it in the name tables of cubins without the section, and `.nv_debug_line_sass` contains it.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import islice
from typing import Final

from vdbg_env.common.errors import UnreadableBinary
from vdbg_env.cuda.binary.elf import EM_CUDA, HEADER_SIZE, MAGIC, SHT_NOBITS, Buffer, Elf

KERNELS_NAMED: Final = 16
"""How many kernels of one cubin are named: libtorch_cuda.so alone holds 147,201, which say no more than the first."""

# Constant bank 0 holds the launch parameters: every kernel has one, a device function compiled apart has none.
_KERNEL: Final = ".nv.constant0."
_CODE: Final = ".text."
_MACHINE_AND_COUNT: Final = struct.Struct("<18xH40xH")  # e_machine, e_shnum
_TABLES_START: Final = b"\0.shstrtab\0.strtab\0.symtab\0"
_NULL_SYMBOL: Final = bytes(24)
_OVERLAP: Final = 32  # longer than anything searched for, so that nothing is lost between two pieces


@dataclass(frozen=True, kw_only=True)
class Cubin:
    """What one cubin holds.

    `device_debug` says that it was compiled with -G, which turns optimisation off. `kernels` are the mangled names of
    its first KERNELS_NAMED kernels, `kernel_count` counts them all; device functions compiled apart are not kernels.
    """

    has_code: bool
    has_debug_line: bool
    device_debug: bool
    kernels: tuple[str, ...]
    kernel_count: int


def read_cubin(data: Buffer) -> Cubin:
    """Read a cubin by its section headers; raises UnreadableBinary when it is damaged or not device code."""
    elf = Elf(data)
    if not elf.is_cuda:
        raise UnreadableBinary(f"not a cubin: the ELF file is for machine {elf.machine}, CUDA is {EM_CUDA}", offset=18)
    kernels = list(elf.sections_starting(_KERNEL))
    return Cubin(
        has_code=any(True for _ in elf.sections_starting(_CODE)),
        has_debug_line=any(s.size and s.type != SHT_NOBITS for s in elf.sections_named(".debug_line")),
        device_debug=any(True for _ in elf.sections_named(".debug_info")),
        kernels=tuple(elf.name(s).removeprefix(_KERNEL) for s in kernels[:KERNELS_NAMED]),
        kernel_count=len(kernels),
    )


def read_cubin_start(pieces: Iterable[Buffer]) -> Cubin | None:
    """Judge a cubin without line info by its first bytes, taken piece by piece; None when they do not settle it.

    Cubins carry their name table right behind the ELF header, then the symbols' names, then the symbol table, and their
    section headers at the very end. A section needs its name in the table, so tables without `.debug_line` prove there
    is none; that there is one is never concluded here. From any other layout nothing is concluded.
    """
    names = _string_tables(pieces)
    if names is None:
        return None
    kernel = b"\0" + _KERNEL.encode()
    first = max(0, names.find(kernel))  # far behind: the names of all code come before
    return Cubin(
        has_code=b"\0" + _CODE.encode() in names,
        has_debug_line=False,
        device_debug=False,
        kernels=tuple(islice(_names_behind(names, kernel, first), KERNELS_NAMED)),
        kernel_count=names.count(kernel, first),
    )


class CubinNames:
    """The names of a cubin's sections and symbols, as read from its first bytes."""

    def __init__(self, tables: bytearray) -> None:
        self._tables: Final = tables

    def holding(self, part: bytes) -> set[str]:
        """Return every name that may be a function's and has some bytes in it."""
        found = set()
        at = self._tables.find(part, HEADER_SIZE)
        while at >= 0:
            start, end = self._tables.rfind(b"\0", 0, at) + 1, self._tables.find(b"\0", at)
            name = bytes(self._tables[start : end if end >= 0 else None]).decode("utf-8", "backslashreplace")
            if not name.startswith(".") or name.startswith(_CODE):
                found.add(name.removeprefix(_CODE))
            at = self._tables.find(part, end) if end >= 0 else -1
        return found

    def functions(self) -> Iterable[str]:
        """Yield the mangled names of the functions that have a section for themselves, kernels among them."""
        return _names_behind(self._tables, b"\0" + _CODE.encode(), 0)


def read_names(pieces: Iterable[Buffer]) -> CubinNames | None:
    """Read the names of a cubin from its first bytes, taken piece by piece; None for a layout that nvcc does not write.

    A cubin has gigabytes of code to a megabyte of names in a large library: this is what makes a search by name quick.
    """
    data = bytearray()
    at = HEADER_SIZE
    for piece in pieces:
        data += piece
        if not data.startswith(MAGIC) or not data.startswith(_TABLES_START, HEADER_SIZE):
            return None
        while (end := data.find(_NULL_SYMBOL, at)) >= 0:
            behind = bytes(data[end:]).lstrip(b"\0")[:4]
            if len(behind) < 4:
                break
            if 0 not in behind:  # from sm_90 on there may be a gap between the names of sections and those of symbols
                at = data.index(behind, end)
                continue
            machine, count = _MACHINE_AND_COUNT.unpack_from(data)
            del data[end + 1 :]
            return CubinNames(data) if machine == EM_CUDA and 0 < count <= data.count(b"\0", HEADER_SIZE) else None
        at = end if end >= 0 else max(at, len(data) - len(_NULL_SYMBOL))
    return None


def _string_tables(pieces: Iterable[Buffer]) -> bytearray | None:
    """Return the name table, or None when the layout is another or line info is named."""
    data = bytearray()
    for piece in pieces:
        new = max(HEADER_SIZE, len(data) - _OVERLAP)
        data += piece
        if not data.startswith(MAGIC) or not data.startswith(_TABLES_START, HEADER_SIZE):
            return None
        if data.find(b".debug_line\0", new) >= 0:
            return None
        # Up to sm_89 the symbols' names start with the whole name table once more; later, the null symbol ends both.
        end = data.find(_TABLES_START, new + 1)
        if end < 0:
            end = data.find(_NULL_SYMBOL, new)
        if end >= 0:
            machine, count = _MACHINE_AND_COUNT.unpack_from(data)
            del data[end + 1 :]
            return data if machine == EM_CUDA and 0 < count <= data.count(b"\0", HEADER_SIZE) else None
    return None


def _names_behind(names: bytearray, prefix: bytes, start: int) -> Iterable[str]:
    place = names.find(prefix, start)
    while place >= 0:
        start = place + len(prefix)
        yield names[start : names.index(0, start)].decode("utf-8", "backslashreplace")
        place = names.find(prefix, start)
