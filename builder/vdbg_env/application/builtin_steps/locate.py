"""`builtin/locate@v1`: the faulting instruction of a core, looked up in the libraries on disk.

A core of a program without line info names kernel and offset only. Where the same code lies on disk with line info,
as after a rebuild with -lineinfo, which does not change a single instruction, its line table answers.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from vdbg_env.application.builtin_steps.context import BuiltinContext, BuiltinResult
from vdbg_env.application.builtin_steps.disassembly import agrees, code_of, instruction_at, opinion
from vdbg_env.cuda.code_map import CodeMap, Function, Location
from vdbg_env.cuda.demangle import demangle, short_name
from vdbg_env.cuda.device_code import find_device_code
from vdbg_env.cuda.fatbin import EntryKind
from vdbg_env.cuda.gpu_core import Fault, reading
from vdbg_env.cuda.line_table import Place
from vdbg_env.errors import BadInput, UnreadableBinary
from vdbg_env.evidence.finding import Finding, HowKnown, Level
from vdbg_env.evidence.gpu_core_findings import place_of
from vdbg_env.runbook.state import ResultValue

_INSTRUCTION = 16  # bytes, since sm_70
_ALIKE = 0.9  # share of equal instructions: addresses of globals differ between a file and what the driver loaded
_ASK_FOLDER = "import importlib.util as u; s = u.find_spec('vllm'); print(*(s.submodule_search_locations if s else []))"


@dataclass(frozen=True, kw_only=True)
class _Wanted:
    """The code at the fault: its kernel's mangled name, offset and bytes, and the architecture's number (90)."""

    kernel: str
    offset: int
    code: bytes
    arch: int


@dataclass(frozen=True, kw_only=True)
class _Found:
    file: str
    map: CodeMap
    location: Location


def work(context: BuiltinContext) -> BuiltinResult:
    """Look through the binaries given, else through the workload's own, until one has the same code with lines."""
    wanted = _wanted(context)
    if wanted is None:
        return BuiltinResult(notes=("no core with a fault inside a known kernel was given",))
    targets = _targets(context)
    notes: list[str] = []
    found = next(_matches(context, wanted, targets, notes), None)
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


def _wanted(context: BuiltinContext) -> _Wanted | None:
    for path in context.paths("cores"):
        try:
            with context.cores.open(str(path)) as core:
                read = reading.read(core.data)
                wanted = next((w for fault in read.faults if (w := _of_fault(fault))), None)
        except BadInput:
            continue
        if wanted:
            return wanted
    return None


def _of_fault(fault: Fault) -> _Wanted | None:
    kernel = fault.location.kernel if fault.location else None
    if fault.location is None or kernel is None or fault.pc is None:
        return None
    code = code_of(fault)
    if code is None:
        return None
    arch = fault.device.row.sm_major * 10 + fault.device.row.sm_minor
    return _Wanted(kernel=kernel.name, offset=fault.location.offset, code=_bytes_of(code, kernel), arch=arch)


def _bytes_of(code: CodeMap, function: Function) -> bytes:
    text = code.elf.contents(code.elf.sections[function.section])
    return bytes(text[function.start : function.start + function.size])


def _targets(context: BuiltinContext) -> Sequence[str]:
    """Return what to look through: as told, else the workload's program and the folder of its vLLM."""
    given = context.parameters.get("binaries")
    if isinstance(given, list) and given:
        return [str(target) for target in given]
    program = context.programs.which(context.workload[0]) if context.workload else None
    targets = [program] if program and Path(program).read_bytes()[:4] == b"\x7fELF" else []
    python = context.programs.which("python3")
    if python:
        told = context.programs.run([python, "-I", "-c", _ASK_FOLDER], timeout_s=30)
        targets += told.stdout.split() if told.code == 0 else []
    return targets


def _matches(context: BuiltinContext, wanted: _Wanted, targets: Sequence[str], notes: list[str]) -> Iterator[_Found]:
    for target in targets:
        try:
            with context.binaries.open(target) as files:
                for file in files:
                    yield from _in_file(file.name, file.data, wanted, notes)
        except BadInput as error:
            notes.append(f"{target}: {error.what}")


def _in_file(name: str, data: bytes | memoryview, wanted: _Wanted, notes: list[str]) -> Iterator[_Found]:
    try:
        entries = [code.entry for code in find_device_code(data)]
    except UnreadableBinary:
        return  # one of thousands of files, and not one that holds device code
    for entry in entries:
        if entry.kind != EntryKind.ELF or entry.arch != wanted.arch:
            continue
        try:
            payload = bytes(entry.payload())
            if wanted.kernel.encode() not in payload:  # names are plain text once expanded; parsing takes far longer
                continue
            found = _in_cubin(CodeMap(payload), wanted)
        except UnreadableBinary:
            continue
        if isinstance(found, str):
            notes.append(f"{name}: {found}")
        elif found:
            yield _Found(file=name, map=found[0], location=found[1])


def _in_cubin(code: CodeMap, wanted: _Wanted) -> tuple[CodeMap, Location] | str | None:
    """Return the place in a cubin, or why its kernel of that name will not do; None when it has no such kernel."""
    kernel = next((function for function in code.kernels if function.name == wanted.kernel), None)
    if kernel is None:
        return None
    if not alike(_bytes_of(code, kernel), wanted.code):
        return f"{short_name(kernel.demangled)} is another build of it"
    location = code.locate(Place(section=kernel.section, offset=kernel.start + wanted.offset))
    return (code, location) if location.chain else f"{short_name(kernel.demangled)} has no line info here either"


def alike(one: bytes, other: bytes) -> bool:
    """Say whether two pieces of code are the same but for what the loader fills in."""
    if len(one) != len(other) or not one:
        return False
    places = range(0, len(one), _INSTRUCTION)
    equal = sum(one[at : at + _INSTRUCTION] == other[at : at + _INSTRUCTION] for at in places)
    return equal / len(places) >= _ALIKE
