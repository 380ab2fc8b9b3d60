"""Write GPU cores as JSON, schema `vdbg-env/core/v1`: the form other programs may rely on.

Each type is a JSON object; the published schema is made from them. Fields are only ever added.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, Literal

from gpucore import core, core_reader
from gpucore.core import Scope
from gpucore.core_layout import BacktraceRow, generation_flags, grid_origin, grid_status, kernel_type
from gpucore.core_reader import UnusedSections
from gpucore.mangling import demangle
from vdbg_env.application.analysis.source_lines import SourceLines
from vdbg_env.evidence.kernel_makers import vllm_library
from vdbg_env.report.codec import document as doc
from vdbg_env.report.codec.document import ABSENT, Document, Hex, field
from vdbg_env.report.core.json_parts import Frame, Kernel, LinesFrom, Shown
from vdbg_env.report.core.text import rank_of, verdict

Launched = core.Fault | core.WarpGroup | core.Launch
Dim3 = tuple[int, int, int]


def _of_grid(*names: str) -> Any:
    """Return a field that holds three numbers of a launch's grid; it is absent where the launch is unknown."""

    def numbers(launched: Launched, _: Shown) -> object:
        if launched.grid is None:
            return ABSENT
        found = [getattr(launched.grid, name) for name in names]
        return None if found[0] is None else [number or 0 for number in found]

    return field(numbers, may_be_absent=True)


class LaunchedKernel(Document):
    """A kernel with the dimensions of its launch, where the launch is known."""

    name: str | None = field("kernel")
    demangled: str | None = field(lambda launched, _: demangle(launched.kernel) if launched.kernel else None)
    grid: Dim3 = _of_grid("grid_x", "grid_y", "grid_z")
    block: Dim3 = _of_grid("block_x", "block_y", "block_z")
    cluster: Dim3 | None = _of_grid("cluster_x", "cluster_y", "cluster_z")


def _kernel() -> Any:
    return field(lambda value, _: None if value.kernel is None and value.grid is None else value)


class Coordinates(Document, of=core.Coordinates):
    """A thread: blockIdx and threadIdx, and the hardware it ran on."""

    block: Dim3
    thread: Dim3
    sm: int
    warp: int
    lane: int
    cluster: Dim3 | None = field(doc="The index of the block's cluster in the grid; null without clusters.")
    block_in_cluster: Dim3 | None


class Metadata(Document, of=core_reader.Metadata):
    """What wrote the dump, and when."""

    generator: str
    driver: str | None = field(lambda of, _: _version(of.row.driver_major, of.row.driver_minor))
    cuda: str | None = field(lambda of, _: _version(of.row.cuda_major, of.row.cuda_minor))
    flags: list[str] = field(lambda of, _: generation_flags(of.row.flags))
    timestamp: int = field("row.timestamp", doc="Seconds since the epoch.")
    written: str | None = field(lambda of, _: _utc(of.row.timestamp), doc="The timestamp as ISO 8601, UTC.")


class Context(Document, of=core_reader.Context):
    """A CUDA context."""

    id: Hex = field("row.context_id")
    host_thread: int = field("row.thread_id")
    modules: int = field(lambda context, _: len(context.modules))


class Parameter(Document, of=core.Parameter):
    """A parameter of a kernel; offset and size in bytes."""

    index: int
    type: str | None = field(doc="As the kernel's name has it; null where that does not say.")
    offset: int
    size: int
    value: str | None = field(doc="Numbers in decimal, pointers in hex; null for other types.")
    bytes: str | None = field(lambda one, _: one.data.hex() if one.data is not None else None)


class ConstantBank(Document, of=core.ConstantBank):
    """A constant bank of a launch."""

    number: int
    address: Hex
    size: int
    held: bool = field(doc="Whether the dump has its contents.")


class LaunchParameters(Document, of=core.LaunchParameters):
    """What a dump holds of a launch's parameters."""

    parameters: list[Parameter]
    bytes: str | None = field(lambda read, _: read.data.hex() if read.data is not None else None)
    constant_banks: list[ConstantBank] = field("banks")
    problem: str | None = field(doc="Why less than all of it is known.")


