"""Complete a run's report with the source lines that it names and the warps of its core dumps."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path

from gpucore import core
from gpucore.core import decode_core
from gpucore.dwarf import SourceFrame
from gpucore.mangling import demangle
from vdbg_env.application.run.result.model import Report, SourceExcerpt, WarpGroup, WarpHistogram
from vdbg_env.common.errors import BAD_INPUT
from vdbg_env.crash.files import CoreFiles, SourceText
from vdbg_env.record.run_directory import RunDirectory

_AROUND = 3  # lines of source shown before and after the one that is meant
_MOST_PLACES = 40  # most warps of a large grid are at a few places
_MOST_CORES = 16


def complete(
    report: Report, directory: Path, *, cores: CoreFiles, sources: SourceText, redact: Callable[[str], str]
) -> Report:
    """Return the report with the text of every source line it names, and where the warps of each core were.

    Lines that an earlier report of the run shows are kept: its sources may have changed since, or be on another machine
    or in an image. A program may hold a token next to the line that failed: `redact` takes it out of what is shown. A
    core that cannot be read is left out: the step that read it says why.
    """
    histograms = tuple(_histograms(report, directory, cores))
    frames = [frame for finding in report.findings for frame in (*finding.chain, finding.location) if frame]
    frames += [frame for histogram in histograms for group in histogram.groups for frame in group.chain]
    kept = {(one.file, one.marked): one for one in _kept(directory, redact)}
    excerpts = (
        kept.get((frame.file, frame.line)) or excerpt(frame, sources, redact)
        for frame in dict.fromkeys(frames)
        if not frame.headers
    )
    return replace(report, histograms=histograms, excerpts=tuple(dict.fromkeys(e for e in excerpts if e)))


def _kept(directory: Path, redact: Callable[[str], str]) -> Iterator[SourceExcerpt]:
    """Yield the source lines of the report that is there; what another program wrote there is passed over."""
    try:
        recorded = RunDirectory(directory).read_report().get("sources")
    except BAD_INPUT:
        return
    for one in recorded if isinstance(recorded, list) else ():
        try:
            lines = tuple(redact(str(line)) for line in one["lines"])
            yield SourceExcerpt(file=str(one["file"]), first=int(one["first"]), marked=int(one["marked"]), lines=lines)
        except (KeyError, TypeError, ValueError):
            continue


def excerpt(frame: SourceFrame, sources: SourceText, redact: Callable[[str], str]) -> SourceExcerpt | None:
    """Return the lines around a place, each redacted, or None when its source is not on this machine."""
    if sources.line(frame.file, frame.line) is None:
        return None
    first = frame.line
    while first > max(1, frame.line - _AROUND) and sources.line(frame.file, first - 1) is not None:
        first -= 1
    lines = []
    for number in range(first, frame.line + _AROUND + 1):
        text = sources.line(frame.file, number)
        if text is None:
            break
        lines.append(redact(text))
    return SourceExcerpt(file=frame.file, first=first, marked=frame.line, lines=tuple(lines))


def _histograms(report: Report, directory: Path, cores: CoreFiles) -> Iterable[WarpHistogram]:
    """Yield the warps of every core without a fault: of one with a fault, the fault says it all."""
    paths = [
        (artifact.path, step.id) for step in report.walked for artifact in step.artifacts if _is_core(artifact.path)
    ]
    for path, step in paths[:_MOST_CORES]:
        try:
            with cores.open(str(directory / path)) as core:
                read = decode_core(core.data, file=path, modified=core.modified)
        except BAD_INPUT:
            continue
        if read.warp_groups and not read.faults:
            groups = tuple(_group(group) for group in read.warp_groups[:_MOST_PLACES])
            yield WarpHistogram(core=path, step=step, groups=groups)


def _group(group: core.WarpGroup) -> WarpGroup:
    location = group.location
    return WarpGroup(
        pc=group.pc,
        count=group.warps,
        kernel=demangle(group.kernel) if group.kernel else None,
        offset=location.offset if location else None,
        chain=location.chain if location else (),
        state=group.state,
    )


def _is_core(path: str) -> bool:
    name = path.rpartition("/")[2]
    return "core.cuda." in name or name.endswith((".nvcudmp", ".nvcudmp.gz"))
