"""A folder with line packs, or a single one: mapped, never read whole."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Final

from vdbg_env.application.ports.files import PackFile
from vdbg_env.common.errors import BadInput, unreadable
from vdbg_env.common.mapped import mapped_for_good

SUFFIX: Final = ".lines"


class PackFolder:
    """A LineStore over a file, or over every `*.lines` at or below a folder; `optional` may be missing."""

    local: Final = True

    def __init__(self, path: Path, *, optional: bool = False) -> None:
        self._path: Final = path
        self.name: Final = str(path)
        self._optional: Final = optional

    def packs(self, keys: Collection[bytes] = (), *, release: str | None = None) -> Iterator[PackFile]:
        """Yield every pack, whatever the keys: looking into a file here costs less than an index of them."""
        del keys, release
        for path in self.paths():
            try:
                yield PackFile(name=str(path), data=mapped_for_good(path), path=path)
            except OSError as error:
                raise unreadable(path, error) from error

    def paths(self) -> list[Path]:
        """Return the files, by name; raises BadInput when the folder is missing."""
        if self._path.is_dir():
            return sorted(path for path in self._path.rglob(f"*{SUFFIX}") if path.is_file())
        if self._path.is_file():
            return [self._path]
        if self._optional:
            return []
        raise BadInput(
            f"no line pack {self._path}",
            cause="a mistyped path, or a folder that is not mounted here",
            next_step="vdbg-env lines pack LIBRARY -o FILE.lines makes one",
        )


def write_whole(path: Path, data: bytes | memoryview) -> None:
    """Write a file whole or not at all; a pipe or device, as `/dev/null`, is written to and not replaced.

    Raises BadInput when that is not possible.
    """
    from vdbg_env.record.atomic_write import replacement  # only what writes needs the record

    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        special = path.exists() and not (path.is_file() or path.is_dir())
        with path.open("wb") if special else replacement(path) as file:
            file.write(data)
    except OSError as error:
        raise BadInput(f"{path} cannot be written: {error.strerror or error}") from error
