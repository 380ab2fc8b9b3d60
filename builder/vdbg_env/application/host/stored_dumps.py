"""What `dumps` does: list the dumps of a place, remove those that retention names, and copy them elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from vdbg_env.application.ports.core_dumps import DumpDestination, DumpStore
from vdbg_env.common.errors import BadInput
from vdbg_env.record.dump_files import Dump, Exported, Removal, Retention, retire


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
