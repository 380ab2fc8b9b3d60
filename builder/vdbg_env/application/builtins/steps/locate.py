"""`builtin/locate@v1`: the faulting instruction of a core, looked up in the libraries on disk.

A core of a program without line info names kernel and offset only. Where the same code lies on disk with line info,
as after a rebuild with -lineinfo, which does not change a single instruction, its line table answers.
"""

from __future__ import annotations

from gpucore.core import decode_core
from gpucore.mangling import demangle, short_name
from vdbg_env.application.builtins.code_on_disk import FaultingCode, Holder, faulting_code, holders, places_to_look
from vdbg_env.application.builtins.context import BuiltinContext, BuiltinResult
from vdbg_env.application.builtins.disassembly import agrees, instruction_at, opinion
from vdbg_env.common.errors import BAD_INPUT
from vdbg_env.evidence.finding import Finding, HowKnown, Level
from vdbg_env.evidence.gpu_core_findings import place_of
from vdbg_env.runbook.catalogue import BuiltinContract
from vdbg_env.runbook.state import ResultValue

CONTRACT = BuiltinContract(
    name="locate",
    version=1,
    role="step",
    does="Looks a PC up in the line tables of the binaries on disk, next to nvdisasm's listing.",
    parameters={"kernel": "string", "cores": "list", "binaries": "list"},
    by_hand=(
        "cuobjdump -lelf LIBRARY && cuobjdump -xelf NAME.cubin LIBRARY",
        "nvdisasm -ndf -c -gi NAME.cubin        # look for the kernel and the offset in it",
    ),
    results={"source": "string", "chain": "list", "agrees": "bool", "file": "string"},
)


def work(context: BuiltinContext) -> BuiltinResult:
    """Ask the line packs, then the binaries given, else the workload's own, for the same code with lines."""
    packed = _by_packs(context)
    if packed:
        return packed
    wanted = _wanted(context)
    if wanted is None:
        return BuiltinResult(notes=("no core with a fault inside a known kernel, or inside the one named, was given",))
    targets = places_to_look(context)
    notes: list[str] = []
    found = next((h for h in holders(context, wanted, targets, notes) if _answers(h, notes)), None)
    if found is None:
        where = ", ".join(targets) or "no binary"
        return BuiltinResult(
            notes=(*notes, f"looked through {where}: none holds {short_name(demangle(wanted.kernel))} with lines")
        )
    chain = found.location.chain
    results: dict[str, ResultValue] = {
        "source": str(chain[0]),
        "chain": [str(frame) for frame in chain],
        "file": found.file,
    }
    listed = instruction_at(context, found.map, found.location, "located")
    if listed:
        results["agrees"] = agrees(listed, chain)
        notes.append(opinion(listed, chain))
    finding = Finding(
        rule="gpu-core-located-on-disk",
        level=Level.ERROR,
        message=f"the faulting instruction is {place_of(chain[0])} by the line table of {found.file}",
        how_known=HowKnown.GPU_CORE,
        confidence=0.85,
        location=chain[0],
        chain=chain,
        kernel=found.location.kernel.demangled if found.location.kernel else None,
    )
    return BuiltinResult(results=results, findings=(finding,), notes=tuple(notes))


def _by_packs(context: BuiltinContext) -> BuiltinResult | None:
    """Return the lines of the first fault whose code has them in a line pack, of the kernel that was named."""
    named = context.parameters.get("kernel")
    for path in context.paths("cores") if context.packed_lines else ():
        try:
            with context.cores.open(str(path)) as core:
                faults = decode_core(core.data, lines=context.packed_lines).faults
        except BAD_INPUT:
            continue  # the look through the binaries notes it
        for fault in faults:
            location = fault.location
            if location is None or location.borrowed is None:
                continue
            if named and named not in {fault.kernel, demangle(fault.kernel or "")}:
                continue
            chain, borrowed = location.chain, location.borrowed
            finding = Finding(
                rule="gpu-core-located-in-pack",
                level=Level.ERROR,
                message=f"the faulting instruction is {place_of(chain[0])} by the {borrowed.how_known} "
                f"({borrowed.build}){f'; {borrowed.headers}' if borrowed.headers else ''}",
                how_known=HowKnown.GPU_CORE,
                confidence=0.9,
                location=chain[0],
                chain=chain,
                kernel=demangle(fault.kernel) if fault.kernel else None,
            )
            results: dict[str, ResultValue] = {
                "source": str(chain[0]), "chain": [str(frame) for frame in chain], "file": borrowed.pack,
            }  # fmt: skip
            return BuiltinResult(results=results, findings=(finding,))
    return None


def _answers(holder: Holder, notes: list[str]) -> bool:
    """Whether a file's line table can answer for the fault; why it cannot is noted."""
    kernel = holder.location.kernel
    name = short_name(kernel.demangled) if kernel else "the kernel"
    if not holder.same:
        notes.append(f"{holder.file}: {name} is another build of it")
    elif not holder.location.chain:
        notes.append(f"{holder.file}: {name} has no line info here either")
    return holder.same and bool(holder.location.chain)


def _wanted(context: BuiltinContext) -> FaultingCode | None:
    """Return the code at the first fault, of the kernel that was named where one was."""
    named = context.parameters.get("kernel")
    for path in context.paths("cores"):
        try:
            with context.cores.open(str(path)) as core:
                read = decode_core(core.data)
                codes = [code for fault in read.faults if (code := faulting_code(fault))]
        except BAD_INPUT:
            continue
        wanted = next((code for code in codes if not named or named in {code.kernel, demangle(code.kernel)}), None)
        if wanted:
            return wanted
    return None
