"""Whether a dump is still being written."""

from __future__ import annotations

import os
from contextlib import suppress

from vdbg_env.common.writing import open_file

GROWTH = "growth"  # in a rank's folder: a byte is added whenever a dump elsewhere, on its node's own disk, has grown


class GrowingFiles:
    """Says whether a file that the step is to leave behind is still being written."""

    def __init__(self, directory: str, patterns: tuple[str, ...]) -> None:
        self._directory = directory
        self._patterns = patterns
        self._size = -1
        self._shown = 0
        self._changed = 0.0

    def growing(self, now: float, *, quiet_s: float = 2.0) -> bool:
        """Whether any of them changed its size in the last `quiet_s` seconds."""
        if not self._patterns:
            return False
        size = self._total()
        if size != self._size:
            grew = size > max(self._size, 0)
            self._size = size
            if grew:
                self._changed = now
        return size > 0 and now - self._changed < quiet_s

    def show(self, directory: str) -> None:
        """Add a byte to a file of `directory` if they have grown: another node does not see the files themselves."""
        size = self._total()
        if size > self._shown:
            with suppress(OSError):  # a full disk is no end
                file = open_file(f"{directory}/{GROWTH}", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
                with os.fdopen(file, "ab") as growth:
                    growth.write(b".")
        self._shown = size

    def _total(self) -> int:
        from glob import iglob  # not at start-up: most steps end without ever asking

        total = 0
        for pattern in self._patterns:
            for name in iglob(pattern, root_dir=self._directory, recursive=True):  # noqa: PTH207
                try:
                    total += os.stat(f"{self._directory}/{name}").st_size  # noqa: PTH116
                except OSError:
                    continue
        return total
