"""A place in source code, and the inline chain made of such places."""

from __future__ import annotations

import re
import struct
import sys
from array import array
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import cache, lru_cache
from itertools import accumulate, islice
from operator import mul
from typing import Final, NamedTuple

from gpucore.errors import UnreadableBinary
from gpucore.mangling import demangle

UNKNOWN: Final = "unknown"

_FRAME: Final = re.compile(
    r"(?P<file>.+?):(?P<line>\d+)(?: in (?P<function>.+?))?(?: \((?P<headers>line of [^()]+)\))?", re.DOTALL
)
_HEADERS: Final = re.compile(
    r"line of (?P<project>[^\s,]+)(?P<used>, release unknown| \S+); "
    r"(?:the wheel was built with (?P<wanted>\S+)|the pack does not say .*)"
)


@dataclass(frozen=True, kw_only=True)
class OtherHeaders:
    """Headers that lines are of, where the code was built with another release of them; `unknown` is possible."""

    project: str
    used: str
    wanted: str

    def __str__(self) -> str:
        used = f"{self.project}{', release unknown' if self.used == UNKNOWN else f' {self.used}'}"
        if self.wanted == UNKNOWN:
            return f"line of {used}; the pack does not say which one the wheel was built with"
        return f"line of {used}; the wheel was built with {self.wanted}"


@dataclass(frozen=True, kw_only=True)
class SourceFrame:
    """One level of an inline chain: the function (demangled, None when unknown), its file and 1-based line.

    `headers` are given where the line is that of another release of the file than the code was built with.
    """

    function: str | None
    file: str
    line: int
    headers: OtherHeaders | None = None

    @property
    def mark(self) -> str:
        """What follows the line wherever it is shown: nothing, or which headers it is of."""
        return f" ({self.headers})" if self.headers else ""

    def __str__(self) -> str:
        within = f" in {self.function}" if self.function else ""
        return f"{self.file}:{self.line}{within}{self.mark}"


def parse_frame(text: str) -> SourceFrame | None:
    """Read what a frame is written as; None for other text."""
    found = _FRAME.fullmatch(text.strip())
    if found is None:
        return None
    said = _HEADERS.fullmatch(found["headers"]) if found["headers"] else None
    unknown = said is not None and said["used"] == ", release unknown"
    headers = said and OtherHeaders(
        project=said["project"], used=UNKNOWN if unknown else said["used"].strip(), wanted=said["wanted"] or UNKNOWN
    )
    return SourceFrame(function=found["function"], file=found["file"], line=int(found["line"]), headers=headers)


Chain = tuple[SourceFrame, ...]
"""Leaf first: each frame was inlined at (or called from) the one after it."""


@dataclass(frozen=True, kw_only=True)
class BorrowedLines:
    """Lines of code that has none itself, by the line table of a build with identical code.

    `build` names that build, `pack` the line pack that has it. `others` are the chains of further builds that agree on
    the code and disagree on its lines, each with its build. `siblings` are as those of `Location`.
    """

    build: str
    pack: str
    chain: Chain
    siblings: tuple[Chain, ...] = ()
    others: tuple[tuple[str, Chain], ...] = ()

    how_known = "line table of a build with identical code"

    @property
    def headers(self) -> OtherHeaders | None:
        """The headers of the first frame whose line is of another release than the code was built with."""
        return next((frame.headers for frame in self.chain if frame.headers), None)


@dataclass(frozen=True, kw_only=True)
class LinesByName:
    """Lines of a place that a log names by function and offset: those of a build whose code was not compared.

    `function` is mangled, `archs` are the architectures that the build has this code for.
    """

    function: str
    offset: int
    archs: tuple[str, ...]
    build: str
    pack: str
    chain: Chain

    how_known = "line table of a build, by name and offset alone: the code that ran was not compared"


# The variable-length numbers of DWARF (version 2, section 7.6).


def uleb(data: bytes, at: int) -> tuple[int, int]:
    """Return the unsigned number at `at` and where the next byte is; raises IndexError when the bytes end first."""
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift = min(shift + 7, 70)  # more than 64 bits carry no meaning and must not grow a number without bound


def sleb(data: bytes, at: int) -> tuple[int, int]:
    """Return the signed number at `at` and where the next byte is; raises IndexError when the bytes end first."""
    start = at
    value, at = uleb(data, at)
    bits = 7 * min(at - start, 11)
    return (value - (1 << bits) if value >> (bits - 1) & 1 else value), at


