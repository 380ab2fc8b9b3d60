"""The DWARF line program of a cubin, with NVIDIA's three extensions, decoded one sequence at a time.

Sources: DWARF 2 specification, section 6.2; `DW_LNE_NVIDIA_inlined_call` and `DW_LNE_NVIDIA_set_function_name` as
elfutils 0.186 names them; the header tail and the meaning of a context were measured against nvdisasm 13.5.

A program is a chain of *units* (one per translation unit), each a header and then *sequences* (one per section of
code). A 10 MB cubin holds hundreds of sequences and one PC needs one of them, so `read_units` only skips over the
opcodes to find where each sequence lies, and `decode` turns one of them into rows.
"""

from __future__ import annotations

import re
import struct
from array import array
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from vdbg_env.common.errors import UnreadableBinary
from vdbg_env.cuda.lines.leb128 import sleb, uleb
from vdbg_env.cuda.lines.opcode_patterns import sequence_pattern

Buffer = bytes | memoryview
AddressOf = Callable[[int, int], int]


@dataclass(frozen=True, kw_only=True, slots=True)
class Sequence:
    """Where one sequence lies: `start` and `end` are byte offsets in the line section.

    `operand` is the offset of the first DW_LNE_set_address operand (the place a relocation names), `address` the
    value that stands there; both are None when the sequence sets no address before its first row. `ended` is whether
    every opcode up to an end_sequence could be told from the next.
    """

    start: int
    end: int
    operand: int | None
    address: int | None
    ended: bool


class Opcodes(NamedTuple):
    """What the opcodes of a unit mean, by its header."""

    min_instruction: int
    line_base: int
    line_range: int
    opcode_base: int
    operand_counts: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class Unit:
    """One header of the line section and the sequences under it; offsets are bytes in the section.

    `files` holds the path of each file, number 1 first. `name_base` is added to every function-name offset of the
    unit; it is None where the header has no tail, as in `-G` code and in the PTX table.
    """

    offset: int
    program: int
    end: int
    opcodes: Opcodes
    files: tuple[str, ...]
    name_base: int | None
    sequences: tuple[Sequence, ...]

    def file(self, number: int) -> str:
        """Return the path of a file by its 1-based number, or a text that says the number is not in the table."""
        return self.files[number - 1] if 1 <= number <= len(self.files) else f"<file number {number}>"


def _u32() -> array[int]:
    return array("I")


@dataclass(frozen=True, kw_only=True, slots=True)
class Rows:
    """The rows of one sequence as parallel columns, 24 bytes a row; index 0 is what a context calls row 1.

    `addresses` are relative to whatever `decode` was told the operands of DW_LNE_set_address mean. `contexts` are
    1-based rows of this sequence, 0 for code that was not inlined; `names` are offsets in `.debug_str`, base added.
    `end_address` is one past the last byte of code, None when the sequence is cut short.
    """

    addresses: array[int] = field(default_factory=lambda: array("Q"))
    files: array[int] = field(default_factory=_u32)
    lines: array[int] = field(default_factory=_u32)
    contexts: array[int] = field(default_factory=_u32)
    names: array[int] = field(default_factory=_u32)
    end_address: int | None = None

    def __len__(self) -> int:
        return len(self.addresses)


@dataclass(frozen=True, kw_only=True)
class LineProgram:
    """All units of a line section, and notes on what could not be read, in words."""

    units: tuple[Unit, ...]
    notes: tuple[str, ...]


def read_units(section: Buffer) -> LineProgram:
    """Read every header of a line section and find its sequences, without decoding any row.

    A unit that cannot be read is in `notes`; the ones before it, and after it where its length is sound, stand.
    """
    units: list[Unit] = []
    notes: list[str] = []
    at = 0
    while at < len(section):
        end = _unit_end(section, at)
        if end is None:
            notes.append(f"line table: the unit at byte {at:#x} reaches past the section's end ({len(section):#x})")
            end = len(section)
        try:
            units.append(_read_unit(section, at, end, notes))
        except UnreadableBinary as error:
            notes.append(str(error))
        at = end
    return LineProgram(units=tuple(units), notes=tuple(notes))


