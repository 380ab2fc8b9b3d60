"""Write what a dump volume holds, what was removed from it and what was carried away: as text and as JSON."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import Literal, assert_never

from vdbg_env.application.host.stored_dumps import DumpList, Export, Prune
from vdbg_env.common.printable import printable
from vdbg_env.common.size import size_text
from vdbg_env.record.dump_files import Dump, DumpKind, Exported, Removal, age_text
from vdbg_env.report.codec import document as doc
from vdbg_env.report.codec.document import Document, field


def list_text(found: DumpList) -> str:
    """Return a table of the dumps of a place, and the sums that a quota limits; other files are counted."""
    if not found.dumps:
        return f"{found.place} holds nothing\n"
    dumps = [d for d in found.dumps if d.kind not in {"other", "unreadable"}]
    others = [d for d in found.dumps if d.kind == "other"]
    rows = [(size_text(d.size), age_text(found.now - d.modified), d.kind, printable(d.path)) for d in dumps]
    lines = _table(("SIZE", "AGE", "KIND", "FILE"), rows) if rows else []
    sums = f"{found.place}: {_count(dumps, 'dump')}, {_sum(dumps)}"
    return "\n".join(
        [*lines, sums + (f"; {_count(others, 'other file')}, {_sum(others)} (--json)" if others else ""), ""]
    )


def _sum(dumps: Sequence[Dump]) -> str:
    return size_text(sum(dump.size for dump in dumps))


def prune_text(found: Prune) -> str:
    """Return what goes and why, and how to make it so."""
    if not found.removals:
        return f"{found.place}: nothing to remove\n"
    rows = [(size_text(r.dump.size), r.why, printable(r.dump.path)) for r in found.removals]
    freed = size_text(sum(r.dump.size for r in found.removals))
    verb = "removed" if found.removed else "would remove"
    lines = [*_table(("SIZE", "WHY", "FILE"), rows), f"{found.place}: {verb} {_count(rows, 'dump')}, {freed}"]
    if not found.removed:
        lines.append("nothing was removed yet: the same command with --yes does it")
    return "\n".join([*lines, ""])


def export_text(found: Export) -> str:
    """Return what was copied, in the form sha256sum --check reads, and where to."""
    lines = [f"{file.sha256}  {printable(file.path)}" for file in found.files]
    total = size_text(sum(file.size for file in found.files))
    return "\n".join([*lines, f"{found.target}: {_count(found.files, 'dump')}, {total}, from {found.place}", ""])


class DumpDocument(Document, of=Dump):
    """One file of the place: its size in bytes, its time in UTC."""

    path: str
    size: int
    modified: str = field(lambda dump, _: datetime.fromtimestamp(dump.modified, UTC).isoformat(timespec="seconds"))
    kind: DumpKind
    problem: str


class RemovalDocument(Document, of=Removal):
    """A dump that retention removes, and the rule that says so."""

    dump: DumpDocument = field(inline=True)
    why: str


class ListDocument(Document, of=DumpList):
    """Everything that a place holds, newest first. Fields are only ever added."""

    schema: Literal["vdbg-env/dumps/v1"]
    place: str
    bytes: int = field(lambda found, _: sum(dump.size for dump in found.dumps))
    dumps: list[DumpDocument]


class PruneDocument(Document, of=Prune):
    """What retention removes from a place; `removed` is false while it was only looked at."""

    schema: Literal["vdbg-env/dumps/v1"]
    place: str
    removed: bool
    bytes: int = field(lambda found, _: sum(removal.dump.size for removal in found.removals))
    dumps: list[RemovalDocument] = field("removals")


class ExportDocument(Document, of=Export):
    """What was copied from a place to a folder or a tar."""

    schema: Literal["vdbg-env/dumps/v1"]
    place: str
    target: str
    bytes: int = field(lambda found, _: sum(file.size for file in found.files))
    files: list[Exported]


def as_json(found: DumpList | Prune | Export) -> str:
    """Return any of the three as JSON: sizes in bytes, times in UTC."""
    match found:
        case DumpList():
            return doc.render(found, ListDocument)
        case Prune():
            return doc.render(found, PruneDocument)
        case Export():
            return doc.render(found, ExportDocument)
    assert_never(found)


def _table(head: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> Iterator[str]:
    widths = [max(len(row[n]) for row in [head, *rows]) for n in range(len(head))]
    for row in [head, *rows]:
        first, *others, last = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        yield "  ".join([first.strip().rjust(widths[0]), *others, last.rstrip()])


def _count(things: Sequence[object], name: str) -> str:
    return f"{len(things)} {name}{'' if len(things) == 1 else 's'}"
