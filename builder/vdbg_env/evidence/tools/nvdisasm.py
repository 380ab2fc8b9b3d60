"""Read nvdisasm's listing (`nvdisasm -ndf -c -gi`): the instruction at an address, and the chain printed above it.

The instruction text is what the listing is for. Its chain can be that of another caller: a new block is printed only
when the *leaf's* line changes (see `cuda.line_table`), so a chain read here is a second opinion, not an answer.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

_PLACE = re.compile(r'\s*//## File "(?P<file>.*?)", line (?P<line>\d+)(?P<inlined> inlined at )?')
_INSTRUCTION = re.compile(r"\s*/\*(?P<address>[0-9a-f]{4,16})\*/\s+(?P<text>\S.*?)\s*;")
_SECTION = re.compile(r"//-+ \.text\.(?P<name>\S+)\s+-+")


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
        elif found := _SECTION.match(line):
            section = found["name"]
        elif instruction := _INSTRUCTION.match(line):
            yield Instruction(
                section=section, address=int(instruction["address"], 16), text=instruction["text"], chain=chain
            )
