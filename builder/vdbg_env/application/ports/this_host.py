"""This machine, as a run needs to know it, and the one command that this process may guard on it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn, Protocol

from vdbg_env.evidence.observation import Ended


@dataclass(frozen=True, kw_only=True)
class Room:
    """The volume that cores go to: its folder, the bytes free for them, and the memory of a GPU, 0 without one."""

    folder: str
    free: int
    gpu_memory: int = 0


class ThisHost(Protocol):
    """This machine and its user."""

    def name(self) -> str:
        """Return the host name."""
        ...

    def token(self) -> str:
        """Return four random hexadecimal digits, for names that must differ."""
        ...

    def pseudonym_key(self) -> bytes:
        """Return the user's key for pseudonyms, made at first use; it is never kept next to a run."""
        ...

    def may_trace(self) -> bool | None:
        """Say whether a debugger may attach to a process that is not its child; None where that is unknown."""
        ...

    def folder(self, path: Path) -> Path:
        """Make a folder if there is none, and return its real path; raises HostNotAble."""
        ...

    def free_port(self) -> int:
        """Return a port that no process has, and that the kernel gives to none by itself."""
        ...

    def listener(self, url: str) -> str | None:
        """Return who listens where a URL leads to, in words, or None."""
        ...


class GuardedCommand(AbstractContextManager["GuardedCommand"], Protocol):
    """The one command that this process guards; entered, it takes the signals of this process until the last exit."""

    @property
    def own_variables(self) -> Mapping[str, str]:
        """What each step's processes are marked with, whatever the runbook sets."""
        ...

    @property
    def started(self) -> bool:
        """Whether it may run: it must not be started once more."""
        ...

    def wait(self) -> Ended:
        """Wait for its end, whatever has become of its record."""
        ...

    def told_to_stop(self) -> bool:
        """Return whether a signal came after its end, which asks this program to end."""
        ...

    def unfinished_line(self) -> bool:
        """Return whether what it wrote to standard error ends within a line."""
        ...

    def become(self, argv: Sequence[str]) -> NoReturn:
        """Run it in place of this process; raises HostNotAble where it cannot be started."""
        ...


class Announcer(Protocol):
    """Says that something has failed; each verb returns what went wrong with that, in words, or None."""

    def write(self, path: Path, text: str) -> str | None:
        """Write a text to a file, made where it is not there."""
        ...

    def run(self, line: str, text: str) -> str | None:
        """Run a line of the shell with the text on its standard input, for a limited time."""
        ...
