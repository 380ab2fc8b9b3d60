"""Writes DWARF 2 line programs as ptxas does, from rows; with and without NVIDIA's extensions."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass

OPCODE_BASE, LINE_BASE, LINE_RANGE = 10, -5, 14
COUNTS = bytes([0, 1, 1, 1, 1, 0, 0, 0, 1])


@dataclass(frozen=True, kw_only=True)
class RowSpec:
    """A row to write; `context` is a 1-based row of the same sequence, `name` an offset in `.debug_str`."""

    address: int
    line: int
    file: int = 1
    context: int = 0
    name: int = 0


def build_line_section(
    sequences: Sequence[Sequence[RowSpec]],
    *,
    files: Sequence[tuple[str, int]] = (("kernel.cu", 1),),
    directories: Sequence[str] = ("/src",),
    name_base: int | None = 0,
    tail: int = 16,
) -> bytes:
    """Return one unit; each sequence ends `tail` bytes after its last row. Nothing is relocated."""
    tables = b"".join(d.encode() + b"\0" for d in directories) + b"\0"
    tables += b"".join(name.encode() + b"\0" + bytes([directory, 0, 0]) for name, directory in files) + b"\0"
    if name_base is not None:
        tables += struct.pack("<I", name_base)
    fixed = struct.pack("<BBbBB", 1, 1, LINE_BASE, LINE_RANGE, OPCODE_BASE) + COUNTS
    program = b"".join(_sequence(rows, tail) for rows in sequences)
    header_length = len(fixed) + len(tables)
    body = struct.pack("<HI", 2, header_length) + fixed + tables + program
    return struct.pack("<I", len(body)) + body


def uleb(value: int) -> bytes:
    """Return an unsigned LEB128 number."""
    out = bytearray()
    while True:
        byte, value = value & 0x7F, value >> 7
        out.append(byte | (0x80 if value else 0))
        if not value:
            return bytes(out)


def sleb(value: int) -> bytes:
    """Return a signed LEB128 number."""
    out = bytearray()
    while True:
        byte, value = value & 0x7F, value >> 7
        done = (value == 0 and not byte & 0x40) or (value == -1 and byte & 0x40)
        out.append(byte | (0 if done else 0x80))
        if done:
            return bytes(out)


def _sequence(rows: Sequence[RowSpec], tail: int) -> bytes:
    start = rows[0].address if rows else 0
    out = bytearray(b"\0\x09\x02" + struct.pack("<Q", start))
    at = RowSpec(address=start, line=1)
    for row in rows:
        if row.file != at.file:
            out += b"\x04" + uleb(row.file)
        if (row.context, row.name) != (at.context, at.name):
            operands = b"\x90" + uleb(row.context) + uleb(row.name)
            out += b"\0" + uleb(len(operands)) + operands
        out += _advance(row.address - at.address, row.line - at.line)
        at = row
    return bytes(out) + b"\x02" + uleb(tail) + b"\0\x01\x01"


def _advance(address: int, line: int) -> bytes:
    special = (line - LINE_BASE) + LINE_RANGE * address + OPCODE_BASE
    if LINE_BASE <= line < LINE_BASE + LINE_RANGE and special <= 255:
        return bytes([special])
    steps = (b"\x03" + sleb(line) if line else b"") + (b"\x02" + uleb(address) if address else b"")
    return steps + b"\x01"
