"""Turn the content of a GPU core dump into findings, each with what to type next."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import Any, Final

from gpucore.code_map import Location
from gpucore.core import Fault, WarpGroup
from gpucore.dwarf import Chain, SourceFrame
from gpucore.mangling import demangle, short_name
from gpucore.toolkit import own_frame
from vdbg_env.evidence.finding import Finding, HowKnown, Level, NextStep
from vdbg_env.evidence.kernel_makers import find_library, kernel_makers

_REBUILD = NextStep("build with line info, and run this again in that image", "vdbg-env build --lineinfo")


def gpu_core_findings(
    faults: Sequence[Fault], groups: Sequence[WarpGroup], artifact: str | None = None
) -> tuple[Finding, ...]:
    """Return a finding for each fault; without faults, one that says where the warps are; none for an empty core."""
    if faults:
        return tuple(_fault(fault, artifact) for fault in faults)
    return (_hang(groups, artifact),) if groups else ()


def place_of(frame: SourceFrame) -> str:
    """Return file name and line, without the folders."""
    return f"{frame.file.rsplit('/', 1)[-1]}:{frame.line}"


def _fault(fault: Fault, artifact: str | None) -> Finding:
    chain = fault.location.chain if fault.location else ()
    kernel = demangle(fault.kernel) if fault.kernel else None
    return Finding(
        rule="gpu-core-" + fault.exception.name.lower().replace(" ", "-"),
        level=Level.ERROR,
        message=f"{_what(fault)} {_where(fault, chain, kernel)}{_who(fault)}{_borrowed(fault.location)}",
        how_known=HowKnown.GPU_CORE,
        confidence=_confidence(fault, chain),
        location=own_frame(chain),
        chain=chain,
        kernel=kernel,
        artifact=artifact,
        next_step=_next(chain, fault.kernel, artifact),
        around=blocks_around(fault),
    )


_INVALID_ADDRESS_SPACE: Final = 7
_ACROSS: Final = 29  # blocks of a row that are shown
_DOWN: Final = 7  # rows


def blocks_around(fault: Fault) -> dict[str, Any] | None:
    """Return the first block that faulted and its neighbours in the grid, as `faults[].around` of the core schema.

    None where the grid has one block, or neither grid nor block is known.
    """
    grid, first = fault.grid, fault.first
    if grid is None or first is None or grid.grid_x * grid.grid_y * grid.grid_z <= 1:
        return None
    x, y, z = first.at.block
    resident = {cta.block for sm in fault.device.sms for cta in sm.ctas if cta.row.grid_id == grid.grid_id}
    across, down = _window(x, grid.grid_x, _ACROSS), _window(y, grid.grid_y, _DOWN)

    def mark(at: tuple[int, int, int]) -> str:
        return "X" if at in fault.faulted else "o" if at in resident else "."

    return {
        "grid": [grid.grid_x, grid.grid_y, grid.grid_z],
        "first": [x, y, z],
        "from": [across.start, down.start],
        "rows": ["".join(mark((column, row, z)) for column in across) for row in down],
    }


def _window(at: int, size: int, most: int) -> range:
    start = max(0, min(at - most // 2, size - most))
    return range(start, min(start + most, size))


def _what(fault: Fault) -> str:
    """Return the exception, with what is meant where its name suggests another kind of fault."""
    exception = fault.exception
    return f"{exception.name} ({exception.meaning})" if exception.code == _INVALID_ADDRESS_SPACE else exception.name


def _where(fault: Fault, chain: Chain, kernel: str | None) -> str:
    word = "in code called from" if fault.calls_out else "at" if fault.precise else "near"
    named = short_name(kernel) if kernel else None
    leaf = own_frame(chain)
    if leaf is not None:
        function = short_name(leaf.function) if leaf.function else None
        into = f", inlined into {named}" if named and leaf is not chain[-1] else ""
        within = f" in {function or named}" if function or named else ""
        return f"{word} {place_of(leaf)}{within}{into}"
    if fault.pc is None:
        return f"in {named}" if named else "at an unknown place"
    offset = f"{named}+{fault.location.offset:#x}" if named and fault.location else named or "unknown code"
    return f"{word} {offset} (PC {fault.pc:#x}, no line info)"


def _who(fault: Fault) -> str:
    if fault.first is None:
        return "; which of its warps failed is not known" if warps_left(fault) else "; its warps had already exited"
    threads = f"{fault.threads} thread{'s' if fault.threads != 1 else ''}"
    blocks = f" of {fault.blocks} blocks" if fault.blocks > 1 else ""
    first = fault.first.at
    return f"; {threads}{blocks}, the first is thread {_axes(first.thread)} of block {_axes(first.block)}"


def warps_left(fault: Fault) -> list[tuple[int, int, int]]:
    """Return the block of each warp of the launch on the SMs that have the mark: any of them may have failed."""
    grid = fault.grid.grid_id if fault.grid else None
    return [cta.block for sm, cta, _ in fault.device.warps() if sm.row.sm_id in fault.sms and cta.row.grid_id == grid]


def _borrowed(location: Location | None) -> str:
    """Say how lines are known that are not those of the code itself."""
    borrowed = location.borrowed if location else None
    if borrowed is None:
        return ""
    headers = f"; {borrowed.headers}" if borrowed.headers else ""
    return f"; by the {borrowed.how_known} ({borrowed.build}){headers}"


def _confidence(fault: Fault, chain: Chain) -> float:
    if fault.doubts:
        return 0.5
    if fault.pc is None:
        return 0.6
    if not fault.precise:
        return 0.75 if chain else 0.7
    if not chain:
        return 0.9
    return 0.95 if fault.location and fault.location.siblings else 0.98


def _next(chain: Chain, kernel: str | None, artifact: str | None) -> NextStep:
    if not chain:
        return _to_lines(kernel)
    file = shlex.quote(artifact) if artifact else "FILE"
    return NextStep("see every thread of it, and its registers", f"vdbg-env core {file}")


def _to_lines(kernel: str | None) -> NextStep:
    """Return what leads on from a kernel without lines: no build of vLLM gives any to the kernels of others."""
    if kernel is None:
        return _REBUILD
    origin = kernel_makers().by_name(kernel)
    maker = origin.maker
    if maker and maker.name == "PyTorch":
        return NextStep(
            "run it with CUDA_LAUNCH_BLOCKING=1: the Python stack then has the call that launched this kernel of "
            f"PyTorch's own, which a build of vLLM gives no lines (only {maker.remedy} has them)"
        )
    if maker and maker.lines == "wheel":
        return _REBUILD
    if maker is None or origin.others:
        known = f"it is of {origin.text}" if origin.makers else f"its owner is {origin.text}"
        return NextStep(f"{known}: look for the library that has it, where it ran", find_library(kernel))
    likely = "likely " if origin.likely else ""
    return NextStep(
        f"this kernel is {likely}{maker.name}'s, which a build of vLLM gives no lines; for lines: {maker.remedy}"
    )


def _hang(groups: Sequence[WarpGroup], artifact: str | None) -> Finding:
    """Blame the warps that do not wait: those at a barrier wait for the ones that still run."""
    waiting = [s for s in groups if s.waits_for_others]
    running = [s for s in groups if s not in waiting]
    suspect = running[0] if running else groups[0]
    chain = suspect.location.chain if suspect.location else ()
    kernel = demangle(suspect.kernel) if suspect.kernel else None
    leaf = own_frame(chain)
    at = place_of(leaf) if leaf is not None else f"PC {suspect.pc:#x}"
    verb = "stands" if suspect.warps == 1 else "stand"
    message = f"no exception: {_warps(suspect.warps)} of {short_name(kernel) if kernel else 'a kernel'} {verb} at {at}"
    if waiting and running:
        held = sum(s.warps for s in waiting)
        message += f", while {_warps(held)} wait{'s' if held == 1 else ''} at a barrier"
    words = next((s.barrier_words for s in waiting if s.barrier_words), None)
    if words:
        message += f" (the driver: {words})"
    message += _borrowed(suspect.location)
    return Finding(
        rule="gpu-core-hang",
        level=Level.ERROR,
        message=message,
        how_known=HowKnown.GPU_CORE,
        # Surer than that a process runs at a place unknown: as a rule it polls for what the GPU has not finished.
        confidence=0.85 if waiting and running else 0.75 if running and kernel else 0.7,
        location=own_frame(chain),
        chain=chain,
        kernel=kernel,
        artifact=artifact,
        next_step=_next(chain, suspect.kernel, artifact),
    )


def _warps(count: int) -> str:
    return f"{count} warp{'s' if count != 1 else ''}"


def _axes(axes: tuple[int, int, int]) -> str:
    return f"({axes[0]},{axes[1]},{axes[2]})"
