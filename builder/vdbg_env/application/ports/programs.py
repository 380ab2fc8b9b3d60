"""Short helper programs, run to their end."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, kw_only=True)
class Completed:
    """A helper program that ran to its end."""

    argv: tuple[str, ...]
    code: int
    stdout: str
    stderr: str


class ProgramRunner(Protocol):
    """Runs a short helper program (cuobjdump, nvidia-smi); never the workload under study."""

    def which(self, program: str) -> str | None:
        """Return the program's full path, or None when it was not found."""
        ...

    def head(self, program: str) -> bytes:
        """Return the first bytes of a program's file; none of one that is missing or cannot be read."""
        ...

    def run(self, argv: Sequence[str], *, timeout_s: float = 60.0) -> Completed:
        """Run to the end; raises HostNotAble when it cannot be started or outlasts `timeout_s`."""
        ...
