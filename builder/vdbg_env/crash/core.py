"""Read GPU cores and show them: faults with their chains, where all warps are, what wrote them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from datetime import UTC, datetime
from functools import cached_property
from itertools import islice, zip_longest
from pathlib import PurePath
from typing import TYPE_CHECKING, Any, Final

from gpucore.code_map import Location
from gpucore.core import (
    Coordinates,
    DecodedCore,
    Fault,
    Launch,
    LaunchParameters,
    Parameter,
    Registers,
    Scope,
    WarpGroup,
    decode_core,
    locate,
    read_parameters,
)
from gpucore.core_layout import GridRow, generation_flags, grid_origin, grid_status, kernel_type
from gpucore.core_reader import CoreSections, Device, GpuCore, Metadata
from gpucore.elf import Buffer
from gpucore.errors import GpucoreError, UnreadableBinary
from gpucore.mangling import demangle, short_name
from vdbg_env.common.console import counted, json_text, printable, shortened
from vdbg_env.common.errors import BAD_INPUT, BadInput, quoted
from vdbg_env.crash.files import CoreFiles, SourceFiles
from vdbg_env.crash.places import (
    AddressWhy,
    Explainer,
    PacksWhenAsked,
    SourceLines,
    borrowed_lines,
    chain_doubt,
    chain_json,
    chain_lines,
    find_lines,
    function_at,
    kernel_json,
    leaf,
    lines_from_json,
    location_json,
    why_lines,
)
from vdbg_env.crash.workers import map_in_processes
from vdbg_env.evidence.finding import around_lines
from vdbg_env.evidence.gpu_findings import blocks_around, warps_left
from vdbg_env.evidence.kernel_makers import KernelOrigin, kernel_makers

if TYPE_CHECKING:
    from vdbg_env.crash.line_packs import PackedLines
    from vdbg_env.crash.memory_map import MemoryMap

_MOST_PLACES: Final = 12
_MOST_FAULTS: Final = 8
_MOST_EXPLAINED: Final = 8
_MOST_KERNELS: Final = 10
_MOST_LAUNCHES: Final = 4
_MOST_BYTES: Final = 32
_MOST_LEFT: Final = 64
_MOST_MODULES: Final = 256  # whose kernels' names say who made one of them
_WARP: Final = 32  # threads
_DRIVER: Final = "UD"  # what driver 580 calls itself in its cores
_DAY_S: Final = 86_400
_ONE_RUN_S: Final = _DAY_S  # a hang may be looked at, and its other ranks dumped, on the morning after
_NO_ARGUMENTS: Final = (
    "written without constant memory, so the values of arguments are not known: --core full keeps them "
    "(vdbg-env dump --arm, vdbg-env guard)"
)
_CUT: Final = (
    "the end of this dump is missing: the driver gave up (580 does so without global memory but with constant banks), "
    "the disk was full, or a copy broke off; --core light asks for the least (vdbg-env dump --arm, vdbg-env guard)"
)
_NOTHING_RAN: Final = (
    "no kernel was on the GPU; a driver that wrote this because of an exception had lost its place by then (one did, "
    "with two contexts): the program's CUDA error and the kernel log's Xid are what is left of it"
)
_RANK: Final = re.compile(r"rank[-_.]?(\d{1,6})(?!\d)", re.IGNORECASE)


@dataclass(frozen=True, kw_only=True)
class Core(DecodedCore):
    """A dump that was read, and why the address of each of its faults was bad, where that could be explained.

    Without a fault `waits` has what the first groups of warps wait for that run in a loop. `origins` has the makers of
    the kernels that are shown, by their mangled names. `packs_named` are the line packs that the user named.
    """

    addresses: tuple[AddressWhy | None, ...] = ()
    waits: tuple[AddressWhy | None, ...] = ()
    origins: Mapping[str, KernelOrigin] = field(default_factory=dict)
    packs_named: tuple[str, ...] = ()

    def origin(self, kernel: str) -> KernelOrigin:
        """Return who may have compiled a kernel, by its mangled name."""
        return self.origins.get(kernel) or kernel_makers().by_name(kernel)


@dataclass(frozen=True, kw_only=True)
class CoresRead:
    """Every dump that could be read, in order of time, the source lines found, and why others could not be read."""

    readings: tuple[Core, ...]
    sources: SourceLines
    problems: tuple[tuple[str, BadInput | GpucoreError], ...]


def read_cores(
    targets: Iterable[str],
    source_text: SourceFiles,
    packs: Callable[[], PackedLines] | None = None,
    *,
    packs_named: Sequence[str] = (),
    registers: bool = False,
    parameters: bool = False,
    maps: Sequence[MemoryMap] | None = None,
    side_by_side: bool = False,
) -> CoresRead:
    """Read every dump that is named, or is in a folder; `packs` opens the lines of code that was built without.

    `packs_named` are those that the user named: what to type next is not to make them once more.

    `maps` say which tensor is at which address; without any, those next to each core are taken. `side_by_side` reads
    many dumps in several processes, which a program of one thread may have.

    Raises BadInput when none of them could be read; with some readable the others are in `problems`.
    """
    files = CoreFiles()
    lines = PacksWhenAsked(packs) if packs else None

    def read_core(path: str) -> Core | BadInput | GpucoreError:
        try:
            with files.open(path) as core:
                decoded = decode_core(
                    core.data, file=core.name, modified=core.modified, registers=registers, parameters=parameters,
                    lines=lines,
                )  # fmt: skip
                read = explained(decoded, core.data, source_text.text, core=path, maps=maps)
                read = replace(read, origins=_origins(read), packs_named=tuple(packs_named))
        except BAD_INPUT as error:
            return error
        if lines and any(location and not location.chain for location in _locations(read)):
            read = replace(read, notes=(*read.notes, *lines.notes))
        if core.notes:
            read = replace(read, core=replace(read.core, truncated=True), notes=(*core.notes, *read.notes))
        return read

    paths = list(dict.fromkeys(path for target in targets for path in files.find(target)))
    results = list(map_in_processes(read_core, paths) if side_by_side else map(read_core, paths))
    readings = [result for result in results if isinstance(result, Core)]
    problems = [(path, result) for path, result in zip(paths, results, strict=True) if not isinstance(result, Core)]
    if not readings:
        raise _nothing_read(problems)
    readings.sort(key=lambda r: (r.written, _order_of_rank(r.file), r.file))
    chains = (location.chain for read in readings for location in _locations(read) if location)
    sources = find_lines(chains, source_text)
    return CoresRead(readings=tuple(readings), sources=sources, problems=tuple(problems))


def explained(
    read: DecodedCore,
    data: Buffer,
    source: Callable[[str], Sequence[str] | None] | None = None,
    *,
    core: str = "",
    maps: Sequence[MemoryMap] | None = None,
) -> Core:
    """Return a core with why the addresses of its faults were bad, or what its warps wait for; `data` are its bytes.

    `source` gives the lines of a source file: for the names of arguments and of loaded values. `maps` name the memory;
    without any, those next to the file `core` do, else the memory that the core itself holds.
    """
    told = Core(**{field.name: getattr(read, field.name) for field in fields(read)})
    if read.core.truncated and not read.core.devices:
        return replace(told, notes=(*told.notes, _CUT))
    if read.core.complete and not read.faults and not read.launches and not read.warp_groups:
        return replace(told, notes=(*told.notes, _NOTHING_RAN))
    waiting = [] if read.faults else [g.state == "running" and g.location is not None for g in read.warp_groups]
    if not any(waiting) and not any(fault.pc is not None and fault.precise for fault in read.faults):
        return told
    explainer, sections = Explainer(source), CoreSections(data)
    if any(waiting):
        waits = tuple(
            explainer.waiting(read.core, sections, group) if runs else None
            for group, runs in zip(read.warp_groups[:_MOST_EXPLAINED], waiting, strict=False)
        )
        groups = tuple(
            _at_barrier(read.core, group, wait.document)
            if wait and (wait.document["absent"] or wait.document["barrier"])
            else group
            for group, wait in zip_longest(read.warp_groups, waits)
        )
        found = sorted(zip_longest(groups, waits), key=lambda one: one[0].waits_for_others)
        return replace(
            told, warp_groups=tuple(group for group, _ in found), waits=tuple(wait for _, wait in found),
            notes=(*told.notes, *explainer.notes),
        )  # fmt: skip
    known = _Maps(core, sections, maps)
    addresses = tuple(
        explainer.fault(read.core, sections, fault, known.have) for fault in read.faults[:_MOST_EXPLAINED]
    )
    if any(addresses):
        from vdbg_env.crash.memory_files import with_memory, with_owner

        addresses = tuple(
            address
            and with_owner(
                with_memory(address, sections), known.maps, at=_time_of(read), unmapped=fault.exception.unmapped
            )
            for fault, address in zip(read.faults, addresses, strict=False)
        )
    rest = (None,) * (len(read.faults) - len(addresses))
    left_out = (_NO_ARGUMENTS,) if _lacks_arguments(read, sections) else ()
    faults = tuple(
        replace(fault, calls=()) if address and not address.calls_hold else fault
        for fault, address in zip_longest(read.faults, addresses)
    )
    return replace(told, faults=faults, addresses=(*addresses, *rest), notes=(*told.notes, *explainer.notes, *left_out))


class _Maps:
    """The memory maps of a core, read when one is asked."""

    def __init__(self, core: str, sections: CoreSections, maps: Sequence[MemoryMap] | None) -> None:
        self._core, self._sections, self._given = core, sections, maps

    @cached_property
    def maps(self) -> tuple[MemoryMap, ...]:
        """Those that were given, else those next to the core."""
        from vdbg_env.crash.memory_files import maps_of, of_process

        return maps_of(self._core, self._sections) if self._given is None else of_process(self._given, self._core)

    def have(self, address: int, width: int) -> bool:
        """Say whether one of them has memory at an address, in use or not, and for so many bytes."""
        return any(
            region.end >= address + width
            for known in self.maps
            for places in (known.names, known.memory)
            for region in places.holding(address)
        )


def _lacks_arguments(read: DecodedCore, sections: CoreSections) -> bool:
    """Return whether a flag left out the arguments of the first launch that faulted."""
    metadata = read.core.metadata
    if metadata is None or "skip_constbank_memory" not in generation_flags(metadata.row.flags):
        return False
    launches = ((fault.device, fault.grid) for fault in read.faults if fault.grid)
    return any(
        read_parameters(read.core, device, device.grids.index(grid), sections).data is None
        for device, grid in islice(launches, 1)
    )


def _origins(read: DecodedCore) -> dict[str, KernelOrigin]:
    """Return the makers of the kernels at the places that count: by their names, and by other kernels of the core."""
    makers = kernel_makers()
    places: Sequence[Fault | WarpGroup] = read.faults or read.warp_groups
    found: dict[str, KernelOrigin] = {}
    for place in places[:_MOST_EXPLAINED]:
        if place.kernel and place.kernel not in found:
            modules = [module.code for module in place.device.modules[:_MOST_MODULES] if module.code]
            own = next((code for code in modules if any(k.name == place.kernel for k in code.kernels)), None)
            found[place.kernel] = makers.by_neighbours(
                makers.by_name(place.kernel),
                [kernel.name for kernel in own.kernels] if own else (),
                (kernel.name for code in modules for kernel in code.kernels),
            )
    return found


def _time_of(read: DecodedCore) -> float | None:
    """Return when a dump was written, by itself: a file's own time may be that of a copy."""
    metadata = read.core.metadata
    return metadata.row.timestamp or None if metadata else None


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


