"""Bound how deep folders are nested, before anything searches or removes them."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path

DEEPEST = 64  # folders in folders; a run with its steps, attempts and ranks has five


def limit_nesting(folder: Path, *, check: Callable[[], None] = lambda: None) -> int:
    """Move folders that are nested deeper than DEEPEST to the top of `folder`, and return how many were moved.

    A workload may nest folders without end. Python 3.11 lists and removes trees by recursion with one open file a
    level, and a path has at most 4,096 bytes, so no search for secrets would reach what is deeper. It is moved whole,
    to names as `deep-1`. Links are not followed. `check` is called for each folder and may raise.
    """
    moved: list[str] = []

    def visit(parent: int, levels: int) -> None:
        for name in _folders(parent):
            check()
            with suppress(OSError):  # gone by now, or closed to this user: then to every other search, too
                if levels:
                    with opened_folder(name, parent) as child:
                        visit(child, levels - 1)
                else:
                    free = next(new for n in count(len(moved) + 1) if not _exists(new := f"deep-{n}", top))
                    os.rename(name, free, src_dir_fd=parent, dst_dir_fd=top)
                    moved.append(free)

    with suppress(OSError), opened_folder(folder) as top:  # else what reads it next reports that it is gone, or a link
        visit(top, DEEPEST - 1)
        for name in moved:  # which grows by what is too deep inside of these
            with suppress(OSError), opened_folder(name, top) as child:
                visit(child, DEEPEST - 2)
    return len(moved)


def nesting_notes(moved: int) -> list[str]:
    """Return what to note of folders that were moved: nothing where none was."""
    return [f"{moved} folders were nested deeper than {DEEPEST}, and are now deep-1 and so on"] if moved else []


@contextmanager
def opened_folder(folder: str | Path, parent: int | None = None) -> Iterator[int]:
    """Yield a descriptor of a folder; raises OSError where the last part of its path is a link."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=parent)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _folders(parent: int) -> list[str]:
    with os.scandir(parent) as entries:
        return [entry.name for entry in entries if entry.is_dir(follow_symlinks=False)]


def _exists(name: str, parent: int) -> bool:
    try:
        os.lstat(name, dir_fd=parent)
    except FileNotFoundError:
        return False
    return True
