"""The code of a GPU core: the code objects on disk that it is from, and its disassembly."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from gpucore.code_map import CodeMap, Function, Location
from gpucore.core import Fault, WarpGroup
from gpucore.dwarf import Chain, Place
from gpucore.elf import Buffer
from gpucore.errors import UnreadableBinary
from gpucore.fatbin import EntryKind, find_device_code
from gpucore.lineinfo import FileReport, verify
from vdbg_env.common.errors import BAD_INPUT, VdbgError
from vdbg_env.evidence.finding import Finding
from vdbg_env.run.library import BuiltinContext
from vdbg_env.run.stale import workload_libraries
from vdbg_env.runbook.judge import Crash, Fingerprint, fingerprint

_RANK = re.compile(r"steps/[^/]+/\d+/[^/]+-(?P<rank>\d+)/")
_NAMED = 16  # ranks of one group


def core_groups(findings: Mapping[str, Sequence[Finding]]) -> Iterator[str]:
    """Yield one line for each cause, the most frequent first; nothing for a single core.

    `findings` are those of each core, by its path in the run. A core without line info is in the group of those with
    the same kernel and exception.
    """
    if len(findings) < 2:
        return
    groups: list[tuple[Fingerprint, list[str]]] = []
    silent: list[str] = []
    for name, found in findings.items():
        cause = fingerprint(Crash(findings=found))
        if cause is None:
            silent.append(name)
            continue
        same = next((names for other, names in groups if other.is_same_cause(cause)), None)
        if same is None:
            groups.append((cause, [name]))
        else:
            same.append(name)
    for cause, names in sorted(groups, key=lambda group: -len(group[1])):
        yield f"{len(names)} of {len(findings)} cores have one cause, {cause.id} ({cause}){_of_ranks(names)}"
    if silent:
        yield f"{len(silent)} of {len(findings)} cores have no fault{_of_ranks(silent)}"


def _of_ranks(names: Sequence[str]) -> str:
    ranks = sorted({int(found["rank"]) for name in names if (found := _RANK.search(name))})
    shown = ", ".join(map(str, ranks[:_NAMED])) + (f" and {len(ranks) - _NAMED} more" if len(ranks) > _NAMED else "")
    return f": rank{'s' if len(ranks) > 1 else ''} {shown}" if ranks else ""


# Asks nvdisasm for one instruction of a cubin, as a second opinion next to our own line table.


_TIME_S = 120.0
_AROUND = 6  # instructions shown before and after


def instruction_at(
    context: BuiltinContext, code: CodeMap, location: Location, name: str, notes: list[str]
) -> Instruction | None:
    """Return the instruction at a place, None without nvdisasm; where it has no answer, `notes` say why.

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
    except VdbgError as error:
        notes.append(f"nvdisasm could not be asked: {error.what}")
        return None
    listing = list(read_listing(done.stdout.splitlines()))
    # On a relocated image nvdisasm prints absolute addresses, elsewhere offsets into the section.
    wanted = section.address + function.start + location.offset
    at = next((n for n, one in enumerate(listing) if one.address == wanted), None)
    if at is None:
        notes.append(f"nvdisasm shows no instruction there{f' ({done.stderr.strip()[:200]})' if done.stderr else ''}")
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


# Finds the kernel of a fault in the libraries on disk: which file holds it, and whether it is the same code.


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


# Read nvdisasm's listing (`nvdisasm -ndf -c -gi`): the instruction at an address, and the chain printed above it.
#
# The instruction text is what the listing is for. Its chain can be that of another caller: a new block is printed only
# when the *leaf's* line changes (see `gpucore.dwarf`), so a chain read here is a second opinion, not an answer.


_PLACE = re.compile(r'\s*//## File "(?P<file>.*?)", line (?P<line>\d+)(?P<inlined> inlined at )?')
_PRINTED = re.compile(r"\s*/\*(?P<address>[0-9a-f]{4,16})\*/\s+(?P<text>\S.*?)\s*;")
_FUNCTION_HEAD = re.compile(r"//-+ \.text\.(?P<name>\S+)\s+-+")


@dataclass(frozen=True, kw_only=True)
class Instruction:
    """One instruction; `address` in bytes as printed, `chain` of (file, 1-based line) leaf first, empty without."""

    section: str
    address: int
    text: str
    chain: tuple[tuple[str, int], ...]


def read_listing(lines: Iterable[str]) -> Iterator[Instruction]:
    """Yield every instruction of a listing, each with the chain that applies to it."""
    section = ""
    chain: tuple[tuple[str, int], ...] = ()
    block: list[tuple[str, int]] = []
    for line in lines:
        if place := _PLACE.match(line):
            block.append((place["file"], int(place["line"])))
            if not place["inlined"]:
                chain, block = tuple(block), []
        elif found := _FUNCTION_HEAD.match(line):
            section = found["name"]
        elif instruction := _PRINTED.match(line):
            yield Instruction(
                section=section, address=int(instruction["address"], 16), text=instruction["text"], chain=chain
            )