def cores_text(readings: Sequence[Core], sources: SourceLines, *, everything: bool = False) -> str:
    """Return the report of one core or of several: those with an exception first, each in order of time.

    Of several, where one has an exception, the others are a line each; `everything` leaves nothing out.
    """
    faulting = [reading for reading in readings if reading.faults]
    others = [reading for reading in readings if not reading.faults]
    parts = list(_summary(readings, faulting, others)) if len(readings) > 1 else []
    for reading in [*faulting, *(others if everything or not faulting else ())]:
        parts += [*([""] if parts else []), *_core(reading, sources, everything)]
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


def _order_of_rank(path: str) -> tuple[bool, int]:
    """Return what ranks are sorted by: rank 2 before rank 10, and files that name none at the end."""
    rank = rank_of(path)
    return (rank is None, rank or 0)


def verdict(readings: Sequence[Core]) -> str:
    """Return what several cores say together, in one line: the first exception in time, else that there is none."""
    faulting = [reading for reading in readings if reading.faults]
    if faulting:
        shown, order = _first_in_time(faulting)
        rank = rank_of(shown.file)
        where = f" (rank {rank})" if rank is not None else ""
        return f"{len(faulting)} of {len(readings)} cores with an exception{order}: {_headline(shown)}{where}"
    whole = all(reading.core.complete for reading in readings)
    return f"no exception in {'' if whole else 'what could be read of '}{len(readings)} cores"