class Launch(Document, of=core.Launch):
    """A grid that was on a device."""

    id: int = field("grid.grid_id")
    kernel: LaunchedKernel | None = _kernel()
    status: str = field(lambda launch, _: grid_status(launch.grid.status))
    origin: str = field(lambda launch, _: grid_origin(launch.grid.origin))
    kind: str = field(lambda launch, _: kernel_type(launch.grid.kernel_type))
    parent: int | None = field(lambda launch, _: launch.grid.parent_grid_id or None)
    registers_per_thread: int = field("grid.registers")
    host_thread: int = field("grid.host_thread_id")
    parameters: LaunchParameters = field(
        lambda launch, _: launch.parameters or ABSENT, may_be_absent=True, doc="With --parameters."
    )


class Resident(Document, of=core_reader.Device):
    """What was on a device's SMs."""

    blocks: int = field(lambda device, _: sum(len(sm.ctas) for sm in device.sms))
    warps: int = field(lambda device, _: sum(1 for _ in device.warps()))


class Device(Document, of=core_reader.Device):
    """A GPU of the dump."""

    index: int
    id: int = field("row.device_id")
    name: str
    type: str
    sm: str = field("sm_type")
    pci: str = field(lambda device, _: f"{device.row.pci_bus:02x}:{device.row.pci_device:02x}")
    sms: int = field("row.sms")
    warps_per_sm: int = field("row.warps_per_sm")
    contexts: list[Context]
    grids: list[Launch] = field(lambda device, shown: shown.more[id(device)])
    resident: Resident = field(lambda device, _: device)


class GpuException(Document, of=core.Fault):
    """A GPU exception; `code` is null for a trap, which has no number."""

    code: int | None = field("exception.code")
    name: str = field("exception.name")
    identifier: str | None = field("exception.identifier", doc="The constant of cudadebugger.h.")
    meaning: str | None = field("exception.meaning")
    driver_words: str | None = field("exception_string")


class Threads(Document, of=core.Fault):
    """How many threads met the exception; 0 where they have exited."""

    count: int = field("threads")
    warps: int
    blocks: int
    first: Coordinates | None = field(lambda fault, _: fault.first.at if fault.first else None)


class Call(Document, of=BacktraceRow):
    """A call that the thread is in, the nearest first."""

    level: int
    return_pc: Hex
    return_offset: Hex


class Registers(Document, of=core.Registers):
    """The registers of a fault's first thread and of its warp, by their names."""

    general: dict[str, Hex] = field(lambda files, _: _named("R", files.general))
    predicates: dict[str, bool] = field(lambda files, _: _named("P", map(bool, files.predicates)))
    uniform: dict[str, Hex] = field(lambda files, _: _named("UR", files.uniform))
    uniform_predicates: dict[str, bool] = field(lambda files, _: _named("UP", map(bool, files.uniform_predicates)))
    barriers: dict[str, Hex] = field(lambda files, _: _named("B", files.barriers))
    backtrace: list[Call]


class CallSite(Document, of=core.Call):
    """A call that a fault's first thread is in; chain and offset are those of the call, not of the return address."""

    level: int
    return_pc: Hex
    function: str | None = field(lambda call, _: _function(call))
    offset: Hex | None = field(lambda call, _: call.location and call.location.offset)
    chain: list[Frame] = field(lambda call, _: call.location.chain if call.location else ())


