"""A place in source code, and the inline chain made of such places."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class SourceFrame:
    """One level of an inline chain: the function (demangled, None when unknown), its file and 1-based line."""

    function: str | None
    file: str
    line: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line}" + (f" in {self.function}" if self.function else "")


Chain = tuple[SourceFrame, ...]
"""Leaf first: each frame was inlined at (or called from) the one after it."""


@dataclass(frozen=True, kw_only=True)
class BorrowedLines:
    """Lines of code that has none itself, by the line table of a build with identical code.

    `build` names that build, `pack` the line pack that has it. `others` are the chains of further builds that agree on
    the code and disagree on its lines, each with its build. `siblings` are as those of `Location`.
    """

    build: str
    pack: str
    chain: Chain
    siblings: tuple[Chain, ...] = ()
    others: tuple[tuple[str, Chain], ...] = ()

    how_known = "line table of a build with identical code"


@dataclass(frozen=True, kw_only=True)
class LinesByName:
    """Lines of a place that a log names by function and offset: those of a build whose code was not compared.

    `function` is mangled, `archs` are the architectures that the build has this code for.
    """

    function: str
    offset: int
    archs: tuple[str, ...]
    build: str
    pack: str
    chain: Chain

    how_known = "line table of a build, by name and offset alone: the code that ran was not compared"