def _first_in_time(faulting: Sequence[Core]) -> tuple[Core, str]:
    """Return the core that faulted first, of the newest run, and in words how its time compares with the others'."""
    if not all(map(_tells_its_time, faulting)):
        return faulting[0], ", in no known order; one of them" if len(faulting) > 1 else ""
    start = len(faulting) - 1
    while start and faulting[start].written - faulting[start - 1].written <= _ONE_RUN_S:
        start -= 1
    newest = faulting[start:]
    first = [reading for reading in newest if reading.written == newest[0].written]
    order = ""
    if len(first) > 1:
        order = f"{'all' if len(first) == len(newest) else f'the first {len(first)}'} in one second; one of them"
    elif len(newest) > 1:
        order = "first in time"
    if start:
        days = (newest[-1].written - faulting[0].written) / _DAY_S
        order = f"over {days:.0f} days, so not of one run; of the newest{f' {len(newest)}, {order}' if order else ''}"
    return newest[0], f", {order}" if order else ""


def _summary(readings: Sequence[Core], faulting: Sequence[Core], others: Sequence[Core]) -> Iterator[str]:
    first = next((reading for reading in [*faulting, *readings] if _tells_its_time(reading)), readings[0])
    start, own = first.written, _tells_its_time(first)
    ranks = {id(reading): rank_of(reading.file) for reading in readings}
    ranked = any(rank is not None for rank in ranks.values())
    yield verdict(readings)
    yield f"  {'rank  ' if ranked else ''}   when  core"
    for reading in [*faulting, *others]:
        when = "?"
        if start and own == _tells_its_time(reading):
            later = reading.written - start
            when = f"{later:+.0f} s" if abs(later) < _DAY_S else f"{later / _DAY_S:+.0f} d"
        rank = ranks[id(reading)]
        shown = f"{rank if rank is not None else '?':>4}  " if ranked else ""
        yield f"  {shown}{when:>7}  {printable(reading.file)}: {_headline(reading)}"
    if faulting and others:
        yield f"  of the other {counted(len(others), 'core')} no more is shown (--all shows it)"


