"""Places in device code, for people and for programs: their inline chains, and why an address there was bad.

Shared by core, locate and triage. What disassembles and explains is loaded with the first address that is asked for.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from gpucore.code_map import CodeMap, Location
from gpucore.dwarf import BorrowedLines, Chain, OtherHeaders, Place
from gpucore.errors import UnreadableBinary
from gpucore.mangling import demangle, short_name
from gpucore.toolkit import own_frame
from vdbg_env.common.console import counted, printable
from vdbg_env.common.errors import ANY_ERROR, HostNotAble
from vdbg_env.crash.files import SourceText

if TYPE_CHECKING:
    from gpucore.core import Fault, WarpGroup
    from gpucore.core_reader import CoreSections, GpuCore
    from gpucore.explain import Program, Programs, Wait, Why
    from gpucore.explain import SourceText as SourceOf
    from gpucore.sass import Instruction
    from vdbg_env.crash.line_packs import PackedLines

SourceLines = Mapping[tuple[str, int], str]
"""The text of source lines by (file, 1-based line), those that were found."""

TOOL: Final = "nvdisasm"
Disassemble: TypeAlias = "Callable[[CodeMap, int], Sequence[Instruction]]"
"""Gives the instructions of a section of a cubin."""

_TIMEOUT_S: Final = 20.0  # of one section; it hangs on some inputs
_LARGEST: Final = 4 << 20  # bytes of code of one section
_WITH_LETTER: Final = 90  # from sm_90 on, what the letter adds (sm_90a) is read too


class PacksWhenAsked:
    """A LineSource that opens the line packs at the first place without lines; `notes` are theirs."""

    def __init__(self, packs: Callable[[], PackedLines]) -> None:
        self._packs: Final = packs
        self._opened: PackedLines | None = None

    def lines_at(self, code: CodeMap, place: Place) -> BorrowedLines | None:
        self._opened = self._opened or self._packs()
        return self._opened.lines_at(code, place)

    @property
    def notes(self) -> tuple[str, ...]:
        return self._opened.notes if self._opened else ()


def find_lines(chains: Iterable[Chain], source_text: SourceText) -> SourceLines:
    """Look up the text of every place of the chains, once each; of other headers than the code's none is taken."""
    places = dict.fromkeys((frame.file, frame.line) for chain in chains for frame in chain if not frame.headers)
    found = {place: source_text.line(*place) for place in places}
    return {place: text for place, text in found.items() if text is not None}


def function_at(location: Location | None) -> str:
    """Return the innermost function of a place and the offset in it; empty where no symbol covers the place."""
    if location is None or location.function is None:
        return ""
    return f"{short_name(location.function.demangled)}+{location.function_offset:#x}"


def leaf(location: Location | None) -> str:
    """Return the source line of a place as `file:line`, marked where it is of other headers; empty without one.

    In a header of CUDA it is the line that called what is there.
    """
    frame = own_frame(location.chain) if location is not None else None
    return f"{frame.file}:{frame.line}{frame.mark}" if frame is not None else ""


def chain_lines(chain: Chain, sources: SourceLines, *, indent: str = "    ") -> Iterator[str]:
    """Yield a numbered line for each frame, leaf first, each followed by its source text where that was found."""
    names = [short_name(frame.function) if frame.function else "?" for frame in chain]
    width = min(max((len(name) for name in names), default=0), 48)
    for number, (frame, name) in enumerate(zip(chain, names, strict=True)):
        yield f"{indent}#{number:<2} {printable(name):{width}}  {printable(f'{frame.file}:{frame.line}{frame.mark}')}"
        text = sources.get((frame.file, frame.line))
        if text and text.strip():
            yield f"{indent}      {printable(text.strip())}"


def chain_doubt(location: Location) -> str:
    """Return what makes the callers of a chain uncertain; empty where nothing does."""
    if not location.siblings:
        return ""
    return (
        f"line {location.chain[0].line} is inlined here by {counted(len(location.siblings), 'other path')} too; "
        "the assembler may have noted a neighbour's callers"
    )


def borrowed_lines(borrowed: BorrowedLines | None, *, indent: str = "    ") -> Iterator[str]:
    """Yield where a chain is from when the code has no line info itself, and what other builds say instead."""
    if borrowed is None:
        return
    yield f"{indent}by the {borrowed.how_known}: {printable(borrowed.build)} ({printable(borrowed.pack)})"
    for build, chain in borrowed.others:
        yield f"{indent}another build with identical code has other lines: {printable(build)}"
        yield from chain_lines(chain, {}, indent=f"{indent}  ")


