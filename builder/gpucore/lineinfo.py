"""How much of the code of a cubin its line table covers, function by function, and why it is not more.

That a table is there proves nothing: ptxas writes one of 26 bytes, without a row, when it is given -lineinfo and the
PTX has no `.loc`, and a device link keeps the table of one unit for the code of all.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from heapq import heappop, heappush
from itertools import pairwise
from typing import Final

from gpucore.code_map import CodeMap, Function
from gpucore.cubin import Cubin, read_cubin, read_cubin_start, thin
from gpucore.dwarf import LineTable, Span, merged
from gpucore.elf import SHF_EXECINSTR, STT_FUNC, Buffer
from gpucore.errors import UnreadableBinary
from gpucore.fatbin import Compression, DeviceCode, EntryKind, expand, expand_in_pieces, find_device_code

BOUND: Final = 0.95
"""The share of its instructions that rows must cover for a function to count as covered.

Every function of the builds measured reaches 1 (docs/lab/verify.md), padding and compiler-made code included. The rest
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
# Compiled where it is asked for: that takes a tenth of the start of `core`.
_MATH: Final = (
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
    return bool(_LIBRARY.fullmatch(name) or re.fullmatch(_MATH, name) or implicit)


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


# Judges line info: cubin by cubin, then per file, then over all files, with the reasons kept.
#
# A cubin counts when it has code (a `.text.*` section) and passes when the rows of its `.debug_line` cover every
# function (`coverage`). What has no code, such as the stub that a device link leaves behind, is reported and never
# failed.


class Verdict(StrEnum):
    """Whether rows of line tables cover the code; UNREADABLE when some bytes could not be judged at all."""

    FULL = "full"
    PARTIAL = "partial"
    NONE = "none"
    NO_DEVICE_CODE = "no-device-code"
    UNREADABLE = "unreadable"


@dataclass(frozen=True, kw_only=True)
class Counts:
    """How many cubins there are; `with_debug_line`, `partly` and `device_debug` count among those with code.

    `with_debug_line` counts those whose line table covers every function, `partly` those whose line table covers less,
    yet something; an empty table counts in neither. `ptx` counts apart, and so does `other`: entries that are neither
    cubin nor PTX, such as LTO-IR.
    """

    cubins: int = 0
    with_code: int = 0
    with_debug_line: int = 0
    device_debug: int = 0
    ptx: int = 0
    other: int = 0
    partly: int = 0

    def __add__(self, more: Counts) -> Counts:
        return Counts(
            cubins=self.cubins + more.cubins,
            with_code=self.with_code + more.with_code,
            with_debug_line=self.with_debug_line + more.with_debug_line,
            device_debug=self.device_debug + more.device_debug,
            ptx=self.ptx + more.ptx,
            other=self.other + more.other,
            partly=self.partly + more.partly,
        )

    @property
    def verdict(self) -> Verdict:
        """What the counts come to; a file of PTX or of stubs alone has no device code that could be judged."""
        if self.with_code == 0:
            return Verdict.NO_DEVICE_CODE
        if self.with_debug_line == self.with_code:
            return Verdict.FULL
        return Verdict.PARTIAL if self.with_debug_line + self.partly else Verdict.NONE


@dataclass(frozen=True, kw_only=True)
class Covered:
    """How much of the code the line tables cover, over the cubins that have one; the others cover nothing.

    `functions` and `instructions` are those judged, `compiler_made` functions are counted apart. `lowest` is the
    smallest share of a function, None where none was judged.
    """

    functions: int = 0
    functions_covered: int = 0
    compiler_made: int = 0
    instructions: int = 0
    instructions_covered: int = 0
    lowest: float | None = None

    def __add__(self, more: Covered) -> Covered:
        lowest = [share for share in (self.lowest, more.lowest) if share is not None]
        return Covered(
            functions=self.functions + more.functions,
            functions_covered=self.functions_covered + more.functions_covered,
            compiler_made=self.compiler_made + more.compiler_made,
            instructions=self.instructions + more.instructions,
            instructions_covered=self.instructions_covered + more.instructions_covered,
            lowest=min(lowest, default=None),
        )


@dataclass(frozen=True, kw_only=True)
class Missing:
    """A cubin with code that its line table does not cover: what to rebuild, and the likeliest cause.

    `identifier` is the source path if nvcc noted one; it does so only with -lineinfo or -G, so most often the kernels
    (mangled, the first of `kernel_count`) are the only trace. `member` is that of a static library. Where there is a
    table, `functions` are the first of `function_count` functions that it does not cover.
    """

    arch: str
    identifier: str
    member: str
    kernels: tuple[str, ...]
    kernel_count: int
    cause: Cause = Cause.NO_TABLE
    functions: tuple[FunctionCoverage, ...] = ()
    function_count: int = 0


@dataclass(frozen=True, kw_only=True)
class Witness:
    """The count of another reader of the same file.

    `listed` is its count of cubins, None when it gave none; `rc` its exit status. `reason` says what is behind a
    disagreement, or why it was not asked; `explained` that it is a known fault of the witness, not ours.
    """

    tool: str
    listed: int | None
    rc: int | None
    agrees: bool
    reason: str | None = None
    explained: bool = False


@dataclass(frozen=True, kw_only=True)
class EntryReport:
    """One entry of device code, read; `coverage` is None where there is no line table."""

    code: DeviceCode
    cubin: Cubin | None  # None for PTX and other entries
    coverage: Coverage | None = None

    @property
    def counts(self) -> Counts:
        """This entry's share of its file's counts."""
        if self.cubin is None:
            return Counts(ptx=1) if self.code.entry.kind == EntryKind.PTX else Counts(other=1)
        has_code = self.cubin.has_code
        return Counts(
            cubins=1,
            with_code=int(has_code),
            with_debug_line=int(self.complete),
            device_debug=int(has_code and self.cubin.device_debug),
            partly=int(not self.complete and self.coverage is not None and self.coverage.covered > 0),
        )

    @property
    def complete(self) -> bool:
        """Whether the line table covers every function."""
        return self.coverage is not None and self.coverage.complete

    @property
    def covered(self) -> Covered:
        """How much the line table covers."""
        found = self.coverage
        if found is None:
            return Covered()
        judged = found.functions - found.compiler_made
        return Covered(
            functions=judged,
            functions_covered=judged - found.below_count,
            compiler_made=found.compiler_made,
            instructions=found.instructions,
            instructions_covered=found.covered,
            lowest=found.lowest if judged else None,
        )


@dataclass(frozen=True, kw_only=True)
class FileReport:
    """What one file holds; `archs` are its targets (sm_90a, compute_90) in order.

    `counts` and `archs` are those of the sections that nvcc writes and cuobjdump reads, `elsewhere` those of all other
    bytes, `sections` names these with their number of entries; `covered` and `missing` are of both.
    `problem` says why the file could not be judged, `next_step` what to try then.
    """

    path: str
    counts: Counts = Counts()
    elsewhere: Counts = Counts()
    sections: tuple[tuple[str, int], ...] = ()
    covered: Covered = Covered()
    archs: tuple[tuple[str, Counts], ...] = ()
    missing: tuple[Missing, ...] = ()
    witness: Witness | None = None
    problem: str | None = None
    next_step: str | None = None

    @property
    def verdict(self) -> Verdict:
        """The verdict on this file."""
        return Verdict.UNREADABLE if self.problem is not None else self.total.verdict

    @property
    def total(self) -> Counts:
        """The counts of the whole file."""
        return self.counts + self.elsewhere

    @property
    def has_device_code(self) -> bool:
        """Whether anything of device code was found, judged or not."""
        return self.total != Counts() or self.problem is not None


@dataclass(frozen=True, kw_only=True)
class LineinfoReport:
    """The proof of line info over every file looked at.

    `without_device_code` counts the files left out of `files`, `cores` the core dumps among the files found: they are
    no libraries. `notes` say what was not looked at.
    """

    files: tuple[FileReport, ...]
    without_device_code: int = 0
    cores: int = 0
    notes: tuple[str, ...] = ()

    @property
    def counts(self) -> Counts:
        """The counts of all files together, what is outside the sections that nvcc writes left out."""
        return sum((f.counts for f in self.files), Counts())

    @property
    def elsewhere(self) -> Counts:
        """The counts of what is outside the sections that nvcc writes, in all files."""
        return sum((f.elsewhere for f in self.files), Counts())

    @property
    def total(self) -> Counts:
        """The counts of all device code."""
        return self.counts + self.elsewhere

    @property
    def covered(self) -> Covered:
        """What the line tables of all files cover."""
        return sum((f.covered for f in self.files), Covered())

    @property
    def causes(self) -> list[Cause]:
        """Why code lacks lines, each cause once, the one of most cubins first."""
        return [cause for cause, _ in Counter(m.cause for f in self.files for m in f.missing).most_common()]

    @property
    def verdict(self) -> Verdict:
        """The verdict over all: unreadable when any file could not be judged, since nothing is proven then."""
        if any(f.verdict is Verdict.UNREADABLE for f in self.files):
            return Verdict.UNREADABLE
        return self.total.verdict


Read = tuple[Cubin, Coverage | None]


def judge(code: DeviceCode) -> EntryReport:
    """Read one entry, with as little expansion as settles it; raises UnreadableBinary when it is damaged.

    That rows cover the code is only ever found by reading the line table of the whole cubin. That there is no table can
    be read from the first bytes already, which makes a library without line info ten times cheaper than one with.
    """
    return judge_start(code) or judge_whole(code)


def judge_start(code: DeviceCode) -> EntryReport | None:
    """Judge an entry by its first bytes; None where they do not settle it."""
    entry = code.entry
    if entry.kind != EntryKind.ELF:
        if entry.starts_as_elf():
            raise UnreadableBinary(
                f"an entry of kind {entry.kind} holds a cubin, whose kind is {EntryKind.ELF:d}: its header is damaged",
                offset=entry.offset,
            )
        return EntryReport(code=code, cubin=None)
    # One that is stored as it is costs nothing to read whole, which finds damage at its end too.
    known = entry.compression is not Compression.RAW
    start = read_cubin_start(entry.payload_in_pieces()) if known else None
    return EntryReport(code=code, cubin=start) if start else None


def judge_whole(code: DeviceCode) -> EntryReport:
    """Judge a cubin by its section headers and its line table; raises UnreadableBinary when it is damaged."""
    entry = code.entry
    small = thin(entry.payload_in_pieces, entry.size) if entry.compression is Compression.ZSTD else None
    cubin, coverage = _read(small or entry.payload())
    return EntryReport(code=code, cubin=cubin, coverage=coverage)


def read_stored(stored: memoryview, how: Compression, size: int) -> Read:
    """Read a cubin as it is stored, apart from its file; raises UnreadableBinary when it is damaged."""
    small = thin(lambda: expand_in_pieces(stored, how, size), size) if how is Compression.ZSTD else None
    return _read(small or expand(stored, how, size))


def _read(payload: Buffer) -> Read:
    cubin = read_cubin(payload)
    judged = cubin.has_code and cubin.has_debug_line
    return cubin, read_coverage(payload) if judged else None


def file_report(path: str, entries: Iterable[EntryReport]) -> FileReport:
    """Sum up the entries of one file."""
    archs: defaultdict[tuple[bool, int, str], Counts] = defaultdict(Counts)
    covered = Covered()
    elsewhere = Counts()
    sections: Counter[str] = Counter()
    missing = []
    for judged in entries:
        entry = judged.code.entry
        if judged.code.section:
            elsewhere += judged.counts
            sections[judged.code.section] += 1
        else:
            archs[entry.kind != EntryKind.ELF, entry.arch, entry.target] += judged.counts
        covered += judged.covered
        if judged.cubin and judged.cubin.has_code and not judged.complete:
            missing.append(_missing(judged.code, judged.cubin, judged.coverage))
    return FileReport(
        path=path,
        counts=sum(archs.values(), Counts()),
        elsewhere=elsewhere,
        sections=tuple(sections.most_common()),
        covered=covered,
        archs=tuple((key[2], counts) for key, counts in sorted(archs.items(), key=lambda item: item[0])),
        missing=tuple(missing),
    )


def verify(data: Buffer, name: str = "") -> FileReport:
    """Judge a whole file in one call, whatever its kind; `name` becomes the report's `path`.

    Raises UnreadableBinary when the file is damaged or of another kind.
    """
    return file_report(name, map(judge, find_device_code(data)))


def _missing(code: DeviceCode, cubin: Cubin, coverage: Coverage | None) -> Missing:
    return Missing(
        arch=code.entry.target,
        identifier=code.entry.identifier,
        member=code.member,
        kernels=cubin.kernels,
        kernel_count=cubin.kernel_count,
        cause=(coverage.cause if coverage else None) or Cause.NO_TABLE,
        functions=coverage.below if coverage else (),
        function_count=coverage.below_count if coverage else 0,
    )