def _tells_its_time(reading: Core) -> bool:
    """Whether the dump itself says when it was written; a file's own time may be that of a copy."""
    metadata = reading.core.metadata
    return metadata is not None and metadata.row.timestamp > 0


def _headline(reading: Core) -> str:
    if reading.faults:
        fault = reading.faults[0]
        kernel = f" in {short_name(demangle(fault.kernel))}" if fault.kernel else ""
        place = f" at {leaf(fault.location)}" if leaf(fault.location) else ""
        more = f" (and {len(reading.faults) - 1} more)" if len(reading.faults) > 1 else ""
        return printable(f"{fault.exception.name}{kernel}{place}{more}")
    if not reading.core.devices:
        lost = "its end is missing" if reading.core.truncated else "its threads are not known"
        return f"{lost}, so whether it has an exception is not known"
    none = "no exception" if reading.core.complete else "no exception in what could be read"
    return (
        f"{none}; {counted(reading.warps, 'warp')} {'was' if reading.warps == 1 else 'were'} resident"
        if reading.warp_groups
        else f"{none}, and no warp was resident"
    )


def _core(reading: Core, sources: SourceLines, everything: bool) -> Iterator[str]:
    yield f"{printable(reading.file)}: {_headline(reading)}"
    shown = len(reading.faults) if everything else _MOST_FAULTS
    for fault, address, registers in _faults(reading)[:shown]:
        yield ""
        origin = reading.origin(fault.kernel) if fault.kernel else None
        yield from _fault(fault, address, sources, origin)
        yield from _registers(registers) if registers else ()
    if len(reading.faults) > shown:
        yield f"\n  and {len(reading.faults) - shown} more faults (--all shows them)"
    if reading.warp_groups:
        yield ""
        yield from _groups(reading, sources, everything)
    if any(launch.parameters for launch in reading.launches):
        yield ""
        yield from _launches(reading, everything)
    if reading.loaded:
        yield ""
        yield from _loaded(reading.loaded, everything)
    yield ""
    yield from _provenance(reading)
    yield from (f"  note: {printable(note)}" for note in reading.notes)
    yield from (f"  try: {printable(command)}" for command in next_commands(reading))


