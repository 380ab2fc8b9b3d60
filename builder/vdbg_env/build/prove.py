"""Prove line info: read every candidate of files, folders and images, judge it on all cores, and say what lacks it."""

from __future__ import annotations

import multiprocessing
import signal
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from itertools import chain, islice
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, Self, assert_never

from gpucore.cubin import thin
from gpucore.elf import is_core
from gpucore.errors import UnreadableBinary
from gpucore.fatbin import Compression, DeviceCode, Entry, find_device_code
from gpucore.lineinfo import (
    BOUND,
    Cause,
    Counts,
    Covered,
    EntryReport,
    FileReport,
    LineinfoReport,
    Missing,
    Read,
    Verdict,
    Witness,
    file_report,
    judge_start,
    judge_whole,
    read_stored,
)
from gpucore.mangling import demangle, short_name
from vdbg_env.build.cuobjdump import CUOBJDUMP, ask_cuobjdump
from vdbg_env.common.console import counted, printable
from vdbg_env.common.errors import EngineFailed, HostNotAble, NotProven
from vdbg_env.common.programs import Completed, ProgramRunner
from vdbg_env.crash.files import BinaryFile, BinarySource, Buffer, ScratchFiles, Tell, done
from vdbg_env.crash.line_packs import PackCoverage

if TYPE_CHECKING:
    from vdbg_env.build.builder import ImageBuilder
    from vdbg_env.image.plan import BuildPlan

# Judge the entries of a file on all cores: threads for what their first bytes settle, processes for line tables.
#
# Whether rows cover the code is worked out in Python, which runs on one core whatever the number of threads. A process
# takes a quarter of a second to start and 35 MiB, so they are started for large files only; below that, cubins with
# line tables are read one after the other, which holds one of them at a time.


_BATCH: Final = 8  # entries a thread takes at once: a task for each would cost more than a small cubin
_PROCESSES_FROM: Final = 1 << 30  # bytes of cubins with line tables, expanded: some ten seconds of work

_Stored = tuple[bytes, Compression, int]


class _Refused(NamedTuple):
    """An UnreadableBinary of another process."""

    what: str
    cause: str | None
    next_step: str | None


class Judges:
    """Threads, and processes once a file needs them; used as a context, which ends both."""

    def __init__(self, count: int) -> None:
        self._count: Final = count
        self._stack: Final = ExitStack()
        self._threads: Final = self._stack.enter_context(
            ThreadPoolExecutor(max_workers=count, thread_name_prefix="verify")
        )
        self._started: ProcessPoolExecutor | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._started:
            self._started.shutdown(cancel_futures=True)
        self._stack.close()

    def judge_all(
        self, codes: Iterator[DeviceCode], forget: Callable[[], None], told: Callable[[float], None] = lambda _: None
    ) -> Iterable[EntryReport]:
        """Judge entries, in order; raises UnreadableBinary for the first that is damaged.

        `forget` is called when some were read, whose bytes are not needed again, and `told` with the share of line
        tables that were read.
        """
        found: list[tuple[DeviceCode, EntryReport | None]] = []
        for batch in self._threads.map(_starts, _batches(codes)):
            found += batch
            forget()
        left = [code for code, judged in found if judged is None]
        alone = self._count < 2 or sum(code.entry.size for code in left) < _PROCESSES_FROM
        rest = _each(left, forget) if alone else self._in_processes(left)
        rest = _counted(rest, len(left), told)
        return (judged or next(rest) for _, judged in found)

    def _in_processes(self, codes: list[DeviceCode]) -> Iterator[EntryReport]:
        if self._started is None:
            fresh = multiprocessing.get_context("spawn")  # threads run here: a fork could copy a lock that is held
            self._started = ProcessPoolExecutor(self._count, fresh, initializer=_leave_interrupts)
        stored = (_stored(code.entry) for code in codes)
        for code, read in zip(codes, self._started.map(_read, stored), strict=True):
            if isinstance(read, _Refused):
                raise UnreadableBinary(read.what, cause=read.cause, next_step=read.next_step)
            yield EntryReport(code=code, cubin=read[0], coverage=read[1])


def _counted(reports: Iterator[EntryReport], count: int, told: Callable[[float], None]) -> Iterator[EntryReport]:
    for number, report in enumerate(reports, 1):
        told(number / count)
        yield report


