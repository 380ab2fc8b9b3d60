"""Show how far a long reading is: a bar on a terminal, and nothing elsewhere."""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from vdbg_env.common.printable import printable

_CELLS: Final = 24
_EVERY_S: Final = 0.1


@contextmanager
def progress_bar(*, quiet: bool = False) -> Iterator[Callable[[str, float | None], None]]:
    """Give what takes the name of the file that is read and how much of all is done, and clear its line at the end."""
    if quiet or not sys.stderr.isatty():
        yield lambda *_: None
        return
    bar = _Bar()
    try:
        yield bar.show
    finally:
        bar.clear()


class _Bar:
    """A line on the error stream that is written anew, at most ten times a second."""

    def __init__(self) -> None:
        self._shown_s = 0.0
        self._most = 0.0

    def show(self, name: str, done: float | None) -> None:
        """Write the line; what was done once stays done, although code is not read in the order of a file."""
        self._most = max(self._most, done or 0.0)
        now = time.monotonic()
        if now - self._shown_s < _EVERY_S:
            return
        self._shown_s = now
        filled = int(self._most * _CELLS)
        bar = f"[{'#' * filled}{'-' * (_CELLS - filled)}] {self._most:4.0%} " if done is not None else "reading "
        room = shutil.get_terminal_size().columns - len(bar) - 1
        shown = printable(name)
        shown = shown if len(shown) <= room else f"...{shown[len(shown) - max(room - 3, 0) :]}"
        sys.stderr.write(f"\r{bar}{shown}\x1b[K")
        sys.stderr.flush()

    def clear(self) -> None:
        """Take the line away, if one was written."""
        if self._shown_s:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()
