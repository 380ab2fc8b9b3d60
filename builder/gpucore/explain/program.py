"""What an explanation is about: the code of one section, its kernel's arguments, and lines of source.

Argument types are those of the mangled name. Argument names are not in a cubin; they are read from the source where its
text is available.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final, TypeAlias

from gpucore.code_map import CodeMap, Function
from gpucore.dwarf import Chain, Place, SourceFrame
from gpucore.elf import ParameterTable, dimensions_at, read_branch_targets, read_parameter_table
from gpucore.errors import UnreadableBinary
from gpucore.explain.algebra import Poly, constant, leaf
from gpucore.explain.code import Code, Routine
from gpucore.explain.slice import Slice
from gpucore.explain.source import Parameter, SourceFile, Wanted
from gpucore.mangling import parameter_types, short_name
from gpucore.sass import Instruction
from gpucore.toolkit import own_frame

SourceText: TypeAlias = Callable[[str], Sequence[str] | None]
"""Gives the lines of a source file by the name that the line table has; None where it is not available."""

_PARAMETERS_AT: Final = ((100, 0x380), (90, 0x210), (0, 0x160))
_MOST_ASKED: Final = 64  # instructions whose lines say where a kernel is defined
_ELEMENTS: Final = {
    "float": 4, "int": 4, "unsigned int": 4, "long": 8, "unsigned long": 8, "long long": 8, "unsigned long long": 8,
    "double": 8, "__half": 2, "__nv_bfloat16": 2, "short": 2, "unsigned short": 2, "unsigned char": 1, "char": 1,
    "signed char": 1, "bool": 1, "__half2": 4, "__nv_bfloat162": 4, "float2": 8, "float4": 16, "int2": 8, "int4": 16,
    "uint2": 8, "uint4": 16, "double2": 16, "longlong2": 16, "c10::Half": 2, "c10::BFloat16": 2,
    "c10::Float8_e4m3fn": 1, "__nv_fp8_e4m3": 1, "__nv_fp8_e5m2": 1, "void": 1,
}  # fmt: skip


@dataclass(frozen=True)
class Argument:
    """A kernel's argument: `number` counts from 1, `offset` and `size` are in bytes of all arguments."""

    number: int
    offset: int
    size: int
    type: str | None
    name: str | None

    @property
    def pointer(self) -> bool | None:
        """Whether it is a pointer; None where its type is not known, or holds several values."""
        if self.type is None:
            return None
        return True if self.type.endswith(("*", "&")) else False if self.size <= 8 and self.type in _ELEMENTS else None

    @property
    def element(self) -> int | None:
        """The size in bytes of what it points to; None where that is not known."""
        if self.type is None or not self.type.endswith("*"):
            return None
        inner = self.type[:-1].strip().removesuffix(" __restrict__").removesuffix(" const").removesuffix(" volatile")
        return 8 if inner.endswith("*") else _ELEMENTS.get(inner.removeprefix("const ").strip())

    @property
    def scalar(self) -> int | None:
        """The size in bytes of one number of what it points to: a vector has several; None where that is not known."""
        if self.type is None or self.element is None:
            return None
        found = re.search(r"(?<=[a-z])([234])(?: const)?\*$", self.type)
        return self.element // int(found[1]) if found else self.element

    @property
    def unsigned(self) -> bool:
        """Whether it is a number without a sign, or points to such."""
        return bool(re.fullmatch(r"unsigned (char|short|int|long|long long)( const)?( volatile)?\*?", self.type or ""))

    @property
    def words(self) -> str:
        """Its name, else its number."""
        return self.name or f"argument{self.number}"


