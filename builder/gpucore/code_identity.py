"""Which bits of an instruction the linker or the driver fills in, by the type of its relocation.

NVIDIA documents neither the numbers nor the fields. The names that `cuobjdump -elf` prints are in the order of the
numbers, and say size and first bit: R_CUDA_ABS32_HI_32 (57) is 32 bits from bit 32 on.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import blake2b
from typing import Final, NamedTuple

from gpucore.code_map import CodeMap, Function
from gpucore.elf import Elf, Section
from gpucore.errors import UnreadableBinary

INSTRUCTION: Final = 16
"""The size of an instruction in bytes, on every architecture since sm_70."""

_SHT_RELA: Final = 4
_SHT_REL: Final = 9
_RELA: Final = struct.Struct("<QQq")
_REL: Final = struct.Struct("<QQ")
_TABLES: Final = frozenset({_SHT_RELA, _SHT_REL})
_WHOLE: Final = ((0, 8 * INSTRUCTION),)

# Type -> the ranges of bits that it fills, as (first bit, count). Types 76 to 99 and 104 to 111 fill single bytes.
_FIELDS: Final[dict[int, tuple[tuple[int, int], ...]]] = {
    0: (),
    55: ((32, 32),), 56: ((32, 32),), 57: ((32, 32),),  # ABS32_32, ABS32_LO_32, ABS32_HI_32
    58: ((34, 47),),  # ABS47_34
    59: ((32, 16),), 60: ((32, 24),),  # ABS16_32, ABS24_32
    61: ((32, 32),), 62: ((32, 32),), 63: ((32, 32),),  # FUNC_DESC32_32, _LO_32, _HI_32
    64: ((40, 19),), 65: ((40, 14),), 66: ((38, 21),),  # CONST_FIELD19_40, BINDLESSOFF14_40, CONST_FIELD21_38
    67: _WHOLE,  # INSTRUCTION128
    68: ((0, 9),), 69: ((87, 4),),  # YIELD_OPCODE9_0, YIELD_CLEAR_PRED4_87
    74: ((40, 24),),  # ABS24_40
    75: ((16, 8), (34, 47)),  # ABS55_16_34
    100: ((44, 20),),  # ABS20_44
    112: ((32, 32),), 113: ((32, 32),),  # UNIFIED32_LO_32, UNIFIED32_HI_32
    114: ((16, 8), (34, 48)),  # ABS56_16_34
    115: ((37, 22),),  # CONST_FIELD22_37
}  # fmt: skip


class PatchedField(NamedTuple):
    """A field that is filled in after compilation: its instruction's offset in bytes, its first bit and its size."""

    offset: int
    first_bit: int
    bits: int


def patched_fields(elf: Elf) -> dict[int, tuple[PatchedField, ...]]:
    """Return, by section number, the fields that relocations name, in order; an unknown type is a whole instruction.

    Raises UnreadableBinary when a relocation section is damaged.
    """
    found: dict[int, set[PatchedField]] = {}
    for table in elf.sections_of(_TABLES):
        fields = {field for row in _rows(elf, table) for field in _fields(*row)}
        found.setdefault(table.info, set()).update(fields)
    return {section: tuple(sorted(fields)) for section, fields in found.items()}


def without_fields(code: bytes, fields: tuple[PatchedField, ...]) -> bytes:
    """Return the code with zeros in the fields; offsets count from the start of `code`."""
    masked = bytearray(code)
    for offset, first_bit, bits in fields:
        word = int.from_bytes(masked[offset : offset + INSTRUCTION], "little")
        size = len(masked[offset : offset + INSTRUCTION])
        masked[offset : offset + size] = (word & ~(((1 << bits) - 1) << first_bit)).to_bytes(INSTRUCTION, "little")[
            :size
        ]
    return bytes(masked)


def _rows(elf: Elf, table: Section) -> Iterator[tuple[int, int]]:
    """Yield offset and type of every relocation of a table."""
    form = _RELA if table.type == _SHT_RELA else _REL
    rows = elf.contents(table)
    for row in form.iter_unpack(rows[: len(rows) - len(rows) % form.size]):
        yield row[0], row[1] & 0xFFFFFFFF


def _fields(offset: int, kind: int) -> Iterator[PatchedField]:
    start = offset - offset % INSTRUCTION
    shift = 8 * (offset - start)
    for first_bit, bits in _FIELDS.get(kind, _WHOLE):
        if (first_bit, bits) == _WHOLE[0]:
            yield PatchedField(start, 0, 8 * INSTRUCTION)
        else:
            yield PatchedField(start, shift + first_bit, min(bits, 8 * INSTRUCTION - shift - first_bit))


# What makes two builds of a function the same code: its instructions, but for fields that are filled in later.
#
# `-lineinfo` changes no instruction, so the line table of one build is valid for the code of another with the same
# hash. Addresses that the linker or the driver fills in are left out of the hash by the relocations of the function's
# section.


HASH_SIZE: Final = 16
"""Bytes of a code hash: 128 bits; no two of 10 million functions share one by chance."""

_PERSON: Final = b"vdbg-env code 1"
_NOTE: Final = ".note.nv.tkinfo"
_NOTE_HEADER: Final = struct.Struct("<III")
_TOOL: Final = struct.Struct("<6I")  # version, object name, tool, its version, its build, its options
_RELEASE: Final = re.compile(r"V(\d+\.\d+\.\d+)")
_PRIVATE: Final = re.compile(r"(_GLOBAL__N__|_INTERNAL_|__nv_static_\d+__)([0-9a-f]{8})_(\d{1,3})_")
_SUFFIX: Final = re.compile(r"_[0-9a-f]{8}")
_PROCESS: Final = re.compile(r"_\d+$")
_LENGTH: Final = re.compile(r"[1-9]\d*$")


