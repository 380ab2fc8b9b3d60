"""The sections of a GPU core by what they are and the row that they hang on, with what is damaged put right or named.

A section's `sh_link` is the number of its parent's section and `sh_info` the parent's row there. The names repeat both
as row numbers (`.cudbg.wptbl.dev0.sm3.cta1`), so a table whose link or type is damaged is found by its name. Whatever
stays unread is accounted for: a core whose rows were lost must not read as one without an exception.
"""

from __future__ import annotations

import re
import struct
from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from typing import Final, TypeVar

from gpucore import core_layout
from gpucore.code_map import CodeMap, LineSource
from gpucore.core_layout import (
    LEAVES,
    PARENTS,
    ContextRow,
    CtaRow,
    DeviceRow,
    GridRow,
    LaneRow,
    Layout,
    MetadataRow,
    ModuleRow,
    SectionType,
    SmRow,
    WarpRow,
)
from gpucore.dwarf import Place
from gpucore.elf import ELF_MAGIC, EM_CUDA, ET_CORE, HEADER_SIZE, Buffer, Elf, Identity, Section, dimensions_at
from gpucore.errors import UnreadableBinary

SHT_STRTAB: Final = 3
_NAMES: Final = {
    "devtbl": SectionType.DEVICES, "ctxtbl": SectionType.CONTEXTS, "smtbl": SectionType.SMS,
    "gridtbl": SectionType.GRIDS, "ctatbl": SectionType.CTAS, "wptbl": SectionType.WARPS, "lntbl": SectionType.LANES,
    "modtbl": SectionType.MODULES, "relfimg": SectionType.RELOCATED_IMAGE, "elfimg": SectionType.IMAGE,
    "meta": SectionType.METADATA,
}  # fmt: skip
_PREFIXES: Final = {kind: name for name, kind in _NAMES.items()}
_SOUGHT: Final = (SectionType.DEVICES, SectionType.SMS, SectionType.CONTEXTS, SectionType.GRIDS, SectionType.MODULES)
_NAME: Final = re.compile(r"\.cudbg\.([a-z]+)((?:\.[a-z]+\d+)*)$")
_NOT_READ: Final = "memory, which this reader does not look at"
_TABLES: Final = frozenset({*PARENTS, SectionType.DEVICES, SectionType.METADATA})
_MOST_NAMED: Final = 4096  # sections looked up by name; more than that are not linked by accident


@dataclass(frozen=True, kw_only=True)
class UnusedSections:
    """Sections of one kind that were not read, and why; `kind` is the name of the type, or its number."""

    kind: str
    count: int
    bytes: int
    reason: str


