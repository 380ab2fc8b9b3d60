"""Libraries inside an image: which package they are from, their bytes, and the image with some of them replaced."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol

from vdbg_env.application.ports.files import BinaryFile
from vdbg_env.application.ports.unit_builds import Release


@dataclass(frozen=True, kw_only=True)
class Installed:
    """A package in an image: its metadata, and the folder of its modules; `image_id` is what the name stood for."""

    release: Release
    folder: str
    image_id: str


@dataclass(frozen=True, kw_only=True)
class Swap:
    """A library to replace: its path in the image, what is there now, and what comes in its place."""

    path: str
    stock: bytes
    new: bytes

    @property
    def kept(self) -> str:
        """The path where the original stays; no loader looks for such a name."""
        return f"{self.path}.stock"


class ImageSwaps(Protocol):
    """Reads an image, and makes another over its layers; nothing in it is started but Python, without network."""

    def installed(self, image: str, project: str) -> Installed:
        """Return what an image has of a project; raises BadInput when it has none."""
        ...

    def files(self, image_id: str, folders: Sequence[str]) -> AbstractContextManager[Iterator[BinaryFile]]:
        """Yield every file with device code below `folders`, as `ImageBuilder.files` does."""
        ...

    def swap(self, image_id: str, swaps: Sequence[Swap]) -> str:
        """Return the id of an untagged image with the files replaced, and the originals next to them.

        Owners, user, entry point, environment and everything else are the image's own. Raises EngineFailed.
        """
        ...

    def tag(self, image_id: str, names: Sequence[str], labels: Mapping[str, str]) -> str:
        """See `ImageBuilder.tag`."""
        ...