def why_lines(address: AddressWhy, *, indent: str = "    ") -> Iterator[str]:
    """Yield why an address was bad, under a heading of the width of the others."""
    for number, line in enumerate(address.lines):
        yield f"{indent}{'' if number else 'why':8} {printable(line)}"


def chain_json(chain: Chain, sources: SourceLines) -> list[dict[str, Any]]:
    """Return a chain as JSON, leaf first; `text` is the line, where its source was found."""
    frames = []
    for frame in chain:
        written: dict[str, Any] = {"function": frame.function, "file": frame.file, "line": frame.line}
        written |= _headers_json(frame.headers)
        text = sources.get((frame.file, frame.line))
        frames.append(written if text is None else written | {"text": text})
    return frames


def kernel_json(name: str) -> dict[str, str]:
    """Return a kernel as JSON, by its mangled and its demangled name."""
    return {"name": name, "demangled": demangle(name)}


def location_json(location: Location | None, sources: SourceLines) -> dict[str, Any]:
    """Return the lines of a place as JSON, with all that is known of where they are from."""
    chain, siblings = (location.chain, location.siblings) if location else ((), ())
    return {
        "chain": chain_json(chain, sources),
        "place": _place_json(chain),
        "other_chains": [chain_json(other, sources) for other in siblings],
        "ptx_line": location and location.ptx_line,
        "lines_from": lines_from_json(location, sources),
    }


def _place_json(chain: Chain) -> dict[str, Any] | None:
    """Return as JSON the line that a place is shown as: the first of its chain that is in no header of CUDA."""
    frame = own_frame(chain)
    return {"file": frame.file, "line": frame.line} if frame is not None else None


def lines_from_json(location: Location | None, sources: SourceLines) -> dict[str, Any] | None:
    """Return where a chain is from as JSON when the code has no line info itself: a line pack."""
    borrowed = location.borrowed if location else None
    if borrowed is None:
        return None
    return {
        "how_known": borrowed.how_known, "build": borrowed.build, "pack": borrowed.pack,
        "others": [{"build": build, "chain": chain_json(chain, sources)} for build, chain in borrowed.others],
        **_headers_json(borrowed.headers),
    }  # fmt: skip


def _headers_json(headers: OtherHeaders | None) -> dict[str, Any]:
    """Return as a field the headers of another release that lines are of; no field where they are the code's own."""
    return {"headers": asdict(headers)} if headers else {}


@dataclass(frozen=True, kw_only=True)
class AddressWhy:
    """Why an address was what it was, or what a loop waits for: for people in lines, for programs as published."""

    lines: tuple[str, ...]
    document: Mapping[str, Any]
    calls_hold: bool = True
    """Whether the calls that the thread is in are those of the access."""
    one_of_many: bool = False
    """Whether the address of another thread of the warp may have been the bad one."""


# CUDBGException_t: illegal, out of range, misaligned, of no space, of no block of a cluster, not mapped
_OF_ADDRESSES: Final = frozenset({1, 5, 6, 7, 10, 11, 14, 17, 30})


