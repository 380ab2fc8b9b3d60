"""Finds source lines on this machine, although the line table names the paths of the machine that compiled."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Final

_LARGEST: Final = 32 << 20  # bytes; what is larger is no source file


class SourceFiles:
    """SourceText over folders.

    A path is first rewritten by `mappings` (old prefix, new prefix), then looked for below each of `roots` with its
    leading folders dropped one by one, then taken as it is.
    """

    def __init__(self, roots: Sequence[str] = (), mappings: Sequence[tuple[str, str]] = ()) -> None:
        self._roots: Final = tuple(Path(root) for root in roots)
        self._mappings: Final = tuple(mappings)

    def line(self, file: str, number: int) -> str | None:
        """Return the text of a line, without its end; None when the file is not found or is shorter."""
        for path in self._candidates(file):
            lines = _lines(path)
            if lines is not None:
                return lines[number - 1] if 0 < number <= len(lines) else None
        return None

    def _candidates(self, file: str) -> Iterator[Path]:
        if "\0" in file:
            return
        for old, new in self._mappings:
            if file.startswith(old):
                yield Path(new + file[len(old) :])
        parts = [part for part in Path(file).parts if part not in {"/", ".", ".."}]
        for root in self._roots:
            for start in range(len(parts)):
                yield root.joinpath(*parts[start:])
        if Path(file).is_absolute():
            yield Path(file)


@lru_cache(maxsize=64)
def _lines(path: Path) -> tuple[str, ...] | None:
    try:
        if not path.is_file() or path.stat().st_size > _LARGEST:
            return None
        return tuple(path.read_text(encoding="utf-8", errors="replace").splitlines())
    except OSError:
        return None
