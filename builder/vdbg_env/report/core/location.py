"""Writes what `vdbg-env locate` found: one place with its chain, or all of them when a name means several."""

from __future__ import annotations

import json
from collections.abc import Iterator

from vdbg_env.application.analysis.locate import Located, LocateReport
from vdbg_env.application.analysis.source_lines import SourceLines
from vdbg_env.cuda.symbols.demangling import short_name
from vdbg_env.report.core.source_chain import Json, chain_json, chain_lines, function_json, kernel_json
from vdbg_env.report.plain_text import printable

SCHEMA = "vdbg-env/locate/v1"
_MOST_SHOWN = 10


def render(report: LocateReport) -> str:
    """Return the report as text."""
    return "\n".join(_lines(report)) + "\n"


def render_json(report: LocateReport) -> str:
    """Return the report as JSON, schema `vdbg-env/locate/v1`: the first place on top, all of them in `candidates`."""
    document: dict[str, Json] = {
        "schema": SCHEMA,
        **_located(report.candidates[0], report.sources),
        "ambiguous": report.ambiguous,
        "candidates": [_located(candidate, report.sources) for candidate in report.candidates],
        "notes": list(report.notes),
    }
    return json.dumps(document, indent=2, ensure_ascii=False) + "\n"


def _lines(report: LocateReport) -> Iterator[str]:
    distinct = report.distinct
    if report.ambiguous:
        asked = printable(report.query.name or hex(report.query.value))
        yield f"{asked} means {len(distinct)} different places; --arch or the whole mangled name tells them apart:"
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


def _located(candidate: Located, sources: SourceLines) -> dict[str, Json]:
    location = candidate.location
    return {
        "file": candidate.file,
        "cubin": candidate.cubin or None,
        "arch": candidate.arch or None,
        "pc": None if candidate.pc is None else f"{candidate.pc:#x}",
        "kernel": kernel_json(location.kernel.name if location.kernel else None),
        "function": function_json(location.function),
        "offset": f"{location.offset:#x}",
        "function_offset": f"{location.function_offset:#x}",
        "chain": chain_json(location.chain, sources),
        "other_chains": [chain_json(chain, sources) for chain in location.siblings],
        "ptx_line": location.ptx_line,
    }
