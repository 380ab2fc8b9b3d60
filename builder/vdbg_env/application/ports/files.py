"""What is read: line packs and logs."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from vdbg_env.crash.files import Buffer


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
