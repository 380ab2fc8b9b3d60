"""`vdbg-env core`: reads GPU core dumps, the first in time first."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from gpucore.code_map import Location
from gpucore.core import DecodedCore, decode_core
from gpucore.dwarf import Chain
from gpucore.errors import GpucoreError, UnreadableBinary
from vdbg_env.application.analysis.source_lines import SourceLines, find_lines
from vdbg_env.application.line_packs.lookup import PackedLines
from vdbg_env.common.errors import BAD_INPUT, BadInput
from vdbg_env.crash.files import CoreFiles, SourceText


@dataclass(frozen=True, kw_only=True)
class CoreRequest:
    """Which dumps to read (files or folders), and whether with registers and with the parameters of launches."""

    targets: tuple[str, ...]
    registers: bool = False
    parameters: bool = False


@dataclass(frozen=True, kw_only=True)
class CoresRead:
    """Every dump that could be read, in order of time, the source lines found, and why others could not be read."""

    readings: tuple[DecodedCore, ...]
    sources: SourceLines
    problems: tuple[tuple[str, BadInput | GpucoreError], ...]


def read_cores(
    request: CoreRequest, *, files: CoreFiles, source_text: SourceText, lines: PackedLines | None = None
) -> CoresRead:
    """Read every dump that was named; `lines` has those of code that was built without.

    Raises BadInput when none of them could be read; with some readable the others are in `problems`.
    """
    readings: list[DecodedCore] = []
    problems: list[tuple[str, BadInput | GpucoreError]] = []
    for path in dict.fromkeys(path for target in request.targets for path in files.find(target)):
        try:
            readings.append(_read(path, request, files, lines))
        except BAD_INPUT as error:
            problems.append((path, error))
    if not readings:
        raise _nothing_read(problems)
    readings.sort(key=lambda r: (r.written, r.file))
    sources = find_lines((chain for r in readings for chain in _chains(r)), source_text)
    return CoresRead(readings=tuple(readings), sources=sources, problems=tuple(problems))


def _read(path: str, request: CoreRequest, files: CoreFiles, lines: PackedLines | None) -> DecodedCore:
    with files.open(path) as core:
        read = decode_core(
            core.data,
            file=core.name,
            modified=core.modified,
            registers=request.registers,
            parameters=request.parameters,
            lines=lines,
        )
        if lines and any(location and not location.chain for location in _locations(read)):
            read = replace(read, notes=(*read.notes, *lines.notes))
        if not core.notes:
            return read
        return replace(read, core=replace(read.core, truncated=True), notes=(*core.notes, *read.notes))


def _chains(read: DecodedCore) -> Iterable[Chain]:
    return [location.chain for location in _locations(read) if location]


def _locations(read: DecodedCore) -> list[Location | None]:
    calls = (call.location for fault in read.faults for call in fault.calls)
    return [*(fault.location for fault in read.faults), *(group.location for group in read.warp_groups), *calls]


def _nothing_read(problems: list[tuple[str, BadInput | GpucoreError]]) -> BadInput | UnreadableBinary:
    path, error = problems[0]
    what = error.what if error.what.startswith(f"{path} ") else f"{path}: {error.what}"
    if len(problems) > 1:
        what = f"none of {len(problems)} files could be read"
    details = tuple(f"{name}: {other.what}" for name, other in problems) if len(problems) > 1 else error.details
    if isinstance(error, UnreadableBinary) and len(problems) == 1:
        return UnreadableBinary(what, cause=error.cause, next_step=error.next_step)
    return BadInput(what, cause=error.cause, next_step=error.next_step, details=details)
