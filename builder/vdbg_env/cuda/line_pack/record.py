"""The line table of one function, apart from its code: a tree of inlined places, and which instructions are at which.

The rows of `.debug_line` repeat the callers of an inlined place whenever they return to it. Here each place is listed
once: a function of 100,000 rows has a few thousand.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from vdbg_env.cuda.binary.kernel_info import ParameterPlace
from vdbg_env.cuda.line_pack.patched_fields import PatchedField
from vdbg_env.cuda.lines.source_frame import Chain, SourceFrame
from vdbg_env.cuda.symbols.demangling import demangle

NAME_OF_FUNCTION: Final = 0
NAME_UNKNOWN: Final = 1
FIRST_NAME: Final = 2

_MOST_SIBLINGS: Final = 8
_DEEPEST_CHAIN: Final = 4096


@dataclass(frozen=True, kw_only=True, slots=True)
class InnerFunction:
    """A function that the compiler put inside another; `start` counts from the outer one's start."""

    name: str
    start: int
    size: int


@dataclass(frozen=True, kw_only=True, slots=True)
class InlineTree:
    """The source places of a function's instructions, in columns.

    `parents` are 1-based numbers of earlier places, those of the call; 0 for a place that is not inlined. `files` are
    numbers of `strings`; `names` are NAME_OF_FUNCTION, NAME_UNKNOWN, or a number of `strings` plus FIRST_NAME.
    """

    parents: array[int]
    files: array[int]
    lines: array[int]
    names: array[int]
    strings: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.parents)


@dataclass(frozen=True, kw_only=True, slots=True)
class LineRecord:
    """One function of one build: what it is, and the lines of its instructions.

    `starts` are offsets in bytes from the function's start, ascending; from each on, up to the next, the instructions
    are at the 1-based place of the same number in `places`, or have no line where that is 0. `sources` are the digests
    of the binaries that it was packed from, `archs` the architectures that have the same code and lines. `name` is
    mangled.
    """

    name: str
    archs: tuple[str, ...]
    kernel: bool
    size: int
    hash: bytes
    fields: tuple[PatchedField, ...]
    inner: tuple[InnerFunction, ...]
    parameters: tuple[ParameterPlace, ...]
    tree: InlineTree
    starts: array[int]
    places: array[int]
    sources: tuple[str, ...]

    def function_at(self, offset: int) -> str:
        """Return the mangled name of the innermost function at an offset."""
        around = [f for f in self.inner if f.start <= offset < f.start + f.size]
        return min(around, key=lambda f: f.size).name if around else self.name

    def chain(self, offset: int) -> Chain:
        """Return the source frames of an instruction, leaf first; empty when no row covers it."""
        place = self._place(offset)
        return self._walk(place, demangle(self.function_at(offset))) if place else ()

    def siblings(self, offset: int) -> tuple[Chain, ...]:
        """Return the other chains of the function that end in the same leaf line, at most eight."""
        tree, place = self.tree, self._place(offset)
        if not place:
            return ()
        function = demangle(self.function_at(offset))
        leaf = self._leaf(place)
        own = self._walk(place, function)
        found: dict[Chain, None] = {}
        for other in range(1, len(tree) + 1):
            if tree.names[other - 1] != NAME_OF_FUNCTION and self._leaf(other) == leaf:
                chain = self._walk(other, function)
                if chain != own:
                    found[chain] = None
                if len(found) == _MOST_SIBLINGS:
                    break
        return tuple(found)

    @property
    def covered(self) -> int:
        """How many bytes of the function have a line."""
        ends = [*self.starts[1:], self.size]
        return sum(end - start for start, end, place in zip(self.starts, ends, self.places, strict=True) if place)

    def _leaf(self, place: int) -> tuple[int, int, int]:
        tree = self.tree
        return tree.files[place - 1], tree.lines[place - 1], tree.names[place - 1]

    def _place(self, offset: int) -> int:
        if not 0 <= offset < self.size:
            return 0
        at = bisect_right(self.starts, offset) - 1
        return self.places[at] if at >= 0 else 0

    def _walk(self, place: int, function: str) -> Chain:
        return tuple(self._frames(place, function))

    def _frames(self, place: int, function: str) -> Iterator[SourceFrame]:
        tree = self.tree
        for _ in range(_DEEPEST_CHAIN):
            file, line, name = self._leaf(place)
            named = function if name == NAME_OF_FUNCTION else None
            if name >= FIRST_NAME:
                named = demangle(tree.strings[name - FIRST_NAME])
            yield SourceFrame(function=named, file=tree.strings[file], line=line)
            place = tree.parents[place - 1]
            if not place:
                return
