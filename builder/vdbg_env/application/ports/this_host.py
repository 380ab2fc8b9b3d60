"""This machine, as a run needs to know it."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol


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
        """Make a folder if there is none, and return its real path."""
        ...
