"""Compile kernels, disassemble them, and run launches of them: what every proof begins with."""

from __future__ import annotations

import struct
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Final

from gpucore.code_map import CodeMap, Function
from gpucore.dwarf import Place
from tests.support.sass.launches import Access, Launch
from tests.support.sass.listing import Code, disassemble
from tests.support.sass.machine import Machine, Thread, Touch

ARCHITECTURES: Final = (75, 80, 90, 100, 120)
# Where a launch's shape and parameters lie in constant bank 0.
_LAYOUT: Final = {
    75: (0x0, 0xC, 0x160), 80: (0x0, 0xC, 0x160), 90: (0x0, 0xC, 0x210), 100: (0x360, 0x370, 0x380),
    120: (0x360, 0x370, 0x380),
}  # fmt: skip
_STACK: Final = 0xFFF000


def layout(arch: int) -> tuple[int, int, int]:
    """Return where blockDim, gridDim and the parameters begin in constant bank 0."""
    return _LAYOUT[max(known for known in _LAYOUT if known <= arch)]


def constant_bank(arch: int, block: Sequence[int], grid: Sequence[int], parameters: bytes) -> bytes:
    """Return constant bank 0 of a launch."""
    sizes, grids, first = layout(arch)
    data = bytearray(first + len(parameters))
    struct.pack_into("<3I", data, sizes, *block)
    struct.pack_into("<3I", data, grids, *grid)
    struct.pack_into("<I", data, 0x37C if arch >= 100 else 0x28, _STACK)
    data[first:] = parameters
    return bytes(data)


@dataclass(frozen=True)
class Program:
    """A compiled unit: its cubin, and the instructions of each kernel."""

    cubin: bytes
    arch: int
    functions: Mapping[str, Code]

    @cached_property
    def code(self) -> CodeMap:
        """Its functions and lines, by gpucore."""
        return CodeMap(self.cubin)

    @cached_property
    def _symbols(self) -> dict[str, Function]:
        return {one.name: one for one in self.code.functions}

    def find(self, part: str) -> str:
        """Return the mangled name of the kernel whose name has this part."""
        return next(one.name for one in self.code.kernels if part in one.name)

    def symbol(self, name: str) -> Function:
        """Return a function as the symbol table has it."""
        return self._symbols[name]

    def labels(self, name: str) -> dict[str, int]:
        """Return the offsets of the functions that share a kernel's section."""
        section = self._symbols[name].section
        return {one.name: one.start for one in self.code.functions if one.section == section}

    def machine(self, name: str, *, strict: bool = True) -> Machine:
        """Return the interpreter of a kernel."""
        return Machine(self.functions[name], labels=self.labels(name), banks=self.banks(name), strict=strict)

    def banks(self, name: str) -> dict[int, bytes]:
        """Return the constant banks that the cubin itself fills for a kernel."""
        elf, found = self.code.elf, {}
        for section in elf.sections_starting(".nv.constant"):
            number, _, owner = elf.name(section).removeprefix(".nv.constant").partition(".")
            if number.isdigit() and number != "0" and owner in ("", name):
                found[int(number)] = bytes(elf.data[section.offset : section.offset + section.size])
        return found

    def lines(self, name: str, offset: int) -> tuple[tuple[str, int], ...]:
        """Return file and line of an instruction, the innermost first."""
        place = Place(section=self._symbols[name].section, offset=offset)
        return tuple((frame.file, frame.line) for frame in self.code.locate(place).chain)


def compile_unit(nvcc: str, source: Path, arch: int, *options: str, limit: float = 600) -> Path:
    """Compile a file to a cubin with line info; returns its path. Raises RuntimeError with the compiler's words."""
    target = source.with_suffix(f".sm{arch}.cubin")
    ran = subprocess.run(
        ["nice", nvcc, "-std=c++17", "-w", "-lineinfo", f"-arch=sm_{arch}", *options, "-cubin", "-o", target, source],
        capture_output=True, text=True, timeout=limit,
    )  # fmt: skip
    if ran.returncode:
        raise RuntimeError(ran.stderr.strip()[-2000:])
    return target


def load(nvdisasm: str, cubin: Path, arch: int) -> Program:
    """Read and disassemble a cubin."""
    return Program(cubin.read_bytes(), arch, disassemble(nvdisasm, cubin))


def thread_of(machine: Machine, launch: Launch, arch: int) -> Thread:
    """Return the thread of a launch, at the kernel's start."""
    return machine.thread(
        thread=launch.thread, block=launch.block_index, block_size=launch.block, memory=launch.memory.copy(),
        constants=constant_bank(arch, launch.block, launch.grid, launch.parameters),
    )  # fmt: skip


@dataclass(frozen=True)
class Difference:
    """Where the interpreter and C++ disagree, in words."""

    words: str
    touch: Touch | None = None


def compare_accesses(
    launch: Launch, touched: Sequence[Touch], lines: Mapping[int, Sequence[int]]
) -> tuple[dict[int, list[Access]], list[Difference]]:
    """Compare what the interpreter touched with what C++ says; `lines` are the source lines of each instruction.

    Returns, for each touch of global memory by its place in the list, the accesses of C++ that it may be, and the
    differences.
    """
    found: dict[int, list[Access]] = {}
    differences = []
    reached: set[int] = set()
    bases: dict[str, int | None] = {}
    for n, touch in enumerate(touched):
        if touch.space == "local":
            continue
        overlapping: list[tuple[int, Access, int]] = []
        for m, one in enumerate(launch.accesses):
            if (one.space == "shared") != (touch.space == "shared") or one.kind != touch.kind:
                continue
            base: int | None = 0
            if one.space == "shared":
                base = bases.get(one.array, touch.address - one.address if one.line in lines[touch.offset] else None)
            if (
                base is not None
                and touch.address < base + one.address + one.size
                and base + one.address < touch.address + touch.size
            ):
                overlapping.append((m, one, base + one.address))
        # A vector may be loaded in parts, and neighbours as one vector; never a byte that C++ does not access.
        bytes_ = {at + n for _, one, at in overlapping for n in range(one.size)}
        fitting = [(m, one) for m, one, _ in overlapping]
        if not bytes_.issuperset(range(touch.address, touch.address + touch.size)):
            fitting = []
        for _, one, at in overlapping if fitting and touch.space == "shared" else ():
            bases.setdefault(one.array, at - one.address)
        reached.update(m for m, _ in fitting)
        # The line of an instruction that was moved is sometimes its neighbour's: it decides only where it can.
        fitting = [(m, one) for m, one in fitting if one.line in lines[touch.offset]] or fitting
        if not fitting:
            expected = sorted({hex(one.address) for one in launch.accesses if one.line in lines[touch.offset]})[:6]
            differences.append(
                Difference(f"{touch.kind} at {touch.offset:#x} touched {touch.address:#x}, C++ has {expected}", touch)
            )
        found[n] = [one for _, one in fitting]
    stored: set[tuple[str, int]] = set()
    for m, one in enumerate(launch.accesses):
        if one.kind != "load":
            stored.add((one.array, one.address))
        # What is not used, as on the way to an early return, or was stored just before, need not be loaded.
        needed = launch.finished and one.array.startswith("dat") and (one.array, one.address) not in stored
        if m not in reached and (one.kind != "load" or needed):
            differences.append(Difference(f"line {one.line}: C++ has a {one.kind} of {one.array} at {one.address:#x}"))
    return found, differences