# Patterns by which opcodes of a line program are separated from their operands at the speed of the `re` module.
#
# The repetitions are possessive: each byte is looked at once, whatever the input.


@cache
def _extended() -> bytes:
    """Return a pattern of one extended opcode: 0, length, sub-opcode, operands.

    A length of one byte covers everything ptxas writes, the common ones first. Length 1 is end_sequence, which must end
    the match and is left out, or an unknown marker.
    """
    lengths = [4, 5, 3, 9, *sorted(set(range(2, 128)) - {3, 4, 5, 9})]
    bodies = [rb"\x%02x.{%d}" % (length, length) for length in lengths]
    return rb"\x00(?:" + b"|".join([*bodies, rb"\x01[^\x01]"]) + rb")"


_LEB128: Final = rb"[\x80-\xff]*+[\x00-\x7f]"


def _all_of(body: bytes) -> bytes:
    """Return a repetition of `body` that gives nothing back.

    Before Python 3.11.5 a possessive repetition of alternatives could end too early (python/cpython#106052). An atomic
    group never did, and is slower.
    """
    return rb"(?:" + body + rb")*+" if sys.version_info >= (3, 11, 5) else rb"(?>(?:" + body + rb")*)"


@cache
def sequence_pattern(opcode_base: int, counts: tuple[int, ...]) -> re.Pattern[bytes]:
    """Compile a pattern that matches one whole sequence, : skipping then runs at the speed of the `re` module.

    Walking the opcodes in Python takes half a second for a line section of 2 MB; this takes a fiftieth of that.
    """
    single, longer = bytearray(), []
    for opcode in range(1, 256):
        operands = counts[opcode - 1] if opcode < opcode_base else 0
        if opcode == 9 and opcode < opcode_base:  # DW_LNS_fixed_advance_pc: one uhalf, not a LEB128
            longer.append(rb"\x09..")
        elif operands:
            longer.append(rb"\x%02x(?:%b){%d}" % (opcode, _LEB128, operands))
        else:
            single.append(opcode)
    ones = b"[" + b"".join(rb"\x%02x" % byte for byte in single) + b"]++"
    body = b"|".join(([ones] if single else []) + longer + [_extended()])
    return re.compile(_all_of(body) + rb"\x00\x01\x01", re.DOTALL)


@cache
def step_pattern() -> re.Pattern[bytes]:
    """Compile a pattern that finds, one row after the other, the standard and special opcodes up to and with the row.

    It reads the opcodes as `sequence_pattern` does, so none is read out of step.
    """
    operands = b"|".join([rb"[\x02-\x05]" + _LEB128, rb"[\x06-\x08]", rb"\x09.."])
    return re.compile(_all_of(_extended()) + rb"(" + _all_of(operands) + rb"[\x01\x0a-\xff]?+)", re.DOTALL)


# The DWARF line program of a cubin, with NVIDIA's three extensions, decoded one sequence at a time.
#
# Sources: DWARF 2 specification, section 6.2; `DW_LNE_NVIDIA_inlined_call` and `DW_LNE_NVIDIA_set_function_name` as
# elfutils 0.186 names them; the header tail and the meaning of a context were measured against nvdisasm 13.5.
#
# A program is a chain of *units* (one per translation unit), each a header and then *sequences* (one per section of
# code). A 10 MB cubin holds hundreds of sequences and one PC needs one of them, so `read_units` only skips over the
# opcodes to find where each sequence is, and `decode` turns one of them into rows.


Buffer = bytes | memoryview
AddressOf = Callable[[int, int], int]


