"""Runbook files and a project's own settings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Protocol

if TYPE_CHECKING:
    from pathlib import Path

    from vdbg_env.common.yaml_source import YamlSource

Origin = Literal["named", "project", "user", "shipped"]


@dataclass(frozen=True, kw_only=True)
class Entry:
    """A runbook file that was found; the runbook has the name of its file, which lint checks."""

    name: str
    path: Path
    origin: Origin


class RunbookFiles(Protocol):
    """Finds and reads the files of runbooks and of shared steps."""

    def runbooks(self) -> Sequence[Entry]:
        """Return every runbook file; of two with one name, the first on the search path."""
        ...

    def shared_steps(self) -> Mapping[str, YamlSource]:
        """Return the files of shared steps by name."""
        ...

    def read(self, path: Path) -> YamlSource:
        """Return a file's text; raises BadInput."""
        ...

    def named(self, file: str) -> Entry:
        """Return the entry of the file of this path, which need not exist."""
        ...

    def exists(self, file: str) -> bool:
        """Say whether there is a file of this path."""
        ...

    def full_path(self, file: str) -> str:
        """Return the absolute path of a file."""
        ...

    def project(self) -> YamlSource | None:
        """Return the `vdbg.yaml` of the current folder, None where there is none; raises BadInput."""
        ...
