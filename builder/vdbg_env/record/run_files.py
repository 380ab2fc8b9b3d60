"""The files of a run as built-in steps read and write them."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from io import SEEK_END, BytesIO
from pathlib import Path, PurePath
from typing import IO

from vdbg_env.common.errors import BadInput

_CHUNK = 1 << 20
_LONGEST_TEXT = 64 << 20  # bytes of one text file that are read at once


class RunFiles:
    """The files below one run's folder, by the names that records give them; a file that is missing is empty."""

    def __init__(self, run: Path) -> None:
        self._run = run

    def inside(self, name: str) -> Path:
        """Return the path of a file; raises BadInput for one that leads out of the run directory."""
        if not Path(os.path.realpath(self._run / name)).is_relative_to(os.path.realpath(self._run)):
            raise BadInput(
                f"{name} leads out of the run directory", cause="a path in a runbook that starts with / or .."
            )
        return self._run / name

    def chunks(self, path: PurePath) -> Iterator[bytes]:
        """Yield a file's bytes in pieces."""
        with self._reading(path) as file:
            while chunk := file.read(_CHUNK):
                yield chunk

    def exists(self, path: PurePath) -> bool:
        """Say whether there is such a file."""
        return Path(path).is_file()

    def lines(self, path: PurePath, *needles: bytes) -> Iterator[bytes]:
        """Yield the lines of a file that contain one of `needles`, all of them where none is given."""
        with self._reading(path) as file:
            yield from (line for line in file if not needles or any(needle in line for needle in needles))

    def text(self, path: PurePath) -> str:
        """Return a text file, of a huge one its end."""
        with self._reading(path) as file:
            file.seek(max(0, file.seek(0, SEEK_END) - _LONGEST_TEXT))
            return file.read().decode("utf-8", "replace")

    def modified(self, path: PurePath) -> float:
        """Return when a file was last written, in seconds since the epoch."""
        return Path(path).stat().st_mtime

    def write(self, path: PurePath, data: bytes | memoryview) -> None:
        """Write a file, its folder included."""
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        Path(path).write_bytes(data)

    def free_space(self) -> int:
        """Return the free bytes of the disk that the run is on."""
        return shutil.disk_usage(self._run).free

    def _reading(self, path: PurePath) -> IO[bytes]:
        try:
            return Path(path).open("rb")
        except FileNotFoundError:
            return BytesIO()