@dataclass(frozen=True, kw_only=True, slots=True)
class Sequence:
    """Where one sequence is: `start` and `end` are byte offsets in the line section.

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


# Which bytes of code a sequence of the line table covers, without making its rows.
#
# A row covers from its address to the next row's, the last one to the end of the sequence. Addresses only grow behind a
# DW_LNE_set_address, so a sequence covers all from its first row to its end, unless a row names no file of the table,
# or line 0, which DWARF keeps for code without a source. Both are decided over the distinct opcodes up to a row, which
# are few; a sequence in which they do not hold, or of another form, is decoded row by row.


Span = tuple[int, int]
"""A half-open range of byte offsets."""


_STANDARD: Final = (0, 1, 1, 1, 1, 0, 0, 0, 1)  # the operand counts that ptxas, nvlink and nvcc -G write
_SET_ADDRESS: Final = b"\0\x09\x02"
_BODY: Final = len(_SET_ADDRESS) + 8
_END: Final = b"\0\x01\x01"
_UNSET: Final = -1
_LARGEST_LINE: Final = 1 << 31
_MOST_KEPT: Final = 1 << 13  # steps; an extension of vLLM has 13,000, and 5 MiB hold these
_LARGEST_ADDRESS: Final = 1 << 64


class CoverageReader:
    """Finds what the sequences of one unit cover; what the unit's opcodes do is worked out once for all of them."""

    def __init__(self, section: Buffer, unit: Unit, address_of: AddressOf) -> None:
        self._section: Final = section
        self._unit: Final = unit
        self._address_of: Final = address_of
        steps = _steps(unit.opcodes)
        if len(steps) > _MOST_KEPT:
            _steps.cache_clear()
        self._steps: Final = steps
        self._standard: Final = unit.opcodes.operand_counts == _STANDARD

    def spans(self, sequence: Sequence) -> list[Span]:
        """Return what a sequence covers, in order and apart from each other."""
        span = self._in_one(sequence)
        return merged(self._row_by_row(sequence) if span is None else [span])

    def _in_one(self, sequence: Sequence) -> Span | None:
        """Return the one span of a sequence, or None when its rows must be looked at one by one."""
        code = bytes(self._section[sequence.start : sequence.end])
        known = self._standard and sequence.operand is not None and sequence.address is not None
        if not known or not sequence.ended or code.find(_SET_ADDRESS, _BODY) >= 0:
            return None
        steps = self._steps
        taken = step_pattern().findall(code, _BODY, len(code) - len(_END))
        if 0 in accumulate(map(steps.__getitem__, taken), initial=1):
            return None
        times = Counter(taken)
        files = set(map(steps.files.__getitem__, times)) - {None}
        if not self._unit.files or not all(file and file <= len(self._unit.files) for file in files):
            return None
        if sum(map(mul, map(abs, map(steps.__getitem__, times)), times.values())) >= _LARGEST_LINE:
            return None
        start = self._address_of(sequence.operand or 0, sequence.address or 0)
        end = start + sum(map(mul, map(steps.advances.__getitem__, times), times.values()))
        first = start
        for step in taken:
            first += steps.advances[step]
            if step in steps.rows:
                return (first, end) if end < _LARGEST_ADDRESS else None
        return (end, end)  # not one row

    def _row_by_row(self, sequence: Sequence) -> list[Span]:
        rows = decode(self._section, self._unit, sequence, self._address_of)
        ends = [*rows.addresses[1:], rows.end_address if rows.end_address is not None else 0]
        named = range(1, len(self._unit.files) + 1)
        return [
            (start, end)
            for start, end, file, line in zip(rows.addresses, ends, rows.files, rows.lines, strict=False)
            if line and file in named
        ]


def merged(spans: Iterable[Span]) -> list[Span]:
    """Return spans in order, those that touch made one and empty ones left out."""
    whole: list[Span] = []
    for start, end in sorted(spans):
        if start >= end:
            continue
        if whole and start <= whole[-1][1]:
            whole[-1] = (whole[-1][0], max(whole[-1][1], end))
        else:
            whole.append((start, end))
    return whole


class _Steps(dict[bytes, int]):
    """What the opcodes up to a row do to the registers, worked out on first use: by the opcodes, their lines' advance.

    `advances` are those of the address, `files` the number that is set, if any; `rows` are the steps that end in a row.
    """

    def __init__(self, opcodes: Opcodes) -> None:
        super().__init__()
        self.advances: Final[dict[bytes, int]] = {}
        self.files: Final[dict[bytes, int | None]] = {}
        self.rows: Final[set[bytes]] = set()
        self._opcodes: Final = opcodes

    def __missing__(self, code: bytes) -> int:
        machine = Machine(code, self._opcodes, file=_UNSET, line=0)
        machine.run()
        if machine.rows.lines:
            self.rows.add(code)
        self.advances[code], self.files[code] = machine.address, None if machine.file == _UNSET else machine.file
        self[code] = machine.line  # last: another thread that finds it here finds the others too
        return machine.line


