"""Reads nvdisasm's listing (`nvdisasm -ndf -c -gi`), and predicts from a line table what nvdisasm will print.

nvdisasm prints a `//##` block only when the leaf's file and line differ from the leaf it printed last, and keeps that
memory over function boundaries. So an instruction's chain in the listing is the last block, which may be another call
path's; `as_nvdisasm_prints` applies this one rule to the right chains.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

Lines = tuple[tuple[str, int], ...]  # (file, line), leaf first

_SECTION = re.compile(r"^//-+ (\S+)\s+-+$")
_PLACE = re.compile(r'^\t//## File "(.*?)", line (\d+)(?: inlined at ".*", line \d+)?$')
_CONTINUES = re.compile(r'inlined at ".*", line \d+$')
_INSTRUCTION = re.compile(r"^\s+/\*([0-9a-f]{4,})\*/\s+(\S.*)$")


@dataclass(frozen=True, kw_only=True)
class Instruction:
    section: str
    offset: int
    text: str
    chain: Lines


def instructions(listing: str) -> Iterator[Instruction]:
    """Yield every instruction with the chain the listing shows for it."""
    section, shown, block = "", (), []  # type: str, Lines, list[tuple[str, int]]
    for line in listing.splitlines():
        if header := _SECTION.match(line):
            section = header[1]
        elif place := _PLACE.match(line):
            block.append((place[1], int(place[2])))
            if not _CONTINUES.search(line):
                shown, block = tuple(block), []
        elif instruction := _INSTRUCTION.match(line):
            yield Instruction(section=section, offset=int(instruction[1], 16), text=instruction[2], chain=shown)


def as_nvdisasm_prints(chains: Iterable[Lines]) -> Iterator[Lines]:
    """Turn the right chains, in the listing's order, into those that nvdisasm shows."""
    shown: Lines = ()
    for chain in chains:
        if chain and chain[:1] != shown[:1]:
            shown = chain
        yield shown
