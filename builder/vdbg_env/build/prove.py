"""Prove line info: read every candidate of files, folders and images, judge it on all cores, and ask cuobjdump too."""

from __future__ import annotations

import multiprocessing
import signal
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from enum import Enum, auto
from functools import partial
from itertools import chain, islice
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Final, Literal, NamedTuple, Self

from gpucore.cubin import thin
from gpucore.elf import Elf, is_core
from gpucore.errors import UnreadableBinary
from gpucore.fatbin import Compression, DeviceCode, Entry, EntryKind, find_device_code
from gpucore.lineinfo import (
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
from vdbg_env.common.errors import EngineFailed, HostNotAble, NotProven
from vdbg_env.common.programs import Completed, ProgramRunner
from vdbg_env.crash.files import BinaryFile, BinarySource, Buffer, ScratchFiles, Tell, done
from vdbg_env.crash.verify_text import EXPLAINED
from vdbg_env.evidence import tools

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


# Ask cuobjdump about single cubins when its list of a file broke off: its section tables against ours, one by one.


_ASKED: Final = 8
_LARGEST: Final = 4 << 20  # bytes: `cuobjdump -elf` prints each cubin as text of several times its size
_TIMEOUT_S: Final = 60.0


class _Answer(Enum):
    SAME = auto()
    OTHER = auto()
    UNREADABLE = auto()


def cross_examine(
    witness: Witness, data: Buffer, tool: str, *, programs: ProgramRunner, scratch: ScratchFiles
) -> Witness:
    """Return the witness with its answers for single cubins; only that can explain why its list broke off.

    The cubin that it stopped at is asked about first, then others spread over the file. The disagreement is explained
    when it cannot read that one by itself either, and shows the same section table as ours wherever it shows one.
    Raises HostNotAble when cuobjdump cannot be run.
    """
    cubins = [c.entry for c in find_device_code(data) if c.entry.kind == EntryKind.ELF and not c.section]
    stopped_at = witness.listed or 0
    asked = _sample(cubins, stopped_at)
    answers = [_ask(entry, tool, programs, scratch) for entry in asked]
    explained = bool(answers) and answers[0] is _Answer.UNREADABLE and _Answer.OTHER not in answers
    return replace(witness, explained=explained, reason=f"{witness.reason}; {_told(asked, answers)}")


def _sample(cubins: Sequence[Entry], first: int) -> list[Entry]:
    step = len(cubins) // _ASKED | 1  # odd: the architectures of a translation unit follow each other
    chosen = dict.fromkeys([first, *range(0, len(cubins), step)])
    return [cubins[i] for i in chosen if i < len(cubins) and cubins[i].size <= _LARGEST][:_ASKED]


def _ask(entry: Entry, tool: str, programs: ProgramRunner, scratch: ScratchFiles) -> _Answer:
    payload = entry.payload()
    elf = Elf(payload)
    with scratch.lend(memoryview(payload), f".{entry.target}.cubin") as path:
        ran = programs.run([tool, "-elf", str(path)], timeout_s=_TIMEOUT_S)
    theirs = tools.parse_section_names(ran.stdout)
    if not theirs:
        return _Answer.UNREADABLE
    return _Answer.SAME if list(theirs) == [elf.name(s) for s in elf.sections[1:]] else _Answer.OTHER


def _told(asked: Sequence[Entry], answers: Sequence[_Answer]) -> str:
    unreadable = sorted({e.target for e, a in zip(asked, answers, strict=True) if a is _Answer.UNREADABLE})
    parts = [f"the same section table for {answers.count(_Answer.SAME)}"]
    if unreadable:
        parts.append(f"none for {answers.count(_Answer.UNREADABLE)} ({', '.join(unreadable)})")
    if _Answer.OTHER in answers:
        parts.append(f"another for {answers.count(_Answer.OTHER)}")
    return f"asked about {len(answers)} cubins one by one, it shows {', '.join(parts)}"


# Prove line info: read and judge every candidate of every target, and compare it with a witness.


WITNESS_TIMEOUT_S: Final = 600.0


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
            reports.append(replace(report, witness=_ask_witness(witness, file, report, programs, scratch)))
    return LineinfoReport(files=tuple(reports), without_device_code=without, cores=cores, notes=tuple(notes))


def _find_witness(request: VerifyRequest, programs: ProgramRunner) -> str | None:
    if request.witness == "none":
        return None
    path = programs.which(tools.CUOBJDUMP)
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


def _ask_witness(
    tool: str | None, file: BinaryFile, report: FileReport, programs: ProgramRunner, scratch: ScratchFiles
) -> Witness | None:
    if tool is None or file.path is None or report.problem is not None:
        return None
    try:
        ran = programs.run([tool, "-all", "-lelf", str(file.path)], timeout_s=WITNESS_TIMEOUT_S)
        listing = tools.parse_listing(ran.stdout, ran.stderr)
        witness = tools.weigh(report, listing, ran.code)
        broke_off = ran.code > 0 and len(listing.names) < report.counts.cubins
        if witness.agrees or not broke_off:
            return witness
        return cross_examine(witness, file.data, tool, programs=programs, scratch=scratch)
    except HostNotAble as error:
        return Witness(tool=tools.CUOBJDUMP, listed=None, rc=None, agrees=False, reason=error.what)


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
            _summary(proof),
            details=(*details[:20], f"the candidate is kept, untagged: {image_id}"),
            cause=_cause(proof),
            next_step=f"vdbg-env verify {image_id}",
        )
    raise NotProven(
        "the second witness does not confirm the line info",
        details=(*(_doubt_line(f) for f in doubtful[:20]), f"the candidate is kept, untagged: {image_id}"),
        cause="the image's cuobjdump is older than the compiler, or was OOM-killed",
        next_step=f"vdbg-env verify {image_id}",
    )


def _summary(proof: LineinfoReport) -> str:
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
        return f"{file.path}: not seen by the second witness"
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