class Fault(Document, of=core.Fault):
    """Threads that met one exception at one instruction of one launch."""

    exception: GpuException = field(lambda fault, _: fault)
    scope: Scope = field(doc="The row that holds the exception.")
    device: int = field("device.index")
    sms: list[int]
    pc: Hex | None
    precise: bool = field(doc="Whether pc is the faulting instruction rather than where a thread was stopped.")
    thread_pc: Hex | None = field(lambda fault, _: fault.first.row.virtual_pc if fault.first else None)
    kernel: LaunchedKernel | None = _kernel()
    library: str | None = field(
        lambda fault, _: vllm_library(demangle(fault.kernel)) if fault.kernel else None,
        doc="The library of vLLM's wheel that has the kernel, by the kernel's name.",
    )
    function: str | None = field(lambda fault, _: _function(fault))
    calls_out: int = field(
        doc="0 but where the PC is in code that the dump does not hold: function, offset and chain are then those of "
        "the call this many calls further out."
    )
    offset: Hex | None = field(
        lambda fault, _: fault.location and fault.location.offset,
        doc="Bytes from the kernel's start; from the function's where it is outside its kernel.",
    )
    function_offset: Hex | None = field(lambda fault, _: fault.location and fault.location.function_offset)
    chain: list[Frame] = field(lambda fault, _: fault.location.chain if fault.location else ())
    other_chains: list[list[Frame]] = field(
        lambda fault, _: fault.location.siblings if fault.location else (),
        doc="Chains of the same function that end in the same leaf line: with any, the callers in chain are the "
        "likeliest of several.",
    )
    ptx_line: int | None = field(lambda fault, _: fault.location and fault.location.ptx_line)
    lines_from: LinesFrom | None = field(lambda fault, _: fault.location and fault.location.borrowed)
    threads: Threads = field(lambda fault, _: fault)
    cluster_target: Dim3 | None = field(lambda fault, _: fault.cluster_target or None)
    calls: list[CallSite] = field(doc="The calls that the first thread is in, the nearest first.")
    doubts: list[str] = field(doc="Contradictions between launch, image and PC: with any, names or lines may be wrong.")
    registers: Registers = field(
        lambda fault, shown: shown.more.get(id(fault), ABSENT), may_be_absent=True, doc="With --registers."
    )


class WarpGroup(Document, of=core.WarpGroup):
    """Warps of one launch that are at one instruction in one state."""

    device: int = field("device.index")
    pc: Hex
    kernel: LaunchedKernel | None = _kernel()
    function: str | None = field(lambda group, _: _function(group))
    offset: Hex | None = field(lambda group, _: group.location and group.location.offset)
    count: int = field("warps", doc="Warps; a diverged one counts at each of its places.")
    threads: int
    blocks: int
    state: str
    barrier: str | None
    barrier_words: str | None = field(doc="What the driver says about that barrier (r590 and later).")
    thread_states: dict[str, int] = field(lambda group, _: dict(group.thread_states))
    first: Coordinates
    chain: list[Frame] = field(lambda group, _: group.location.chain if group.location else ())
    lines_from: LinesFrom | None = field(lambda group, _: group.location and group.location.borrowed)


class Core(Document, of=core.DecodedCore):
    """A GPU core dump: what its driver wrote of it and what is left of the file decide which fields are null."""

    schema: Literal["vdbg-env/core/v1"]
    file: str
    rank: int | None = field(
        lambda reading, _: rank_of(reading.file), doc="Of the process, by the name of the file or of its folder."
    )
    truncated: bool = field("core.truncated")
    complete: bool = field("core.complete", doc="Whether all rows were there and linked; else no fault proves nothing.")
    elf_identity: str = field(lambda reading, _: str(reading.core.identity))
    metadata: Metadata | None = field("core.metadata")
    devices: list[Device] = field("core.devices")
    faults: list[Fault]
    warps: list[WarpGroup] = field("warp_groups")
    loaded_kernels: list[Kernel] = field("loaded")
    unused: list[UnusedSections] = field("core.unused")
    notes: list[str]


class Cores(Document):
    """Several dumps, first in time first."""

    schema: Literal["vdbg-env/core/v1"]
    verdict: str = field(lambda readings, _: verdict(readings), doc="What they come to, in one line.")
    cores: list[Core] = field(lambda readings, _: readings)


def render(readings: Sequence[core.DecodedCore], sources: SourceLines) -> str:
    """Return one core as a document, several as a document that lists them, first in time first."""
    more: dict[int, object] = {}
    for read in readings:
        more |= {id(fault): held for fault, held in zip(read.faults, read.registers, strict=False) if held}
        more |= {id(device): [one for one in read.launches if one.device is device] for device in read.core.devices}
    shown = Shown(sources=sources, more=more)
    return doc.render(readings[0], Core, shown) if len(readings) == 1 else doc.render(readings, Cores, shown)


def _version(major: int, minor: int) -> str | None:
    return f"{major}.{minor}" if major else None


def _utc(timestamp: int) -> str | None:
    return datetime.fromtimestamp(timestamp, UTC).isoformat() if timestamp else None


def _function(value: core.Fault | core.WarpGroup | core.Call) -> str | None:
    return value.location.function.demangled if value.location and value.location.function else None


def _named(prefix: str, values: Any) -> dict[str, Any]:
    return {f"{prefix}{number}": value for number, value in enumerate(values)}
