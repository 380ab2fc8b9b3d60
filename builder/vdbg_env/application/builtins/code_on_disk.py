"""Finds the kernel of a fault in the libraries on disk: which file holds it, and whether it is the same code."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from gpucore.code_map import CodeMap, Function, Location
from gpucore.core import Fault, WarpGroup
from gpucore.dwarf import Place
from gpucore.elf import Buffer
from gpucore.errors import UnreadableBinary
from gpucore.fatbin import EntryKind, find_device_code
from gpucore.lineinfo import FileReport, verify
from vdbg_env.application.builtins.context import BuiltinContext
from vdbg_env.application.builtins.disassembly import code_of
from vdbg_env.application.knowledge.installed_packages import workload_libraries
from vdbg_env.common.errors import BAD_INPUT

_INSTRUCTION = 16  # bytes, since sm_70
_ALIKE = 0.9  # share of equal instructions: addresses of globals differ between a file and what the driver loaded


@dataclass(frozen=True, kw_only=True)
class FaultingCode:
    """The code at a fault: its kernel's mangled name, offset and bytes, and the architecture's number (90)."""

    kernel: str
    offset: int
    code: bytes
    arch: int


@dataclass(frozen=True, kw_only=True)
class Holder:
    """A file that holds a kernel of that name; `same` says that it is the same code, so `location` is the fault's.

    `report` is the proof of line info over the whole file, where it was asked for.
    """

    file: str
    map: CodeMap
    same: bool
    location: Location
    report: FileReport | None = None


def faulting_code(fault: Fault | WarpGroup) -> FaultingCode | None:
    """Return the code at a fault, or where warps of a hang stand; None when that is in no known kernel."""
    kernel = fault.location.kernel if fault.location else None
    if fault.location is None or kernel is None or fault.pc is None:
        return None
    code = code_of(fault)
    if code is None:
        return None
    arch = fault.device.row.sm_major * 10 + fault.device.row.sm_minor
    return FaultingCode(kernel=kernel.name, offset=fault.location.offset, code=_bytes_of(code, kernel), arch=arch)


def places_to_look(context: BuiltinContext) -> Sequence[str]:
    """Return the parameter `binaries`, else the workload's own program and the folder of its vLLM."""
    given = context.parameters.get("binaries")
    if isinstance(given, list) and given:
        return [str(target) for target in given]
    return workload_libraries(context.programs, context.workload, here=context.facts.on != "docker")


def holders(
    context: BuiltinContext, wanted: FaultingCode, targets: Sequence[str], notes: list[str], *, proof: bool = False
) -> Iterator[Holder]:
    """Yield each file that holds the kernel, as it is found; `proof` has the whole of such a file verified too."""
    for target in targets:
        try:
            with context.binaries.open(target) as files:
                for file in files:
                    yield from _in_file(file.name, file.data, wanted, proof=proof)
        except BAD_INPUT as error:
            notes.append(f"{target}: {error.what}")


def alike(one: bytes, other: bytes) -> bool:
    """Say whether two pieces of code are the same but for what the loader fills in."""
    if len(one) != len(other) or not one:
        return False
    places = range(0, len(one), _INSTRUCTION)
    equal = sum(one[at : at + _INSTRUCTION] == other[at : at + _INSTRUCTION] for at in places)
    return equal / len(places) >= _ALIKE


def _in_file(name: str, data: Buffer, wanted: FaultingCode, *, proof: bool) -> Iterator[Holder]:
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
            report = verify(data, name) if found and proof else None
        except UnreadableBinary:
            continue
        if found:
            yield Holder(file=name, map=found[0], same=found[1], location=found[2], report=report)


def _in_cubin(code: CodeMap, wanted: FaultingCode) -> tuple[CodeMap, bool, Location] | None:
    kernel = next((function for function in code.kernels if function.name == wanted.kernel), None)
    if kernel is None:
        return None
    location = code.locate(Place(section=kernel.section, offset=kernel.start + wanted.offset))
    return code, alike(_bytes_of(code, kernel), wanted.code), location


def _bytes_of(code: CodeMap, function: Function) -> bytes:
    text = code.elf.contents(code.elf.sections[function.section])
    return bytes(text[function.start : function.start + function.size])