def decode(section: Buffer, unit: Unit, sequence: Sequence, address_of: AddressOf | None = None) -> Rows:
    """Run one sequence and return its rows; bytes that end early give the rows up to there.

    `address_of` turns a DW_LNE_set_address operand (its offset in the section, its value) into the address to use,
    where a relocation or the caller's own idea of addresses stands between; without it the value itself is used.
    """
    code = bytes(section[sequence.start : sequence.end])
    machine = Machine(code, unit.opcodes, unit.name_base or 0, address_of, sequence.start)
    end_address = machine.run()
    return replace(machine.rows, end_address=end_address)


def _unit_end(section: Buffer, at: int) -> int | None:
    if len(section) - at < 4:
        return None
    (length,) = struct.unpack_from("<I", section, at)
    end = at + 4 + int(length)
    return end if end <= len(section) else None


def _read_unit(section: Buffer, at: int, end: int, notes: list[str]) -> Unit:
    head = bytes(section[at : min(at + 15, end)])
    if len(head) < 15:
        raise UnreadableBinary("line table: a unit's header is cut short", offset=at)
    _, version, header_length, min_instruction, _, line_base, line_range, opcode_base = struct.unpack("<IHIBBbBB", head)
    if version not in {2, 3}:
        # 64-bit DWARF (length 0xffffffff) never gets here: its unit reaches past the section.
        raise UnreadableBinary(
            f"line table: DWARF version {version} is not one that CUDA's assembler writes (2)", offset=at
        )
    if line_range == 0 or opcode_base == 0:
        raise UnreadableBinary("line table: a header with line_range or opcode_base 0", offset=at)
    program = at + 10 + header_length
    if program > end:
        raise UnreadableBinary("line table: the header is longer than its unit", offset=at)
    counts_end = at + 15 + opcode_base - 1
    counts = tuple(bytes(section[at + 15 : min(counts_end, program)]))
    if len(counts) != opcode_base - 1:
        raise UnreadableBinary("line table: the list of operand counts is cut short", offset=at)
    files, tables_end = _read_files(bytes(section[counts_end:program]), counts_end)
    tail = program - tables_end
    (name_base,) = struct.unpack_from("<I", section, tables_end) if tail == 4 else (None,)
    sequences = _find_sequences(section, program, end, sequence_pattern(opcode_base, counts), notes)
    return Unit(
        offset=at, program=program, end=end, files=files, name_base=name_base, sequences=sequences,
        opcodes=Opcodes(min_instruction, line_base, line_range, opcode_base, counts),
    )  # fmt: skip


def _read_files(tables: bytes, origin: int) -> tuple[tuple[str, ...], int]:
    """Return the full path of each file, and the section offset where the tables end."""
    directories, at = [""], 0
    try:
        while tables[at]:
            stop = tables.index(0, at)
            directories.append(tables[at:stop].decode("utf-8", "backslashreplace"))
            at = stop + 1
        at += 1
        files = []
        while tables[at]:
            stop = tables.index(0, at)
            name = tables[at:stop].decode("utf-8", "backslashreplace")
            directory, at = uleb(tables, stop + 1)
            _modified, at = uleb(tables, at)
            _size, at = uleb(tables, at)
            parent = directories[directory] if directory < len(directories) else ""
            files.append(f"{parent}/{name}" if parent and not name.startswith("/") else name)
    except (IndexError, ValueError):
        raise UnreadableBinary("line table: the list of files is cut short", offset=origin + at) from None
    return tuple(files), origin + at + 1


_FIRST_ADDRESS = re.compile(rb"\x00\x09\x02(.{8})", re.DOTALL)


