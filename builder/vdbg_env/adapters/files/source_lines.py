"""Find source lines on this machine, although the line table names the paths of the machine that compiled."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Final

LARGEST: Final = 32 << 20  # bytes; what is larger is no source file
_SOURCES: Final = frozenset(
    f".{ending}"
    for ending in (
        *("c", "cc", "cpp", "cxx", "cu", "cuh", "cuf", "h", "hh", "hpp", "hxx", "inc", "inl", "ipp", "tpp"),
        *("py", "pyi", "pyx", "ptx", "jit", "f", "f90", "rs", "s"),
    )
)


class SourceFiles:
    """SourceText over folders.

    A path is first rewritten by `mappings` (old prefix, new prefix), then looked for below each of `roots` with its
    leading folders dropped one by one, then taken as it is. Only what is named as a source file is read: a workload
    says which files these are, and is to have no other one of this machine shown in a report.
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


def _is_source(path: Path) -> bool:
    """Whether a path names source text; headers of the standard library, and of CUDA's, have no suffix."""
    return path.suffix.lower() in _SOURCES or (not path.suffix and "include" in path.parts[:-1])


@lru_cache(maxsize=64)
def _lines(path: Path) -> tuple[str, ...] | None:
    try:
        if not _is_source(Path(os.path.realpath(path))) or not path.is_file() or path.stat().st_size > LARGEST:
            return None
        return tuple(path.read_text(encoding="utf-8", errors="replace").splitlines())
    except OSError:
        return None
