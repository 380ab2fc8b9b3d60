"""Writes GPU cores for people: faults with their inline chains, then where all warps stand, then what wrote it."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import PurePath

from gpucore.core import Coordinates, DecodedCore, Fault, Registers, Scope, WarpGroup
from gpucore.core_layout import GridRow, generation_flags
from gpucore.mangling import demangle, short_name
from vdbg_env.application.analysis.source_lines import SourceLines
from vdbg_env.common.printable import printable
from vdbg_env.evidence.kernel_makers import maker_of, vllm_library
from vdbg_env.report.core.parameters import launch_lines
from vdbg_env.report.core.source_chain import borrowed_lines, chain_lines, place_text

_MOST_PLACES = 12
_MOST_FAULTS = 8
_MOST_KERNELS = 10
_RANK = re.compile(r"rank[-_.]?(\d{1,6})(?!\d)", re.IGNORECASE)


def render(readings: Sequence[DecodedCore], sources: SourceLines, *, everything: bool = False) -> str:
    """Return the report of one core or of several: those with an exception first, each in order of time.

    Of several, where one has an exception, the others are a line each; `everything` leaves nothing out.
    """
    faulting = [reading for reading in readings if reading.faults]
    others = [reading for reading in readings if not reading.faults]
    parts = [*(_summary(readings, faulting, others) if len(readings) > 1 else ())]
    for reading in [*faulting, *(others if everything or not faulting else ())]:
        parts += ["", *_core(reading, sources, everything)] if parts else [*_core(reading, sources, everything)]
    return "\n".join(parts) + "\n"


def rank_of(path: str) -> int | None:
    """Return the rank that wrote a dump, by the name of its file or of its folder; None where neither says.

    A run keeps the files of a rank in `HOST-RANK`, below the folder of a step and its attempt.
    """
    folders = PurePath(path).parts
    if len(folders) > 4 and folders[-5] == "steps" and folders[-3].isdecimal():
        rank = folders[-2].rpartition("-")[2]
        if rank.isascii() and rank.isdecimal() and len(rank) <= 6:
            return int(rank)
    named = next((found for part in reversed(folders[-2:]) if (found := _RANK.search(part))), None)
    return int(named[1]) if named else None


def verdict(readings: Sequence[DecodedCore]) -> str:
    """Return what several cores come to, in one line: the first exception in time, else that there is none."""
    faulting = [reading for reading in readings if reading.faults]
    if faulting:
        rank = rank_of(faulting[0].file)
        where = f" (rank {rank})" if rank is not None else ""
        first = ", first in time" if len(faulting) > 1 else ""
        return f"{len(faulting)} of {len(readings)} cores with an exception{first}: {_headline(faulting[0])}{where}"
    whole = all(reading.core.complete for reading in readings)
    return f"no exception in {'' if whole else 'what could be read of '}{len(readings)} cores"


def _summary(
    readings: Sequence[DecodedCore], faulting: Sequence[DecodedCore], others: Sequence[DecodedCore]
) -> Iterator[str]:
    start, own = readings[0].written, _tells_its_time(readings[0])
    ranks = {id(reading): rank_of(reading.file) for reading in readings}
    ranked = any(rank is not None for rank in ranks.values())
    yield verdict(readings)
    yield f"  {'rank  ' if ranked else ''}   when  core"
    for reading in [*faulting, *others]:
        when = f"+{reading.written - start:.0f} s" if start and own == _tells_its_time(reading) else "?"
        rank = ranks[id(reading)]
        shown = f"{rank if rank is not None else '?':>4}  " if ranked else ""
        yield f"  {shown}{when:>7}  {printable(reading.file)}: {_headline(reading)}"
    if faulting and others:
        count = _many(len(others), "core")
        yield f"  of the {count} without an exception no more is shown (--all shows it)"


def _tells_its_time(reading: DecodedCore) -> bool:
    """Whether the dump itself says when it was written; a file's own time may be that of a copy."""
    metadata = reading.core.metadata
    return metadata is not None and metadata.row.timestamp > 0


def _headline(reading: DecodedCore) -> str:
    if reading.faults:
        fault = reading.faults[0]
        place = place_text(fault.location.chain) if fault.location else None
        kernel = f" in {short_name(demangle(fault.kernel))}" if fault.kernel else ""
        more = f" (and {len(reading.faults) - 1} more)" if len(reading.faults) > 1 else ""
        return printable(f"{fault.exception.name}{kernel}{f' at {place}' if place else ''}{more}")
    if not reading.core.devices:
        return "its threads are not known"
    none = "no exception" if reading.core.complete else "no exception in what could be read"
    return (
        f"{none}; {_many(reading.warps, 'warp')} were resident"
        if reading.warp_groups
        else f"{none}, and no warp was resident"
    )


