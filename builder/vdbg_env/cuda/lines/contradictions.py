"""What one image of device code says twice and not alike: names of functions, and the extent of its line table.

An image has no checksum. A function's name is in the symbol and in its section's name, the functions inside a kernel
follow each other to its end, a line table has to end where its code does, and an inlined function has a whole name. A
changed digit of a line number leaves no trace: nothing else in the image has it, since the PTX text that ptxas embeds
has no `.loc`.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Final

from vdbg_env.common.errors import UnreadableBinary
from vdbg_env.cuda.lines.code_map import CodeMap, Function, Location
from vdbg_env.cuda.lines.line_table import Place

_CODE: Final = ".text."


def find_contradictions(code: CodeMap, place: Place, location: Location) -> tuple[str, ...]:
    """Return what contradicts the names and the chain found at a place, in words; empty where all agrees."""
    return (*contradictions_of_names(code, location), *_of_callees(code, place), *_of_lines(code, place))


def contradictions_of_names(code: CodeMap, location: Location) -> tuple[str, ...]:
    """Return which names of a location are not those of their sections."""
    doubts = []
    for function in {f.name: f for f in (location.kernel, location.function) if f}.values():
        section = _section_name(code, function)
        # A callee is called `$KERNEL$CALLEE` in its kernel's section, and by its own name in its own.
        outer = section.removeprefix(_CODE)
        own = function.name == outer or outer in function.name.split("$")
        if section.startswith(_CODE) and not own:
            doubts.append(f"the image's symbol is {function.name}, its section {section}: one name is damaged")
    return tuple(doubts)


def _of_callees(code: CodeMap, place: Place) -> tuple[str, ...]:
    """Return what contradicts the functions inside a kernel's section: ptxas puts them at its end, without gaps."""
    functions = code.functions_in(place.section)
    callees = sorted((f for f in functions if f.name.startswith("$")), key=lambda f: f.start)
    doubts = []
    size = code.elf.sections[place.section].size
    whole = all(f.start == 0 and f.size == size for f in functions if f.kernel)
    gaps = [f.start + f.size != following.start for f, following in pairwise(callees)]
    # Nothing follows the last but in 2 of 1,240 kernels measured, by 1,264 bytes: one flipped bit makes a power of two.
    left = size - callees[-1].start - callees[-1].size if callees else 0
    if callees and (not whole or any(gaps) or left < 0 or left.bit_count() == 1):
        doubts.append("the functions inside the kernel do not follow each other to its end: a symbol is damaged")
    known = {f.name for f in functions}
    for kernel in (f for f in functions if f.kernel):
        lost = set(code.elf.symbol_names_starting(f"${kernel.name}$")) - known
        doubts += [f"the image names {name}, and no symbol does: one is damaged" for name in sorted(lost)]
    return tuple(doubts)


def _section_name(code: CodeMap, function: Function) -> str:
    try:
        return code.elf.name(code.elf.sections[function.section])
    except UnreadableBinary:
        return ""


def _of_lines(code: CodeMap, place: Place) -> tuple[str, ...]:
    if code.lines is None:
        return ()
    section = code.elf.sections[place.section]
    return (*code.lines.notes[:1], *code.lines.contradictions(place, section.size))
