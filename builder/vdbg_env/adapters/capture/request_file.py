"""A file of recorded requests that stays within its bounds: the oldest half goes when it is full."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from vdbg_env.common.errors import BadInput
from vdbg_env.common.writing import write_whole


class RequestFile:
    """Lines in two files of half the bounds each: `FILE.1` has the older ones, until `close` puts both into FILE.

    A line is with the system when `append` returns: the request that ends a server is in the file, whatever becomes of
    this process. Only the owner may read it, because requests are what people wrote.
    """

    def __init__(self, path: Path, *, max_bytes: int, max_count: int) -> None:
        self._path = path
        self._older = path.with_name(path.name + ".1")
        self._half_bytes, self._half_count = max_bytes // 2, max(1, max_count // 2)
        for one in (path, self._older):
            if one.exists():
                raise BadInput(
                    f"{one} exists already",
                    cause="an earlier capture, and nothing is written over",
                    next_step="give another name with -o, or move it away",
                )
        self._file = self._open()
        self._size = self._count = self._older_size = self._older_count = 0
        self.dropped = 0

    def append(self, line: bytes) -> None:
        """Write a line; raises OSError."""
        if self._count and (self._size + len(line) > self._half_bytes or self._count >= self._half_count):
            self._begin_new_half()
        write_whole(self._file, line)
        self._size += len(line)
        self._count += 1

    @property
    def size(self) -> int:
        """How many bytes are kept."""
        return self._size + self._older_size

    def close(self) -> None:
        """Put the older half before the newer one, in one file."""
        os.close(self._file)
        if not self._older_count:
            return
        with self._older.open("ab") as older, self._path.open("rb") as newer:
            shutil.copyfileobj(newer, older)
        self._older.replace(self._path)

    def _begin_new_half(self) -> None:
        os.close(self._file)
        self.dropped += self._older_count
        self._path.replace(self._older)
        self._older_size, self._older_count = self._size, self._count
        self._file = self._open()
        self._size = self._count = 0

    def _open(self) -> int:
        return os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC, 0o600)
