"""What is read: binaries, core dumps, line packs, logs, lines of source; and bytes given as a file."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

Buffer = bytes | memoryview


@dataclass(frozen=True, kw_only=True)
class BinaryFile:
    """One file that may hold device code: its name as shown to the user, and its bytes (mapped where possible).

    `path` is where the same bytes lie on disk, for programs that need a file; `asked_for` says that the user named this
    very file rather than a place it was found in; `problem` says why a file that was found could not be read.
    `labels` are those of the image that it is in, and `note` says what of that image was not looked at. `forget` may be
    called while the bytes are read: pages of the file that were read leave this process's memory, and are mapped again
    where they are needed again. `part` is the file's part of its target, from 0 to 1, for a display of progress; None
    where that is not known.
    """

    name: str
    data: Buffer
    path: Path | None = None
    asked_for: bool = False
    problem: str | None = None
    labels: Mapping[str, str] = field(default_factory=dict)
    note: str = ""
    part: tuple[float, float] | None = (0.0, 1.0)
    forget: Callable[[], None] = lambda: None


Tell = Callable[[str, float | None], None]
"""Takes the name of the file that is read, and how much of all that was asked for is done, from 0 to 1, where known."""


def done(file: BinaryFile, within: float, number: int, count: int) -> float | None:
    """Return how much is done of `count` targets, in the one of that number, with so much of the file read."""
    if file.part is None:
        return None
    start, end = file.part
    return (number + start + (end - start) * min(max(within, 0.0), 1.0)) / count


class BinarySource(Protocol):
    """Finds binaries in files, folders, archives, wheels and images."""

    def open(self, target: str) -> AbstractContextManager[Iterator[BinaryFile]]:
        """Yield every candidate in `target`; each one's bytes are valid until the next is asked for.

        Raises BadInput when `target` does not exist or cannot be read.
        """
        ...


class ScratchFiles(Protocol):
    """Lends bytes out as a file, to programs that need one."""

    def lend(self, data: Buffer, suffix: str) -> AbstractContextManager[Path]:
        """Write the bytes to a file whose name ends in `suffix`; it is gone when the block ends."""
        ...


@dataclass(frozen=True, kw_only=True)
class CoreFile:
    """A GPU core dump on disk, expanded if it was gzipped; `modified` is the file's time in seconds of the epoch."""

    name: str
    data: Buffer
    modified: float
    notes: tuple[str, ...] = ()


class CoreFiles(Protocol):
    """Opens GPU core dumps."""

    def find(self, target: str) -> tuple[str, ...]:
        """Return the dumps that a file or a folder means; raises BadInput when there is none."""
        ...

    def is_gzipped(self, path: str) -> bool:
        """Say whether this is a gzipped file, and not a tar; raises BadInput when it cannot be read."""
        ...

    def open(self, path: str) -> AbstractContextManager[CoreFile]:
        """Yield a dump; its bytes are valid inside the `with` only. Raises BadInput when it cannot be read."""
        ...


class SourceText(Protocol):
    """Finds the text of source lines, wherever the sources lie now."""

    def line(self, file: str, number: int) -> str | None:
        """Return a line by the file name in the line table and its 1-based number; None when it cannot be found."""


@dataclass(frozen=True, kw_only=True)
class LogFile:
    """One log: its name as shown to the user, and its bytes in chunks, decompressed, read once."""

    name: str
    chunks: Iterator[bytes]


class LogSource(Protocol):
    """Finds logs: files, folders of per-rank logs, compressed files, the standard input."""

    def open(self, targets: Sequence[str]) -> Iterator[LogFile]:
        """Yield every log of `targets` in order; each one's chunks are valid until the next is asked for.

        Raises BadInput when a target does not exist or cannot be read, also from the chunks where a file is damaged.
        """
        ...


@dataclass(frozen=True, kw_only=True)
class PackFile:
    """A line pack, mapped: its name as a user would name it, and its bytes; `path` where it is a file here."""

    name: str
    data: Buffer
    path: Path | None = None


class LineStore(Protocol):
    """A place that has line packs."""

    @property
    def name(self) -> str:
        """The place as a user would name it."""
        ...

    @property
    def local(self) -> bool:
        """Whether reading all of its packs fetches nothing."""
        ...

    def packs(self, keys: Collection[bytes] = (), *, release: str | None = None) -> Iterator[PackFile]:
        """Yield the packs that may have a function of one of these keys (`pack_keys`), all of them where none is given.

        A pack is fetched when it is taken. Where the place knows it, those of builds that name the release are first.
        Raises BadInput when the place does not exist or has something else, HostNotAble when it cannot be reached.
        """
        ...


@dataclass(frozen=True, kw_only=True)
class CarriedPack:
    """A sound line pack on its way to a store: its sha256, how many functions it has, of which builds."""

    digest: str
    functions: int
    builds: str
    data: Buffer


class PackTarget(Protocol):
    """A place that line packs can be put into."""

    def put(self, packs: Sequence[CarriedPack]) -> tuple[str, ...]:
        """Put packs there and return how each, or all together, are asked for.

        Raises BadInput when a folder cannot be written, HostNotAble when a server refuses.
        """
        ...
