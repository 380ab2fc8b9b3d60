"""Writes what a dump volume holds, what was removed from it and what was carried away: as text and as JSON."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any

from vdbg_env.application.host.stored_dumps import DumpList, Export, Prune
from vdbg_env.record.dumps import Dump, age_text, size_text

SCHEMA = "vdbg-env/dumps/v1"


def list_text(found: DumpList) -> str:
    """Return a table of what a place holds, and the sums a quota is held against."""
    if not found.dumps:
        return f"{found.place} holds nothing\n"
    rows = [(size_text(d.size), age_text(found.now - d.modified), d.kind, _one_line(d.path)) for d in found.dumps]
    dumps = [d for d in found.dumps if d.kind != "other"]
    total, held = size_text(sum(d.size for d in found.dumps)), size_text(sum(d.size for d in dumps))
    lines = _table(("SIZE", "AGE", "KIND", "FILE"), rows)
    return "\n".join(
        [*lines, f"{found.place}: {_count(found.dumps, 'file')}, {total}; {_count(dumps, 'dump')}, {held}", ""]
    )


def prune_text(found: Prune) -> str:
    """Return what goes and why, and how to make it so."""
    if not found.removals:
        return f"{found.place}: nothing to remove\n"
    rows = [(size_text(r.dump.size), r.why, _one_line(r.dump.path)) for r in found.removals]
    freed = size_text(sum(r.dump.size for r in found.removals))
    verb = "removed" if found.removed else "would remove"
    lines = [*_table(("SIZE", "WHY", "FILE"), rows), f"{found.place}: {verb} {_count(rows, 'dump')}, {freed}"]
    if not found.removed:
        lines.append("nothing was removed yet: the same command with --yes does it")
    return "\n".join([*lines, ""])


def export_text(found: Export) -> str:
    """Return what was copied, in the form sha256sum --check reads, and where to."""
    lines = [f"{file.sha256}  {_one_line(file.path)}" for file in found.files]
    total = size_text(sum(file.size for file in found.files))
    return "\n".join([*lines, f"{found.target}: {_count(found.files, 'dump')}, {total}, from {found.place}", ""])


def as_json(found: DumpList | Prune | Export) -> str:
    """Return any of the three as JSON: sizes in bytes, times in UTC."""
    body: dict[str, Any] = {"schema": SCHEMA, "place": found.place}
    match found:
        case DumpList():
            body |= {"bytes": sum(d.size for d in found.dumps), "dumps": [_dump(d) for d in found.dumps]}
        case Prune():
            body |= {
                "removed": found.removed,
                "bytes": sum(r.dump.size for r in found.removals),
                "dumps": [{**_dump(r.dump), "why": r.why} for r in found.removals],
            }
        case Export():
            body |= {
                "target": found.target,
                "bytes": sum(file.size for file in found.files),
                "files": [asdict(file) for file in found.files],
            }
    return json.dumps(body, indent=2) + "\n"


def _dump(dump: Dump) -> dict[str, Any]:
    return {**asdict(dump), "modified": datetime.fromtimestamp(dump.modified, UTC).isoformat(timespec="seconds")}


def _table(head: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> Iterator[str]:
    widths = [max(len(row[n]) for row in [head, *rows]) for n in range(len(head))]
    for row in [head, *rows]:
        first, *others, last = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        yield "  ".join([first.strip().rjust(widths[0]), *others, last.rstrip()])


def _count(things: Sequence[object], name: str) -> str:
    return f"{len(things)} {name}{'' if len(things) == 1 else 's'}"


def _one_line(path: str) -> str:
    return "".join(c if c.isprintable() else c.encode("unicode_escape", "surrogateescape").decode() for c in path)
