"""Packs on this machine, by their sha256: what was pulled, and what was fetched."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from vdbg_env.adapters.lines.cache import least_used
from vdbg_env.adapters.lines.folder import SUFFIX, write_whole
from vdbg_env.common.errors import BadInput


class Shelf:
    """A PackShelf over a folder."""

    def __init__(self, folder: Path) -> None:
        self._folder: Final = folder

    @property
    def name(self) -> str:
        """The path."""
        return str(self._folder)

    def keep(self, digest: str, data: bytes | memoryview) -> str:
        """Write a pack, unless it is there, and return its path; raises BadInput when that is not possible."""
        path = self._folder / f"{digest}{SUFFIX}"
        if not path.exists():
            write_whole(path, data)
        return str(path)

    def beyond(self, most_bytes: int) -> tuple[tuple[str, int], ...]:
        """Return path and size of the packs, those unused for longest, without which the others fit into some bytes."""
        return tuple((str(path), path.stat().st_size) for path in least_used(self._folder, most_bytes))

    def remove(self, path: str) -> None:
        """Remove a pack; one that is gone is no error. Raises BadInput when it cannot be removed."""
        try:
            Path(path).unlink(missing_ok=True)
        except OSError as error:
            raise BadInput(f"{path} cannot be removed: {error.strerror or error}") from error