def next_commands(reading: Core) -> tuple[str, ...]:
    """Return what to type for lines of the first kernel that has none at a place that counts."""
    places: Sequence[Fault | WarpGroup] = reading.faults or reading.warp_groups[:1]
    kernel = next((p.kernel for p in places if p.kernel and not (p.location and p.location.chain)), None)
    if kernel is None:
        return ()
    commands = reading.origin(kernel).next_commands(kernel, reading.file)
    if reading.packs_named and any(" lines pack " in command for command in commands):
        # The pack is of another build: it has the release and the compiler.
        return tuple(f"vdbg-env lines show {quoted(pack)}" for pack in reading.packs_named)
    shown = any(launch.parameters for launch in reading.launches)
    return tuple(command for command in commands if not (shown and " --parameters " in command))


def _library(origin: KernelOrigin, *, lines: bool) -> str:
    """Name the makers that a kernel may be of, and what gives such kernels lines where it has none."""
    remedy = f"; for lines: {origin.to_lines}" if origin.to_lines and not lines else ""
    return f"    library  {origin.text}{remedy}"


def _faults(reading: Core) -> list[tuple[Fault, AddressWhy | None, Registers | None]]:
    """Return each fault with why its address was bad and its registers, where they are known."""
    none = (None,) * len(reading.faults)
    return list(zip(reading.faults, reading.addresses or none, reading.registers or none, strict=True))


def _fault(
    fault: Fault, address: AddressWhy | None, sources: SourceLines, origin: KernelOrigin | None
) -> Iterator[str]:
    exception = fault.exception
    number = f" ({exception.code})" if exception.code is not None else ""
    yield f"  {exception.name}{number}" + (f": {exception.meaning}" if exception.meaning else "")
    if fault.exception_string:
        yield f"    the driver's words: {printable(fault.exception_string)}"
    yield f"    at       {_place(fault)}"
    if fault.kernel or fault.grid:
        name = shortened(printable(demangle(fault.kernel))) if fault.kernel else "unknown"
        yield f"    kernel   {name}" + (f"  {_dimensions(fault.grid)}" if fault.grid else "")
    lines = bool(fault.location and fault.location.chain)
    if origin and (origin.makers or not lines):
        yield _library(origin, lines=lines)
    yield f"    threads  {_threads(fault)}"
    around = blocks_around(fault)
    head = "blocks"
    for line in around_lines(around) if around else ():
        yield f"    {head:8} {line}"
        head = ""
    location = fault.location
    if location and location.chain:
        yield ""
        yield from chain_lines(location.chain, sources)
        yield from [f"    ({chain_doubt(location)})"] if location.siblings else []
        yield from borrowed_lines(location.borrowed)
    for call in fault.calls[fault.calls_out :]:
        source = f"  {leaf(call.location)}" if leaf(call.location) else ""
        unknown = "PC" if call.return_pc != call.return_offset else "an unknown function, offset"
        yield printable(f"    called from {function_at(call.location) or f'{unknown} {call.return_pc:#x}'}{source}")
    if address:
        yield ""
        yield from why_lines(address)
    if fault.doubts:
        yield "    (names and lines may be wrong: see the notes)"


def _place(fault: Fault) -> str:
    if fault.pc is None:
        return "no PC is known"
    where = printable(function_at(fault.location))
    if fault.calls_out:
        return f"PC {fault.pc:#x}, in code that the dump does not hold; called from {where}"
    imprecise = "" if fault.precise else " (imprecise: where the thread was stopped, at or after the instruction)"
    return f"{where}{', ' if where else ''}PC {fault.pc:#x}{imprecise}"


def _threads(fault: Fault) -> str:
    sms = f"SM {', '.join(map(str, fault.sms[:6]))}{' ...' if len(fault.sms) > 6 else ''}"
    if fault.scope is Scope.SM:
        left = warps_left(fault)
        if not left:
            return f"those that failed have exited; the mark stayed on {sms}"
        blocks = " ".join(map(_dim, dict.fromkeys(left[:_MOST_LEFT])))
        more = " ..." if len(left) > _MOST_LEFT else ""
        there = f"{counted(len(left), 'warp')} there, of block {blocks}{more}"
        return f"not told by the mark, which is on {sms}: among the {there}, or exited; so no address is known"
    count = f"{fault.threads} in {counted(fault.warps, 'warp')} of {counted(fault.blocks, 'block')}"
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
    return f"grid {_dim(blocks) if grid.grid_x else 'not known'} block {_dim(threads)}{shown}"


