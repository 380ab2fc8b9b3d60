"""`builtin/decode-gpu-core@v1`: what the GPU core dumps say, the earliest first; cuda-gdb's answer next to ours."""

from __future__ import annotations

from collections.abc import Iterator

from gpucore.core import DecodedCore, Scope, decode_core
from gpucore.mangling import demangle, short_name
from vdbg_env.application.builtins.context import BuiltinContext, BuiltinResult
from vdbg_env.application.builtins.core_groups import core_groups
from vdbg_env.application.builtins.disassembly import code_of, instruction_at, opinion
from vdbg_env.common.errors import BAD_INPUT, VdbgError
from vdbg_env.evidence.finding import Finding
from vdbg_env.evidence.gpu_core_findings import gpu_core_findings, place_of
from vdbg_env.evidence.tools.cuda_gdb import GdbTranscript, parse_cuda_gdb
from vdbg_env.runbook.catalogue import BuiltinContract
from vdbg_env.runbook.state import ResultValue

_GDB_TIME_S = 300.0
# Width 0 keeps cuda-gdb from wrapping long kernel names; -nx keeps the user's own settings out of the answer.
_GDB = ("-nx", "-batch", "-ex", "set width 0", "-ex")
_GDB_ASKS = (
    "info cuda devices",
    "info cuda kernels",
    "info cuda warps",
    "info cuda lanes",
    "bt",
    "print $errorpc",
    "info symbol $errorpc",
    "info line *$errorpc",
)

CONTRACT = BuiltinContract(
    name="decode-gpu-core",
    version=1,
    role="step",
    does="Reads GPU core dumps: exception, kernel, source line, inline chain; asks cuda-gdb too when present.",
    parameters={"cores": "list", "cuda_gdb": "bool"},
    by_hand=("cuda-gdb -batch -ex 'target cudacore FILE' -ex 'info cuda kernels' -ex bt -ex 'info line *$errorpc'",),
    results={
        "cores": "int",
        "exception": "string",
        "kernel": "string",
        "pc": "string",
        "source": "string",
        "chain": "list",
        "has_lines": "bool",
        "warps": "int",
        "spinning": "bool",
    },
)


def work(context: BuiltinContext) -> BuiltinResult:
    """Read every core; the first in time with a fault gives the results, for the others mostly wait for its rank."""
    readings: dict[str, DecodedCore] = {}
    notes: list[str] = []
    for path in context.paths("cores"):
        name = context.relative(path)
        try:
            readings[name] = _read(context, str(path), name)
        except BAD_INPUT as error:
            notes.append(f"{name}: {error.what}")
    if not readings:
        return BuiltinResult(notes=tuple(notes) or ("no core was given",))
    ordered = sorted(readings.items(), key=lambda item: (not item[1].faults, item[1].written))
    by_core = {name: gpu_core_findings(read.faults, read.warp_groups, name) for name, read in ordered}
    findings = tuple(finding for found in by_core.values() for finding in found)
    lead = ordered[0][1]
    notes += core_groups(by_core)
    notes += [f"{name}: {note}" for name, read in ordered for note in read.notes]
    notes += _disassembled(context, ordered[0][0])
    if context.parameters.get("cuda_gdb", True):
        notes += _second_opinion(context, *ordered[0], findings)
    results = _results(lead, findings[0]) if findings else {}
    return BuiltinResult(results={"cores": len(readings), **results}, findings=findings, notes=tuple(notes))


def _read(context: BuiltinContext, path: str, name: str) -> DecodedCore:
    with context.cores.open(path) as core:
        return decode_core(core.data, file=name, modified=core.modified, lines=context.packed_lines)


def _results(read: DecodedCore, finding: Finding) -> dict[str, ResultValue]:
    results: dict[str, ResultValue] = {
        "warps": read.warps,
        "has_lines": bool(finding.chain),
        "chain": [str(frame) for frame in finding.chain],
    }
    pc = read.faults[0].pc if read.faults else read.warp_groups[0].pc
    if read.faults:
        results["exception"] = read.faults[0].exception.name
    else:
        results["spinning"] = any(group.state == "running" for group in read.warp_groups)
    results |= {"pc": f"{pc:#x}"} if pc is not None else {}
    results |= {"kernel": finding.kernel} if finding.kernel else {}
    results |= {"source": str(finding.location)} if finding.location else {}
    return results


def _disassembled(context: BuiltinContext, name: str) -> Iterator[str]:
    """Show the faulting instruction; the core is opened again because its code is read only while it is open."""
    with context.cores.open(str(context.run_directory / name)) as core:
        fault = next((f for f in decode_core(core.data).faults if f.location), None)
        code = code_of(fault) if fault else None
        if fault is None or fault.location is None or code is None:
            return
        instruction = instruction_at(context, code, fault.location, "fault")
        if instruction:
            yield opinion(instruction, fault.location.chain)


def _second_opinion(
    context: BuiltinContext, name: str, read: DecodedCore, findings: tuple[Finding, ...]
) -> Iterator[str]:
    """Ask cuda-gdb about the first core and say whether it agrees; its transcript is kept."""
    program = context.programs.which("cuda-gdb")
    if program is None or not findings or name.endswith(".gz"):
        return
    asks = [word for ask in _GDB_ASKS for word in ("-ex", ask)]
    command = [program, *_GDB, f"target cudacore {context.run_directory / name}", *asks]
    try:
        done = context.programs.run(command, timeout_s=_GDB_TIME_S)
    except VdbgError as error:
        yield f"cuda-gdb could not be asked: {error.what}"
        return
    kept = context.keep("cuda-gdb.txt", done.stdout + done.stderr)
    theirs = parse_cuda_gdb(done.stdout + done.stderr)
    shown = f"; it shows {theirs.thread}" if theirs.thread else ""
    yield f"{compare(read, findings[0], theirs)}{shown} ({kept})"


def compare(read: DecodedCore, ours: Finding, theirs: GdbTranscript) -> str:
    """Say in a sentence whether cuda-gdb names the same exception, line and kernel.

    It knows only one level of an inline chain and looks for a fault in warps alone (12.4), so it may know less.
    """
    if theirs.exception is None and theirs.error_pc is None:
        return f"cuda-gdb finds no exception{_beside_ours(read)}"
    exception = theirs.exception or "an exception it does not name"
    if theirs.error_place and ours.location:
        lines = {(place_of(frame)) for frame in ours.chain}
        if place_of(theirs.error_place) == place_of(ours.location):
            return f"cuda-gdb agrees: {exception} at {place_of(ours.location)}"
        if place_of(theirs.error_place) in lines:
            return f"cuda-gdb names {place_of(theirs.error_place)}, a caller in our chain"
        return f"cuda-gdb disagrees: it names {place_of(theirs.error_place)}, we {place_of(ours.location)}"
    if theirs.kernel and ours.kernel:
        kernel = short_name(demangle(theirs.kernel))
        return f"cuda-gdb {'agrees' if kernel == short_name(ours.kernel) else 'disagrees'}: {exception} in {kernel}"
    return f"cuda-gdb says {exception}, and names no place"


def _beside_ours(read: DecodedCore) -> str:
    if not read.faults:
        return ", nor do we"
    exited = all(fault.scope is Scope.SM for fault in read.faults)
    return " (it does not look at exited warps)" if exited else f", we find {read.faults[0].exception.name}"
