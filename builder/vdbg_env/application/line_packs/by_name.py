"""Find the lines of a place that a log names by function and offset; there is no code to compare."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

from gpucore.code_map import Function, PlaceQuery, identifier_in, matching, parse_place
from gpucore.dwarf import Chain, LinesByName
from gpucore.line_packs import LinePack
from vdbg_env.application.line_packs.lookup import Held
from vdbg_env.common.errors import BAD_INPUT

MOST: Final = 4
"""How many answers are shown: the architectures of a wheel differ, and a log does not name the GPU's."""

_SANITIZER: Final = re.compile(r"={5,}\s+(?:at|and)\s+(?:\w+ access at )?(?P<place>\S.*)$")
_OFFSET_FIRST: Final = re.compile(r"(?P<offset>0x[0-9a-fA-F]+) in (?:[^\s:]+:\d+:)?(?P<name>\S.*)$")
_DEBUGGER: Final = re.compile(r"(?P<place>0x[0-9a-fA-F]+ <.+\+\d+>)")


def named_place(text: str) -> PlaceQuery | None:
    """Return the function and offset that a line of compute-sanitizer or cuda-gdb names; None without an offset.

    The driver's own lines have an address and no offset: only the core dump says where the function began.
    """
    found = _DEBUGGER.search(text) or _SANITIZER.search(text)
    if found is None:
        return None
    place = found["place"]
    first = _OFFSET_FIRST.match(place)
    try:
        query = parse_place(f"{first['name']}+{first['offset']}" if first else place)
    except BAD_INPUT:
        return None
    return query if query.name else None


def lines_by_name(packs: Iterable[tuple[str, LinePack]], query: PlaceQuery) -> tuple[LinesByName, ...]:
    """Return the lines that packs have for a function and offset, one for each chain, at most MOST of them."""
    found: dict[tuple[str, Chain], LinesByName] = {}
    needle = identifier_in(query.name or "")
    for name, pack in packs:
        numbers = {
            Function(name=mangled, section=number, start=0, size=0, kernel=True): number
            for number, mangled in pack.names()
            if needle in mangled
        }
        for function in matching(numbers, query.name or ""):
            record = pack.record(numbers[function])
            held = Held(record=record, pack=pack, name=name)
            chain = held.chain(query.value)
            if chain and len(found) < MOST:
                key = (record.name, chain)
                known = found.get(key)
                archs = tuple(sorted({*record.archs, *(known.archs if known else ())}))
                found[key] = LinesByName(
                    function=record.name, offset=query.value, archs=archs, build=held.build, pack=name, chain=chain
                )
    return tuple(found.values())
