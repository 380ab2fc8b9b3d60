"""Packs on this machine, by their sha256: what was pulled, and what was fetched."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from vdbg_env.adapters.lines.cache import least_used
from vdbg_env.application.ports.files import CarriedPack
from vdbg_env.common.errors import BadInput
from vdbg_env.crash.line_packs import SUFFIX, write_whole


class Shelf:
    """A PackTarget over a folder of this machine; packs that are there already stay."""

    def __init__(self, folder: Path) -> None:
        self._folder: Final = folder

    def put(self, packs: Sequence[CarriedPack]) -> tuple[str, ...]:
        """Write packs and return their paths; raises BadInput when that is not possible."""
        paths = {self._folder / f"{pack.digest}{SUFFIX}": pack.data for pack in packs}
        for path, data in paths.items():
            if not path.exists():
                write_whole(path, data)
        return tuple(map(str, paths))

    def prune(self, most_bytes: int, *, dry_run: bool) -> tuple[tuple[str, int], ...]:
        """Remove the packs unused for longest until the others fit into some bytes; return path and size of each.

        Raises BadInput where one cannot be removed.
        """
        found = {path: path.stat().st_size for path in least_used(self._folder, most_bytes)}
        for path in found if not dry_run else ():
            try:
                path.unlink(missing_ok=True)
            except OSError as error:
                raise BadInput(f"{path} cannot be removed: {error.strerror or error}") from error
        return tuple((str(path), size) for path, size in found.items())