def _each(codes: list[DeviceCode], forget: Callable[[], None]) -> Iterator[EntryReport]:
    for code in codes:
        yield judge_whole(code)
        forget()


def _batches(codes: Iterator[DeviceCode]) -> Iterator[tuple[DeviceCode, ...]]:
    while batch := tuple(islice(codes, _BATCH)):
        yield batch


def _starts(codes: tuple[DeviceCode, ...]) -> list[tuple[DeviceCode, EntryReport | None]]:
    return [(code, judge_start(code)) for code in codes]


def _stored(entry: Entry) -> _Stored:
    """Return what another process needs of an entry; of a cubin that is stored as it is, its tables are enough."""
    if entry.compression is Compression.RAW:
        small = thin(lambda: (entry.stored,), entry.size)
        if small is not None:
            return bytes(small), Compression.RAW, len(small)
    return bytes(entry.stored), entry.compression, entry.size


def _read(stored: _Stored) -> Read | _Refused:
    """Read a cubin in another process; an error is returned as its words, since it cannot be sent."""
    data, how, size = stored
    try:
        return read_stored(memoryview(data), how, size)
    except UnreadableBinary as error:
        return _Refused(error.what, error.cause, error.next_step)


def _leave_interrupts() -> None:
    """Leave an interrupt of the terminal to the process that was started by hand: it ends the others."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


# Prove line info: read and judge every candidate of every target, and compare it with a witness.


@dataclass(frozen=True, kw_only=True)
class VerifyRequest:
    """What to verify; `witness` None asks cuobjdump if it is installed; `threads` cubins are read at once.

    Memory stays below `threads` times the largest cubin, expanded, on top of the mapped file.
    """

    targets: tuple[str, ...]
    witness: Literal["cuobjdump", "none"] | None = None
    threads: int = 1


def verify_binaries(
    request: VerifyRequest,
    *,
    source: BinarySource,
    programs: ProgramRunner,
    scratch: ScratchFiles,
    tell: Tell = lambda *_: None,
) -> LineinfoReport:
    """Read every target and return the proof; `tell` hears of each file and how much is done.

    A witness whose list broke off is asked about single cubins too, which `scratch` writes for it as files.

    Raises BadInput for a target that does not exist, and HostNotAble when the witness is asked for and missing.
    """
    witness = _find_witness(request, programs)
    reports = []
    without = cores = 0
    notes: dict[str, None] = {}
    with Judges(request.threads) as judges:
        for number, file in _files(request.targets, source):
            told = partial(_tell_done, tell, file, number, len(request.targets))
            if file.note:
                notes[file.note] = None
            if not file.asked_for and is_core(file.data):
                cores += 1
                continue
            told(0.0)
            report = _judge_file(file, judges, told)
            if not report.has_device_code and not file.asked_for:
                without += 1
                continue
            if witness and file.path and report.problem is None:
                answer = ask_cuobjdump(witness, file.path, file.data, report, programs=programs, scratch=scratch)
                report = replace(report, witness=answer)
            reports.append(report)
    return LineinfoReport(files=tuple(reports), without_device_code=without, cores=cores, notes=tuple(notes))


def _find_witness(request: VerifyRequest, programs: ProgramRunner) -> str | None:
    if request.witness == "none":
        return None
    path = programs.which(CUOBJDUMP)
    if path is None and request.witness is not None:
        raise HostNotAble(
            "cuobjdump is not on this machine",
            cause="it is part of the CUDA toolkit, and alone a Python package",
            next_step="pip install nvidia-cuda-cuobjdump, or --witness none",
        )
    return path


def _files(targets: Iterable[str], source: BinarySource) -> Iterator[tuple[int, BinaryFile]]:
    for number, target in enumerate(targets):
        with source.open(target) as files:
            yield from ((number, file) for file in files)


def _tell_done(tell: Tell, file: BinaryFile, number: int, count: int, within: float) -> None:
    tell(file.name, done(file, within, number, count))


def _judge_file(file: BinaryFile, judges: Judges, told: Callable[[float], None]) -> FileReport:
    if file.problem is not None:
        return FileReport(path=file.name, problem=file.problem)
    try:
        return file_report(file.name, judges.judge_all(find_device_code(file.data, file.forget), file.forget, told))
    except UnreadableBinary as error:
        return FileReport(path=file.name, problem=error.what, next_step=error.next_step)


def prove_image(builder: ImageBuilder, image_id: str, plan: BuildPlan, *, threads: int = 1) -> LineinfoReport:
    """Read every library the plan has built and ask the image's own cuobjdump about each.

    Raises HostNotAble when the image has no cuobjdump: a build is never proven by one witness alone. Raises NotProven
    when a folder that the plan has built holds no library, since whatever else was proven then is not all of it.
    """
    from vdbg_env.image.context import ROOT  # a proof of files loads no room of images

    folders = tuple(f"{ROOT}/{artifact}" for artifact in plan.artifacts)
    request = VerifyRequest(targets=folders, witness="cuobjdump", threads=threads)
    inside = _InsideImage(builder, image_id)
    report = verify_binaries(request, source=inside, programs=inside, scratch=inside, tell=lambda *_: None)
    if inside.empty and report.verdict is not Verdict.NO_DEVICE_CODE:
        raise NotProven(
            f"{inside.empty[0]} of the image has no library or program",
            details=(f"the candidate is kept, untagged: {image_id}",),
            cause="the build put it elsewhere, or `artifacts` of the profile has a mistyped folder",
            next_step=f"docker run --rm --entrypoint find {image_id} {ROOT} -name '*.so*'",
        )
    return report


def require_proven(proof: LineinfoReport, image_id: str) -> None:
    """Refuse what is not proven; raises NotProven, which says what is missing, the usual cause and where to look."""
    unproven = proof.verdict is not Verdict.FULL
    doubtful = [f for f in proof.files if f.witness is None or not (f.witness.agrees or f.witness.explained)]
    if not unproven and not doubtful:
        return
    details = [*(_missing_line(f) for f in proof.files if f.verdict is not Verdict.FULL)]
    if unproven:
        raise NotProven(
            _unproven_summary(proof),
            details=(*details[:20], f"the candidate is kept, untagged: {image_id}"),
            cause=_cause(proof),
            next_step=f"vdbg-env verify {image_id}",
        )
    raise NotProven(
        "cuobjdump does not confirm the line info",
        details=(*(_doubt_line(f) for f in doubtful[:20]), f"the candidate is kept, untagged: {image_id}"),
        cause="the image's cuobjdump is older than the compiler, or was OOM-killed",
        next_step=f"vdbg-env verify {image_id}",
    )


def _unproven_summary(proof: LineinfoReport) -> str:
    counts = proof.counts
    if proof.verdict is Verdict.NO_DEVICE_CODE:
        return "the build left no device code to prove anything on"
    share = f"{proof.covered.instructions_covered:,} of {proof.covered.instructions:,} instructions"
    covered = f", rows cover {share} where there is a line table" if counts.partly else ""
    return f"{counts.with_debug_line} of {counts.with_code} cubins with code carry line info: {proof.verdict}{covered}"


def _cause(proof: LineinfoReport) -> str:
    match proof.verdict:
        case Verdict.PARTIAL | Verdict.NONE:
            return "; ".join(EXPLAINED[cause].reason for cause in proof.causes)
        case Verdict.NO_DEVICE_CODE:
            return "a prebuilt wheel was installed instead of compiling, or the build made no library with kernels"
        case _:
            return "a library is damaged, or packed in a way this program does not know"


def _missing_line(file: FileReport) -> str:
    if file.problem:
        return f"{file.path}: {file.problem}"
    units = sorted({_unit_name(m) for m in file.missing})
    more = f" and {len(units) - 3} more" if len(units) > 3 else ""
    named = f": {', '.join(units[:3])}{more}" if units else ""
    return f"{file.path}: {file.counts.with_debug_line} of {file.counts.with_code} with line info{named}"


def _unit_name(missing: Missing) -> str:
    if missing.functions:
        return f"{missing.functions[0].name} ({EXPLAINED[missing.cause].short})"
    return missing.identifier or (missing.kernels[0] if missing.kernels else "a cubin without a name")


def _doubt_line(file: FileReport) -> str:
    if file.witness is None:
        return f"{file.path}: not cross-checked by cuobjdump"
    return f"{file.path}: {file.witness.tool}: {file.witness.reason}"


@dataclass(frozen=True)
class _InsideImage:
    """An image as a `BinarySource`, a `ProgramRunner` and `ScratchFiles`, which last while a program runs.

    `empty` are the targets in which nothing was found.
    """

    builder: ImageBuilder
    image_id: str
    lent: dict[str, Buffer] = field(default_factory=dict)
    empty: list[str] = field(default_factory=list)

    @contextmanager
    def open(self, target: str) -> Iterator[Iterator[BinaryFile]]:
        with self.builder.files(self.image_id, [target]) as files:
            found = (replace(file, path=Path(file.name)) for file in files)
            first = next(found, None)
            if first is None:
                self.empty.append(target)
                yield found
            else:
                yield chain((first,), found)

    def head(self, program: str) -> bytes:
        return b""  # only the workload of a run is looked into

    def which(self, program: str) -> str | None:
        ran = self.builder.execute(self.image_id, ["sh", "-c", f"command -v {program}"])
        return ran.stdout.strip() or None if ran.code == 0 else None

    def run(self, argv: Sequence[str], *, timeout_s: float = 60.0) -> Completed:
        try:
            return self.builder.execute(self.image_id, argv, timeout_s=timeout_s, lent=self.lent)
        except EngineFailed as error:
            raise HostNotAble(error.what, cause=error.cause, next_step=error.next_step) from error

    @contextmanager
    def lend(self, data: Buffer, suffix: str) -> Iterator[Path]:
        from vdbg_env.image.context import ROOT

        path = f"{ROOT}/lent-{len(self.lent)}{suffix}"
        self.lent[path] = data
        try:
            yield Path(path)
        finally:
            del self.lent[path]


# The proof for people, and why code lacks line info.


_CACHE: Final = (
    "a compiler cache handed back objects compiled without the flag: ccache does not look at "
    "NVCC_PREPEND_FLAGS, and a build folder used before counts as fresh. CCACHE_DISABLE=1, "
    "VLLM_DISABLE_SCCACHE=1 and a clean folder, as the shipped profiles have them, prevent it"
)


@dataclass(frozen=True, kw_only=True)
class Explained:
    """A cause in words: a heading for what it concerns, the usual reason, and what to type instead."""

    heading: str
    short: str
    reason: str
    remedy: str


EXPLAINED: Final = {
    Cause.NO_TABLE: Explained(
        heading="without line info",
        short="as after a compiler cache hit",
        reason=_CACHE,
        remedy="build again with NVCC_PREPEND_FLAGS=-lineinfo CCACHE_DISABLE=1, in an empty build folder",
    ),
    Cause.EMPTY_TABLE: Explained(
        heading="with a line table that has no rows",
        short="the line table has no rows",
        reason="only ptxas was given -lineinfo, as by -Xptxas -lineinfo, or it assembled PTX without .loc",
        remedy="give -lineinfo to nvcc itself (NVCC_PREPEND_FLAGS=-lineinfo), or to whatever compiler wrote the PTX",
    ),
    Cause.LINKED_WITHOUT: Explained(
        heading="device-linked from units with and without line info",
        short="a device link took in units without line info",
        reason="some units of a device link (-rdc=true, -dlink) were compiled without -lineinfo, or are from a cache",
        remedy="compile the units of these functions again with -lineinfo and CCACHE_DISABLE=1, then link again",
    ),
    Cause.ROWS_MISSING: Explained(
        heading="with a line table that covers only part of the code",
        short="the line table covers only part of the code",
        reason="the PTX has .loc for a part of its code, as PTX written by hand or joined from several compilers",
        remedy="give -lineinfo, or the like, to every compiler that wrote a part of the PTX",
    ),
    Cause.DAMAGED_TABLE: Explained(
        heading="with a damaged line table",
        short="the line table is damaged",
        reason="the file was cut short or overwritten, or its assembler writes line tables of an unknown form",
        remedy="build the file again; nvdisasm -g CUBIN says whether NVIDIA's own tool reads the table",
    ),
}


_COLUMNS: Final = ("arch", "cubins", "with code", "with lines", "of these -G")
_MISSING_SHOWN: Final = 10
_MISSING_SHOWN_OF_NONE: Final = 3  # where nothing has lines, which ones lack them is no news
_KERNELS_SHOWN: Final = 3
_APART: Final = "verify what you built apart from what others did, as IMAGE:/opt/vdbg/out; or "


def verify_text(report: LineinfoReport, *, every_missing: bool = False) -> str:
    """Return the report as text, newline at the end; `every_missing` names all that lacks lines, however much."""
    blocks = ["\n".join(_file(file, every_missing)) for file in report.files]
    judged = [file for file in report.files if file.total.with_code]
    if len(judged) > 1:
        blocks.append("\n".join(_map(judged)))
    return "\n\n".join([*blocks, "\n".join(_summary(report))]) + "\n"


def _file(file: FileReport, every_missing: bool) -> Iterator[str]:
    yield f"{printable(file.path)}: {file.verdict}"
    if file.problem is not None:
        yield f"  {printable(file.problem)}"
        if file.next_step:
            yield f"  try: {printable(file.next_step)}"
        return
    if file.total.cubins:
        yield from _table(file)
    if file.elsewhere != Counts():
        yield f"  {_elsewhere(file)}"
    if file.covered.functions:
        yield f"  {coverage_text(file.covered)}"
    if file.counts.ptx:
        yield f"  {counted(file.counts.ptx, 'PTX entry', 'PTX entries')}, compiled when the program starts: not judged"
    if file.counts.other:
        yield f"  {counted(file.counts.other, 'entry', 'entries')} of another kind, such as LTO-IR: not judged"
    if file.witness:
        yield f"  {_witness(file.witness, file.missing)}"
    few = _MISSING_SHOWN_OF_NONE if file.verdict is Verdict.NONE else _MISSING_SHOWN
    yield from _missing(file.missing, len(file.missing) if every_missing else few)


def _elsewhere(file: FileReport) -> str:
    """Return what was found outside the sections that nvcc writes."""
    found = file.elsewhere
    kinds = [
        (found.cubins, "cubin", "cubins"),
        (found.ptx, "PTX entry", "PTX entries"),
        (found.other, "other", "others"),
    ]
    named = ", ".join(counted(*kind) for kind in kinds if kind[0])
    lines = f"; {found.with_debug_line:,} of {found.with_code:,} with code have lines" if found.with_code else ""
    where = ", ".join(printable(name) for name, _ in file.sections[:_KERNELS_SHOWN])
    return f"outside the sections that nvcc writes, where cuobjdump does not look: {named} in {where}{lines}"


def _map(files: Sequence[FileReport]) -> Iterator[str]:
    """Yield one row for each library and one column for each architecture: cubins with lines, of those with code."""
    archs = {arch for file in files for arch, counts in file.archs if counts.with_code}
    columns = sorted(archs, key=lambda arch: (len(arch.rstrip("af")), arch))
    if any(file.elsewhere.with_code for file in files):
        columns.append("elsewhere")
    table = [["", *columns]]
    for file in files:
        found = {**dict(file.archs), "elsewhere": file.elsewhere}
        counts = [found.get(name, Counts()) for name in columns]
        shares = [f"{one.with_debug_line:,}/{one.with_code:,}" if one.with_code else "-" for one in counts]
        table.append([printable(file.path), *shares])
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    yield "cubins with lines, of those with code"
    for name, *shares in table:
        cells = "".join(f"  {share:>{width}}" for share, width in zip(shares, widths[1:], strict=True))
        yield f"  {name:{widths[0]}}{cells}"


def _table(file: FileReport) -> Iterator[str]:
    rows = [(arch, counts) for arch, counts in file.archs if counts.cubins]
    if file.elsewhere.cubins:
        rows.append(("elsewhere", file.elsewhere))
    if len(rows) > 1:
        rows.append(("all", file.total))
    width = max(len(arch) for arch, _ in rows) + 2
    yield "  " + _COLUMNS[0].ljust(width) + "".join(name.rjust(len(name) + 2) for name in _COLUMNS[1:])
    for arch, counts in rows:
        numbers = (counts.cubins, counts.with_code, counts.with_debug_line, counts.device_debug)
        cells = (f"{n:,}".rjust(len(name) + 2) for n, name in zip(numbers, _COLUMNS[1:], strict=True))
        yield "  " + arch.ljust(width) + "".join(cells)


def coverage_text(covered: Covered) -> str:
    """Return how much of the code rows cover, in one line; a share is never rounded up to all."""
    share = f"{covered.instructions_covered:,} of {covered.instructions:,} instructions"
    apart = f", {covered.compiler_made:,} of CUDA's own apart" if covered.compiler_made else ""
    least = ""
    if covered.lowest is not None and covered.lowest < 1:
        least = f"; the least covered function to {int(covered.lowest * 1000) / 10:g} %"
    return f"rows cover {share} of {counted(covered.functions, 'function', 'functions')}{apart}{least}"


def _witness(witness: Witness, missing: Iterable[Missing]) -> str:
    if not witness.agrees:
        return f"{witness.tool} does not agree: {printable(witness.reason or 'it gave no reason')}"
    listed = f"{witness.tool} lists {counted(witness.listed or 0, 'cubin', 'cubins')} too"
    stricter = any(m.cause is not Cause.NO_TABLE for m in missing)
    return f"{listed}; it does not look at the rows of their line tables" if stricter else listed


def _missing(missing: Iterable[Missing], shown: int) -> Iterator[str]:
    groups = _by_unit(missing)
    left = shown
    for cause in dict.fromkeys(unit.cause for unit in groups):
        units = [unit for unit in groups if unit.cause is cause][:left]
        left -= len(units)
        yield from [f"  {EXPLAINED[cause].heading}:"] if units else []
        for unit in units:
            yield f"    {', '.join(groups[unit])}: {printable(_unit(unit))}"
    if len(groups) > shown:
        yield f"    and {len(groups) - shown:,} more (--all names them, --json with their kernels)"


class _Unit(NamedTuple):
    """What the cubins of one translation unit have in common, whatever their architecture."""

    cause: Cause
    member: str
    identifier: str
    kernels: tuple[str, ...]
    kernel_count: int
    functions: tuple[str, ...]
    function_count: int


def _by_unit(missing: Iterable[Missing]) -> dict[_Unit, list[str]]:
    """Group by translation unit: one source file is compiled once for each architecture."""
    groups: dict[_Unit, list[str]] = {}
    for cubin in missing:
        unit = _Unit(
            cubin.cause, cubin.member, cubin.identifier, cubin.kernels, cubin.kernel_count,
            tuple(f.name for f in cubin.functions[:_KERNELS_SHOWN]), cubin.function_count,
        )  # fmt: skip
        archs = groups.setdefault(unit, [])
        if cubin.arch not in archs:
            archs.append(cubin.arch)
    return groups


def _unit(unit: _Unit) -> str:
    if unit.cause in (Cause.LINKED_WITHOUT, Cause.ROWS_MISSING):  # the kernels of the cubin may be good ones
        held = _named("function", unit.functions, unit.function_count)
    else:
        held = _named("kernel", unit.kernels, unit.kernel_count) if unit.kernels else "device functions only"
    return ": ".join(part for part in (unit.member, unit.identifier, held) if part)


def _named(what: str, mangled: Iterable[str], count: int) -> str:
    names = list(dict.fromkeys(short_name(demangle(name)) for name in mangled))[:_KERNELS_SHOWN]
    more = f" and {count - len(names):,} more" if count > len(names) else ""
    return f"{what if count == 1 else what + 's'} {', '.join(names)}{more}"


def _summary(report: LineinfoReport) -> Iterator[str]:
    counts = report.total
    where = f" ({counted(len(report.files), 'file', 'files')})" if len(report.files) > 1 else ""
    yield f"verdict: {report.verdict}{where}: {_said(report, counts)}"
    if len(report.files) > 1 and counts.cubins:
        outside = f"; {report.elsewhere.cubins:,} of them outside nvcc's sections" if report.elsewhere.cubins else ""
        lines = f"{counts.with_code:,} with code, {counts.with_debug_line:,} of these with lines"
        yield f"  in all: {counted(counts.cubins, 'cubin', 'cubins')}, {lines}{outside}"
    if report.without_device_code:
        yield f"  {counted(report.without_device_code, 'other file holds', 'other files hold')} no device code"
    if report.cores:
        what = "a core dump, which is no library" if report.cores == 1 else "core dumps, which are no libraries"
        yield f"  {counted(report.cores, 'other file is', 'other files are')} {what}: vdbg-env core FILE"
    yield from (f"  note: {printable(note)}" for note in report.notes)
    if report.verdict in (Verdict.NONE, Verdict.PARTIAL):
        apart = report.verdict is Verdict.PARTIAL and not _mixed(report)
        for number, cause in enumerate(report.causes):
            yield f"  try: {_APART if apart and not number else ''}{EXPLAINED[cause].remedy}"


def _mixed(report: LineinfoReport) -> bool:
    """Whether a single file has cubins with and without lines: one build made them, so something went wrong in it."""
    return any(file.verdict is Verdict.PARTIAL for file in report.files)


def _tables(report: LineinfoReport) -> list[Cause]:
    """The reasons that are found in line tables."""
    return [cause for cause in report.causes if cause is not Cause.NO_TABLE]


def _said(report: LineinfoReport, counts: Counts) -> str:
    match report.verdict:
        case Verdict.FULL:
            return f"{counted(counts.with_code, 'cubin', 'cubins')} with code, every function with line info"
        case Verdict.PARTIAL:
            lacking = f"{counts.with_code - counts.with_debug_line:,} of {counts.with_code:,} cubins with code lack"
            bare = sum(file.verdict is Verdict.NONE for file in report.files)
            whole = f"those of {counted(bare, 'file', 'files')} all"
            why = "; ".join(EXPLAINED[cause].short for cause in report.causes) if _mixed(report) else whole
            return f"{lacking} line info{': ' if _tables(report) else ', '}{why}"
        case Verdict.NONE:
            none = f"none of {counted(counts.with_code, 'cubin', 'cubins')} with code carries line info"
            return f"{none}: {'; '.join(EXPLAINED[c].short for c in _tables(report))}" if _tables(report) else none
        case Verdict.NO_DEVICE_CODE:
            return _why_nothing(counts)
        case Verdict.UNREADABLE:
            unread = sum(f.problem is not None for f in report.files)
            return f"{counted(unread, 'file', 'files')} could not be judged, so nothing is proven"
        case never:
            assert_never(never)


def _why_nothing(counts: Counts) -> str:
    if counts.cubins:
        return f"{counted(counts.cubins, 'cubin', 'cubins')}, but none with code"
    if counts.ptx:
        return "PTX alone, no compiled device code"
    return "no device code was found"


def coverage_by_packs(found: Sequence[PackCoverage]) -> str:
    """Return of how many functions the line packs have the lines, by file and architecture."""
    if not found:
        return ""
    lines = ["", "lines by line packs, of identical code:"]
    for one in found:
        parts = [f"{one.other:,} with other code"] if one.other else []
        parts += [f"{one.unknown:,} in no pack"] if one.unknown else []
        rest = f" ({', '.join(parts)})" if parts else ""
        lines.append(printable(f"  {one.file}  {one.arch}: {one.identical:,} of {one.functions:,} functions{rest}"))
        lines += [printable(f"    other code: {demangle(name)}") for name in one.other_named]
    return "\n".join(lines) + "\n"


# JSON: docs/schemas/verify-v1.schema.json is the contract and says what each field means.


def verify_json(report: LineinfoReport, packed: Sequence[PackCoverage] = ()) -> dict[str, Any]:
    """Return the whole proof; `packed` is what line packs have of it."""
    return {
        "schema": "vdbg-env/verify/v1",
        "verdict": report.verdict.value,
        **asdict(report.counts),
        "elsewhere": asdict(report.elsewhere),
        "total": asdict(report.total),
        "coverage": _coverage_json(report.covered),
        "files": [_file_json(file) for file in report.files],
        "without_device_code": report.without_device_code,
        "cores": report.cores,
        "notes": report.notes,
        **({"line_packs": [_packed_json(one) for one in packed]} if packed else {}),
    }


def _file_json(file: FileReport) -> dict[str, Any]:
    return {
        "path": file.path,
        "verdict": file.verdict.value,
        **asdict(file.counts),
        "elsewhere": {**asdict(file.elsewhere), "sections": dict(file.sections)},
        "total": asdict(file.total),
        "coverage": _coverage_json(file.covered),
        "archs": [{"arch": arch, **asdict(counts)} for arch, counts in file.archs],
        "missing": [_missing_json(missing) for missing in file.missing],
        "witness": file.witness and asdict(file.witness),
        "problem": file.problem,
    }


def _coverage_json(covered: Covered) -> dict[str, Any]:
    return {"bound": BOUND, **asdict(covered)}


def _missing_json(missing: Missing) -> dict[str, Any]:
    return {
        "arch": missing.arch,
        "identifier": missing.identifier or None,
        "member": missing.member or None,
        "kernels": missing.kernels,
        "kernel_count": missing.kernel_count,
        "cause": missing.cause.value,
        "functions": [asdict(function) for function in missing.functions],
        "function_count": missing.function_count,
    }


def _packed_json(one: PackCoverage) -> dict[str, Any]:
    return {
        "file": one.file, "arch": one.arch, "functions": one.functions, "identical": one.identical, "other": one.other,
        "other_named": one.other_named, "unknown": one.unknown,
    }  # fmt: skip
