"""Writes cubins laid out as nvcc's: the name table, then the symbols' names, then the symbols, section headers last."""

from __future__ import annotations

import struct
from collections.abc import Sequence

from tests.builders.elf import SHT_PROGBITS, SHT_STRTAB, STO_ENTRY, string_table
from vdbg_env.cuda.binary.elf import CUDA_13, EM_CUDA, SHT_SYMTAB, STT_FUNC

LINE_SECTIONS = (".debug_line", ".nv_debug_line_sass", ".nv_debug_ptx_txt")
DEBUG_SECTIONS = (*LINE_SECTIONS, ".debug_info", ".debug_abbrev")


def cubin(
    *kernels: str, lines: bool = False, debug: bool = False, arch: int = 90, unused_names: Sequence[str] = ()
) -> bytes:
    """Return a cubin of the kernels; without any it is a stub. `unused_names` stand in the name table only."""
    names = [".debug_frame", ".nv.info", *(DEBUG_SECTIONS if debug else LINE_SECTIONS if lines else ())]
    for kernel in kernels:
        names += [f".nv.info.{kernel}", f".text.{kernel}", f".nv.constant0.{kernel}"]
    sections = [(name, SHT_PROGBITS, name.encode().ljust(32, b"\1")) for name in names]
    symbol_names, offsets = string_table(kernels)
    symbols = bytes(24) + b"".join(
        struct.pack("<IBBHQQ", offsets[k], 0x10 | STT_FUNC, STO_ENTRY, 0, 0, 128) for k in kernels
    )
    table, name_offsets = string_table([".shstrtab", ".strtab", ".symtab", *names, *unused_names])
    first = [(".shstrtab", SHT_STRTAB, table), (".strtab", SHT_STRTAB, symbol_names), (".symtab", SHT_SYMTAB, symbols)]
    body = bytearray(64)
    rows = [bytes(64)]
    for name, kind, data in [*first, *sections]:
        link, entry_size = (2, 24) if kind == SHT_SYMTAB else (0, 0)
        rows.append(
            struct.pack("<IIQQQQIIQQ", name_offsets[name], kind, 0, 0, len(body), len(data), link, 0, 1, entry_size)
        )
        body += data
    ident = b"\x7fELF" + bytes([2, 1, 1, CUDA_13.os_abi, CUDA_13.abi_version]) + bytes(7)
    fixed = (2, EM_CUDA, 1, 0, 0, len(body), 0x06000004 | arch << 8, 64, 56, 0, 64, len(rows), 1)
    body[:64] = ident + struct.pack("<HHIQQQIHHHHHH", *fixed)
    return bytes(body) + b"".join(rows)
