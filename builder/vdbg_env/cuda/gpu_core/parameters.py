"""The parameters and constant banks of a kernel launch, decoded by the parameter table of its cubin.

`paramsOffset` of a grid is where its parameters start in constant bank 0; the section of parameter memory starts there
too, as NVIDIA's libcudacore reads it. Without that section, bank 0 itself may be in the dumped memory.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from vdbg_env.common.errors import UnreadableBinary
from vdbg_env.cuda.binary.elf import Buffer
from vdbg_env.cuda.binary.kernel_info import ParameterPlace, ParameterTable, read_parameter_table
from vdbg_env.cuda.gpu_core.layout import CONSTANT_BANK, GridRow, SectionType
from vdbg_env.cuda.gpu_core.model import Device, GpuCore
from vdbg_env.cuda.gpu_core.reader import CoreSections
from vdbg_env.cuda.symbols.demangling import demangle, parameter_types

_LARGEST: Final = 1 << 15  # bytes: CUDA passes 32,764 at most
_MOST_BANKS: Final = 256
_NUMBERS: Final = {
    "char": "b", "signed char": "b", "unsigned char": "B", "short": "h", "unsigned short": "H", "int": "i",
    "unsigned int": "I", "long": "q", "unsigned long": "Q", "long long": "q", "unsigned long long": "Q", "float": "f",
    "double": "d",
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Parameter:
    """A parameter; `offset` and `size` in bytes, `type` as the kernel's name has it, `data` None where it is not held.

    `value` is its text where the type says how to read it: numbers in decimal, pointers in hex.
    """

    index: int
    type: str | None
    offset: int
    size: int
    data: bytes | None

    @property
    def value(self) -> str | None:
        """The value as text; None for a type that is not a number, a pointer or a bool."""
        if self.data is None or self.type is None or not self.data:
            return None
        kind = self.type.removesuffix(" const")
        if kind.endswith(("*", "&")) and len(self.data) == 8:
            return f"{int.from_bytes(self.data, 'little'):#x}"
        if kind == "bool" and len(self.data) == 1:
            return "true" if self.data[0] else "false"
        form = _NUMBERS.get(kind)
        if form is None or struct.calcsize(f"<{form}") != len(self.data):
            return None
        return f"{struct.unpack(f'<{form}', self.data)[0]}"


@dataclass(frozen=True, kw_only=True)
class ConstantBank:
    """A constant bank of a launch: `address` is global, `held` says whether the dump has its contents."""

    number: int
    address: int
    size: int
    held: bool


@dataclass(frozen=True, kw_only=True)
class LaunchParameters:
    """What a dump holds of a launch's parameters; `problem` says why less than all of it is known.

    `data` are the bytes of all parameters as they are; None where the dump has none.
    """

    parameters: tuple[Parameter, ...]
    data: bytes | None
    banks: tuple[ConstantBank, ...]
    problem: str | None


def read_parameters(core: GpuCore, device: Device, index: int, sections: CoreSections) -> LaunchParameters:
    """Return the parameters and constant banks of the launch that is number `index` of a device."""
    grid, (table, row) = device.grids[index], device.grid_places[index]
    banks = tuple(_banks(sections, table, row))
    held = sections.bytes_of(SectionType.PARAMETERS, table, row)
    places, types, problem = _table(core, device, grid)
    data = bytes(held[:_LARGEST]) if held is not None else _in_bank(sections, banks, grid, places)
    if places and places.bank_offset not in (None, grid.parameters_offset):
        problem = (
            f"the launch's parameters start at {grid.parameters_offset:#x} of constant bank 0, "
            f"the kernel's at {places.bank_offset:#x}: they may be another kernel's"
        )
    if data is None:
        problem = problem or "the dump has neither its parameter memory nor constant bank 0 (a flag left them out)"
    elif places and places.size is not None and len(data) < places.size:
        problem = problem or f"{len(data)} of {places.size} bytes of parameters are in the dump"
    parameters = tuple(_parameter(at, types, data) for at in (places.parameters if places else ()))
    return LaunchParameters(parameters=parameters, data=data, banks=banks, problem=problem)


def _parameter(at: ParameterPlace, types: tuple[str, ...], data: bytes | None) -> Parameter:
    end = at.offset + at.size
    return Parameter(
        index=at.ordinal,
        type=types[at.ordinal] if at.ordinal < len(types) else None,
        offset=at.offset,
        size=at.size,
        data=data[at.offset : end] if data is not None and end <= len(data) else None,
    )


def _table(core: GpuCore, device: Device, grid: GridRow) -> tuple[ParameterTable | None, tuple[str, ...], str | None]:
    """Return the parameter table of a launch's kernel, its parameters' types, and why there is none."""
    found = core.find_code(grid.function_entry, device, grid.module_handle)
    location = found[0].locate(found[1]) if found else None
    if found is None or location is None or location.kernel is None:
        return None, (), "the dump holds no image of its kernel"
    name = location.kernel.name
    try:
        table = read_parameter_table(found[0].elf, name)
    except UnreadableBinary as error:
        return None, (), f"the parameter table of its kernel is not readable: {error.what}"
    if table is None:
        return None, (), "the image has no parameter table for its kernel"
    types = parameter_types(demangle(name))
    return table, types if len(types) == len(table.parameters) else (), None


def _banks(sections: CoreSections, table: int, row: int) -> Iterator[ConstantBank]:
    rows = sections.bytes_of(SectionType.CONSTANT_BANKS, table, row)
    if not rows:
        return
    for bank in list(CONSTANT_BANK.rows(rows[: _MOST_BANKS * CONSTANT_BANK.smallest], CONSTANT_BANK.smallest)):
        held = sections.memory(bank.address, bank.size) is not None
        yield ConstantBank(number=bank.bank, address=bank.address, size=bank.size, held=held)


def _in_bank(
    sections: CoreSections, banks: tuple[ConstantBank, ...], grid: GridRow, places: ParameterTable | None
) -> bytes | None:
    bank = next((bank for bank in banks if bank.number == 0), None)
    if bank is None or bank.size <= grid.parameters_offset:
        return None
    size = bank.size - grid.parameters_offset
    if places and places.size is not None:
        size = min(size, places.size)
    held: Buffer | None = sections.memory(bank.address + grid.parameters_offset, min(size, _LARGEST))
    return bytes(held) if held is not None else None
