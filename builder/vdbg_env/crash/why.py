"""Why an address was bad: disassemble the code around a fault or a place, and explain the access there."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from gpucore.code_map import CodeMap
from gpucore.dwarf import Place
from gpucore.errors import UnreadableBinary
from gpucore.explain import Program, SourceText, Wait, Why, explain_place, wait_json, wait_text, why_json, why_text
from gpucore.sass import Instruction, decode, read_listings
from vdbg_env.common.errors import ANY_ERROR, HostNotAble
from vdbg_env.common.programs import Programs as ToolPrograms

if TYPE_CHECKING:
    from gpucore.core import Fault, WarpGroup
    from gpucore.core_reader import CoreSections, GpuCore
    from gpucore.explain import Programs

TOOL: Final = "nvdisasm"
Disassemble: TypeAlias = Callable[[CodeMap, int], Sequence[Instruction]]
"""Gives the instructions of a section of a cubin."""

_TIMEOUT_S: Final = 20.0  # of one section; it hangs on some inputs
_LARGEST: Final = 4 << 20  # bytes of code of one section
_WITH_LETTER: Final = 90  # from sm_90 on, what the letter adds (sm_90a) is read too


@dataclass(frozen=True, kw_only=True)
class AddressWhy:
    """Why an address was what it was, or what a loop waits for: for people in lines, for programs as published."""

    lines: tuple[str, ...]
    document: Mapping[str, Any]


class Explainer:
    """Explains accesses to memory; `notes` say why an address could not be explained.

    `source` gives the lines of a source file, from which the names of arguments and loaded values are taken. Code is
    decoded here. nvdisasm is asked only where that leaves something open, and only where it is found.
    """

    def __init__(self, source: SourceText | None = None) -> None:
        self._source: Final = source
        self._programs: Final[dict[tuple[Disassemble, int, int], Program]] = {}
        self._notes: Final[dict[str, None]] = {}

    @property
    def notes(self) -> tuple[str, ...]:
        """Why an address could not be explained, each reason once."""
        return tuple(self._notes)

    def fault(self, core: GpuCore, sections: CoreSections, fault: Fault) -> AddressWhy | None:
        """Explain the address of a fault of a core; None where the fault is not that of a known access."""
        from gpucore.explain import explain_fault  # loads the reader of cores, which a place does without

        return self._told(lambda programs: explain_fault(core, sections, fault, programs))

    def waiting(self, core: GpuCore, sections: CoreSections, group: WarpGroup) -> AddressWhy | None:
        """Say what warps wait for that are in a loop; None where they are in none."""
        from gpucore.explain import explain_hang

        return self._told(lambda programs: explain_hang(core, sections, group, programs))

    def place(self, code: CodeMap, place: Place) -> AddressWhy | None:
        """Explain the access at a place from its code alone; None where there is none."""

        def of_place(programs: Programs) -> Why | None:
            program = programs(code, place)
            return explain_place(program, place.offset) if program else None

        return self._told(of_place)

    def _told(self, explain: Callable[[Programs], Why | Wait | None]) -> AddressWhy | None:
        """Return the answer in words; what goes wrong is a note, and takes nothing else away from the user."""
        answer = None
        for disassemble in (decoded, by_nvdisasm):
            try:
                why = explain(partial(self._program, disassemble))
                if why is None:
                    return answer
                if isinstance(why, Wait):
                    return AddressWhy(lines=tuple(wait_text(why)), document=wait_json(why))
                answer = AddressWhy(lines=tuple(why_text(why)), document=why_json(why))
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
            self._programs[key] = Program(code, place.section, disassemble(code, place.section), self._source)
        return self._programs[key]


def decoded(code: CodeMap, section: int) -> Sequence[Instruction]:
    """Return the instructions of a section; raises UnreadableBinary for an architecture that is not known."""
    data, arch = _bytes(code, section)
    return decode(data, arch)


def by_nvdisasm(code: CodeMap, section: int) -> Sequence[Instruction]:
    """Return the instructions of a section by nvdisasm, from its bytes alone: on a relocated image it may hang.

    Raises HostNotAble where nvdisasm is not found, cannot be run, or outlasts its time, UnreadableBinary for code that
    it does not read.
    """
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
