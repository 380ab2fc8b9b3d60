"""A GPU core dump as values: devices hold contexts, grids and SMs; an SM holds blocks of warps of lanes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from vdbg_env.cuda.binary.elf import Identity
from vdbg_env.cuda.gpu_core.layout import (
    ContextRow,
    CtaRow,
    DeviceRow,
    GridRow,
    LaneRow,
    MetadataRow,
    ModuleRow,
    SmRow,
    WarpRow,
)
from vdbg_env.cuda.gpu_core.section_links import UnusedSections
from vdbg_env.cuda.lines.code_map import CodeMap
from vdbg_env.cuda.lines.line_table import Place

Dim3 = tuple[int, int, int]


@dataclass(frozen=True, kw_only=True)
class Metadata:
    """What wrote the file: the generator, `timestamp` in seconds of the epoch, and its settings."""

    generator: str
    row: MetadataRow


@dataclass(frozen=True, kw_only=True)
class Module:
    """A loaded module and its code; `code` is None where the file holds no readable image of it."""

    row: ModuleRow
    code: CodeMap | None
    relocated: bool


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
