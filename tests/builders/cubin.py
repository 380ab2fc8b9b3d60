"""Writes cubins laid out as nvcc's: the name table, then the symbols' names, then the symbols, section headers last."""

from __future__ import annotations

import struct
from collections.abc import Collection, Sequence

from gpucore.elf import CUDA_13, EM_CUDA, SHT_SYMTAB, STT_FUNC
from tests.builders.elf import SHT_PROGBITS, SHT_STRTAB, STO_ENTRY, string_table
from tests.builders.line_program import RowSpec, build_line_section

LINE_SECTIONS = (".debug_line", ".nv_debug_line_sass", ".nv_debug_ptx_txt")
DEBUG_SECTIONS = (*LINE_SECTIONS, ".debug_info", ".debug_abbrev")
CODE_SIZE = 128  # bytes of each kernel: eight instructions
EMPTY_TABLE = bytes.fromhex("160000000200100000000101fb0e0a0001010101000000010000")  # ptxas, of PTX without .loc
_ALLOCATED, _EXECUTABLE = 2, 4
_SHT_RELA = 4


def cubin(
    *kernels: str,
    lines: bool = False,
    debug: bool = False,
    arch: int = 90,
    unused_names: Sequence[str] = (),
    covered: Collection[str] | None = None,
    table: bytes | None = None,
    linked: bool = False,
) -> bytes:
    """Return a cubin of the kernels; without any it is a stub. `unused_names` stand in the name table only.

    With `lines` or `debug` rows cover every instruction of the kernels in `covered`, of all where that is None; `table`
    is written in place of that. `linked` notes that nvlink made it.
    """
    with_rows = [k for k in kernels if covered is None or k in covered]
    names = [".debug_frame", ".nv.info", *(DEBUG_SECTIONS if debug else LINE_SECTIONS if lines else ())]
    has_rows = (lines or debug) and table is None and with_rows
    names += [".rela.debug_line"] if has_rows else []
    names += [".note.nv.tkinfo"] if linked else []
    for kernel in kernels:
        names += [f".nv.info.{kernel}", f".text.{kernel}", f".nv.constant0.{kernel}"]
    contents = {".debug_line": _table(len(with_rows)) if table is None else table}
    contents[".rela.debug_line"] = _relocations(contents[".debug_line"], [1 + kernels.index(k) for k in with_rows])
    contents[".note.nv.tkinfo"] = b"\0\0\0\0nvlink\0Cuda compilation tools\0"
    sections = [(name, SHT_PROGBITS, contents.get(name, name.encode().ljust(CODE_SIZE, b"\1"))) for name in names]
    symbol_names, offsets = string_table(kernels)
    symbols = bytes(24) + b"".join(
        struct.pack("<IBBHQQ", offsets[k], 0x10 | STT_FUNC, STO_ENTRY, 4 + names.index(f".text.{k}"), 0, CODE_SIZE)
        for k in kernels
    )
    shared, name_offsets = string_table([".shstrtab", ".strtab", ".symtab", *names, *unused_names])
    first = [(".shstrtab", SHT_STRTAB, shared), (".strtab", SHT_STRTAB, symbol_names), (".symtab", SHT_SYMTAB, symbols)]
    body = bytearray(64)
    rows = [bytes(64)]
    for name, kind, data in [*first, *sections]:
        is_code = name.startswith(".text.")
        data = data[:CODE_SIZE] if is_code else data
        kind = _SHT_RELA if name == ".rela.debug_line" else kind
        flags = _ALLOCATED | _EXECUTABLE if is_code else 0
        link, entry_size = (2, 24) if kind == SHT_SYMTAB else (0, 0)
        rows.append(
            struct.pack("<IIQQQQIIQQ", name_offsets[name], kind, flags, 0, len(body), len(data), link, 0, 1, entry_size)
        )
        body += data
    ident = b"\x7fELF" + bytes([2, 1, 1, CUDA_13.os_abi, CUDA_13.abi_version]) + bytes(7)
    fixed = (2, EM_CUDA, 1, 0, 0, len(body), 0x06000004 | arch << 8, 64, 56, 0, 64, len(rows), 1)
    body[:64] = ident + struct.pack("<HHIQQQIHHHHHH", *fixed)
    return bytes(body) + b"".join(rows)


def _table(sequences: int) -> bytes:
    rows = [RowSpec(address=0, line=3), RowSpec(address=16, line=4)]
    return build_line_section([rows] * sequences, tail=CODE_SIZE - 16)


def _relocations(table: bytes, symbols: Sequence[int]) -> bytes:
    """Return the relocations by which each sequence starts at its kernel."""
    out, at = b"", 0
    for symbol in symbols:
        at = table.find(b"\0\x09\x02", at) + 3
        out += struct.pack("<QQq", at, symbol << 32 | 2, 0)
    return out
