"""Asks nvdisasm for one instruction of a cubin, as a second opinion next to our own line table."""

from __future__ import annotations

from collections.abc import Iterator

from gpucore.code_map import CodeMap, Location
from gpucore.core import Fault, WarpGroup
from gpucore.dwarf import Chain
from vdbg_env.application.builtins.context import BuiltinContext
from vdbg_env.common.errors import VdbgError
from vdbg_env.evidence.tools.nvdisasm import Instruction, read_listing

_TIME_S = 120.0
_AROUND = 6  # instructions shown before and after


def instruction_at(context: BuiltinContext, code: CodeMap, location: Location, name: str) -> Instruction | None:
    """Return the instruction at a place, None without nvdisasm or when it does not know the cubin.

    The cubin and the listing around the instruction are kept in the step's folder under `name`. One function is asked
    for by the number of its symbol, which is the `sh_info` of its section: a whole cubin of CUTLASS takes minutes.
    """
    program = context.programs.which("nvdisasm")
    function = location.kernel or location.function
    if program is None or function is None:
        return None
    section = code.elf.sections[function.section]
    cubin = context.folder / f"{name}.cubin"
    context.files.write(cubin, code.elf.data)
    try:
        done = context.programs.run(
            [program, "-ndf", "-c", "-gi", "-fun", f"{section.info:#x}", str(cubin)], timeout_s=_TIME_S
        )
    except VdbgError:
        return None
    listing = list(read_listing(done.stdout.splitlines()))
    # On a relocated image nvdisasm prints absolute addresses, elsewhere offsets into the section.
    wanted = section.address + function.start + location.offset
    at = next((n for n, one in enumerate(listing) if one.address == wanted), None)
    if at is None:
        return None
    context.keep(f"{name}.sass", "\n".join(_shown(listing, at)) + "\n")
    return listing[at]


def code_of(fault: Fault | WarpGroup) -> CodeMap | None:
    """Return the relocated image that holds a fault's PC."""
    if fault.pc is None:
        return None
    modules = (m.code for m in fault.device.modules if m.code and m.relocated)
    return next((code for code in modules if code.place(fault.pc)), None)


def agrees(instruction: Instruction, chain: Chain) -> bool:
    """Say whether nvdisasm prints our leaf; its callers may be those of an earlier path to the same leaf."""
    if not instruction.chain or not chain:
        return False
    file, line = instruction.chain[0]
    return line == chain[0].line and file.rsplit("/", 1)[-1] == chain[0].file.rsplit("/", 1)[-1]


def opinion(instruction: Instruction, chain: Chain) -> str:
    """Say in a sentence what nvdisasm prints, against our chain."""
    printed = " <- ".join(f"{file.rsplit('/', 1)[-1]}:{line}" for file, line in instruction.chain)
    if not printed:
        return f"nvdisasm: {instruction.text} (no line info in its listing)"
    if not agrees(instruction, chain):
        return f"nvdisasm disagrees: {instruction.text} at {printed}"
    ours = [(frame.file.rsplit("/", 1)[-1], frame.line) for frame in chain]
    theirs = [(file.rsplit("/", 1)[-1], line) for file, line in instruction.chain]
    other = "" if ours == theirs else "; its callers are those of an earlier path to the same line, a known fault of it"
    return f"nvdisasm agrees on the line: {instruction.text} at {printed}{other}"


def _shown(listing: list[Instruction], at: int) -> Iterator[str]:
    for number in range(max(0, at - _AROUND), min(len(listing), at + _AROUND + 1)):
        one = listing[number]
        places = " <- ".join(f"{file}:{line}" for file, line in one.chain)
        yield f"{'>' if number == at else ' '} {one.address:#06x}  {one.text:48}  {places}".rstrip()
