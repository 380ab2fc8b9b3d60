"""Turn the content of a GPU core dump into findings: its faults, or, without a fault, where a hang is."""

from __future__ import annotations

from collections.abc import Sequence

from gpucore.code_map import Location
from gpucore.core import Fault, WarpGroup
from gpucore.dwarf import Chain, SourceFrame
from gpucore.mangling import demangle, short_name
from vdbg_env.evidence.finding import Finding, HowKnown, Level

_REBUILD = "build with line info, and run this again in that image: vdbg-env build --lineinfo"


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
        message=f"{fault.exception.name} {_where(fault, chain, kernel)}{_who(fault)}{_borrowed(fault.location)}",
        how_known=HowKnown.GPU_CORE,
        confidence=_confidence(fault, chain),
        location=chain[0] if chain else None,
        chain=chain,
        kernel=kernel,
        artifact=artifact,
        next_step=_next(chain, artifact),
    )


def _where(fault: Fault, chain: Chain, kernel: str | None) -> str:
    word = "in code called from" if fault.calls_out else "at" if fault.precise else "near"
    named = short_name(kernel) if kernel else None
    if chain:
        leaf = chain[0]
        function = short_name(leaf.function) if leaf.function else None
        into = f", inlined into {named}" if named and len(chain) > 1 else ""
        within = f" in {function or named}" if function or named else ""
        return f"{word} {place_of(leaf)}{within}{into}"
    if fault.pc is None:
        return f"in {named}" if named else "at an unknown place"
    offset = f"{named}+{fault.location.offset:#x}" if named and fault.location else named or "unknown code"
    return f"{word} {offset} (PC {fault.pc:#x}, no line info)"


def _who(fault: Fault) -> str:
    if fault.first is None:
        return "; its warps had already exited"
    threads = f"{fault.threads} thread{'s' if fault.threads != 1 else ''}"
    blocks = f" of {fault.blocks} blocks" if fault.blocks > 1 else ""
    first = fault.first.at
    return f"; {threads}{blocks}, the first is thread {_axes(first.thread)} of block {_axes(first.block)}"


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


def _next(chain: Chain, artifact: str | None) -> str:
    if not chain:
        return _REBUILD
    return f"see every thread of it, and its registers: vdbg-env core {artifact or 'FILE'}"


def _hang(groups: Sequence[WarpGroup], artifact: str | None) -> Finding:
    """Blame the warps that do not wait: those at a barrier wait for the ones that still run."""
    waiting = [s for s in groups if s.barrier or s.state.startswith(("blocked", "waiting"))]
    running = [s for s in groups if s not in waiting]
    suspect = running[0] if running else groups[0]
    chain = suspect.location.chain if suspect.location else ()
    kernel = demangle(suspect.kernel) if suspect.kernel else None
    at = str(place_of(chain[0])) if chain else f"PC {suspect.pc:#x}"
    message = f"no exception: {_warps(suspect.warps)} of {short_name(kernel) if kernel else 'a kernel'} stand at {at}"
    if waiting and running:
        message += f", while {_warps(sum(s.warps for s in waiting))} wait at a barrier"
    words = next((s.barrier_words for s in waiting if s.barrier_words), None)
    if words:
        message += f" (the driver: {words})"
    message += _borrowed(suspect.location)
    return Finding(
        rule="gpu-core-hang",
        level=Level.ERROR,
        message=message,
        how_known=HowKnown.GPU_CORE,
        confidence=0.85 if waiting and running else 0.7,
        location=chain[0] if chain else None,
        chain=chain,
        kernel=kernel,
        artifact=artifact,
        next_step=_next(chain, artifact),
    )


def _warps(count: int) -> str:
    return f"{count} warp{'s' if count != 1 else ''}"


def _axes(axes: tuple[int, int, int]) -> str:
    return f"({axes[0]},{axes[1]},{axes[2]})"
