"""How much of the code of a cubin its line table covers, function by function, and why it is not more.

That a table is there proves nothing: ptxas writes one of 26 bytes, without a row, when it is given -lineinfo and the
PTX has no `.loc`, and a device link keeps the table of one unit for the code of all.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from heapq import heappop, heappush
from itertools import pairwise
from typing import Final

from vdbg_env.common.errors import UnreadableBinary
from vdbg_env.cuda.binary.elf import SHF_EXECINSTR, STT_FUNC, Buffer
from vdbg_env.cuda.lines.code_map import CodeMap, Function
from vdbg_env.cuda.lines.line_coverage import Span, merged
from vdbg_env.cuda.lines.line_table import LineTable

BOUND: Final = 0.95
"""The share of its instructions that rows must cover for a function to count as covered.

Every function of the builds measured reaches 1 (docs/04-verify.md), padding and compiler-made code included. The rest
is room for an assembler that leaves the last padding out: up to 1 of 20 instructions.
"""

FUNCTIONS_NAMED: Final = 16
"""How many functions below the bound are named; all are counted."""

_LINKER: Final = b"\0nvlink\0"
_CODE: Final = ".text."
_FIRST_WIDE: Final = 70  # the first architecture with instructions of 16 bytes, 8 before

# What CUDA adds to a program, without rows whatever the flags: the compiler's arithmetic and atomics and the functions
# of libdevice, where they are not inlined (-rdc=true, -G), and the device runtime (libcudadevrt.a). A user's functions
# have C++ names, or none that starts with two underscores.
_LIBRARY: Final = re.compile(r"__(?!nv_static_)[A-Za-z]\w*|cuda[A-Z]\w*|_Z\d+cnprtCnp\w+")
_DEVICE_RUNTIME: Final = re.compile(r"__nv_static_\w*_cuda_device_runtime_cu_\w+")
_MATH: Final = re.compile(
    r"(?:a?(?:cos|sin|tan)h?|(?:cos|sin|sincos)pi|sincos|atan2|r?cbrt|ceil|copysign|cyl_bessel_i[01]|erf(?:c|cx|inv|cinv)?"
    r"|exp(?:2|10|m1)?|l?l?abs|fabs|fdim|fdivide|floor|fma|fmax|fmin|fmod|frexp|r?hypot|ilogb|isfinite|isinf|isnan"
    r"|[jy][01n]|ldexp|[lt]gamma|l?l?rint|l?l?round|log(?:2|10|1p|b)?|max|min|modf|nan|nearbyint|nextafter"
    r"|r?norm(?:3d|4d)?|normcdf(?:inv)?|powi?|remainder|remquo|r?sqrt|scalbl?n|trunc)f?"
)
_CONSTRUCTOR: Final = re.compile(r"_ZN\w+[CD][0-4]E\w*")


class Cause(StrEnum):
    """The likeliest reason why a cubin lacks rows."""

    NO_TABLE = "no-line-table"
    EMPTY_TABLE = "empty-line-table"
    LINKED_WITHOUT = "linked-without"
    DAMAGED_TABLE = "damaged-line-table"
    ROWS_MISSING = "rows-missing"


@dataclass(frozen=True, kw_only=True, slots=True)
class FunctionCoverage:
    """One function, its instructions, and how many of them a row covers; callees in its section count apart."""

    name: str
    kernel: bool
    instructions: int
    covered: int

    @property
    def share(self) -> float:
        """The share covered, from 0 to 1."""
        return self.covered / self.instructions

    @property
    def reaches_bound(self) -> bool:
        """Whether enough is covered to count as all."""
        return self.share >= BOUND


@dataclass(frozen=True, kw_only=True)
class Coverage:
    """What the line table of one cubin covers.

    `functions` counts those with code; `compiler_made` of them are CUDA's own or the compiler's, without rows, and not
    judged.
    `instructions` and `covered` are those of the functions judged; `below` names the first of `below_count` functions
    under the bound. `lowest` is the smallest share. `cause` is None when nothing is below the bound.
    """

    functions: int = 0
    compiler_made: int = 0
    instructions: int = 0
    covered: int = 0
    below: tuple[FunctionCoverage, ...] = ()
    below_count: int = 0
    lowest: float = 0.0
    cause: Cause | None = None

    @property
    def complete(self) -> bool:
        """Whether there is code and every function judged reaches the bound."""
        return self.instructions > 0 and self.below_count == 0


def read_coverage(data: Buffer) -> Coverage:
    """Read what the line table of a cubin covers; raises UnreadableBinary when its section headers are damaged."""
    code = CodeMap(data)
    _check_code_sections(code)
    table = code.read_lines()
    spans = _covered(table) if table else {}
    functions = list(function_coverage(code, spans))
    judged = [f for f in functions if f.covered or not _is_compiler_made(f, code)]
    # A cubin of nothing else is judged like any other: CUDA's own libraries are not proven by being CUDA's.
    judged = judged or functions
    below = [f for f in judged if not f.reaches_bound]
    return Coverage(
        functions=len(functions),
        compiler_made=len(functions) - len(judged),
        instructions=sum(f.instructions for f in judged),
        covered=sum(f.covered for f in judged),
        below=tuple(below[:FUNCTIONS_NAMED]),
        below_count=len(below),
        lowest=min((f.share for f in judged), default=0.0),
        cause=_cause(code, table, below, bool(spans)) if below else None,
    )


def _check_code_sections(code: CodeMap) -> None:
    """Refuse a cubin whose headers hide code: what is not counted must not be left out of a proof."""
    sections = {section.number: section for section in code.elf.sections_starting(_CODE)}
    for section in sections.values():
        if section.size and not section.flags & SHF_EXECINSTR:
            name = code.elf.name(section)
            raise UnreadableBinary(f"section {name} is not marked as code: its header is damaged", offset=0)
    for symbol in code.elf.symbols:
        holder = sections.get(symbol.section) if symbol.type == STT_FUNC else None
        if holder and symbol.value - holder.address + symbol.size > holder.size:
            name = code.elf.symbol_name(symbol)
            raise UnreadableBinary(f"function {name} ends behind its section: a header is damaged", offset=0)


def function_coverage(code: CodeMap, spans: dict[int, list[Span]]) -> Iterator[FunctionCoverage]:
    """Yield every function with its instructions; `spans` are what is covered of each section, by its number.

    A callee inside its kernel's section is a function by itself. Code that no symbol names goes under its section's.
    """
    width = 16 if (code.elf.arch or _FIRST_WIDE) >= _FIRST_WIDE else 8
    by_section: defaultdict[int, list[Function]] = defaultdict(list)
    for named in code.functions:
        by_section[named.section].append(named)
    for section in code.code_sections:
        sizes: defaultdict[tuple[str, bool], int] = defaultdict(int)
        covered: defaultdict[tuple[str, bool], int] = defaultdict(int)
        unnamed = (code.elf.name(section).removeprefix(_CODE), False)
        for start, end, function in _innermost(by_section[section.number], section.size):
            key = (function.name, function.kernel) if function else unnamed
            sizes[key] += end - start
            covered[key] += _overlap(spans.get(section.number, ()), start, end)
        for key, size in sizes.items():
            name, kernel = key
            yield FunctionCoverage(
                name=name, kernel=kernel, instructions=-(-size // width), covered=covered[key] // width
            )


def _covered(table: LineTable) -> dict[int, list[Span]]:
    """Return what the rows cover of each section."""
    found: defaultdict[int, list[Span]] = defaultdict(list)
    for section, spans in table.covered():
        found[section] += spans
    return {section: merged(spans) for section, spans in found.items() if spans}


def _innermost(functions: list[Function], size: int) -> Iterator[tuple[int, int, Function | None]]:
    """Cut a section of `size` bytes where functions start and end, each piece with the function that started last."""
    if len(functions) == 1 and functions[0].start == 0 and functions[0].size >= size:
        yield 0, size, functions[0]
        return
    ends = [min(f.start + f.size, size) for f in functions]
    cuts = sorted({0, size, *(f.start for f in functions), *ends})
    waiting = sorted(range(len(functions)), key=lambda i: -functions[i].start)
    open_: list[tuple[int, int, int]] = []
    for start, end in pairwise(cuts):
        while waiting and functions[waiting[-1]].start <= start:
            number = waiting.pop()
            heappush(open_, (-functions[number].start, ends[number], number))
        while open_ and open_[0][1] <= start:
            heappop(open_)
        yield start, end, functions[open_[0][2]] if open_ else None


def _overlap(spans: Iterable[Span], start: int, end: int) -> int:
    return sum(max(0, min(end, b) - max(start, a)) for a, b in spans)


def _is_compiler_made(function: FunctionCoverage, code: CodeMap) -> bool:
    """Return whether a function without rows is one that no flag gives rows."""
    name = function.name
    if _DEVICE_RUNTIME.fullmatch(name):
        return True
    if function.kernel:
        return False
    # With -G, implicit constructors are functions too; one PTX was compiled with one flag.
    implicit = code.device_debug and (not _is_linked(code) or _CONSTRUCTOR.fullmatch(name))
    return bool(_LIBRARY.fullmatch(name) or _MATH.fullmatch(name) or implicit)


def _is_linked(code: CodeMap) -> bool:
    """Return whether a device link wrote this from several cubins."""
    note = code.elf.section(".note.nv.tkinfo")
    return note is not None and _LINKER in bytes(code.elf.contents(note))


def _cause(code: CodeMap, table: LineTable | None, below: list[FunctionCoverage], any_rows: bool) -> Cause:
    if code.notes or (table and table.notes):
        return Cause.DAMAGED_TABLE
    if not any_rows:
        return Cause.EMPTY_TABLE if table else Cause.NO_TABLE
    return Cause.LINKED_WITHOUT if _is_linked(code) and all(not f.covered for f in below) else Cause.ROWS_MISSING