def _at_barrier(core: GpuCore, group: WarpGroup, wait: Mapping[str, Any]) -> WarpGroup:
    """Return a group where it waits: its PC is that of the next instruction, which may be of another branch."""
    found = core.find_code(group.pc, group.device, group.grid.module_handle if group.grid else None)
    pc = group.pc - found[1].offset + wait["offset"] if found else group.pc
    location = locate(core, group.device, pc, group.grid)
    return replace(group, state=f"waiting at {wait['barriers'][0]}", location=location)


def _groups(reading: Core, sources: SourceLines, everything: bool) -> Iterator[str]:
    yield f"  Where the {counted(reading.warps, 'warp')} stood:"
    shown = len(reading.warp_groups) if everything else _MOST_PLACES
    for group, wait in _waiting(reading)[:shown]:
        source = f"  {leaf(group.location)}" if leaf(group.location) else ""
        where = function_at(group.location) or hex(group.pc)
        part = f", {counted(group.threads, 'thread')}" if group.threads < group.warps * _threads_of_warp(group) else ""
        yield f"    {group.warps:6} x {printable(where)}{printable(source)}  {group.state}{part}"
        if group.barrier_words:
            yield f"             the driver's words: {printable(group.barrier_words)}"
        if not reading.faults and group.location:
            yield from chain_lines(group.location.chain, sources, indent="             ")
        yield from (f"             {printable(line)}" for line in (wait.lines if wait else ()))
    if len(reading.warp_groups) > shown:
        yield f"    and {len(reading.warp_groups) - shown} more places (--all shows them)"


def _threads_of_warp(group: WarpGroup) -> int:
    """Return how many threads most warps of a launch have."""
    row = group.grid
    return min(_WARP, row.block_x * row.block_y * row.block_z) if row else _WARP


def _waiting(reading: Core) -> list[tuple[WarpGroup, AddressWhy | None]]:
    """Return each group of warps with what it waits for, where that is known."""
    return list(zip_longest(reading.warp_groups, reading.waits))


def _loaded(names: Sequence[str], everything: bool) -> Iterator[str]:
    yield f"  Loaded when it was written: {counted(len(names), 'kernel')}"
    shown = len(names) if everything else _MOST_KERNELS
    yield from (f"    {shortened(printable(demangle(name)))}" for name in names[:shown])
    if len(names) > shown:
        yield f"    and {len(names) - shown} more (--all shows them)"


def _launches(reading: Core, everything: bool) -> Iterator[str]:
    """Yield the parameters of each launch, those that faulted first."""
    faulted = [fault.grid.grid_id for fault in reading.faults if fault.grid]
    launches = sorted(reading.launches, key=lambda launch: launch.grid.grid_id not in faulted)
    shown = len(launches) if everything else _MOST_LAUNCHES
    for launch in launches[:shown]:
        if launch.parameters:
            yield from _launch(launch, launch.parameters, everything)
    if len(launches) > shown:
        yield f"  and {len(launches) - shown} more launches (--all shows them)"


def _launch(launch: Launch, read: LaunchParameters, everything: bool) -> Iterator[str]:
    name = short_name(demangle(launch.kernel)) if launch.kernel else "an unknown kernel"
    yield printable(f"  Parameters of launch {launch.grid.grid_id}, {name}:")
    width = min(max((len(one.type or "") for one in read.parameters), default=0), 40)
    for one in read.parameters:
        yield printable(f"    [{one.index}] {one.type or '':{width}}  {_value(one, everything)}")
    if not read.parameters and read.data:
        yield f"    {_bytes(read.data, everything)}"
    for bank in read.banks:
        where = "in the dump" if bank.held else "not in the dump"
        yield f"    constant bank {bank.number}: {bank.size:,} bytes at {bank.address:#x}, {where}"
    if read.problem:
        yield printable(f"    ({read.problem})")


def _value(one: Parameter, everything: bool) -> str:
    if one.data is None:
        return f"{one.size} bytes, not in the dump"
    return one.value or _bytes(one.data, everything)


def _bytes(data: bytes, everything: bool) -> str:
    """Return bytes in memory order, in groups of four."""
    shown = data if everything else data[:_MOST_BYTES]
    rest = f" ... {len(data):,} bytes" if len(data) > len(shown) else ""
    return shown.hex(" ", 4) + rest


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