class Program:
    """One kernel or device function of a cubin, with everything that its section holds.

    `instructions` are those of the whole section by offset. `source` gives lines of source files.
    """

    def __init__(
        self, code: CodeMap, section: int, instructions: Sequence[Instruction], source: SourceText | None = None
    ) -> None:
        self.code_map, self.section, self.instructions = code, section, tuple(instructions)
        self._source = source
        self._files: dict[str, SourceFile | None] = {}
        self._offsets = {i.offset for i in self.instructions}
        functions = [f for f in code.functions if f.section == section]
        starts = sorted({f.start for f in functions})
        end = self.instructions[-1].offset + 16 if self.instructions else 0
        self._functions: dict[str, Function] = {}
        self.routines: list[Routine] = []
        for f in functions:
            behind = next((s for s in starts if s > f.start), end)
            self._functions.setdefault(f.name, f)
            self.routines.append(Routine(f.name, f.start, min(behind, end)))
        self._explained: dict[Routine, Slice] = {}

    @property
    def kernel(self) -> Function | None:
        """The kernel of the section."""
        return next((f for f in self._functions.values() if f.kernel), None)

    def has(self, offset: int) -> bool:
        """Say whether an instruction starts at an offset."""
        return offset in self._offsets

    def routine_at(self, offset: int) -> Routine | None:
        """Return the innermost function around an instruction."""
        return next((r for r in self.routines if r.start <= offset < r.end), None)

    def slice_of(self, root: Routine) -> Slice:
        """Return the values of a function and of those it calls."""
        found = self._explained.get(root)
        if found is None:
            function = self._functions[root.name]
            found = Slice(Code(self.instructions, self.routines, root, self._tables), self.bank, function.kernel)
            self._explained[root] = found
        return found

    # Constant banks.

    @cached_property
    def table(self) -> ParameterTable | None:
        """The table of the kernel's arguments; None where the cubin has none."""
        kernel = self.kernel
        try:
            return read_parameter_table(self.code_map.elf, kernel.name) if kernel else None
        except UnreadableBinary:
            return None

    @cached_property
    def _tables(self) -> dict[int, tuple[int, ...]]:
        """Where the branches through registers may lead; empty where the cubin does not say."""
        kernel = self.kernel
        try:
            return read_branch_targets(self.code_map.elf, kernel.name) if kernel else {}
        except UnreadableBinary:
            return {}

    @cached_property
    def bank_offset(self) -> int:
        """Where the arguments start in constant bank 0."""
        if self.table is not None and self.table.bank_offset is not None:
            return self.table.bank_offset
        architecture = self.architecture
        return next(at for least, at in _PARAMETERS_AT if architecture >= least)

    @property
    def window_offset(self) -> int | None:
        """Where constant bank 0 has the generic address of the arguments; None where it has none."""
        return {0x210: 0x198, 0x380: 0x348}.get(self.bank_offset)

    @cached_property
    def architecture(self) -> int:
        """The compute capability without a dot: 90 for sm_90; 0 where the file does not say."""
        try:
            digits = re.search(r"\d+", str(self.code_map.elf.arch or ""))
        except UnreadableBinary:
            return 0
        return int(digits[0]) if digits else 0

    @cached_property
    def dimensions(self) -> dict[int, str]:
        """The names of the launch's dimensions by their offset in constant bank 0."""
        places = zip(("blockDim", "gridDim"), dimensions_at(self.bank_offset), strict=True)
        return {at + 4 * n: f"{name}.{axis}" for name, at in places for n, axis in enumerate("xyz")}

    @cached_property
    def _numbers(self) -> bytes:
        """The numbers that the compiler put into constant bank 2; empty where the file may not have their values."""
        elf, kernel = self.code_map.elf, self.kernel
        name = f".nv.constant2.{kernel.name}" if kernel else ""
        try:
            section = elf.section(name) if kernel else None
            moved = elf.section(f".rel{name}") or elf.section(f".rela{name}")
            return bytes(elf.contents(section)) if section is not None and moved is None else b""
        except UnreadableBinary:
            return b""

    def bank(self, bank: int, offset: int, size: int) -> Poly:
        """Return what is in a constant bank: a number of the compiler, else a leaf."""
        if bank == 2 and offset + size <= len(self._numbers):
            return constant(int.from_bytes(self._numbers[offset : offset + size], "little"))
        if bank == 0 and size == 4 and offset in self.dimensions:
            return leaf("special", self.dimensions[offset])
        if bank == 0 and size == 2 and offset in self.dimensions and offset % 4 == 0:
            return leaf("special", self.dimensions[offset])
        return leaf("bank", bank, offset, size) if size else constant(0)

    def argument_at(self, offset: int) -> tuple[Argument, int] | None:
        """Return the argument that holds a byte of constant bank 0, and the byte's place in it."""
        at = offset - self.bank_offset
        return next(((a, at - a.offset) for a in self.arguments if 0 <= at - a.offset < max(a.size, 1)), None)

    # Arguments and lines.

    @cached_property
    def arguments(self) -> tuple[Argument, ...]:
        """The kernel's arguments in order."""
        if self.table is None or self.kernel is None:
            return ()
        places = self.table.parameters
        types = parameter_types(self.kernel.demangled)
        names = [p.name for p in self.parameters] or [None] * len(places)
        known = len(types) == len(places)
        return tuple(
            Argument(k + 1, p.offset, p.size, types[k] if known else None, names[k]) for k, p in enumerate(places)
        )

    @cached_property
    def parameters(self) -> tuple[Parameter, ...]:
        """The kernel's parameters as its source has them; none where the text does not say which definition it is."""
        kernel = self.kernel
        if self._source is None or kernel is None or self.table is None:
            return ()
        lines: dict[str, set[int]] = {}
        end = next((r.end for r in self.routines if r.name == kernel.name), 0)
        own = [i.offset for i in self.instructions if kernel.start <= i.offset < end]
        for offset in own[:: max(1, len(own) // _MOST_ASKED)]:
            chain = self.chain(offset)
            if chain and not chain[-1].headers:
                lines.setdefault(chain[-1].file, set()).add(chain[-1].line)
        count = len(self.table.parameters)
        wanted = Wanted.of(short_name(kernel.demangled), parameter_types(kernel.demangled))
        found = (text.parameters_of(wanted, count, at) for file, at in lines.items() if (text := self.file(file)))
        return next((parameters for parameters in found if parameters), ())

    def file(self, name: str) -> SourceFile | None:
        """Return the text of a source file; None where it is not available."""
        if name not in self._files:
            lines = self._source(name) if self._source is not None and name else None
            self._files[name] = SourceFile(lines) if lines else None
        return self._files[name]

    def chain(self, offset: int) -> Chain:
        """Return the inline chain of an instruction, leaf first; empty without line info."""
        return self.code_map.locate(Place(section=self.section, offset=offset)).chain

    def body_around(self, frame: SourceFrame) -> str | None:
        """Return the text of the function that a frame is in; None where it is not available."""
        text = self.file(frame.file) if not frame.headers else None
        return text.body_around(frame.line) if text is not None else None

    def place(self, offset: int) -> SourceFrame | None:
        """Return the line of an instruction, the caller's where a header of CUDA has it; None without lines."""
        return own_frame(self.chain(offset))

    def line(self, offset: int) -> str | None:
        """Return file and line of an instruction in few words; None without line info."""
        at = self.place(offset)
        return f"{at.file.rsplit('/', 1)[-1]}:{at.line}" if at and at.file else None
