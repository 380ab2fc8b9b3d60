"""Prove line info: read and judge every candidate of every target, and compare it with a witness."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Final, Literal

from gpucore.elf import is_core
from gpucore.errors import UnreadableBinary
from gpucore.fatbin import find_device_code
from gpucore.lineinfo import FileReport, LineinfoReport, Witness, file_report
from vdbg_env.application.analysis.cuobjdump_check import cross_examine
from vdbg_env.application.analysis.judges import Judges
from vdbg_env.common.errors import HostNotAble
from vdbg_env.common.programs import ProgramRunner
from vdbg_env.crash.files import BinaryFile, BinarySource, ScratchFiles, Tell, done
from vdbg_env.evidence import tools

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
            told = partial(_told, tell, file, number, len(request.targets))
            if file.note:
                notes[file.note] = None
            if not file.asked_for and is_core(file.data):
                cores += 1
                continue
            told(0.0)
            report = _read(file, judges, told)
            if not report.has_device_code and not file.asked_for:
                without += 1
                continue
            reports.append(replace(report, witness=_ask(witness, file, report, programs, scratch)))
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


def _told(tell: Tell, file: BinaryFile, number: int, count: int, within: float) -> None:
    tell(file.name, done(file, within, number, count))


def _read(file: BinaryFile, judges: Judges, told: Callable[[float], None]) -> FileReport:
    if file.problem is not None:
        return FileReport(path=file.name, problem=file.problem)
    try:
        return file_report(file.name, judges.judge_all(find_device_code(file.data, file.forget), file.forget, told))
    except UnreadableBinary as error:
        return FileReport(path=file.name, problem=error.what, next_step=error.next_step)


def _ask(
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