class Explainer:
    """Explains accesses to memory; `notes` say why an address could not be explained.

    `source` gives the lines of a source file, from which the names of arguments and loaded values are taken. Code is
    decoded here. nvdisasm is asked only where that leaves something open, and only where it is found.
    """

    def __init__(self, source: SourceOf | None = None) -> None:
        self._source: Final = source
        self._programs: Final[dict[tuple[Disassemble, int, int], Program]] = {}
        self._notes: Final[dict[str, None]] = {}

    @property
    def notes(self) -> tuple[str, ...]:
        """Why an address could not be explained, each reason once."""
        return tuple(self._notes)

    def fault(
        self, core: GpuCore, sections: CoreSections, fault: Fault, mapped: Callable[[int, int], bool] | None = None
    ) -> AddressWhy | None:
        """Explain the address of a fault of a core; None where the fault is not that of a known access.

        `mapped` says whether the program had memory at an address, and so many bytes of it, as far as is known.
        """
        from gpucore.explain import explain_fault

        noted = len(self._notes)
        answer = self._told(lambda programs: explain_fault(core, sections, fault, programs, mapped))
        if answer is None and len(self._notes) == noted and fault.exception.code in _OF_ADDRESSES:
            self._note(self._silence(core, fault), None)
        return answer

    def _silence(self, core: GpuCore, fault: Fault) -> str:
        """Return why there is no answer for a fault, in a sentence."""
        from gpucore.explain import unexplained

        if not fault.precise or fault.pc is None:
            return "which instruction failed is not known exactly"
        found = core.find_code(fault.pc, fault.device, fault.grid.module_handle if fault.grid else None)
        if found is None:
            return f"no code in the core is at {fault.pc:#x}"
        code, place = found
        return unexplained(self._program(decoded, code, place), place.offset)

    def waiting(self, core: GpuCore, sections: CoreSections, group: WarpGroup) -> AddressWhy | None:
        """Say what warps wait for that are in a loop; None where they are in none."""
        from gpucore.explain import explain_hang

        return self._told(lambda programs: explain_hang(core, sections, group, programs))

    def place(self, code: CodeMap, place: Place) -> AddressWhy | None:
        """Explain the access at a place from its code alone; None where there is none."""
        from gpucore.explain import explain_place

        def of_place(programs: Programs) -> Why | None:
            program = programs(code, place)
            return explain_place(program, place.offset) if program else None

        return self._told(of_place)

    def _told(self, explain: Callable[[Programs], Why | Wait | None]) -> AddressWhy | None:
        """Return the answer in words; what goes wrong is a note, and takes nothing else away from the user."""
        from gpucore.explain import Wait, wait_json, wait_text, why_json, why_text

        answer = None
        for disassemble in (decoded, by_nvdisasm):
            try:
                why = explain(partial(self._program, disassemble))
                if why is None:
                    return answer
                if isinstance(why, Wait):
                    return AddressWhy(lines=tuple(wait_text(why)), document=wait_json(why))
                answer = AddressWhy(
                    lines=tuple(why_text(why)), document=why_json(why), calls_hold=why.calls_hold,
                    one_of_many=why.one_of_many,
                )  # fmt: skip
                if not answer.document["not_known"]:
                    return answer
            except ANY_ERROR as error:
                if answer is None:
                    self._note(error.what, error.next_step)
            except Exception as error:
                self._note(f"{type(error).__name__}: {error}", "report this with the file: it is a bug of vdbg-env")
                return answer
        return answer

    def _note(self, what: str, next_step: str | None) -> None:
        self._notes[f"an address is not explained: {what}" + (f"; {next_step}" if next_step else "")] = None

    def _program(self, disassemble: Disassemble, code: CodeMap, place: Place) -> Program:
        key = disassemble, id(code), place.section
        if key not in self._programs:
            from gpucore.explain import Program

            self._programs[key] = Program(code, place.section, disassemble(code, place.section), self._source)
        return self._programs[key]


def decoded(code: CodeMap, section: int) -> Sequence[Instruction]:
    """Return the instructions of a section; raises UnreadableBinary for an architecture that is not known."""
    from gpucore.sass import decode

    data, arch = _bytes(code, section)
    return decode(data, arch)


def by_nvdisasm(code: CodeMap, section: int) -> Sequence[Instruction]:
    """Return the instructions of a section by nvdisasm, from its bytes alone: on a relocated image it may hang.

    Raises HostNotAble where nvdisasm is not found, cannot be run, or outlasts its time, UnreadableBinary for code that
    it does not read.
    """
    from gpucore.sass import read_listings
    from vdbg_env.common.programs import Programs as ToolPrograms

    data, arch = _bytes(code, section)
    programs = ToolPrograms()
    tool = programs.which(TOOL)
    if tool is None:
        raise HostNotAble("nvdisasm is not on this machine", next_step="pip install nvidia-cuda-nvdisasm")
    with tempfile.NamedTemporaryFile(prefix="vdbg-", suffix=".sass") as file:
        file.write(data)
        file.flush()
        target = f"SM{arch}{'a' if arch >= _WITH_LETTER else ''}"
        ran = programs.run([tool, "-b", target, "-json", file.name], timeout_s=_TIMEOUT_S)
    if ran.code:
        raise UnreadableBinary(f"nvdisasm does not read the code of {target}: {ran.stderr.strip()[:200]}")
    return [instruction for listing in read_listings(ran.stdout) for instruction in listing.instructions]


def _bytes(code: CodeMap, section: int) -> tuple[memoryview, int]:
    data, arch = code.elf.contents(code.elf.sections[section]), code.elf.arch
    if arch is None or not data or len(data) > _LARGEST:
        raise UnreadableBinary(f"{len(data):,} bytes of code for {code.elf.identity} are not disassembled")
    return data, arch