def _find_sequences(
    section: Buffer, at: int, end: int, skipper: re.Pattern[bytes], notes: list[str]
) -> tuple[Sequence, ...]:
    found = []
    while at < end:
        match = skipper.match(section, at, end)
        if match is None:
            notes.append(f"line table: the sequence at byte {at:#x} has no end; its rows may be incomplete")
        stop = match.end() if match else end
        first = _FIRST_ADDRESS.match(section, at, stop)
        found.append(
            Sequence(
                start=at,
                end=stop,
                operand=at + 3 if first else None,
                address=int.from_bytes(first[1], "little") if first else None,
                ended=match is not None,
            )
        )
        at = stop
    return tuple(found)


@dataclass
class Machine:
    """The registers of the line-number state machine, NVIDIA's two among them."""

    code: bytes
    opcodes: Opcodes
    name_base: int = 0
    address_of: AddressOf | None = None
    origin: int = 0
    rows: Rows = field(default_factory=Rows)
    address: int = 0
    file: int = 1
    line: int = 1
    context: int = 0
    name: int = 0
    at: int = 0

    def run(self) -> int | None:
        """Emit rows until end_sequence and return its address; None when the bytes end first."""
        code = self.code
        step, line_base, line_range, opcode_base, _ = self.opcodes
        try:
            while True:
                opcode = code[self.at]
                self.at += 1
                if opcode >= opcode_base:
                    advance, delta = divmod(opcode - opcode_base, line_range)
                    self.address += advance * step
                    self.line += line_base + delta
                    self._emit()
                elif opcode:
                    self._standard(opcode)
                elif self._extended():
                    return self.address & _U64
        except IndexError:
            return None

    def _emit(self) -> None:
        rows = self.rows
        rows.addresses.append(self.address & _U64)
        rows.files.append(self.file & _U32)
        rows.lines.append(self.line & _U32)
        rows.contexts.append(self.context & _U32)
        rows.names.append(self.name & _U32)

    def _standard(self, opcode: int) -> None:
        code, meaning = self.code, self.opcodes
        match opcode:
            case 1:  # DW_LNS_copy
                self._emit()
            case 2:  # DW_LNS_advance_pc
                value, self.at = uleb(code, self.at)
                self.address += value * meaning.min_instruction
            case 3:  # DW_LNS_advance_line
                value, self.at = sleb(code, self.at)
                self.line += value
            case 4:  # DW_LNS_set_file
                self.file, self.at = uleb(code, self.at)
            case 8:  # DW_LNS_const_add_pc
                self.address += (255 - meaning.opcode_base) // meaning.line_range * meaning.min_instruction
            case 9:  # DW_LNS_fixed_advance_pc
                low, high = code[self.at], code[self.at + 1]
                self.address += low | high << 8
                self.at += 2
            case _:  # set_column, negate_stmt, set_basic_block, and any the header declares: only their size matters
                for _ in range(meaning.operand_counts[opcode - 1]):
                    _, self.at = uleb(code, self.at)

    def _extended(self) -> bool:
        """Run one extended opcode; return whether it was end_sequence."""
        code = self.code
        length, body = uleb(code, self.at)
        end = body + length
        self.at = end
        if length == 0:
            return False
        match code[body]:
            case 0x01:  # DW_LNE_end_sequence
                return True
            case 0x02 if length == 9:  # DW_LNE_set_address
                if end > len(code):
                    raise IndexError
                raw = int.from_bytes(code[body + 1 : end], "little")
                self.address = self.address_of(self.origin + body + 1, raw) if self.address_of else raw
            case 0x90:  # DW_LNE_NVIDIA_inlined_call: a context, then a name, both kept until changed
                self.context, at = uleb(code, body + 1)
                self.name = uleb(code, at)[0] + self.name_base
            case 0x91:  # DW_LNE_NVIDIA_set_function_name
                self.name = uleb(code, body + 1)[0] + self.name_base
            case _:
                pass
        return False


_U32, _U64 = 0xFFFFFFFF, 0xFFFFFFFFFFFFFFFF