def _core(reading: DecodedCore, sources: SourceLines, everything: bool) -> Iterator[str]:
    yield f"{printable(reading.file)}: {_headline(reading)}"
    registers = reading.registers or (None,) * len(reading.faults)
    shown = len(reading.faults) if everything else _MOST_FAULTS
    for fault, files in list(zip(reading.faults, registers, strict=True))[:shown]:
        yield ""
        yield from _fault(fault, sources)
        if files:
            yield from _registers(files)
    if len(reading.faults) > shown:
        yield f"\n  and {len(reading.faults) - shown} more faults (--all shows them)"
    if reading.warp_groups:
        yield ""
        yield from _groups(reading, sources, everything)
    if any(launch.parameters for launch in reading.launches):
        yield ""
        yield from launch_lines(reading, everything=everything)
    if reading.loaded:
        yield ""
        yield from _loaded(reading.loaded, everything)
    yield ""
    yield from _provenance(reading)
    yield from (f"  note: {printable(note)}" for note in reading.notes)
    yield from _next(reading)


def _next(reading: DecodedCore) -> Iterator[str]:
    """Say how to get lines of vLLM's own kernels, where a place that counts has none."""
    places: Sequence[Fault | WarpGroup] = reading.faults or reading.warp_groups[:1]
    without = [place.kernel for place in places if place.kernel and not (place.location and place.location.chain)]
    if any(_may_be_vllm(demangle(kernel)) for kernel in without):
        yield f"  try: vdbg-env lines build vllm==VERSION --core {printable(shlex.quote(reading.file))}"


def _may_be_vllm(kernel: str) -> bool:
    return vllm_library(kernel) is not None or (maker_of(kernel) is None and "cutlass::" in kernel)


def _library(kernel: str) -> Iterator[str]:
    """Name the library that a kernel is in, or what made it, as far as its name says that."""
    name = demangle(kernel)
    library, maker = vllm_library(name), maker_of(name)
    if library:
        yield f"    library  vLLM's {library}, by the kernel's name"
    elif maker:
        yield f"    library  {maker.name}, by the kernel's name; for lines: {maker.remedy}"


def _fault(fault: Fault, sources: SourceLines) -> Iterator[str]:
    exception = fault.exception
    number = f" ({exception.code})" if exception.code is not None else ""
    yield f"  {exception.name}{number}" + (f": {exception.meaning}" if exception.meaning else "")
    if fault.exception_string:
        yield f"    the driver's words: {printable(fault.exception_string)}"
    yield f"    at       {_place(fault)}"
    if fault.kernel or fault.grid:
        name = printable(demangle(fault.kernel)) if fault.kernel else "unknown"
        yield f"    kernel   {name}" + (f"  {_dimensions(fault.grid)}" if fault.grid else "")
    if fault.kernel:
        yield from _library(fault.kernel)
    yield f"    threads  {_threads(fault)}"
    location = fault.location
    if location and location.chain:
        yield ""
        yield from chain_lines(location.chain, sources)
        if location.siblings:
            yield (
                f"    (line {location.chain[0].line} is inlined here by {len(location.siblings)} other path(s) too; "
                "the assembler may have noted a neighbour's callers)"
            )
        yield from borrowed_lines(location.borrowed, indent="    ")
    yield from _calls(fault)
    if fault.doubts:
        yield "    (names and lines may be wrong: see the notes)"


def _calls(fault: Fault) -> Iterator[str]:
    for call in fault.calls[fault.calls_out :]:
        inner = call.location.function if call.location else None
        where = f"{short_name(inner.demangled)}+{call.location.function_offset:#x}" if call.location and inner else ""
        source = f"  {place_text(call.location.chain)}" if call.location and call.location.chain else ""
        yield printable(f"    called from {where or hex(call.return_pc)}{source}")


def _place(fault: Fault) -> str:
    if fault.pc is None:
        return "no PC is known"
    location = fault.location
    inner = location.function if location else None
    where = f"{short_name(inner.demangled)}+{location.function_offset:#x}, " if location and inner else ""
    if fault.calls_out:
        return f"PC {fault.pc:#x}, in code that the dump does not hold; called from {printable(where).rstrip(', ')}"
    if fault.precise:
        return f"{printable(where)}PC {fault.pc:#x}"
    return f"{printable(where)}PC {fault.pc:#x} (imprecise: where the thread was stopped, at or after the instruction)"


def _threads(fault: Fault) -> str:
    sms = f"SM {', '.join(map(str, fault.sms[:6]))}{' ...' if len(fault.sms) > 6 else ''}"
    if fault.scope is Scope.SM:
        return f"all have exited; the mark stayed on {sms}"
    count = f"{fault.threads} in {_many(fault.warps, 'warp')} of {_many(fault.blocks, 'block')}"
    return count + (f"; first: {_coordinates(fault.first.at)}" if fault.first else f" on {sms}")


