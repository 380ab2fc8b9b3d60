"""Carry packs: merge several, put them into a store, get them from one, and remove what is not used."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass

from vdbg_env.application.line_packs.inspect import PackSummary, summarize
from vdbg_env.application.ports.files import CarriedPack, LineStore, PackFile, PackShelf, PackTarget
from vdbg_env.common.errors import BadInput, UnreadableBinary
from vdbg_env.cuda.line_pack.merge import merge
from vdbg_env.cuda.line_pack.reader import LinePack


@dataclass(frozen=True, kw_only=True)
class Removed:
    """A pack that was removed, or would be."""

    path: str
    size: int


def merged(stores: Iterable[LineStore]) -> tuple[bytes, PackSummary]:
    """Return one pack of all packs of some stores; raises UnreadableBinary when one is damaged."""
    data = merge(LinePack(file.data) for store in stores for file in store.packs())
    return data, summarize(PackFile(name="", data=data))


def push(stores: Iterable[LineStore], target: PackTarget) -> tuple[str, ...]:
    """Put the packs of some stores into a target, each read to its end before; raises as both ports."""
    packs = [_sound(file) for store in stores for file in store.packs()]
    if not packs:
        raise BadInput("no line pack in what was given")
    return target.put(packs)


def pull(store: LineStore, shelf: PackShelf) -> tuple[str, ...]:
    """Get every pack of a store, read each to its end, keep it, and return the paths; raises as both ports."""
    packs = [_sound(file) for file in store.packs()]
    if not packs:
        raise BadInput(f"{store.name} has no line pack")
    return tuple(shelf.keep(pack.digest, pack.data) for pack in packs)


def prune(shelf: PackShelf, most_bytes: int, *, dry_run: bool = False) -> tuple[Removed, ...]:
    """Remove the packs that were not used for longest until the others fit into some bytes."""
    found = tuple(Removed(path=path, size=size) for path, size in shelf.beyond(most_bytes))
    for pack in found if not dry_run else ():
        shelf.remove(pack.path)
    return found


def _sound(file: PackFile) -> CarriedPack:
    found = summarize(file, check=True)
    if found.problem:
        raise UnreadableBinary(f"{file.name}: {found.problem}", next_step="get it again, or pack it again")
    digest = hashlib.sha256(file.data).hexdigest()
    return CarriedPack(digest=digest, functions=found.functions, builds=found.builds, data=file.data)
