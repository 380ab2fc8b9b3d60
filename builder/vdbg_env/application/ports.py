"""The outside world as Protocols of few verbs, and the values that cross them.

Engines implement these and are made only in `vdbg_env.cli.wiring`; tests give typed fakes for decisions only.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol

Buffer = bytes | memoryview


@dataclass(frozen=True, kw_only=True)
class BinaryFile:
    """One file that may hold device code: its name as shown to the user, and its bytes (mapped where possible)."""

    name: str
    data: Buffer


class BinarySource(Protocol):
    """Finds binaries in files, folders, archives, wheels and images."""

    def open(self, target: str) -> AbstractContextManager[Iterator[BinaryFile]]:
        """Yield every candidate in `target`; each one's bytes are valid until the next is asked for.

        Raises BadInput when `target` does not exist or cannot be read.
        """
        ...


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
        """Return the program's full path, or None when it is not at hand."""
        ...

    def run(self, argv: Sequence[str], *, timeout_s: float = 60.0) -> Completed:
        """Run to the end; raises HostNotAble when it cannot be started or outlasts `timeout_s`."""
        ...
