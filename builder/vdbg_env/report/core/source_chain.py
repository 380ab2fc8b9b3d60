"""Write an inline chain for people, with the source text where it was found."""

from __future__ import annotations

from collections.abc import Iterator

from gpucore.dwarf import BorrowedLines, Chain
from gpucore.mangling import short_name
from vdbg_env.application.analysis.source_lines import SourceLines
from vdbg_env.common.printable import printable


def chain_lines(chain: Chain, sources: SourceLines, *, indent: str = "    ") -> Iterator[str]:
    """Yield a numbered line for each frame, leaf first, each followed by its source text where that was found."""
    names = [short_name(frame.function) if frame.function else "?" for frame in chain]
    width = min(max((len(name) for name in names), default=0), 48)
    for number, (frame, name) in enumerate(zip(chain, names, strict=True)):
        yield f"{indent}#{number:<2} {printable(name):{width}}  {printable(f'{frame.file}:{frame.line}{frame.mark}')}"
        text = sources.get((frame.file, frame.line))
        if text and text.strip():
            yield f"{indent}      {printable(text.strip())}"


def borrowed_lines(borrowed: BorrowedLines | None, *, indent: str = "    ") -> Iterator[str]:
    """Yield where a chain is from when the code has no line info itself, and what other builds say instead."""
    if borrowed is None:
        return
    yield f"{indent}by the {borrowed.how_known}: {printable(borrowed.build)} ({printable(borrowed.pack)})"
    for build, chain in borrowed.others:
        yield f"{indent}another build with identical code has other lines: {printable(build)}"
        yield from chain_lines(chain, {}, indent=f"{indent}  ")


def place_text(chain: Chain) -> str | None:
    """Return the leaf of a chain as `file:line`, marked where it is of other headers; None without one."""
    return f"{chain[0].file}:{chain[0].line}{chain[0].mark}" if chain else None
