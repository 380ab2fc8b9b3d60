"""Reads what ptxas notes of a cubin and its kernels in `.nv.info.KERNEL` and `.nv.compat`.

Both are rows of a format byte, an attribute byte, and a value: two bytes, or a 16-bit length and as many bytes. The
format is not published; attributes and layouts were compared with `cuobjdump -elf` 13.x on cubins for sm_80 to sm_120.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from vdbg_env.cuda.binary.elf import Buffer, Elf

_SIZED: Final = 4
_PARAMETERS_AT: Final = 0x0A  # EIATTR_PARAM_CBANK
_PARAMETER: Final = 0x17  # EIATTR_KPARAM_INFO: size in the upper 14 bits
_PARAMETER_V2: Final = 0x45  # EIATTR_KPARAM_INFO_V2, where a kernel has over 4 KiB of them: size in the lower 16 bits
_ONE_ARCHITECTURE: Final = 0x09  # of .nv.compat: 1 for sm_90a and its like
_ROW: Final = struct.Struct("<IHHI")
_BANK: Final = struct.Struct("<IHH")


@dataclass(frozen=True, kw_only=True, slots=True)
class ParameterPlace:
    """Where a kernel's parameter is: bytes from the start of all parameters, and its size in bytes."""

    ordinal: int
    offset: int
    size: int


@dataclass(frozen=True, kw_only=True)
class ParameterTable:
    """The parameters of a kernel, in order; `bank_offset` is where they start in constant bank 0."""

    parameters: tuple[ParameterPlace, ...]
    bank_offset: int | None
    size: int | None


def read_parameter_table(elf: Elf, kernel: str) -> ParameterTable | None:
    """Return the parameter table of a kernel, by its mangled name; None where the cubin has none for it.

    Raises UnreadableBinary when the section is not within the file.
    """
    section = elf.section(f".nv.info.{kernel}")
    if section is None:
        return None
    found: dict[int, ParameterPlace] = {}
    bank_offset = size = None
    for attribute, value in _attributes(elf.contents(section)):
        if attribute in (_PARAMETER, _PARAMETER_V2) and len(value) >= _ROW.size:
            _index, ordinal, offset, packed = _ROW.unpack_from(value)
            taken = packed >> 18 if attribute == _PARAMETER else packed & 0xFFFF
            found[ordinal] = ParameterPlace(ordinal=ordinal, offset=offset, size=taken)
        elif attribute == _PARAMETERS_AT and len(value) >= _BANK.size:
            _symbol, bank_offset, size = _BANK.unpack_from(value)
    places = tuple(found[ordinal] for ordinal in sorted(found))
    return ParameterTable(parameters=places, bank_offset=bank_offset, size=size)


def is_for_one_architecture(elf: Elf) -> bool:
    """Return whether a cubin was compiled for one architecture alone, such as sm_90a; False where it does not say."""
    section = elf.section(".nv.compat")
    if section is None:
        return False
    noted = _attributes(elf.contents(section))
    return any(attribute == _ONE_ARCHITECTURE and value[:1] == b"\1" for attribute, value in noted)


def _attributes(data: Buffer) -> Iterator[tuple[int, bytes]]:
    """Yield attributes and their values up to the first that is not whole."""
    at = 0
    while at + 4 <= len(data):
        form, attribute, length = struct.unpack_from("<BBH", data, at)
        at += 4
        if form != _SIZED:
            yield attribute, bytes(data[at - 2 : at])
        elif at + length <= len(data):
            yield attribute, bytes(data[at : at + length])
            at += length
        else:
            return
