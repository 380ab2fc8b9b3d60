"""A folder that a web server hands out: immutable packs by their sha256, a list of them, and an index by keys."""

from __future__ import annotations

import fcntl
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from gpucore.errors import UnreadableBinary
from gpucore.line_packs import LinePack
from vdbg_env.adapters.lines import key_shards
from vdbg_env.application.ports.files import CarriedPack
from vdbg_env.common.errors import BadInput
from vdbg_env.crash.line_packs import SUFFIX, write_whole

LIST: Final = "packs.json"
PACKS: Final = "packs"
KEYS: Final = "keys"


class PublishedFolder:
    """A PackTarget over such a folder; a pack that is there already stays as it is."""

    def __init__(self, folder: Path) -> None:
        self._folder: Final = folder

    def put(self, packs: Sequence[CarriedPack]) -> tuple[str, ...]:
        """Add packs and return their paths; two that do so at once wait for each other.

        Raises BadInput when the folder cannot be written, and UnreadableBinary when its index is damaged.
        """
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            with (self._folder / ".lock").open("w") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX)
                return tuple(self._add(pack) for pack in packs)
        except OSError as error:
            raise BadInput(f"{self._folder} cannot be written: {error.strerror or error}") from error

    def _add(self, pack: CarriedPack) -> str:
        path = self._folder / PACKS / f"{pack.digest}{SUFFIX}"
        if not path.exists():
            write_whole(path, pack.data)
        for name, rows in key_shards.shards(key_shards.keys_of(LinePack(pack.data)), pack.digest).items():
            shard = self._folder / KEYS / name
            known = key_shards.load(shard.read_bytes()) if shard.exists() else set()
            if not rows <= known:
                write_whole(shard, key_shards.dump(known | rows))
        self._list(pack)
        return str(path)

    def _list(self, pack: CarriedPack) -> None:
        path = self._folder / LIST
        listed = read_list(path.read_bytes()) if path.exists() else {}
        entry = {"size": len(pack.data), "functions": pack.functions, "builds": pack.builds}
        if listed.get(pack.digest) != entry:
            write_whole(path, json.dumps({**listed, pack.digest: entry}, indent=1, sort_keys=True).encode())


def read_list(data: bytes) -> dict[str, dict[str, object]]:
    """Return the entries of a list of packs, by sha256; raises UnreadableBinary when it is something else."""
    try:
        found = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise UnreadableBinary(f"the list of line packs is damaged: {error}") from error
    if not isinstance(found, dict) or not all(isinstance(entry, dict) for entry in found.values()):
        raise UnreadableBinary("the list of line packs is something else")
    return found
