"""The cores of stand-ins: what a driver would have written, around the machine code nvcc made of the sample.

Where `executed` knows the launch, the core holds what an interpreter of the guilty kernel held at the fault. Elsewhere
the PC of the fault is an instruction of the planted line, and the registers mean nothing. The GPU's name says
REHEARSAL, and so does the generator, wherever such a core goes.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from gpucore.code_map import CodeMap, Function
from gpucore.core_layout import GpuException
from gpucore.dwarf import Place
from gpucore.mangling import short_name
from tests.builders.core_builder import (
    BlockSpec,
    CoreSpec,
    DeviceSpec,
    LaunchSpec,
    ModuleSpec,
    SmSpec,
    WarpSpec,
    build_core,
)
from tests.gpu.machine import MARK
from tests.gpu.samples import Sample
from tests.rehearsal.executed import executed
from tests.support.sass.programs import layout

GPU_NAME = f"{MARK} (no GPU)"
GENERATOR = f"{MARK}: vdbg-env core builder (synthetic)"
BITS = {"skip_nonrelocated_elf_images": 0, "skip_global_memory": 1, "skip_shared_memory": 2, "skip_local_memory": 3,
        "skip_abort": 4, "skip_constbank_memory": 5, "gzip_compress": 6, "faulted_contexts_only": 7,
        "log_only": 31}  # fmt: skip
_DRIVERS_OWN = 0x7FFFD0000100
_CODES = {GpuException(code=code).name: code for code in range(1, 40)}


@dataclass(frozen=True, kw_only=True)
class Planted:
    """Where a sample's fault is in its machine code: the guilty kernel, and bytes into it."""

    kernel: Function
    offset: int


def planted(cubin: bytes, sample: Sample, *, by_line: bool = True) -> Planted:
    """Return the last instruction of the planted line, which does what the line is for; without lines any will do."""
    code = CodeMap(cubin)
    kernel = next(k for k in code.kernels if (sample.kernel or "") in short_name(k.demangled))
    if not by_line:
        return Planted(kernel=kernel, offset=0x20)
    found = [
        offset
        for offset in range(0, code.elf.sections[kernel.section].size, 16)
        if _leaf(code, kernel, offset) == (sample.planted_in.name, sample.planted)
    ]
    assert found, f"{sample.name}: no instruction of line {sample.planted}"
    return Planted(kernel=kernel, offset=found[-1] - kernel.start)


def exception_code(sample: Sample) -> int:
    """Return the number of the exception a driver gives a sample's fault."""
    return next(_CODES[name] for name in sample.exceptions if name in _CODES)


def core_of(sample: Sample, cubin: bytes, at: Planted, flags: frozenset[str], *, now: int) -> bytes:
    """Return the core of a sample as a driver of r590 would write it under some generation flags."""
    keep = "relocated" if "skip_nonrelocated_elf_images" in flags else "both"
    module = ModuleSpec(cubin=cubin, keep=keep)
    launches = [LaunchSpec(kernel=at.kernel.name)]
    sms = {}
    if sample.ends == "hang" and not sample.exceptions:
        spinning, waiting = WarpSpec(offset=at.offset), WarpSpec(offset=0, barrier_scope=3, thread_state=8)
        blocks = [BlockSpec(block=(2, 0, 0), warps=[spinning, waiting, waiting])]
    else:
        code = exception_code(sample)
        sms = {0: SmSpec(exception=code, error_offset=at.offset)}
        faulting = WarpSpec(offset=at.offset + 16, error_offset=at.offset, exception=code)
        if sample.name == "device-assert":  # it ends in the driver's code, which no dump holds
            faulting, sms = replace(faulting, outside=_DRIVERS_OWN, calls=[at.offset + 16]), {}
        blocks = [BlockSpec(block=(1, 0, 0), warps=[faulting])]
        ran = executed(sample, cubin, at.kernel.name, code)
        if ran is not None:
            first = layout(module.code.elf.arch or 0)[2]
            launch = replace(launches[0], parameters=ran.launch.parameters, parameters_offset=first)
            launches = [replace(launch, grid=ran.launch.grid, block=ran.launch.block)]
            blocks = [BlockSpec(block=ran.launch.block_index, warps=[ran.stopped.warp])]
            sms = {0: SmSpec(exception=code, error_offset=ran.stopped.offset)}
    if sample.name == "exited-warp":
        blocks = []
    if sample.name == "two-streams":
        innocent = next(k for k in module.code.kernels if short_name(k.demangled) == "innocent")
        launches.append(LaunchSpec(kernel=innocent.name, grid_id=8))
        blocks.append(BlockSpec(sm=5, launch=1, warps=[WarpSpec(offset=0x40)] * 2))
    memory = {} if "skip_global_memory" in flags else {0x7F2000000000: bytes(1 << 20)}
    device = DeviceSpec(
        name=GPU_NAME, modules=[module], launches=launches, blocks=blocks, sms=sms, global_memory=memory
    )
    bits = sum(1 << BITS[flag] for flag in flags if flag in BITS)
    return build_core(CoreSpec(devices=[device], branch="r590", generator=GENERATOR, timestamp=now, flags=bits))


def _leaf(code: CodeMap, kernel: Function, offset: int) -> tuple[str, int] | None:
    chain = code.locate(Place(section=kernel.section, offset=offset)).chain
    return (Path(chain[0].file).name, chain[0].line) if chain else None