def _coordinates(at: Coordinates) -> str:
    cluster = (
        f" ({_dim(at.block_in_cluster)} of cluster {_dim(at.cluster)})" if at.cluster and at.block_in_cluster else ""
    )
    return f"block {_dim(at.block)}{cluster} thread {_dim(at.thread)} (SM {at.sm}, warp {at.warp}, lane {at.lane})"


def _dimensions(grid: GridRow) -> str:
    cluster = (grid.cluster_x, grid.cluster_y, grid.cluster_z)
    shown = f" cluster {_dim(cluster)}" if grid.cluster_x and cluster != (1, 1, 1) else ""
    blocks, threads = (grid.grid_x, grid.grid_y, grid.grid_z), (grid.block_x, grid.block_y, grid.block_z)
    return f"grid {_dim(blocks)} block {_dim(threads)}{shown}"


def _groups(reading: DecodedCore, sources: SourceLines, everything: bool) -> Iterator[str]:
    yield f"  Where the {_many(reading.warps, 'warp')} stood:"
    shown = len(reading.warp_groups) if everything else _MOST_PLACES
    for group in reading.warp_groups[:shown]:
        location = group.location
        inner = location.function if location else None
        where = f"{short_name(inner.demangled)}+{location.function_offset:#x}" if location and inner else ""
        source = f"  {place_text(location.chain)}" if location and location.chain else ""
        yield f"    {group.warps:6} x {printable(where or hex(group.pc))}{printable(source)}  {group.state}"
        if group.barrier_words:
            yield f"             the driver's words: {printable(group.barrier_words)}"
        if not reading.faults and location and location.chain:
            yield from chain_lines(location.chain, sources, indent="             ")
    if len(reading.warp_groups) > shown:
        yield f"    and {len(reading.warp_groups) - shown} more places (--all shows them)"


def _loaded(names: Sequence[str], everything: bool) -> Iterator[str]:
    yield f"  Loaded when it was written: {_many(len(names), 'kernel')}"
    shown = len(names) if everything else _MOST_KERNELS
    yield from (f"    {printable(demangle(name))}" for name in names[:shown])
    if len(names) > shown:
        yield f"    and {len(names) - shown} more (--all shows them)"


def _registers(registers: Registers) -> Iterator[str]:
    yield ""
    yield "    registers of the first thread:"
    general = [f"R{n:<3} {value:#010x}" for n, value in enumerate(registers.general)]
    uniform = [f"UR{n:<2} {value:#010x}" for n, value in enumerate(registers.uniform)]
    for file in (general, uniform):
        yield from ("      " + "  ".join(file[i : i + 6]) for i in range(0, len(file), 6))
    predicates = [f"P{n}" for n, value in enumerate(registers.predicates) if value]
    predicates += [f"UP{n}" for n, value in enumerate(registers.uniform_predicates) if value]
    if registers.predicates:
        yield f"      true predicates: {' '.join(predicates) or 'none'}"


def _provenance(reading: DecodedCore) -> Iterator[str]:
    core = reading.core
    for device in core.devices:
        gpu = device.row
        yield (
            f"  device {device.index}: {printable(device.name)} ({printable(device.sm_type)}, PCI {gpu.pci_bus:02x}:"
            f"{gpu.pci_device:02x}, {gpu.sms} SMs), {_many(len(device.grids), 'launch', 'launches')}, "
            f"{_many(len(device.modules), 'module')}"
        )
    if core.metadata:
        row = core.metadata.row
        driver = f", driver r{row.driver_major}.{row.driver_minor}" if row.driver_major else ""
        cuda = f", CUDA {row.cuda_major}.{row.cuda_minor}" if row.cuda_major else ""
        written = f", {datetime.fromtimestamp(row.timestamp, UTC):%Y-%m-%d %H:%M:%S} UTC" if row.timestamp else ""
        yield f"  written by {printable(core.metadata.generator)}{driver}{cuda}{written}"
        if row.flags:
            yield f"  flags: {', '.join(generation_flags(row.flags))}"
    if core.unused:
        left = ", ".join(
            f"{_many(kind.count, 'section')} of {kind.kind} ({kind.bytes:,} bytes)" for kind in core.unused
        )
        yield f"  not read: {left}"


def _dim(values: Sequence[int | None]) -> str:
    return f"({','.join(str(value) for value in values)})"


def _many(count: int, one: str, more: str | None = None) -> str:
    return f"{count} {one if count == 1 else more or one + 's'}"
