"""Compile kernels, disassemble them, and run launches of them: what every proof begins with."""

from __future__ import annotations

import hashlib
import os
import struct
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from pathlib import Path
from typing import Final

from gpucore.code_map import CodeMap, Function
from gpucore.dwarf import Place
from gpucore.elf import Section
from tests.support.sass.launches import Access, Launch
from tests.support.sass.listing import Code, disassemble
from tests.support.sass.machine import Machine, Thread, Touch

ARCHITECTURES: Final = (75, 80, 90, 100, 120)
# Where a launch's shape and parameters lie in constant bank 0.
_LAYOUT: Final = {
    75: (0x0, 0xC, 0x160), 80: (0x0, 0xC, 0x160), 90: (0x0, 0xC, 0x210), 100: (0x360, 0x370, 0x380),
    120: (0x360, 0x370, 0x380),
}  # fmt: skip
STACK: Final = 0xFFF000
_READ_AT_ONCE: Final = 1 << 20  # bytes of code


def layout(arch: int) -> tuple[int, int, int]:
    """Return where blockDim, gridDim and the parameters begin in constant bank 0."""
    return _LAYOUT[max(known for known in _LAYOUT if known <= arch)]


def constant_bank(arch: int, block: Sequence[int], grid: Sequence[int], parameters: bytes) -> bytes:
    """Return constant bank 0 of a launch."""
    sizes, grids, first = layout(arch)
    data = bytearray(first + len(parameters))
    struct.pack_into("<3I", data, sizes, *block)
    struct.pack_into("<3I", data, grids, *grid)
    struct.pack_into("<I", data, 0x37C if arch >= 100 else 0x28, STACK)
    data[first:] = parameters
    return bytes(data)


@dataclass(frozen=True)
class Program:
    """A compiled unit: its cubin, and the program that disassembles it."""

    cubin: bytes
    arch: int
    nvdisasm: str

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

    @cached_property
    def _codes(self) -> dict[int, Code]:
        return {}

    def words(self, name: str) -> bytes:
        """Return the machine code of a kernel's section."""
        return self._words(self.code.elf.sections[self._symbols[name].section])

    def _words(self, section: Section) -> bytes:
        return bytes(self.code.elf.data[section.offset : section.offset + section.size])

    def code_of(self, name: str) -> Code:
        """Return the instructions of a kernel's section; of a small cubin all are read at once."""
        wanted = self._symbols[name].section
        if wanted not in self._codes:
            sections = self.code.code_sections
            if sum(section.size for section in sections) > _READ_AT_ONCE:
                sections = tuple(section for section in sections if section.number == wanted)
            numbers = {self.code.elf.name(section): section.number for section in sections}
            words = {self.code.elf.name(section): self._words(section) for section in sections}
            for section_name, code in disassemble(self.nvdisasm, self.arch, words).items():
                self._codes[numbers[section_name]] = code
        return replace(self._codes[wanted], name=name)

    def symbol(self, name: str) -> Function:
        """Return a function as the symbol table has it."""
        return self._symbols[name]

    def labels(self, name: str) -> dict[str, int]:
        """Return the offsets of the functions that share a kernel's section."""
        section = self._symbols[name].section
        return {one.name: one.start for one in self.code.functions if one.section == section}

    def machine(self, name: str, *, strict: bool = True) -> Machine:
        """Return the interpreter of a kernel."""
        return Machine(self.code_of(name), labels=self.labels(name), banks=self.banks(name), strict=strict)

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
    """Compile a file to a cubin with line info; returns its path. Raises RuntimeError with the compiler's words.

    A cubin that the same compiler made of the same text with the same options is there already.
    """
    flags = ["-std=c++17", "-w", "-lineinfo", f"-arch=sm_{arch}", *options]
    of = "\0".join([_version(nvcc), *flags, source.read_text()])
    target = source.with_name(f"{source.stem}.sm{arch}.{hashlib.sha256(of.encode()).hexdigest()[:12]}.cubin")
    if not target.exists():
        new = target.with_suffix(f".{os.getpid()}.new")
        command = [nvcc, *flags, "-cubin", "-o", str(new), str(source)]
        ran = subprocess.run(command, capture_output=True, text=True, timeout=limit)
        if ran.returncode:
            raise RuntimeError(ran.stderr.strip()[-2000:])
        new.replace(target)
    return target


