"""Where dumps are kept, and how a running process is made to write one."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from vdbg_env.record.dump_files import Dump, Exported


class DumpStore(Protocol):
    """A place where dumps outlive the container that wrote them: a folder, or a named volume."""

    @property
    def name(self) -> str:
        """The place as a user would name it."""
        ...

    def list(self) -> tuple[Dump, ...]:
        """Return every file, each with its kind by its first bytes; none where the place is empty or missing.

        Raises BadInput when it cannot be read.
        """
        ...

    def is_ours(self) -> bool:
        """Return whether we made this place for dumps, or a person said that it is one (`adopt`)."""
        ...

    def adopt(self) -> None:
        """Mark the place as one whose dumps may be removed; raises BadInput when it cannot be written."""
        ...

    def remove(self, dumps: Sequence[Dump]) -> None:
        """Remove these files, and nothing outside of the place; one that is gone already is no error.

        Raises BadInput, when all others are removed, where one is not the file that was listed.
        """
        ...

    def read(self, path: str) -> AbstractContextManager[Iterator[bytes]]:
        """Yield a file's bytes in pieces; raises BadInput when it is not there."""
        ...


class DumpDestination(Protocol):
    """A folder or a tar that dumps are copied to."""

    @property
    def name(self) -> str:
        """The place as a user would name it."""
        ...

    def write(self, dumps: Sequence[Dump], store: DumpStore, tell: Callable[[str], None]) -> tuple[Exported, ...]:
        """Copy the dumps, whole or not at all; raises BadInput when the place exists or cannot be written."""
        ...


class PipeState(StrEnum):
    """What can be said about a process's core-dump pipe before it is fired."""

    READY = "ready"  # the process holds its reading end
    STALE = "stale"  # the pipe is there, but no process reads it
    MISSING = "missing"  # armed by its environment, but no pipe yet: CUDA has not started in it
    NOT_ARMED = "not-armed"
    FORBIDDEN = "forbidden"  # its environment or its files may not be looked at


@dataclass(frozen=True, kw_only=True)
class DumpTarget:
    """One process of a tree, and its core-dump pipe.

    `namespace_pid` is its number inside its container, where `%p` comes from. `pipe` is the path as the process sees
    it, `descriptor` the number of its reading end. The dump will lie in `dump_folder`, as the process sees it, under a
    name that the regular expression `dump_name` fits.
    """

    pid: int
    name: str
    namespace_pid: int
    state: PipeState
    pipe: str | None = None
    descriptor: int | None = None
    dump_folder: str | None = None
    dump_name: str = ""


@dataclass(frozen=True, kw_only=True)
class DumpFile:
    """A dump that was written: its path as the process sees it and as this program reaches it, its size in bytes."""

    path: str
    reachable: str
    size: int
    complete: bool


class FiredDump(Protocol):
    """A dump that was asked for."""

    @property
    def written(self) -> int:
        """How many bytes went into the pipe."""
        ...

    def wait(self, timeout_s: float) -> DumpFile | None:
        """Wait until the dump is complete or the process is gone; None when no file was seen."""
        ...

    def close(self) -> None:
        """Let go of what was held open to reach the file."""
        ...


class CorePipes(Protocol):
    """Finds and fires the user-triggered core-dump pipes of a process tree."""

    def tree(self, pid: int) -> tuple[DumpTarget, ...]:
        """Return a process and all below it; raises BadInput when there is no such process."""
        ...

    def fire(self, target: DumpTarget) -> FiredDump:
        """Write into a pipe that is READY; raises HostNotAble, with the reason, when that cannot be done."""
        ...
