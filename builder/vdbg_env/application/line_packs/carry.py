"""Carry packs: merge several, and put those of some stores into another place."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence

from gpucore.errors import UnreadableBinary
from gpucore.line_packs import LinePack, merge
from vdbg_env.application.line_packs.inspect import PackSummary, summarize
from vdbg_env.application.ports.files import CarriedPack, PackTarget
from vdbg_env.common.errors import BadInput
from vdbg_env.crash.line_packs import LineStore, PackFile


def merged(stores: Iterable[LineStore]) -> tuple[bytes, PackSummary]:
    """Return one pack of all packs of some stores; raises UnreadableBinary when one is damaged."""
    data = merge(LinePack(file.data) for store in stores for file in store.packs())
    return data, summarize(PackFile(name="", data=data))


def carry(stores: Sequence[LineStore], target: PackTarget) -> tuple[str, ...]:
    """Put the packs of some stores into a target, each read to its end before; raises as both ports."""
    packs = [_sound(file) for store in stores for file in store.packs()]
    if not packs:
        raise BadInput(f"{', '.join(store.name for store in stores)} has no line pack")
    return target.put(packs)


def _sound(file: PackFile) -> CarriedPack:
    found = summarize(file, check=True)
    if found.problem:
        raise UnreadableBinary(f"{file.name}: {found.problem}", next_step="get it again, or pack it again")
    digest = hashlib.sha256(file.data).hexdigest()
    return CarriedPack(digest=digest, functions=found.functions, builds=found.builds, data=file.data)
