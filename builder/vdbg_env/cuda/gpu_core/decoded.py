"""All that is reported of one GPU core dump: the value in the middle that every report of it is written from."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from vdbg_env.cuda.binary.elf import Buffer
from vdbg_env.cuda.gpu_core.doubts import find_doubts
from vdbg_env.cuda.gpu_core.faults import Fault, FaultingThread, find_faults, kernel_name
from vdbg_env.cuda.gpu_core.layout import GridRow
from vdbg_env.cuda.gpu_core.model import Device, GpuCore, Module
from vdbg_env.cuda.gpu_core.parameters import LaunchParameters, read_parameters
from vdbg_env.cuda.gpu_core.reader import CoreSections, read_core
from vdbg_env.cuda.gpu_core.registers import Registers, read_registers
from vdbg_env.cuda.gpu_core.unwinding import with_callers
from vdbg_env.cuda.gpu_core.warp_groups import WarpGroup, group_warps
from vdbg_env.cuda.lines.code_map import LineSource
from vdbg_env.cuda.symbols.demangling import demangle

_GROUPS_CHECKED: Final = 64


@dataclass(frozen=True, kw_only=True)
class Launch:
    """A grid that was on a device, with the mangled name of its kernel where that could be found.

    `parameters` are None where they were not asked for.
    """

    device: Device
    grid: GridRow
    kernel: str | None
    parameters: LaunchParameters | None = None


@dataclass(frozen=True, kw_only=True)
class DecodedCore:
    """A core read to its end: nothing in here still looks at the file's bytes.

    `registers` are those of each fault's first thread, in the order of `faults`, where they were asked for and exist.
    `loaded` names the kernels of modules that hang on no device: all that is known of a core without its tables.
    `modified` is the file's time in seconds of the epoch, for cores that carry none themselves.
    """

    file: str
    modified: float | None
    core: GpuCore
    faults: tuple[Fault, ...]
    warp_groups: tuple[WarpGroup, ...]
    launches: tuple[Launch, ...]
    registers: tuple[Registers | None, ...]
    loaded: tuple[str, ...]
    notes: tuple[str, ...]

    @property
    def written(self) -> float:
        """When the dump was written, in seconds of the epoch: by its metadata, else by the file's time."""
        metadata = self.core.metadata
        return float(metadata.row.timestamp) if metadata and metadata.row.timestamp else self.modified or 0.0

    @property
    def warps(self) -> int:
        """How many warps were resident; a diverged one stands at several places but counts once."""
        return sum(1 for device in self.core.devices for _ in device.warps())


def decode_core(
    data: Buffer,
    *,
    file: str = "",
    modified: float | None = None,
    registers: bool = False,
    parameters: bool = False,
    lines: LineSource | None = None,
) -> DecodedCore:
    """Read a GPU core dump to its end; `lines` is asked for the lines of code that was built without them.

    Raises UnreadableBinary when the bytes are not a GPU core; a damaged or truncated one is told in `notes`.
    """
    core = read_core(data, lines)
    faults = with_callers(core, data, find_faults(core))
    groups = group_warps(core)
    return DecodedCore(
        file=file,
        modified=modified,
        core=core,
        faults=faults,
        warp_groups=groups,
        launches=tuple(_launches(core, CoreSections(data) if parameters and core.devices else None)),
        registers=_registers(data, faults) if registers else (),
        loaded=tuple(dict.fromkeys(f.name for m in core.stray_modules if m.code for f in m.code.kernels)),
        notes=(*core.notes, *_doubts(core, faults, groups), *_notes_on_code(core, faults)),
    )


def _launches(core: GpuCore, sections: CoreSections | None) -> Iterator[Launch]:
    for device in core.devices:
        for index, grid in enumerate(device.grids):
            read = read_parameters(core, device, index, sections) if sections else None
            yield Launch(device=device, grid=grid, kernel=kernel_name(core, device, grid), parameters=read)


def _registers(data: Buffer, faults: tuple[Fault, ...]) -> tuple[Registers | None, ...]:
    if not any(fault.first for fault in faults):
        return (None,) * len(faults)
    sections = CoreSections(data)

    def of(thread: FaultingThread | None) -> Registers | None:
        return read_registers(sections, thread) if thread else None

    return tuple(of(fault.first) for fault in faults)


def _doubts(core: GpuCore, faults: tuple[Fault, ...], groups: tuple[WarpGroup, ...]) -> tuple[str, ...]:
    """Return what contradicts the names and chains shown; where warps are, only the places shown first count."""
    found = [doubt for fault in faults for doubt in fault.doubts]
    for group in groups[:_GROUPS_CHECKED] if not faults else ():
        found += find_doubts(core, group.device, group.pc, group.grid, group.grid_id)
    return tuple(f"names and lines may be wrong: {doubt}" for doubt in dict.fromkeys(found))


def _notes_on_code(core: GpuCore, faults: tuple[Fault, ...]) -> tuple[str, ...]:
    """Say why a place has no source line, once for each reason."""
    notes: dict[str, None] = {}
    modules = [module for device in core.devices for module in device.modules]
    for fault in faults:
        if fault.pc is None:
            notes["a fault has no PC: the dump holds neither an error PC nor a thread for it"] = None
        elif fault.calls_out:
            notes[f"PC {fault.pc:#x} lies in no loaded code; the place given is the call that led there"] = None
        elif fault.location is None:
            notes[f"PC {fault.pc:#x} lies in no loaded code: {_why_no_code(modules)}"] = None
        elif not fault.location.chain:
            name = demangle(fault.kernel) if fault.kernel else "the code"
            notes[
                f"{name} has no line info: a line pack of the same code has it (--lines PACK), "
                "else build it with -lineinfo (nvcc) to get lines from the next dump"
            ] = None
    notes |= dict.fromkeys(note for module in modules if module.code for note in module.code.notes)
    return tuple(notes)


def _why_no_code(modules: list[Module]) -> str:
    if not modules:
        return "the dump lists no modules"
    without = sum(not module.relocated for module in modules)
    if without:
        return f"{without} of {len(modules)} module(s) have no relocated image in the dump"
    return "a jump to an address that is no code, or code the driver does not put into dumps"
