"""The build context: ordered files, given by their bytes or by their place.

Below 150 lines: every room that makes files for an image names these values, and loads nothing with them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

ROOT = "/opt/vdbg"  # what a plan creates in a container is below it


@dataclass(frozen=True, kw_only=True)
class FileBytes:
    """A file given by its bytes; `name` is relative to the context, `mode` its permission bits."""

    name: str
    data: bytes
    mode: int = 0o644


@dataclass(frozen=True, kw_only=True)
class FileOnDisk:
    """A file of this machine, read only when the tar is written."""

    name: str
    path: str
    mode: int = 0o644


@dataclass(frozen=True, kw_only=True)
class TreeOnDisk:
    """A folder of this machine with everything below it, except what matches one of the `exclude` patterns.

    A pattern without a slash matches the last part of a path at any depth, one with a slash the whole relative path;
    a slash at its beginning is the folder itself. `only` are patterns for the folder's own entries; without it, all.
    `digest` is that of the content, if known.
    """

    name: str
    path: str
    exclude: tuple[str, ...] = ()
    only: tuple[str, ...] = ()
    digest: str = ""


ContextItem = FileBytes | FileOnDisk | TreeOnDisk


@dataclass(frozen=True, kw_only=True)
class BuildContext:
    """Everything sent to a builder; `epoch` (seconds since 1970) is the modification time of every file."""

    items: tuple[ContextItem, ...]
    epoch: int = 0


@dataclass(frozen=True, kw_only=True)
class TreeEntry:
    """An entry at `relative` below a folder; a link keeps its target, a file is opened by its `path`."""

    relative: str
    path: str
    kind: Literal["file", "folder", "link"]
    executable: bool = False
    target: str = ""
