"""What `lines build` compiled and compared: for people in a few lines, for programs as JSON."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpucore.mangling import demangle, short_name
from vdbg_env.common.console import duration, printable
from vdbg_env_lines.build import BuiltUnit, Comparison, CoreLines, HeadersShare, LinesBuilt, Unplaced
from vdbg_env_lines.units import OtherProject, project_of

_SHOWN = 5


@dataclass(frozen=True, kw_only=True)
class Written:
    """What was written of a result: the pack's path, what it gives the core that was asked for.

    `headers` are those of other releases than the wheel's that lines are of. `flag` takes a local tree.
    """

    path: Path | None = None
    core: CoreLines | None = None
    headers: tuple[HeadersShare, ...] = ()
    flag: str = "--external"


def lines_text(result: LinesBuilt, written: Written = Written()) -> str:
    """Return what `lines build` prints at its end: each unit, how much of it is the stock code, and what is not."""
    compared = [unit.comparison for unit in result.built if unit.comparison]
    total = sum(c.total for c in compared)
    identical = sum(len(c.identical) for c in compared)
    lines = [
        f"wheel     {result.origin}, compiled by nvcc {result.compiler}",
        *(line for unit in result.built for line in _unit_lines(unit, exact=not written.headers)),
        *(f"not built {_where(left)}: {left.reason}" for left in result.unplaced[:_SHOWN]),
    ]
    if len(result.unplaced) > _SHOWN:
        lines.append(f"          and {len(result.unplaced) - _SHOWN} more units")
    if compared:
        lines.append(f"identical {identical:,} of {total:,} functions have the stock wheel's very instructions")
    lines += [f"note      {note}" for note in result.tree.notes if identical < total]
    if written.path:
        lines.append(f"pack      {written.path}")
    if written.core:
        lines += _core_lines(written.core)
    for share in written.headers:
        lines += _headers_lines(share, result, written.flag)
    lines += _other_projects(result, written.flag)
    return "\n".join([*lines, ""])


# JSON: docs/schemas/lines-build-v1.schema.json is the contract and says what each field means.


def lines_json(result: LinesBuilt, written: Written = Written()) -> dict[str, Any]:
    """Return what `lines build` did as plain values."""
    core = written.core
    return {
        "schema": "vdbg-env/lines-build/v1",
        "project": result.release.project,
        "version": result.release.version,
        "wheel": result.origin,
        "compiler": result.compiler,
        "units": [_unit_json(unit) for unit in result.built],
        "unplaced": [
            {
                "library": left.choice.library.extension,
                "number": left.choice.unit.number,
                "target": left.choice.target,
                "asked_for": left.choice.kernels,
                "reason": left.reason,
            }
            for left in result.unplaced
        ],
        "notes": result.tree.notes,
        "pack": str(written.path) if written.path else None,
        "core": core
        and {
            "file": core.file,
            "places": core.places,
            "without": core.without,
            "line": str(core.shown) if core.shown else None,
        },
        "headers": [headers_json(share) for share in written.headers],
        "other_projects": [
            {
                "project": project.title,
                "revision": project.revision,
                "fetch": project.commands,
                "external": project.flag,
            }
            for project in _needed(result, written.headers)
        ],
    }


def _unit_json(unit: BuiltUnit) -> dict[str, Any]:
    found = unit.comparison
    return {
        "library": unit.choice.library.extension,
        "number": unit.choice.unit.number,
        "target": unit.choice.target,
        "source": unit.source,
        "asked_for": unit.choice.kernels,
        "cached": unit.compiled.cached,
        "duration_s": round(unit.compiled.duration_s, 3),
        "comparison": found
        and {
            "total": found.total,
            "identical": found.identical,
            "differing": found.differing,
            "missing": found.missing,
            "renamed": [{"stock": stock, "built": built} for stock, built in found.renamed],
        },
        "placed_by": unit.placed_by,
        "error": unit.compiled.output or None,
    }


def headers_json(share: HeadersShare) -> dict[str, Any]:
    """Return lines of other headers than the wheel was built with as plain values."""
    return {**vars(share.headers), "instructions": share.instructions, "total": share.of}


def _unit_lines(unit: BuiltUnit, *, exact: bool) -> Iterator[str]:
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
        yield f"kernel    {short_name(demangle(kernel))}: {_verdict(kernel, found, exact=exact)}"
    for word, names in (("differs", found.differing), ("missing", found.missing)):
        yield from (
            f"{word:9} {short_name(demangle(name))}" for name in names[:_SHOWN] if name not in unit.choice.kernels
        )
        if len(names) > _SHOWN:
            yield f"          and {len(names) - _SHOWN} more"


def _headers_lines(share: HeadersShare, result: LinesBuilt, flag: str) -> Iterator[str]:
    yield printable(f"headers   {share.instructions:,} of {share.of:,} instructions have a {share.headers}")
    for project in result.tree.projects:
        if project.title == share.headers.project:
            yield from _fetch(project, "lines of the wheel's own headers need", flag)


def _other_projects(result: LinesBuilt, flag: str) -> Iterator[str]:
    for project in _needed(result, ()):
        yield from _fetch(project, f"{project.title} is another project, which the release's CMake files clone", flag)


def _needed(result: LinesBuilt, shares: Sequence[HeadersShare]) -> tuple[OtherProject, ...]:
    """Return the projects whose exact sources would give what is missing, each once."""
    projects = result.tree.projects
    given = {headers.project for headers in result.tree.headers}
    other = (project_of(projects, left.choice.library.name) for left in result.unplaced)
    found = [project for project in other if project and project.title not in given]
    found += [one for share in shares for one in projects if one.title == share.headers.project]
    return tuple(dict.fromkeys(found))


def _fetch(project: OtherProject, why: str, flag: str) -> Iterator[str]:
    yield printable(f"fetch     {why}:")
    yield from (printable(f"          {line}") for line in project.commands)
    if project.flag:
        yield printable(f"          and the same command again with {flag} {project.flag}")


def _core_lines(core: CoreLines) -> Iterator[str]:
    if core.shown:
        yield printable(f"core      {core.file}: {core.shown}")
    for place in core.without[:_SHOWN]:
        yield printable(f"no line   {core.file}: {place}: the pack has no function of its name and instructions")
    if len(core.without) > _SHOWN:
        yield f"          and {len(core.without) - _SHOWN} more places"


def _verdict(kernel: str, found: Comparison, *, exact: bool) -> str:
    if kernel in found.identical:
        return (
            "identical code, its lines are the stock wheel's"
            if exact
            else "identical code, with lines of other headers"
        )
    return "other instructions: its lines are another build's" if kernel in found.differing else "not in the build"


def _where(left: Unplaced) -> str:
    return f"{left.choice.library.extension} unit {left.choice.unit.number} for {left.choice.target}"
