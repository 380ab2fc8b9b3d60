"""Looks for files of a rehearsal that do not say that they come from one."""

from __future__ import annotations

import gzip
from pathlib import Path

from tests.gpu.machine import MARK


def unmarked(folder: Path) -> list[str]:
    """Return the names of files below a folder in which the word does not stand, expanded where gzipped.

    A file of a recording is what a step wrote, and stays so: there it is the recording's head and folder that say it.
    """
    names = [path.relative_to(folder) for path in sorted(folder.rglob("*")) if path.is_file()]
    return [str(name) for name in names if MARK not in name.parts[0] and not _says_so(folder / name)]


def _says_so(path: Path) -> bool:
    data = path.read_bytes()
    return MARK.encode() in (gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data)
