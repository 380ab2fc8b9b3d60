"""This machine, as a run needs to know it, and the one command that this process may guard on it."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import NoReturn, Protocol

from vdbg_env.evidence.observation import Ended


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


class GuardedCommand(AbstractContextManager["GuardedCommand"], Protocol):
    """The one command that this process guards; entered, it takes the signals of this process until the last exit."""

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

    def become(self, argv: Sequence[str]) -> NoReturn:
        """Run it in place of this process; raises HostNotAble where it cannot be started."""
        ...


class Announcer(Protocol):
    """Says that something has failed; each verb returns what went wrong with that, in words, or None."""

    def write(self, path: Path, text: str) -> str | None:
        """Write a text to a file that is there."""
        ...

    def run(self, command: Sequence[str], text: str) -> str | None:
        """Run a program with the text on its standard input, for a limited time."""
        ...

    def post(self, url: str, text: str) -> str | None:
        """Send a text to an address, as JSON, for a limited time."""
        ...
