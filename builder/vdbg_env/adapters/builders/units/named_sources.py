"""Which sources name a kernel: the words of each, and of the files next to it that it includes."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from vdbg_env.image.units import Unit

_WORD: Final = re.compile(r"[A-Za-z_]\w*")
_INCLUDE: Final = re.compile(r'^\s*#\s*include\s*"([^"]+)"', re.MULTILINE)
_MOST_FILES: Final = 200  # of one source: what it needs from elsewhere defines none of its kernels


def mentions(tree: Path, units: Sequence[Unit], names: frozenset[str]) -> tuple[int, ...]:
    """Return how many of the names each unit has; a file outside of the tree, or one that is missing, has none."""
    known: dict[Path, tuple[frozenset[str], tuple[str, ...]]] = {}
    return tuple(len(_words(tree.resolve(), unit, known) & names) for unit in units)


def _words(tree: Path, unit: Unit, known: dict[Path, tuple[frozenset[str], tuple[str, ...]]]) -> frozenset[str]:
    folders = [Path(word[2:]) for word in unit.argv if word.startswith("-I") and len(word) > 2]
    todo, seen = [Path(unit.folder, unit.source).resolve()], set[Path]()
    found: set[str] = set()
    while todo and len(seen) < _MOST_FILES:
        path = todo.pop()
        if path in seen or not path.is_relative_to(tree) or not path.is_file():
            continue
        seen.add(path)
        if path not in known:
            text = path.read_text(errors="replace")
            known[path] = (frozenset(_WORD.findall(text)), tuple(_INCLUDE.findall(text)))
        words, included = known[path]
        found |= words
        todo += [(folder / name).resolve() for name in included for folder in (path.parent, *folders)]
    return frozenset(found)