@lru_cache(maxsize=4)
def _steps(opcodes: Opcodes) -> _Steps:
    """Return the steps of all units whose opcodes mean the same: each is worked out once for a whole library."""
    return _Steps(opcodes)


# From a place in device code to its source line and the whole inline chain.
#
# Read the table, not nvdisasm's listing: the listing shows a new chain only when the leaf's file or line changes, so
# where two call paths end in the same small inline function the second is shown under the first one's chain.
# ptxas itself does the same on a smaller scale: it writes no row where only the call path changes and both paths have
# been named before. `LineTable.siblings` shows when a chain may be such a neighbour's.


_LONGEST_NAME: Final = 1 << 16
_MOST_SIBLINGS: Final = 64
_DEEPEST_CHAIN: Final = 4096  # a context may only name an earlier row, so this is a bound for hostile tables alone


@dataclass(frozen=True, kw_only=True, slots=True)
class Place:
    """A byte of code: an index into the section table, and an offset in that section in bytes."""

    section: int
    offset: int


@dataclass(frozen=True, kw_only=True, slots=True)
class LineRow:
    """One row as tools list them: where it starts, its file and 1-based line, the row it was inlined at (0: none)."""

    offset: int
    file: str
    line: int
    context: int
    function: str | None


@dataclass(frozen=True, slots=True)
class _Run:
    """One sequence, placed: it covers its section from `start` on."""

    start: int
    unit: Unit
    sequence: Sequence


