"""List the dumps of a place, remove those that retention names, copy them elsewhere, and show it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any, Protocol, assert_never

from vdbg_env.common.console import json_text, printable, size_text
from vdbg_env.common.errors import BadInput
from vdbg_env.record.dump_files import Dump, Exported, Removal, Retention, age_text, retire


class DumpStore(Protocol):
    """A place where dumps outlive the container that wrote them: a folder, or a named volume."""

    @property
    def name(self) -> str:
        """The place as a user would name it."""
        ...

    def list(self) -> tuple[Dump, ...]:
        """Return every file, each with its kind by its first bytes; none where the place is empty or missing.

        Raises BadInput when it cannot be read.
        """
        ...

    def is_ours(self) -> bool:
        """Return whether we made this place for dumps, or a person said that it is one (`adopt`)."""
        ...

    def adopt(self) -> None:
        """Mark the place as one whose dumps may be removed; raises BadInput when it cannot be written."""
        ...

    def remove(self, dumps: Sequence[Dump]) -> None:
        """Remove these files, and nothing outside of the place; one that is gone already is no error.

        Raises BadInput, when all others are removed, where one is not the file that was listed.
        """
        ...

    def read(self, path: str) -> AbstractContextManager[Iterator[bytes]]:
        """Yield a file's bytes in pieces; raises BadInput when it is not there."""
        ...


class DumpDestination(Protocol):
    """A folder or a tar that dumps are copied to."""

    @property
    def name(self) -> str:
        """The place as a user would name it."""
        ...

    def write(self, dumps: Sequence[Dump], store: DumpStore, tell: Callable[[str], None]) -> tuple[Exported, ...]:
        """Copy the dumps, whole or not at all; raises BadInput when the place exists or cannot be written."""
        ...


@dataclass(frozen=True, kw_only=True)
class PruneRequest:
    """What to keep, and whether to remove the rest or only to list it.

    With `adopt`, a place that we did not make is from now on one whose dumps may be removed.
    """

    retention: Retention
    remove: bool = False
    adopt: bool = False


@dataclass(frozen=True, kw_only=True)
class DumpList:
    """Everything a place holds, newest first; `now` is the time of the look, in seconds since the epoch."""

    place: str
    now: float
    dumps: tuple[Dump, ...]

    @property
    def unreadable(self) -> tuple[Dump, ...]:
        """What cannot be read, and may be a dump."""
        return _unreadable(self.dumps)


@dataclass(frozen=True, kw_only=True)
class Prune:
    """What retention removes from a place; `removed` is False for a mere look; `unreadable` is left where it is."""

    place: str
    removed: bool
    removals: tuple[Removal, ...]
    unreadable: tuple[Dump, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Export:
    """What was copied from a place to a folder or tar."""

    place: str
    target: str
    files: tuple[Exported, ...]


def list_dumps(store: DumpStore, *, now: float) -> DumpList:
    """Return everything the place holds, newest first; `now` is in seconds since the epoch."""
    dumps = sorted(store.list(), key=lambda dump: (-dump.modified, dump.path))
    return DumpList(place=store.name, now=now, dumps=tuple(dumps))


def prune_dumps(request: PruneRequest, store: DumpStore, *, now: float) -> Prune:
    """Decide what to remove and remove it if asked to.

    Raises BadInput when no rule was given, or the place is neither ours nor adopted.
    """
    if request.retention == Retention():
        raise BadInput(
            "nothing says what to keep", next_step="vdbg-env dumps prune --keep 5, --older-than 7d or --max-size 50g"
        )
    held = store.list()
    removals = retire(held, request.retention, now=now)
    if request.remove and not store.is_ours():
        if not request.adopt:
            raise BadInput(
                f"{store.name} was not made by vdbg-env, so nothing in it is removed",
                cause="other programs may keep cores there too",
                next_step="look at what would go, without --yes; then the same with --adopt, which is needed once",
            )
        store.adopt()
    if request.remove:
        store.remove([removal.dump for removal in removals])
    return Prune(place=store.name, removed=request.remove, removals=removals, unreadable=_unreadable(held))


def _unreadable(dumps: Iterable[Dump]) -> tuple[Dump, ...]:
    return tuple(dump for dump in dumps if dump.kind == "unreadable")


def export_dumps(
    store: DumpStore, target: DumpDestination, names: Sequence[str], tell: Callable[[str], None]
) -> Export:
    """Copy dumps to a target, whole or not at all; `tell` gets the name of each.

    `names` picks files; without any, every dump is taken. Raises BadInput when there is nothing to take, when a name
    is not there, and when `target` cannot be written or exists already.
    """
    files = target.write(_chosen(store, names), store, tell)
    return Export(place=store.name, target=target.name, files=files)


def _chosen(store: DumpStore, names: Sequence[str]) -> list[Dump]:
    held = {dump.path: dump for dump in store.list()}
    if missing := [name for name in names if name not in held]:
        raise BadInput(f"{store.name} has no {missing[0]}", next_step="vdbg-env dumps list")
    chosen = [held[name] for name in names] if names else [d for d in held.values() if d.kind != "other"]
    if not chosen:
        raise BadInput(f"{store.name} holds no dump", next_step="vdbg-env dumps list shows all there is")
    return chosen


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


def _table(head: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> Iterator[str]:
    widths = [max(len(row[n]) for row in [head, *rows]) for n in range(len(head))]
    for row in [head, *rows]:
        first, *others, last = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        yield "  ".join([first.strip().rjust(widths[0]), *others, last.rstrip()])


def _count(things: Sequence[object], name: str) -> str:
    return f"{len(things)} {name}{'' if len(things) == 1 else 's'}"


# JSON: docs/schemas/dumps-v1.schema.json is the contract and says what each field means.


def dumps_json(found: DumpList | Prune | Export) -> str:
    """Return any of the three as JSON: sizes in bytes, times in UTC."""
    document: dict[str, Any] = {"schema": "vdbg-env/dumps/v1", "place": found.place}
    match found:
        case DumpList(dumps=dumps):
            document |= {"bytes": sum(dump.size for dump in dumps), "dumps": [_dump_json(dump) for dump in dumps]}
        case Prune(removed=removed, removals=removals):
            document |= {"removed": removed, "bytes": sum(one.dump.size for one in removals)}
            document["dumps"] = [{**_dump_json(one.dump), "why": one.why} for one in removals]
        case Export(target=target, files=files):
            document |= {"target": target, "bytes": sum(file.size for file in files)}
            document["files"] = [asdict(file) for file in files]
        case never:
            assert_never(never)
    return json_text(document)


def _dump_json(dump: Dump) -> dict[str, Any]:
    modified = datetime.fromtimestamp(dump.modified, UTC).isoformat(timespec="seconds")
    return {"path": dump.path, "size": dump.size, "modified": modified, "kind": dump.kind, "problem": dump.problem}
