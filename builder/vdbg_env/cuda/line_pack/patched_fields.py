"""Which bits of an instruction the linker or the driver fills in, by the type of its relocation.

NVIDIA documents neither the numbers nor the fields. The names that `cuobjdump -elf` prints are in the order of the
numbers, and say size and first bit: R_CUDA_ABS32_HI_32 (57) is 32 bits from bit 32 on.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Final, NamedTuple

from vdbg_env.cuda.binary.elf import Elf, Section

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