def _provenance(reading: Core) -> Iterator[str]:
    core = reading.core
    for device in core.devices:
        gpu = device.row
        yield (
            f"  device {device.index}: {printable(device.name)} ({printable(device.sm_type)}, PCI {gpu.pci_bus:02x}:"
            f"{gpu.pci_device:02x}, {gpu.sms} SMs), {counted(len(device.grids), 'launch', 'launches')}, "
            f"{counted(len(device.modules), 'module')}"
        )
    if core.metadata:
        row, maker = core.metadata.row, core.metadata.generator
        known = [printable(maker)] if maker != _DRIVER or not row.driver_major else []
        known += [f"driver r{row.driver_major}.{row.driver_minor}"] if row.driver_major else []
        known += [f"CUDA {row.cuda_major}.{row.cuda_minor}"] if row.cuda_major else []
        known += [f"{datetime.fromtimestamp(row.timestamp, UTC):%Y-%m-%d %H:%M:%S} UTC"] if row.timestamp else []
        yield f"  written by {', '.join(known)}"
        if row.flags:
            yield f"  flags: {', '.join(generation_flags(row.flags))}"
    if core.unused:
        left = ", ".join(
            f"{counted(kind.count, 'section')} of {kind.kind} ({kind.bytes:,} bytes)" for kind in core.unused
        )
        yield f"  not read: {left}"


def _dim(values: Sequence[int | None]) -> str:
    return f"({','.join(str(value) for value in values)})"


# JSON: docs/schemas/core-v1.schema.json is the contract and says what each field means.

SCHEMA: Final = "vdbg-env/core/v1"


def cores_json(readings: Sequence[Core], sources: SourceLines) -> str:
    """Return one core as a document, several as a document that lists them, first in time first."""
    cores = [_core_json(reading, sources) for reading in readings]
    return json_text(cores[0] if len(cores) == 1 else {"schema": SCHEMA, "verdict": verdict(readings), "cores": cores})


def _core_json(read: Core, sources: SourceLines) -> dict[str, Any]:
    core = read.core
    return {
        "schema": SCHEMA,
        "file": read.file,
        "rank": rank_of(read.file),
        "truncated": core.truncated,
        "complete": core.complete,
        "elf_identity": str(core.identity),
        "metadata": core.metadata and _metadata_json(core.metadata),
        "devices": [_device_json(device, read.launches) for device in core.devices],
        "faults": [_fault_json(*found, sources, read) for found in _faults(read)],
        "warps": [_group_json(*found, sources) for found in _waiting(read)],
        "loaded_kernels": [kernel_json(name) for name in read.loaded],
        "unused": [asdict(kind) for kind in core.unused],
        "notes": read.notes,
        "next": next_commands(read),
    }


def _metadata_json(of: Metadata) -> dict[str, Any]:
    row = of.row
    return {
        "generator": of.generator,
        "driver": f"{row.driver_major}.{row.driver_minor}" if row.driver_major else None,
        "cuda": f"{row.cuda_major}.{row.cuda_minor}" if row.cuda_major else None,
        "flags": generation_flags(row.flags),
        "timestamp": row.timestamp,
        "written": datetime.fromtimestamp(row.timestamp, UTC).isoformat() if row.timestamp else None,
    }


def _device_json(device: Device, launches: Sequence[Launch]) -> dict[str, Any]:
    row = device.row
    return {
        "index": device.index,
        "id": row.device_id,
        "name": device.name,
        "type": device.type,
        "sm": device.sm_type,
        "pci": f"{row.pci_bus:02x}:{row.pci_device:02x}",
        "sms": row.sms,
        "warps_per_sm": row.warps_per_sm,
        "contexts": [
            {"id": hex(one.row.context_id), "host_thread": one.row.thread_id, "modules": len(one.modules)}
            for one in device.contexts
        ],
        "grids": [_launch_json(launch) for launch in launches if launch.device is device],
        "resident": {"blocks": sum(len(sm.ctas) for sm in device.sms), "warps": sum(1 for _ in device.warps())},
    }


def _launch_json(launch: Launch) -> dict[str, Any]:
    grid = launch.grid
    return {
        "id": grid.grid_id,
        "kernel": _launched_json(launch),
        "status": grid_status(grid.status),
        "origin": grid_origin(grid.origin),
        "kind": kernel_type(grid.kernel_type),
        "parent": grid.parent_grid_id or None,
        "registers_per_thread": grid.registers,
        "host_thread": grid.host_thread_id,
        **({"parameters": _parameters_json(launch.parameters)} if launch.parameters else {}),
    }


