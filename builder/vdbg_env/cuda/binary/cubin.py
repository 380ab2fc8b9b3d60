"""Says of a cubin what a proof of line info needs: its architecture, its kernels, and which debug sections it has.

A cubin has line info when one of its *section headers* bears exactly the name `.debug_line`. The name alone proves
nothing: nvcc leaves it in the name tables of cubins without the section, and `.nv_debug_line_sass` contains it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import islice
from typing import Final

from vdbg_env.common.errors import UnreadableBinary
from vdbg_env.cuda.binary.cubin_names import read_section_names
from vdbg_env.cuda.binary.elf import EM_CUDA, SHF_EXECINSTR, SHT_NOBITS, Buffer, Elf, Section

KERNELS_NAMED: Final = 16
"""How many kernels of one cubin are named: libtorch_cuda.so alone holds 147,201, which say no more than the first."""

# Constant bank 0 holds the launch parameters: every kernel has one, a device function compiled apart has none.
_KERNEL: Final = ".nv.constant0."
_CODE: Final = ".text."


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
    has_code = any(True for _ in elf.sections_starting(_CODE)) or any(map(_is_executable, elf.sections))
    if not has_code and f"\0{_CODE}".encode() in elf.section_names:
        raise UnreadableBinary("a cubin names code that it has no section of: its header is damaged", offset=60)
    return Cubin(
        has_code=has_code,
        has_debug_line=any(s.size and s.type != SHT_NOBITS for s in elf.sections_named(".debug_line")),
        device_debug=any(True for _ in elf.sections_named(".debug_info")),
        kernels=tuple(elf.name(s).removeprefix(_KERNEL) for s in kernels[:KERNELS_NAMED]),
        kernel_count=len(kernels),
    )


def _is_executable(section: Section) -> bool:
    """Return whether a section holds instructions, whatever its name."""
    return bool(section.flags & SHF_EXECINSTR and section.size)


def read_cubin_start(pieces: Iterable[Buffer]) -> Cubin | None:
    """Judge a cubin without line info by its first bytes, taken piece by piece; None when they do not settle it.

    Cubins carry their name table right behind the ELF header, then the symbols' names, then the symbol table, and their
    section headers at the very end. A section needs its name in the table, so tables without `.debug_line` prove there
    is none; that there is one is never concluded here. From any other layout nothing is concluded.
    """
    names = read_section_names(pieces)
    # Without a name of code it may be a stub, or damaged: only the section headers say that there is no code.
    if names is None or names.has(".debug_line") or not any(True for _ in names.behind(_CODE)):
        return None
    return Cubin(
        has_code=True,
        has_debug_line=False,
        device_debug=False,
        kernels=tuple(islice(names.behind(_KERNEL), KERNELS_NAMED)),
        kernel_count=names.count(_KERNEL),
    )