@cache
def _version(program: str) -> str:
    return subprocess.run([program, "--version"], capture_output=True, text=True, check=True, timeout=60).stdout


def write_source(path: Path, text: str) -> None:
    """Write a source file, unless it is there: another process may be compiling it."""
    if not path.exists() or path.read_text() != text:
        new = path.with_suffix(f".{os.getpid()}.new")
        new.write_text(text)
        new.replace(path)


def load(nvdisasm: str, cubin: Path, arch: int) -> Program:
    """Read a cubin."""
    return Program(cubin.read_bytes(), arch, nvdisasm)


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

    Returns, for each touch by its place in the list, the accesses of C++ that it may be, and the differences.
    """
    known: dict[tuple[str, int], list[int]] = {}
    for m, one in enumerate(launch.accesses):
        for page in range(one.address >> 4, (one.address + one.size - 1 >> 4) + 1):
            known.setdefault((one.kind, 0 if one.space == "shared" else page), []).append(m)
    found: dict[int, list[Access]] = {}
    differences = []
    reached: set[int] = set()
    bases: dict[str, int] = {}
    for n, touch in enumerate(touched):
        if touch.space == "local":
            continue
        here, end = lines[touch.offset], touch.address + touch.size
        pages = {0} if touch.space == "shared" else range(touch.address >> 4, (end - 1 >> 4) + 1)
        overlapping: list[tuple[int, Access, int]] = []
        for m in sorted({m for page in pages for m in known.get((touch.kind, page), ())}):
            one = launch.accesses[m]
            if (one.space == "shared") != (touch.space == "shared"):
                continue
            at = one.address
            if one.space == "shared":
                if one.array not in bases and one.line not in here:
                    continue
                at += bases.get(one.array, touch.address - one.address)
            if touch.address < at + one.size and at < end:
                overlapping.append((m, one, at))
        # A vector may be loaded in parts, and neighbours as one vector; never a byte that C++ does not access.
        covered = {at + n for _, one, at in overlapping for n in range(one.size)}
        if not covered.issuperset(range(touch.address, end)):
            expected = sorted({hex(one.address) for one in launch.accesses if one.line in here})[:6]
            words = f"{touch.kind} at {touch.offset:#x} touched {touch.address:#x}, C++ has {expected}"
            differences.append(Difference(words, touch))
            overlapping = []
        for m, one, at in overlapping:
            reached.add(m)
            if one.space == "shared":
                bases.setdefault(one.array, at - one.address)
        # The line of an instruction that was moved is sometimes its neighbour's: it decides only where it can.
        on_line = [one for _, one, _ in overlapping if one.line in here]
        found[n] = on_line or [one for _, one, _ in overlapping]
    return found, [*differences, *_missing(launch, reached)]


def _missing(launch: Launch, reached: set[int]) -> list[Difference]:
    """Return the accesses that C++ makes and the interpreter did not."""
    stored: set[tuple[str, int]] = set()
    differences = []
    for m, one in enumerate(launch.accesses):
        if one.kind != "load":
            stored.add((one.array, one.address))
        # What is not used, as on the way to an early return, or was stored just before, need not be loaded.
        needed = launch.finished and one.array.startswith("dat") and (one.array, one.address) not in stored
        if m not in reached and (one.kind != "load" or needed):
            differences.append(Difference(f"line {one.line}: C++ has a {one.kind} of {one.array} at {one.address:#x}"))
    return differences