def _launched_json(of: Fault | WarpGroup | Launch) -> dict[str, Any] | None:
    """Return a kernel with the dimensions of its launch, where the launch is known."""
    if of.kernel is None and of.grid is None:
        return None
    named: dict[str, Any] = {"name": of.kernel, "demangled": demangle(of.kernel) if of.kernel else None}
    if of.grid is None:
        return named
    row = of.grid
    cluster = None if row.cluster_x is None else (row.cluster_x, row.cluster_y or 0, row.cluster_z or 0)
    blocks, threads = (row.grid_x, row.grid_y, row.grid_z), (row.block_x, row.block_y, row.block_z)
    return {**named, "grid": blocks if row.grid_x else None, "block": threads, "cluster": cluster}


def _parameters_json(read: LaunchParameters) -> dict[str, Any]:
    return {
        "parameters": [
            {
                "index": one.index, "type": one.type, "offset": one.offset, "size": one.size, "value": one.value,
                "bytes": None if one.data is None else one.data.hex(),
            }
            for one in read.parameters
        ],
        "bytes": None if read.data is None else read.data.hex(),
        "constant_banks": [{**asdict(bank), "address": hex(bank.address)} for bank in read.banks],
        "problem": read.problem,
    }  # fmt: skip


def _fault_json(
    fault: Fault, address: AddressWhy | None, registers: Registers | None, sources: SourceLines, read: Core
) -> dict[str, Any]:
    exception, location, first = fault.exception, fault.location, fault.first
    origin = read.origin(fault.kernel) if fault.kernel else None
    return {
        "exception": {
            "code": exception.code, "name": exception.name, "identifier": exception.identifier,
            "meaning": exception.meaning, "driver_words": fault.exception_string,
        },
        "scope": fault.scope.value,
        "device": fault.device.index,
        "sms": fault.sms,
        "pc": _hex(fault.pc),
        "precise": fault.precise,
        "thread_pc": _hex(first.row.virtual_pc) if first else None,
        "kernel": _launched_json(fault),
        "library": origin.library if origin and origin.maker else None,
        "makers": origin and origin.document,
        "function": _function(location),
        "calls_out": fault.calls_out,
        "offset": _hex(location.offset) if location else None,
        "function_offset": _hex(location.function_offset) if location else None,
        **location_json(location, sources),
        "address": address and address.document,
        "why": address.lines if address else (),
        "threads": {
            "count": fault.threads, "warps": fault.warps, "blocks": fault.blocks, "first": first and asdict(first.at),
        },
        "around": blocks_around(fault),
        "cluster_target": fault.cluster_target or None,
        "calls": [
            {
                "level": call.level, "return_pc": hex(call.return_pc), "function": _function(call.location),
                "offset": _hex(call.location.offset) if call.location else None,
                "chain": chain_json(call.location.chain if call.location else (), sources),
            }
            for call in fault.calls
        ],
        "doubts": fault.doubts,
        **({"registers": _registers_json(registers)} if registers else {}),
    }  # fmt: skip


def _registers_json(files: Registers) -> dict[str, Any]:
    return {
        "general": {f"R{n}": hex(value) for n, value in enumerate(files.general)},
        "predicates": {f"P{n}": bool(value) for n, value in enumerate(files.predicates)},
        "uniform": {f"UR{n}": hex(value) for n, value in enumerate(files.uniform)},
        "uniform_predicates": {f"UP{n}": bool(value) for n, value in enumerate(files.uniform_predicates)},
        "barriers": {f"B{n}": hex(value) for n, value in enumerate(files.barriers)},
        "backtrace": [
            {"level": row.level, "return_pc": hex(row.return_pc), "return_offset": hex(row.return_offset)}
            for row in files.backtrace
        ],
    }


def _group_json(group: WarpGroup, wait: AddressWhy | None, sources: SourceLines) -> dict[str, Any]:
    location = group.location
    return {
        "device": group.device.index,
        "pc": hex(group.pc),
        "kernel": _launched_json(group),
        "function": _function(location),
        "offset": _hex(location.offset) if location else None,
        "count": group.warps,
        "threads": group.threads,
        "blocks": group.blocks,
        "state": group.state,
        "barrier": group.barrier,
        "barrier_words": group.barrier_words,
        "thread_states": dict(group.thread_states),
        "waits": wait and wait.document,
        "why": wait.lines if wait else (),
        "first": asdict(group.first),
        "chain": chain_json(location.chain if location else (), sources),
        "lines_from": lines_from_json(location, sources),
    }


def _function(location: Location | None) -> str | None:
    return location.function.demangled if location and location.function else None


def _hex(value: int | None) -> str | None:
    return None if value is None else hex(value)
