"""Tells a file from an image: a target is what the user named, whichever of the two it turns out to be."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path

from vdbg_env.application.ports import BinaryFile
from vdbg_env.engines.binary_files import BinaryFiles
from vdbg_env.engines.image_files import ImageFiles
from vdbg_env.errors import BadInput


class Targets:
    """A BinarySource over files, folders and wheels first, then over the images of the container engine."""

    def __init__(self) -> None:
        self._files = BinaryFiles()
        self._images = ImageFiles()

    def open(self, target: str) -> AbstractContextManager[Iterator[BinaryFile]]:
        """Yield every candidate in `target`; raises BadInput when it is neither a path nor an image."""
        if Path(target).exists():
            return self._files.open(target)
        if self._images.has(target):
            return self._images.open(target)
        raise BadInput(
            f"{target} is neither a file or folder here nor an image of the container engine",
            cause="a mistyped path, a relative path from another folder, or an image that was not pulled",
            next_step=f"ls -l {target}, or docker pull {target}",
        )