@dataclass(frozen=True, kw_only=True, slots=True)
class CodeIdentity:
    """A function with code that is not inside another, and the hash of its instructions.

    `fields` are those left out of the hash, with offsets from the function's start. `inner` are the functions that the
    compiler put inside it; they are part of its instructions.
    """

    function: Function
    hash: bytes
    fields: tuple[PatchedField, ...]
    inner: tuple[Function, ...]

    @property
    def stable_name(self) -> str:
        """The mangled name without what nvcc makes of the path of the source."""
        return stable_name(self.function.name)


@dataclass(frozen=True, kw_only=True, slots=True)
class CompilerNote:
    """What a tool noted of itself in a cubin: `ptxas` or `nvlink`, its release such as 13.0.88, and its options."""

    tool: str
    release: str
    build: str
    options: str


def identify(code: CodeMap) -> Iterator[CodeIdentity]:
    """Yield every outermost function of a cubin with its identity.

    Raises UnreadableBinary when a section of code or of relocations is damaged.
    """
    fields_of = patched_fields(code.elf)
    for outer, inner in _outermost(code.functions):
        yield _identity(code, outer, inner, fields_of.get(outer.section, ()))


def identity_at(code: CodeMap, section: int, offset: int) -> CodeIdentity | None:
    """Return the identity of the outermost function around a byte of a section; None where no function is.

    Raises as `identify` does.
    """
    for outer, inner in _outermost(tuple(f for f in code.functions if f.section == section)):
        if outer.start <= offset < outer.start + outer.size:
            return _identity(code, outer, inner, patched_fields(code.elf).get(section, ()))
    return None


def outermost_count(code: CodeMap) -> int:
    """Return how many functions of a cubin `identify` yields."""
    return sum(1 for _ in _outermost(code.functions))


def code_of(code: CodeMap, function: Function) -> bytes:
    """Return the instructions of a function; raises UnreadableBinary when they are not all there."""
    section = code.elf.sections[function.section]
    text = bytes(code.elf.contents(section)[function.start : function.start + function.size])
    if len(text) != function.size:
        raise UnreadableBinary(f"the code of {function.name} ends behind its section", offset=section.offset)
    return text


def _identity(
    code: CodeMap, outer: Function, inner: tuple[Function, ...], of_section: tuple[PatchedField, ...]
) -> CodeIdentity:
    fields = tuple(
        field._replace(offset=field.offset - outer.start)
        for field in of_section
        if outer.start <= field.offset < outer.start + outer.size
    )
    return CodeIdentity(function=outer, hash=code_hash(code_of(code, outer), fields), fields=fields, inner=inner)


def code_hash(code: bytes, fields: tuple[PatchedField, ...] = ()) -> bytes:
    """Return the hash of instructions, the fields left out; offsets count from the start of `code`."""
    return blake2b(without_fields(code, fields) if fields else code, digest_size=HASH_SIZE, person=_PERSON).digest()


def stable_name(name: str) -> str:
    """Return a mangled name with zeros where nvcc puts a hash of the source's path into names of internal linkage.

    A source that defines nothing for others also gets the number of nvcc's process at the end, which is left out.
    """
    parts: list[str] = []
    at = 0
    while found := _PRIVATE.search(name, at):
        file_end = found.end() + int(found[3])
        suffix = _SUFFIX.match(name, file_end)
        length = _LENGTH.search(name, at, found.start())
        process = _PROCESS.match(name, suffix.end(), found.start() + int(length[0])) if suffix and length else None
        head = name[at : found.start(2)]
        if process and length:
            shorter = int(length[0]) - len(process[0])
            head = f"{name[at : length.start()]}{shorter}{name[length.end() : found.start(2)]}"
        parts += head, "0" * 8, name[found.end(2) : file_end if suffix else found.end()]
        at = found.end()
        if suffix:
            parts.append("_" + "0" * 8)
            at = process.end() if process else suffix.end()
    return "".join((*parts, name[at:]))


def compiler_notes(elf: Elf) -> tuple[CompilerNote, ...]:
    """Return what the tools noted of themselves, those of CUDA 13 and later; damaged notes are left out."""
    found: list[CompilerNote] = []
    for section in elf.sections_named(_NOTE):
        found += _notes(bytes(elf.contents(section)))
    return tuple(found)


def _outermost(functions: tuple[Function, ...]) -> Iterator[tuple[Function, tuple[Function, ...]]]:
    """Group functions, in the order of `CodeMap.functions`, by the one that encloses them."""
    outer: Function | None = None
    inner: list[Function] = []
    for function in functions:
        if outer and function.section == outer.section and function.start < outer.start + outer.size:
            inner.append(function)
            continue
        if outer:
            yield outer, tuple(inner)
        outer, inner = function, []
    if outer:
        yield outer, tuple(inner)


def _notes(data: bytes) -> Iterator[CompilerNote]:
    at = 0
    while at + _NOTE_HEADER.size <= len(data):
        name_size, size, _kind = _NOTE_HEADER.unpack_from(data, at)
        start = at + _NOTE_HEADER.size + -(-name_size // 4) * 4
        at = start + -(-size // 4) * 4
        described = data[start : start + size]
        if len(described) != size or size <= _TOOL.size:
            return
        _, _, *offsets = _TOOL.unpack_from(described)
        strings = described[_TOOL.size :]
        tool, version, build, options = (_string(strings, offset) for offset in offsets)
        release = _RELEASE.search(version)
        yield CompilerNote(tool=tool, release=release[1] if release else version, build=build, options=options)


def _string(strings: bytes, offset: int) -> str:
    return strings[offset : max(strings.find(b"\0", offset), offset)].decode("utf-8", "backslashreplace").strip()
