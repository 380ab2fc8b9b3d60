"""Write what `vdbg-env locate` found: one place with its chain, or all of them when a name means several."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from gpucore.mangling import short_name
from vdbg_env.application.analysis.locate import Located, LocateReport
from vdbg_env.application.analysis.source_lines import SourceLines
from vdbg_env.common.printable import printable
from vdbg_env.report.codec import document as doc
from vdbg_env.report.codec.document import Document, Hex, field
from vdbg_env.report.core.json_parts import Frame, Kernel, LinesFrom, Shown
from vdbg_env.report.core.source_chain import borrowed_lines, chain_lines

_MOST_SHOWN = 10


class Location(Document, of=Located):
    """A place that a query means."""

    file: str
    cubin: str | None = field(lambda found, _: found.cubin or None)
    arch: str | None = field(lambda found, _: found.arch or None)
    pc: Hex | None
    kernel: Kernel | None = field(lambda found, _: found.location.kernel and found.location.kernel.name)
    function: str | None = field(lambda found, _: found.location.function and found.location.function.demangled)
    offset: Hex = field("location.offset", doc="Bytes from the kernel's start.")
    function_offset: Hex = field("location.function_offset")
    chain: list[Frame] = field("location.chain")
    other_chains: list[list[Frame]] = field("location.siblings", doc="Other chains that end in the same leaf line.")
    ptx_line: int | None = field("location.ptx_line")
    lines_from: LinesFrom | None = field("location.borrowed")


class Locations(Document, of=LocateReport):
    """All places that a query means; the fields of the first are on top.

    Fields are only ever added. Addresses and offsets are hex strings.
    """

    schema: Literal["vdbg-env/locate/v1"]
    first: Location = field(lambda report, _: report.candidates[0], inline=True)
    ambiguous: bool
    candidates: list[Location]
    notes: list[str]


def render(report: LocateReport) -> str:
    """Return the report as text."""
    return "\n".join(_lines(report)) + "\n"


def render_json(report: LocateReport) -> str:
    """Return the report as JSON, schema `vdbg-env/locate/v1`: the first place on top, all of them in `candidates`."""
    return doc.render(report, Locations, Shown(sources=report.sources))


def _lines(report: LocateReport) -> Iterator[str]:
    distinct = report.distinct
    if report.ambiguous:
        asked = printable(report.query.name or hex(report.query.value))
        yield f"{asked} means {len(distinct)} different places; --arch or the whole mangled name selects one:"
        yield ""
    for number, candidate in enumerate(distinct[:_MOST_SHOWN]):
        if number:
            yield ""
        yield from _place(candidate, report.sources)
    if len(distinct) > _MOST_SHOWN:
        yield f"\nand {len(distinct) - _MOST_SHOWN} more (--json lists all of them)"
    same = len(report.candidates) - len(distinct)
    if same:
        yield f"({same} more cubin(s) hold the same code with the same lines)"
    yield from (f"note: {printable(note)}" for note in report.notes)


def _place(candidate: Located, sources: SourceLines) -> Iterator[str]:
    location = candidate.location
    inner = location.function
    name = short_name(inner.demangled) if inner else "no function"
    pc = f", PC {candidate.pc:#x}" if candidate.pc is not None else ""
    yield printable(f"{name}+{location.function_offset:#x}{pc}")
    if location.kernel:
        within = f" (+{location.offset:#x} in it)" if inner != location.kernel else ""
        yield printable(f"  kernel  {location.kernel.demangled}{within}")
    if candidate.arch or candidate.cubin:
        cubin = f" {candidate.cubin}" if candidate.cubin else ""
        yield printable(f"  in      {candidate.file}, {candidate.arch}{cubin}")
    if location.chain:
        yield from chain_lines(location.chain, sources, indent="  ")
    else:
        yield "  no line info for this place"
    if location.ptx_line:
        yield f"  PTX line {location.ptx_line}"
    if location.siblings:
        yield (
            f"  line {location.chain[0].line} is inlined here by {len(location.siblings)} other path(s) too; "
            "the assembler may have noted a neighbour's callers"
        )
    yield from borrowed_lines(location.borrowed, indent="  ")