class SectionLinks:
    """The tables and images of a core by type and parent; `damage` says what was not as it should be."""

    def __init__(self, elf: Elf) -> None:
        self._elf: Final = elf
        self.damage: Final[list[str]] = []
        self.used: Final[set[int]] = set()
        tables = list(elf.sections_of(_TABLES | {SHT_STRTAB}))
        have = {section.type for section in tables}
        for kind in _SOUGHT:
            tables += self._of_wrong_type(kind) if kind not in have else []
        self.by_type: Final[dict[int, list[Section]]] = defaultdict(list)
        for section in tables:
            self.by_type[section.type].append(section)
        self._rows: Final = {s.number: s.size // s.entry_size if s.entry_size else 0 for s in tables}
        self._tables: Final = {s.number: s for s in tables}
        self._children: Final[dict[tuple[int, int, int], list[Section]]] = defaultdict(list)
        lost = [section for section in tables if not self._link(section)]
        self._adopt(lost)

    def below(self, kind: SectionType, parent: Section, row: int) -> list[Section]:
        """Return the sections of a kind that belong to a row of a table."""
        found = self._children.get((kind, parent.number, row), [])
        self.used.update(section.number for section in found)
        return found

    def name(self, section: Section) -> str:
        """Return a section's number, with its name where that can be read."""
        try:
            return f"section {section.number} ({self._elf.name(section)})"
        except UnreadableBinary:
            return f"section {section.number}"

    def account(self, lanes: Mapping[int, int], warps: Mapping[int, int]) -> tuple[UnusedSections, ...]:
        """Name what was left unread; `lanes` and `warps` are how many rows of each table were read, by its number."""
        for kind in (SectionType.DEVICES, *PARENTS):
            for section in self.by_type.get(kind, ()):
                if section.number not in self.used and kind is not SectionType.IMAGE and section.size:
                    self.damage.append(f"{self.name(section)} belongs to no row of the table above it; it was left out")
        owners = {True: _links_to(lanes), False: _links_to(warps)}
        kinds: Counter[int] = Counter(self._elf.section_types)
        for kind, of_lane in LEAVES.items():
            links = self._elf.section_links(kind) if kinds.get(kind) else []
            unknown = set(links) - owners[of_lane]
            if unknown:
                stray = sum(map(unknown.__contains__, links))
                whose = "thread" if of_lane else "warp"
                self.damage.append(
                    f"{stray} of {len(links)} sections of {kind.words} belong to no {whose} that was read"
                )
        return tuple(self._unused(kinds))

    def misplaced_tables(self) -> list[str]:
        """Return, in words, which tables of devices and SMs overlap other sections or end before their rows do."""
        found = []
        starts, ends = self._elf.extents()
        for kind in (SectionType.DEVICES, SectionType.SMS):
            for section in self.by_type.get(kind, ()):
                start, end = section.offset, section.offset + section.size
                before = bisect_left(starts, end)
                if before - bisect_right(ends, start) > 1:
                    found.append(f"{self.name(section)} overlaps another section")
                follows = starts[before] if before < len(starts) else end
                if section.entry_size and any(self._elf.data[end : min(follows, end + section.entry_size)]):
                    found.append(f"{self.name(section)}: more rows follow its end; they were not read")
        return found

    def _unused(self, kinds: Counter[int]) -> Iterable[UnusedSections]:
        known = {*_TABLES, *LEAVES}
        for kind in sorted(kinds):
            if kind in known or kind < SectionType.MANAGED_MEMORY:
                continue
            sections = self._elf.sections_of(frozenset({kind}))
            try:
                words, reason = SectionType(kind).words, _NOT_READ
            except ValueError:
                words, reason = f"type {kind:#x}", "a kind that this reader does not know"
                self.damage.append(f"{len(sections)} sections of {words}, {reason}, were left out")
            if kind in (SectionType.PARAMETERS, SectionType.CONSTANT_BANKS):
                continue  # read when asked for
            yield UnusedSections(kind=words, count=len(sections), bytes=sum(s.size for s in sections), reason=reason)

    def _link(self, section: Section) -> bool:
        parent = PARENTS.get(SectionType(section.type)) if section.type != SHT_STRTAB else None
        if parent is None:
            return True
        table = self._tables.get(section.link)
        if table is None or table.type != parent or not section.info < self._rows[table.number]:
            return False
        self._children[section.type, section.link, section.info].append(section)
        return True

    def _adopt(self, lost: list[Section]) -> None:
        """Give tables whose link leads nowhere the parent that their name says."""
        parents: dict[tuple[int, tuple[int, ...]], Section] = {}
        wanted = {PARENTS[SectionType(section.type)] for section in lost}
        for kind in wanted:
            for section in self.by_type.get(kind, [])[:_MOST_NAMED]:
                named = self._named(section)
                if named:
                    parents.setdefault((kind, named[1]), section)
        for section in lost[:_MOST_NAMED]:
            named = self._named(section)
            kind = SectionType(section.type)
            if kind in (SectionType.IMAGE, SectionType.RELOCATED_IMAGE):
                continue  # a module's row is not in its name; these serve for any address in them
            parent = parents.get((PARENTS[kind], named[1][:-1])) if named and named[0] == kind else None
            if parent and named and named[1][-1] < self._rows[parent.number]:
                self._children[kind, parent.number, named[1][-1]].append(section)
                self.damage.append(
                    f"{self.name(section)} is linked to no table above it; its place is taken by its name"
                )

    def _named(self, section: Section) -> tuple[SectionType, tuple[int, ...]] | None:
        try:
            match = _NAME.match(self._elf.name(section))
        except UnreadableBinary:
            return None
        if match is None or match[1] not in _NAMES:
            return None
        return _NAMES[match[1]], tuple(int(number) for number in re.findall(r"\d+", match[2]))

    def _of_wrong_type(self, kind: SectionType) -> list[Section]:
        """Return the sections whose name says a kind and whose type does not."""
        try:
            found = list(self._elf.sections_starting(f".cudbg.{_PREFIXES[kind]}"))
        except UnreadableBinary:
            return []
        for section in found:
            self.damage.append(f"{self.name(section)} is of type {section.type:#x}; read as what its name says")
        return [section._replace(type=kind) for section in found]


def _links_to(tables: Mapping[int, int]) -> set[int]:
    """Return every link that names one of the first rows of a table, as `Elf.section_links` gives them."""
    found: set[int] = set()
    for table, rows in tables.items():
        found.update(range(table, table + (rows << 32), 1 << 32))
    return found


# A GPU core dump as values: devices hold contexts, grids and SMs; an SM holds blocks of warps of lanes.


Dim3 = tuple[int, int, int]


@dataclass(frozen=True, kw_only=True)
class Metadata:
    """What wrote the file: the generator, `timestamp` in seconds of the epoch, and its settings."""

    generator: str
    row: MetadataRow


@dataclass(frozen=True, kw_only=True)
class Module:
    """A loaded module and its code; `code` is None where the file holds no readable image of it.

    Pickled it has no code, which is a view of the file.
    """

    row: ModuleRow
    code: CodeMap | None
    relocated: bool

    def __getstate__(self) -> dict[str, object]:
        return {**self.__dict__, "code": None}


@dataclass(frozen=True, kw_only=True)
class Context:
    """A CUDA context and what it loaded."""

    row: ContextRow
    modules: tuple[Module, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Warp:
    """A warp and its threads; `lane_table` is the number of the section that holds the lanes' rows, if any.

    `barrier_words` is the driver's message on the barrier that it waits at (r590).
    """

    row: WarpRow
    lanes: tuple[LaneRow, ...]
    lane_table: int | None
    table: int
    index: int
    barrier_words: str | None = None

    def threads(self) -> Iterator[tuple[int, LaneRow]]:
        """Yield the rows that hold a thread, with their index; rows of zeros only fill the table up."""
        return ((index, lane) for index, lane in enumerate(self.lanes) if any(lane))

    def is_active(self, lane: LaneRow) -> bool:
        """Return whether a lane was executing with the others of its warp."""
        return bool(self.row.active_lanes >> (lane.lane & 31) & 1)


@dataclass(frozen=True, kw_only=True, slots=True)
class Cta:
    """A thread block."""

    row: CtaRow
    warps: tuple[Warp, ...]

    @property
    def block(self) -> Dim3:
        """blockIdx."""
        return self.row.block_x, self.row.block_y, self.row.block_z

    @property
    def cluster(self) -> Dim3 | None:
        """The index of its cluster in the grid; None where blocks have no clusters, or the dump does not say (r565)."""
        row = self.row
        if max(row.cluster_x or 0, row.cluster_y or 0, row.cluster_z or 0) <= 1:
            return None
        return row.cluster_index_x or 0, row.cluster_index_y or 0, row.cluster_index_z or 0

    @property
    def block_in_cluster(self) -> Dim3 | None:
        """The index of the block in its cluster; None as for `cluster`."""
        row = self.row
        if self.cluster is None:
            return None
        return (
            row.block_x % (row.cluster_x or 1),
            row.block_y % (row.cluster_y or 1),
            row.block_z % (row.cluster_z or 1),
        )


@dataclass(frozen=True, kw_only=True)
class Sm:
    """A streaming multiprocessor; `exception_string` is the driver's message, where it wrote one (r580)."""

    row: SmRow
    ctas: tuple[Cta, ...]
    exception_string: str | None


@dataclass(frozen=True, kw_only=True)
class Device:
    """A GPU of the core; `index` is its row, which contexts and section names refer to.

    `grid_places` are the section and row of each of `grids`, by which other sections refer to a launch.
    """

    index: int
    row: DeviceRow
    name: str
    type: str
    sm_type: str
    contexts: tuple[Context, ...]
    grids: tuple[GridRow, ...]
    sms: tuple[Sm, ...]
    grid_places: tuple[tuple[int, int], ...] = ()

    @cached_property
    def grids_by_id(self) -> dict[int, GridRow]:
        """The launches by their 64-bit id."""
        return {grid.grid_id: grid for grid in self.grids}

    @cached_property
    def modules(self) -> tuple[Module, ...]:
        """Every module of every context."""
        return tuple(module for context in self.contexts for module in context.modules)

    def warps(self) -> Iterator[tuple[Sm, Cta, Warp]]:
        """Yield every warp that was resident, with where it was."""
        for sm in self.sms:
            for cta in sm.ctas:
                for warp in cta.warps:
                    yield sm, cta, warp


@dataclass(frozen=True, kw_only=True)
class GpuCore:
    """A GPU core dump, as far as it could be read; `notes` says in words what could not.

    `complete` is whether all that this reader knows of was there, linked and sound: without it, that no fault was found
    proves nothing. `unused` are the sections that were not read, with the reason.
    """

    identity: Identity
    truncated: bool
    complete: bool
    metadata: Metadata | None
    devices: tuple[Device, ...]
    stray_modules: tuple[Module, ...]
    notes: tuple[str, ...]
    unused: tuple[UnusedSections, ...] = ()

    def find_code(self, pc: int, device: Device, handle: int | None = None) -> tuple[CodeMap, Place] | None:
        """Return the module and place of a PC: the module named by `handle` first, then the device's, then any."""
        own = [m for m in device.modules if m.row.handle == handle]
        others = [m for d in self.devices for m in d.modules]
        for module in [*own, *device.modules, *others, *self.stray_modules]:
            place = module.code.place(pc) if module.code and module.relocated else None
            if module.code and place:
                return module.code, place
        return None


# Reads a GPU core dump: bytes in, `GpuCore` out, as far as the bytes go.
#
# Layout: NVIDIA's `cudacoredump.h` (see `layout`). The file is an ELF of sections only. Tables form a tree: a section's
# `sh_link` is the number of its parent's section and `sh_info` the parent's row there, in no promised order and
# whatever the names say. One section per register file of each thread makes 275,000 sections an ordinary size, so only
# the tables are looked at; the rest is found when asked for.


RowT = TypeVar("RowT", bound=tuple[int | None, ...])

_LONGEST_STRING: Final = 4096
_MOST_NOTES: Final = 20
_MOST_STRAY_IMAGES: Final = 4096
_NEVER_ZEROS: Final = frozenset(  # launches are counted from 1
    {SectionType.DEVICES, SectionType.GRIDS, SectionType.SMS, SectionType.CTAS, SectionType.WARPS}
)
_LANES: Final = 32  # of a warp
_HOLE: Final = ": lost by a full disk, or by a copy that made a hole of them"
_EMBEDDED: Final = re.compile(rb"\x7fELF\x02\x01.{12}" + re.escape(EM_CUDA.to_bytes(2, "little")), re.DOTALL)


def read_core(data: Buffer, lines: LineSource | None = None) -> GpuCore:
    """Read a GPU core dump; what is cut off or damaged is in its notes and leaves the rest readable.

    `lines` is asked for the lines of code that was built without them.

    Raises UnreadableBinary when the bytes are not a GPU core at all, with what they are instead.
    """
    _refuse_what_is_no_core(data)
    try:
        elf = Elf(data)
    except UnreadableBinary as error:
        return _salvage(data, error, lines)
    return _Reader(elf, lines).core()


class CoreSections:
    """The sections of a core that hang on a row of another one: registers, memory, backtraces; for looking up late."""

    def __init__(self, data: Buffer) -> None:
        self._elf: Final = Elf(data)
        self._by_parent: Final[dict[SectionType, dict[int, int]]] = {}

    def bytes_of(self, kind: SectionType, parent: int, row: int) -> memoryview | None:
        """Return the bytes that belong to a row of a table; None when the file has none, or was cut before them."""
        section = self._section_of(kind, parent, row)
        return None if section is None else self._held(section)

    def _section_of(self, kind: SectionType, parent: int, row: int) -> Section | None:
        # A full GPU has 135,000 sections of registers, of which a few are looked at.
        if kind not in self._by_parent:
            self._by_parent[kind] = dict(zip(self._elf.section_links(kind), self._elf.numbers_of(kind), strict=True))
        number = self._by_parent[kind].get(row << 32 | parent)
        return None if number is None else self._elf.header(number)

    def local_memory(self, table: int, row: int) -> tuple[int, memoryview] | None:
        """Return the local memory of a thread by its row in a table of lanes, and the address where it starts."""
        section = self._section_of(SectionType.LOCAL_MEMORY, table, row)
        held = None if section is None else self._held(section)
        return None if section is None or held is None else (section.address, held)

    def shared_memory(self, warp: Warp) -> memoryview | None:
        """Return the shared memory of the block that a warp is in, from its first byte."""
        block = self._elf.header(warp.table)
        return self.bytes_of(SectionType.SHARED_MEMORY, block.link, block.info)

    def memory(self, address: int, size: int) -> memoryview | None:
        """Return a range of global memory; None when the file does not hold the whole of it."""
        for section in self._memory:
            if section.address <= address and address + size <= section.address + section.size:
                held = self._held(section)
                start = address - section.address
                return None if held is None else held[start : start + size]
        return None

    def global_memory(self) -> tuple[tuple[int, int], ...]:
        """Return the address and the size of each allocation that was dumped.

        There are none where a flag left out global memory: what such a core holds of it is the driver's own.
        """
        for section in self._elf.sections_of(frozenset({SectionType.METADATA})):
            size = max(_sized(section).entry_size, core_layout.METADATA.smallest)
            for row in core_layout.METADATA.rows(self._held(section) or b"", size):
                if "skip_global_memory" in core_layout.generation_flags(row.flags):
                    return ()
        return tuple((section.address, section.size) for section in self._memory)

    @cached_property
    def _memory(self) -> tuple[Section, ...]:
        return self._elf.sections_of(frozenset({SectionType.GLOBAL_MEMORY, SectionType.MANAGED_MEMORY}))

    def _held(self, section: Section) -> memoryview | None:
        try:
            return self._elf.contents(section)
        except UnreadableBinary:
            return None


def _grid_of(row: GridRow) -> Dim3:
    return row.grid_x, row.grid_y, row.grid_z


def _inside(grid: GridRow, block: Dim3) -> bool:
    return all(at < size for at, size in zip(block, _grid_of(grid), strict=True))


def _axes(found: Dim3) -> str:
    return f"({','.join(map(str, found))})"


def _sized(metadata: Section) -> Section:
    """Return the section of the one metadata row with the row's size, which the drivers seen leave out."""
    return metadata._replace(entry_size=metadata.entry_size or metadata.size)


class _Reader:
    def __init__(self, elf: Elf, lines: LineSource | None) -> None:
        self._elf = elf
        self._lines = lines
        self._links = SectionLinks(elf)
        self._roots = self._links.by_type
        self._notes: list[str] = []
        self._damage: list[str] = []
        self._cut = 0
        self._branches = (0, 1 << 16)  # the driver branches, first and one past the last, that write all sizes seen
        self._table_bytes = 0
        self._lane_rows: dict[int, int] = {}  # how many rows of each table were read
        self._warp_rows: dict[int, int] = {}
        self._strings = self._string_table()

    def core(self) -> GpuCore:
        """Read the tree from its roots down."""
        metadata = self._metadata()
        devices = tuple(
            self._device(section, index, row)
            for section in self._roots[SectionType.DEVICES]
            for index, row in enumerate(self._rows(core_layout.DEVICE, section))
        )
        stray = self._stray_images(any(device.modules for device in devices))
        self._note_what_is_missing(metadata, devices)
        unused = self._links.account(self._lane_rows, self._warp_rows) if devices and not self._cut else ()
        for text in [*self._links.damage, *self._damage]:
            self._note(text)
        return GpuCore(
            identity=self._elf.identity,
            truncated=bool(self._cut),
            complete=not (self._cut or self._damage or self._links.damage),
            metadata=metadata,
            devices=devices,
            stray_modules=stray,
            unused=unused,
            notes=tuple(self._notes),
        )

    def _device(self, table: Section, index: int, row: core_layout.DeviceRow) -> Device:
        def below(kind: SectionType) -> list[Section]:
            return self._below(kind, table, index)

        contexts = tuple(
            Context(row=context, modules=self._modules(section, i))
            for section in below(SectionType.CONTEXTS)
            for i, context in enumerate(self._rows(core_layout.CONTEXT, section))
        )
        grids = tuple(
            (g, (section.number, i))
            for section in below(SectionType.GRIDS)
            for i, g in enumerate(self._rows(core_layout.GRID, section))
        )
        sms = tuple(
            Sm(row=sm, ctas=self._ctas(section, i), exception_string=self._string(sm.exception_string))
            for section in below(SectionType.SMS)
            for i, sm in enumerate(self._rows(core_layout.SM, section))
        )
        ran: dict[int, set[Dim3]] = {}
        for cta in (cta for sm in sms for cta in sm.ctas):
            ran.setdefault(cta.row.grid_id, set()).add(cta.block)
        return Device(
            index=index, row=row, name=self._string(row.name) or "", type=self._string(row.type) or "",
            sm_type=self._string(row.sm_type) or "", contexts=contexts, sms=sms,
            grids=tuple(self._as_it_ran(grid, place, ran.get(grid.grid_id, set())) for grid, place in grids),
            grid_places=tuple(place for _, place in grids),
        )  # fmt: skip

    def _as_it_ran(self, grid: GridRow, place: tuple[int, int], ran: set[Dim3]) -> GridRow:
        """Return a launch; where blocks ran that the table's grid has not, with the grid that constant bank 0 has.

        The grid is zeros where that is not in the core, or does not hold all blocks either.
        """
        outside = [block for block in ran if not _inside(grid, block)]
        if not outside:
            return grid
        sections, sizes = CoreSections(self._elf.data), []
        rows = sections.bytes_of(SectionType.CONSTANT_BANKS, *place) or b""
        for bank in core_layout.CONSTANT_BANK.rows(rows, core_layout.CONSTANT_BANK.smallest):
            if bank.bank == 0:
                held = (sections.memory(bank.address + at, 12) for at in dimensions_at(grid.parameters_offset))
                sizes = [struct.unpack("<3I", part) for part in held if part is not None]
        true = grid._replace(grid_x=0, grid_y=0, grid_z=0)
        if len(sizes) == 2:
            threads, blocks = sizes
            by_bank = grid._replace(grid_x=blocks[0], grid_y=blocks[1], grid_z=blocks[2])
            if threads == (grid.block_x, grid.block_y, grid.block_z) and all(_inside(by_bank, one) for one in outside):
                true = by_bank
        size = f"{_axes(_grid_of(true))} is by constant bank 0" if true.grid_x else "the size of the grid is not known"
        self._note(
            f"launch {grid.grid_id}: block {_axes(max(outside))} ran, which the launch table's grid "
            f"{_axes(_grid_of(grid))} does not have (driver 580 writes that of cooperative launches); {size}"
        )
        return true

    def _ctas(self, sms: Section, sm: int) -> tuple[Cta, ...]:
        return tuple(
            Cta(row=cta, warps=self._warps(section, i))
            for section in self._below(SectionType.CTAS, sms, sm)
            for i, cta in enumerate(self._rows(core_layout.CTA, section))
        )

    def _warps(self, ctas: Section, cta: int) -> tuple[Warp, ...]:
        return tuple(
            self._warp(section, i, warp)
            for section in self._below(SectionType.WARPS, ctas, cta)
            for i, warp in enumerate(self._rows(core_layout.WARP, section))
        )

    def _warp(self, warps: Section, index: int, row: core_layout.WarpRow) -> Warp:
        tables = self._below(SectionType.LANES, warps, index)
        lanes = tuple(map(self._lane, self._rows(core_layout.LANE, tables[0]))) if tables else ()
        table = tables[0].number if tables else None
        self._warp_rows[warps.number] = index + 1
        if table is not None:
            self._lane_rows[table] = len(lanes)
        if len(tables) > 1:
            self._damage.append(f"{len(tables)} tables of lanes belong to one warp; the first of them was read")
        if lanes and row.valid_lanes and not any(map(any, lanes)):
            self._damage.append(f"{self._name(tables[0])}: zeros for every thread of a warp that has some{_HOLE}")
        words = self._string(row.barrier_info) or None
        return Warp(row=row, lanes=lanes, lane_table=table, table=warps.number, index=index, barrier_words=words)

    def _lane(self, row: core_layout.LaneRow) -> core_layout.LaneRow:
        """Return a row of a thread; one that names no lane of a warp is damaged, and nothing in it counts."""
        if row.lane < _LANES:
            return row
        self._damage.append(f"a thread has the lane {row.lane}, of the {_LANES} of a warp: it is left out")
        return core_layout.LaneRow(*(0,) * 10)

    def _modules(self, contexts: Section, context: int) -> tuple[Module, ...]:
        return tuple(
            self._module(section, i, row)
            for section in self._below(SectionType.MODULES, contexts, context)
            for i, row in enumerate(self._rows(core_layout.MODULE, section))
        )

    def _module(self, table: Section, index: int, row: ModuleRow) -> Module:
        # The relocated image is the one whose addresses are those of the PCs; the other serves for names alone.
        for kind in (SectionType.RELOCATED_IMAGE, SectionType.IMAGE):
            for section in self._below(kind, table, index):
                code = self._code(section)
                if code:
                    return Module(row=row, code=code, relocated=code.relocated)
        return Module(row=row, code=None, relocated=False)

    def _stray_images(self, modules: bool) -> tuple[Module, ...]:
        """Return the images that belong to no module; where no module has code, plain ones too, for their names."""
        relocated = [s for s in self._roots[SectionType.RELOCATED_IMAGE] if s.number not in self._links.used]
        plain = [] if modules or relocated else self._roots[SectionType.IMAGE]
        found = []
        for section in [*relocated, *plain]:
            code = self._code(section)
            if code:
                found.append(Module(row=ModuleRow(0), code=code, relocated=code.relocated))
                self._links.used.add(section.number)
                if modules:
                    self._damage.append(f"{self._name(section)} is linked to no module; its code is looked at last")
        return tuple(found)

    def _code(self, section: Section) -> CodeMap | None:
        data = self._contents(section)
        if not data:
            return None
        try:
            return CodeMap(data, self._lines)
        except UnreadableBinary as error:
            self._damage.append(f"{self._name(section)}: {error}")
            return None

    def _metadata(self) -> Metadata | None:
        for section in self._roots[SectionType.METADATA]:
            self._links.used.add(section.number)
            for row in self._rows(core_layout.METADATA, _sized(section)):
                return Metadata(generator=self._string(row.generator) or "", row=row)
        return None

    def _below(self, kind: SectionType, parent: Section, row: int) -> list[Section]:
        return self._links.below(kind, parent, row)

    def _rows(self, form: Layout[RowT], section: Section) -> list[RowT]:
        self._links.used.add(section.number)
        size = section.entry_size
        if size < form.smallest:
            if section.size:
                self._damage.append(
                    f"{self._name(section)}: rows of {size} bytes, {form.smallest} at least were expected"
                )
            return []
        if section.size % size or (size not in form.sizes and size < form.sizes[-1]):
            self._damage.append(f"{self._name(section)}: {section.size} bytes are not rows of {size}")
        if form.since and section.size:
            first, last = form.branches(size)
            self._branches = max(first, self._branches[0]), min(last, self._branches[1])
        table = self._contents(section)
        # Sections of a real core do not overlap. Ones that do would let a small file ask for any amount of memory.
        self._table_bytes += len(table)
        if self._table_bytes > len(self._elf.data):
            self._damage.append(
                "the tables claim more bytes than the file has: they overlap, and the rest of them is left out"
            )
            return []
        # The row of SM 0 may be zeros; with a second one there is another SM.
        least = 2 * size if section.type == SectionType.SMS else 1
        if section.type in _NEVER_ZEROS and len(table) >= least and not bytes(table).strip(b"\0"):
            self._damage.append(f"{self._name(section)}: {len(table):,} bytes of zeros, where rows were{_HOLE}")
        return list(form.rows(table, section.entry_size))

    def _contents(self, section: Section) -> memoryview:
        """Return a section's bytes, as many as the file has."""
        end = section.offset + section.size
        have = len(self._elf.data)
        if end > have:
            if not self._cut:
                self._note(f"truncated: {self._name(section)} ends at {end:#x}, the file at {have:#x}")
            self._cut += 1
        return self._elf.data[min(section.offset, have) : min(end, have)]

    def _string_table(self) -> memoryview:
        tables = self._roots[SHT_STRTAB]
        try:
            section = next((s for s in tables if self._elf.name(s) == ".strtab"), None)
        except UnreadableBinary:  # the names were cut off: the strings are before the name table in files seen so far
            section = tables[0]
        return self._contents(section) if section else memoryview(b"")

    def _name(self, section: Section) -> str:
        return self._links.name(section)

    def _string(self, offset: int | None) -> str | None:
        if offset is None or not 0 < offset < len(self._strings):
            return None
        raw = bytes(self._strings[offset : offset + _LONGEST_STRING]).partition(b"\0")[0]
        return raw.decode("utf-8", "backslashreplace")

    def _note_what_is_missing(self, metadata: Metadata | None, devices: tuple[Device, ...]) -> None:
        if not self._elf.identity.known:
            self._note(f"ELF identity {self._elf.identity} is not one seen before; read as if it were")
        if self._elf.contents_end > len(self._elf.data) and not self._cut:
            self._cut += 1
            self._note(f"truncated: the file ends at {len(self._elf.data):#x}, before its last sections")
        if not devices:
            self._damage.append("no device table: nothing is known of threads")
        for device in devices:
            claimed, have = device.row.sms, len(device.sms)
            if claimed and not have:
                self._damage.append(f"device {device.index} has {claimed} SMs and no row of them: it may have faulted")
            elif have > claimed:
                self._damage.append(f"device {device.index} has {claimed} SMs and {have} rows of them")
        if self._branches[0] >= self._branches[1]:
            self._damage.append(
                "the sizes of the rows are not of one driver branch: some tables are not read as written"
            )
        self._damage += self._links.misplaced_tables()
        if metadata is None and devices:
            self._note("no metadata, which drivers write since r565: the driver's version is not known")

    def _note(self, text: str) -> None:
        if len(self._notes) < _MOST_NOTES and text not in self._notes:
            self._notes.append(text)


def _refuse_what_is_no_core(data: Buffer) -> None:
    head = bytes(data[:64])
    next_step = "vdbg-env core FILE, where FILE was written by the CUDA driver (*.nvcudmp)"
    if not head:
        raise UnreadableBinary("the file is empty", cause="the dump was not written yet, or the disk was full")
    if head[:2] == b"\x1f\x8b":
        raise UnreadableBinary("gzip data, not yet a GPU core", next_step="gunzip it first", offset=0)
    if head[:4] != ELF_MAGIC or len(head) < 20:
        raise UnreadableBinary("not a GPU core dump: no ELF header", offset=0, next_step=next_step)
    kind, machine = (int.from_bytes(head[at : at + 2], "little") for at in (16, 18))
    if machine == EM_CUDA and kind != ET_CORE:
        raise UnreadableBinary(
            "a cubin, not a GPU core dump", offset=16, next_step="vdbg-env locate OFFSET --kernel NAME FILE"
        )
    if kind == ET_CORE and machine != EM_CUDA:
        raise UnreadableBinary(
            "a core dump of a host process, not of a GPU",
            offset=18,
            cause="both may be in one folder; the GPU's ends in .nvcudmp",
            next_step="open it with gdb",
        )
    if machine != EM_CUDA:
        raise UnreadableBinary("an ELF file, but no GPU core dump", offset=18, next_step=next_step)


def _salvage(data: Buffer, error: UnreadableBinary, lines: LineSource | None) -> GpuCore:
    """Return what is left of a core whose section table is lost: the code that was loaded, found by its ELF headers."""
    head = bytes(data[:16])
    if len(data) < HEADER_SIZE or head[4:6] != b"\x02\x01":
        raise error
    modules: list[Module] = []
    whole = memoryview(data)
    for match in islice(_EMBEDDED.finditer(whole, HEADER_SIZE), _MOST_STRAY_IMAGES):
        with suppress(UnreadableBinary):
            code = CodeMap(whole[match.start() :], lines)
            modules.append(Module(row=ModuleRow(0), code=code, relocated=code.relocated))
    count = "1 loaded module was" if len(modules) == 1 else f"{len(modules)} loaded modules were"
    found = f"{count} found by their headers" if modules else "nothing else can be read"
    return GpuCore(
        identity=Identity(os_abi=head[7], abi_version=head[8]), truncated=True, complete=False, metadata=None,
        devices=(), stray_modules=tuple(modules), notes=(f"truncated: {error.what}; {found}",),
    )  # fmt: skip
