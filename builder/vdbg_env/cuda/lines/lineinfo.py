"""Judges line info: cubin by cubin, then per file, then over all files, with the reasons kept.

A cubin counts when it has code (a `.text.*` section) and passes when the rows of its `.debug_line` cover every function
(`coverage`). What has no code, such as the stub that a device link leaves behind, is reported and never failed.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from vdbg_env.common.errors import UnreadableBinary
from vdbg_env.cuda.binary.cubin import Cubin, read_cubin, read_cubin_start
from vdbg_env.cuda.binary.decompression import Compression, expand, expand_in_pieces
from vdbg_env.cuda.binary.device_code import DeviceCode, find_device_code
from vdbg_env.cuda.binary.elf import Buffer
from vdbg_env.cuda.binary.fatbin import EntryKind
from vdbg_env.cuda.binary.thin_cubin import thin
from vdbg_env.cuda.lines.coverage import Cause, Coverage, FunctionCoverage, read_coverage


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
    """The proof of line info over every file looked at; `without_device_code` counts the files left out of `files`."""

    files: tuple[FileReport, ...]
    without_device_code: int = 0

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
