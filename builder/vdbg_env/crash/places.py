"""Places in device code with their inline chains, for people and for programs: shared by core, locate and triage."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from gpucore.code_map import Location
from gpucore.dwarf import BorrowedLines, Chain, OtherHeaders
from gpucore.mangling import demangle, short_name
from vdbg_env.common.console import counted, printable
from vdbg_env.crash.files import SourceText

if TYPE_CHECKING:
    from vdbg_env.crash.why import AddressWhy

SourceLines = Mapping[tuple[str, int], str]
"""The text of source lines by (file, 1-based line), those that were found."""


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
    """Return the source line of a place as `file:line`, marked where it is of other headers; empty without one."""
    if location is None or not location.chain:
        return ""
    frame = location.chain[0]
    return f"{frame.file}:{frame.line}{frame.mark}"


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
        "other_chains": [chain_json(other, sources) for other in siblings],
        "ptx_line": location and location.ptx_line,
        "lines_from": lines_from_json(location, sources),
    }


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
