"""Write what `lines build` compiled and compared: for people in a few lines, for programs as JSON."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Literal

from vdbg_env.application.lines.build import BuiltUnit, LinesBuilt, PlacedBy
from vdbg_env.application.lines.compare import Comparison
from vdbg_env.application.lines.place import Unplaced
from vdbg_env.common.printable import printable
from vdbg_env.cuda.symbols.demangling import demangle, short_name
from vdbg_env.report.codec.document import Document, field
from vdbg_env.report.plain_text import duration

_SHOWN = 5


def lines_text(result: LinesBuilt, pack: Path | None = None) -> str:
    """Return what `lines build` prints at its end: each unit, how much of it is the stock code, and what is not."""
    compared = [unit.comparison for unit in result.built if unit.comparison]
    total = sum(c.total for c in compared)
    identical = sum(len(c.identical) for c in compared)
    lines = [
        f"wheel     {result.origin}, compiled by nvcc {result.compiler}",
        *(line for unit in result.built for line in _unit_lines(unit)),
        *(f"not built {_where(left)}: {left.reason}" for left in result.unplaced[:_SHOWN]),
    ]
    if len(result.unplaced) > _SHOWN:
        lines.append(f"          and {len(result.unplaced) - _SHOWN} more units")
    if compared:
        lines.append(f"identical {identical:,} of {total:,} functions have the stock wheel's very instructions")
    lines += [f"note      {note}" for note in result.tree.notes if identical < total]
    if pack:
        lines.append(f"pack      {pack}")
    return "\n".join([*lines, ""])


class Renamed(Document, of=tuple[str, str]):
    """A function whose name in the build differs by the hash of its source's path."""

    stock: str = field(lambda pair, _: pair[0])
    built: str = field(lambda pair, _: pair[1])


class Compared(Document, of=Comparison):
    """How much of a stock cubin the build reproduced, by mangled names."""

    total: int
    identical: list[str]
    differing: list[str]
    missing: list[str]
    renamed: list[Renamed]


class UnitJson(Document, of=BuiltUnit):
    """One cubin compiled again; `comparison` is null where it did not compile, `error` then says why."""

    library: str = field("choice.library.extension")
    number: int = field("choice.unit.number")
    target: str = field("choice.target")
    source: str
    asked_for: list[str] = field("choice.kernels")
    cached: bool = field("compiled.cached")
    duration_s: float = field(lambda unit, _: round(unit.compiled.duration_s, 3))
    comparison: Compared | None
    placed_by: PlacedBy = field(doc="how its source was found; the comparison says whether it is the right one")
    error: str | None = field(lambda unit, _: unit.compiled.output or None)


class UnplacedJson(Document, of=Unplaced):
    """A cubin of the wheel that could not be compiled, and why."""

    library: str = field("choice.library.extension")
    number: int = field("choice.unit.number")
    target: str = field("choice.target")
    asked_for: list[str] = field("choice.kernels")
    reason: str


class LinesDocument(Document, of=LinesBuilt):
    """What `lines build` did. Fields are only ever added."""

    schema: Literal["vdbg-env/lines-build/v1"]
    project: str = field("release.project")
    version: str = field("release.version")
    wheel: str = field("origin")
    compiler: str
    units: list[UnitJson] = field("built")
    unplaced: list[UnplacedJson]
    notes: list[str] = field("tree.notes")
    pack: str | None = field(lambda _, pack: str(pack) if pack else None)


def _unit_lines(unit: BuiltUnit) -> Iterator[str]:
    source = Path(unit.source).name
    took = "compiled earlier" if unit.compiled.cached else f"compiled in {duration(unit.compiled.duration_s)}"
    found_by = ", found by the names of its kernels" if unit.placed_by == "kernel names" else ""
    head = f"{unit.choice.library.extension} {unit.choice.target}: {source}{found_by}, {took}"
    found = unit.comparison
    if found is None:
        yield f"failed    {head}"
        yield from (f"          | {printable(line)}" for line in unit.compiled.output.splitlines()[-_SHOWN:])
        return
    yield f"unit      {head}; {len(found.identical)} of {found.total} functions identical"
    for kernel in unit.choice.kernels:
        yield f"kernel    {short_name(demangle(kernel))}: {_verdict(kernel, found)}"
    for word, names in (("differs", found.differing), ("missing", found.missing)):
        yield from (
            f"{word:9} {short_name(demangle(name))}" for name in names[:_SHOWN] if name not in unit.choice.kernels
        )
        if len(names) > _SHOWN:
            yield f"          and {len(names) - _SHOWN} more"


def _verdict(kernel: str, found: Comparison) -> str:
    if kernel in found.identical:
        return "identical code, its lines are the stock wheel's"
    return "other instructions: its lines are another build's" if kernel in found.differing else "not in the build"


def _where(left: Unplaced) -> str:
    return f"{left.choice.library.extension} unit {left.choice.unit.number} for {left.choice.target}"