class LineTable:
    """The rows of one line section, decoded a sequence at a time when a place in it is first asked for.

    `place` says where an address operand points: it is given the operand's offset in the section and the value that
    is there. A sequence that points nowhere is left out, with a note in `notes`.
    """

    def __init__(self, section: Buffer, strings: Buffer, place: Callable[[int, int], Place | None]) -> None:
        program = read_units(section)
        self._section: Final = section
        self._strings: Final = strings
        self._place: Final = place
        self._runs: Final[dict[int, list[_Run]]] = {}
        self._decoded: Final[dict[int, Rows]] = {}
        notes = list(program.notes)
        for unit in program.units:
            lost = sum(not self._admit(unit, sequence) for sequence in unit.sequences)
            if lost:
                notes.append(f"line table: {lost} of the unit at byte {unit.offset:#x} name no section of code")
        for runs in self._runs.values():
            runs.sort(key=lambda run: run.start)
        self.notes: Final = tuple(notes)

    def _admit(self, unit: Unit, sequence: Sequence) -> bool:
        if sequence.operand is None or sequence.address is None:
            return False
        place = self._place(sequence.operand, sequence.address)
        if place is None:
            return False
        self._runs.setdefault(place.section, []).append(_Run(place.offset, unit, sequence))
        return True

    @property
    def sections(self) -> frozenset[int]:
        """The indexes of the sections that have line rows."""
        return frozenset(self._runs)

    def covered(self) -> Iterator[tuple[int, list[Span]]]:
        """Yield, for every sequence, its section and what of it has a source line, without decoding rows."""
        readers: dict[int, CoverageReader] = {}
        for section, runs in self._runs.items():
            for run in runs:
                reader = readers.get(run.unit.offset)
                if reader is None:
                    reader = readers[run.unit.offset] = CoverageReader(self._section, run.unit, self._offset)
                yield section, reader.spans(run.sequence)

    def chain(self, place: Place, function: str | None = None) -> Chain:
        """Return the source frames of an instruction, leaf first; empty when no row covers it.

        `function` is the demangled name of the function that the code belongs to: the table names only inlined ones.
        """
        found = self._find(place)
        return self._walk(*found, function) if found else ()

    def siblings(self, place: Place, function: str | None = None) -> tuple[Chain, ...]:
        """Return the other chains of the same sequence that end in the same leaf line, at most eight of them.

        With any of these, the chain of `place` is right to its leaf, and its callers are the likeliest of several.
        """
        found = self._find(place)
        if found is None:
            return ()
        unit, rows, row = found
        leaf = (rows.files[row], rows.lines[row], rows.names[row])
        contexts = {
            rows.contexts[i]: i
            for i in range(len(rows))
            if rows.contexts[i] and (rows.files[i], rows.lines[i], rows.names[i]) == leaf
        }
        own = self._walk(unit, rows, row, function)
        others = dict.fromkeys(self._walk(unit, rows, i, function) for i in islice(contexts.values(), _MOST_SIBLINGS))
        return tuple(chain for chain in others if chain != own)[:8]

    def contradictions(self, place: Place, section_size: int) -> tuple[str, ...]:
        """Return what shows that the rows of a place are damaged, in words.

        ptxas names each inlined function, and its rows end where the code does.
        """
        found = self._find(place)
        if found is None:
            return ()
        unit, rows, row = found
        doubts = []
        if rows.end_address not in (None, section_size) and len(self._runs[place.section]) == 1:
            doubts.append(f"the line table ends at {rows.end_address:#x} of code of {section_size:#x} bytes")
        for _ in range(_DEEPEST_CHAIN):
            name, context = rows.names[row], rows.contexts[row]
            if not 1 <= rows.files[row] <= len(unit.files) or rows.lines[row] == 0:
                doubts.append("the line table names a file that it does not list, or line 0")
            if context > row:
                doubts.append("the line table inlines code at a place further on")
            if not 0 < context <= row:
                break
            if unit.name_base is not None and not self._is_name(name):
                doubts.append("the line table has no sound name for an inlined function")
            row = context - 1
        return tuple(dict.fromkeys(doubts))

    def _is_name(self, start: int) -> bool:
        """Return whether a whole string is at an offset, and a mangled one is a name."""
        if start >= len(self._strings) or (start and self._strings[start - 1]):
            return False
        raw = bytes(self._strings[start : start + _LONGEST_NAME]).partition(b"\0")[0]
        return raw.isascii() and bool(raw) and not (raw.startswith(b"_Z") and demangle(raw.decode()) == raw.decode())

    def rows(self, section: int) -> Iterator[LineRow]:
        """Yield every row of a section in the order of the table."""
        for run in self._runs.get(section, ()):
            rows = self._rows(run)
            for i in range(len(rows)):
                yield LineRow(
                    offset=rows.addresses[i],
                    file=run.unit.file(rows.files[i]),
                    line=rows.lines[i],
                    context=rows.contexts[i],
                    function=self._name(rows, i) if rows.contexts[i] else None,
                )

    def sequences(self, section: int) -> Iterator[tuple[int, Unit, Rows]]:
        """Yield every sequence of a section by its start: that, its unit and its rows, which are not kept here."""
        for run in self._runs.get(section, ()):
            yield run.start, run.unit, decode(self._section, run.unit, run.sequence, self._offset)

    def mangled_name(self, start: int) -> str:
        """Return the name at an offset of the table's strings as it is there; empty where there is none."""
        return (
            bytes(self._strings[start : start + _LONGEST_NAME]).partition(b"\0")[0].decode("utf-8", "backslashreplace")
        )

    def _find(self, place: Place) -> tuple[Unit, Rows, int] | None:
        """Return the last row that begins at or before a place, with its sequence and unit."""
        for run in self._covering(place):
            rows = self._rows(run)
            if rows.end_address is not None and place.offset >= rows.end_address:
                continue
            last = bisect_right(rows.addresses, place.offset) - 1
            if last >= 0:
                return run.unit, rows, last
        return None

    def _covering(self, place: Place) -> Iterator[_Run]:
        """Yield the sequences that begin at or before a place, nearest first: of two the inner one wins."""
        runs = self._runs.get(place.section, [])
        for i in range(bisect_right(runs, place.offset, key=lambda run: run.start) - 1, -1, -1):
            yield runs[i]

    def _rows(self, run: _Run) -> Rows:
        rows = self._decoded.get(run.sequence.start)
        if rows is None:
            rows = decode(self._section, run.unit, run.sequence, self._offset)
            self._decoded[run.sequence.start] = rows
        return rows

    def _offset(self, operand: int, value: int) -> int:
        place = self._place(operand, value)
        return value if place is None else place.offset

    def _walk(self, unit: Unit, rows: Rows, row: int, function: str | None) -> Chain:
        frames: list[SourceFrame] = []
        while len(frames) < _DEEPEST_CHAIN:
            context = rows.contexts[row]
            name = self._name(rows, row) if context else function
            frames.append(SourceFrame(function=name, file=unit.file(rows.files[row]), line=rows.lines[row]))
            if not 0 < context <= row:
                break
            row = context - 1
        return tuple(frames)

    def _name(self, rows: Rows, row: int) -> str | None:
        name = self.mangled_name(rows.names[row])
        return demangle(name) if name else None
