"""Runbooks and shared steps: in the files named, `./runbooks`, the user's folder, then those that are shipped."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from platformdirs import user_config_path

from vdbg_env.application.ports.runbook_files import Entry, Origin
from vdbg_env.common import yaml_source
from vdbg_env.common.errors import unreadable
from vdbg_env.common.resources import data_dir
from vdbg_env.common.yaml_source import YamlSource

PROJECT_FILE = "vdbg.yaml"


@dataclass(frozen=True, kw_only=True)
class Folder:
    """One place of the search path."""

    origin: Origin
    path: Path


def search_path(project: Path) -> tuple[Folder, ...]:
    """Return the folders that are searched, the first first."""
    here = project / "runbooks"
    shipped = Folder(origin="shipped", path=data_dir("runbooks"))
    user = Folder(origin="user", path=user_config_path("vdbg-env", appauthor=False) / "runbooks")
    if here.is_dir() and here.samefile(shipped.path):  # a checkout of this program
        return (user, shipped)
    return (Folder(origin="project", path=here), user, shipped)


class RunbookFilesOnDisk:
    """A RunbookFiles over `files`, then `folders`; `project` is the current folder."""

    def __init__(
        self, files: Sequence[Path] = (), folders: Sequence[Folder] | None = None, project: Path = Path()
    ) -> None:
        self._files = tuple(files)
        self._folders = search_path(project) if folders is None else tuple(folders)
        self._project = project

    def runbooks(self) -> Sequence[Entry]:
        """Return every runbook file; see `RunbookFiles.runbooks`."""
        return self._runbooks

    @cached_property
    def _runbooks(self) -> tuple[Entry, ...]:
        found: dict[str, Entry] = {}
        for path in self._files:
            found.setdefault(path.stem, Entry(name=path.stem, path=path, origin="named"))
        for folder in self._folders:
            for path in _yaml_files(folder.path):
                found.setdefault(path.stem, Entry(name=path.stem, path=path, origin=folder.origin))
        return tuple(sorted(found.values(), key=lambda entry: entry.name))

    def shared_steps(self) -> Mapping[str, YamlSource]:
        """Return the files of every `lib` folder on the search path."""
        found: dict[str, YamlSource] = {}
        folders = [*dict.fromkeys(path.parent for path in self._files), *(folder.path for folder in self._folders)]
        for folder in folders:
            for path in _yaml_files(folder / "lib"):
                if path.stem not in found:
                    found[path.stem] = self.read(path)
        return found

    def read(self, path: Path) -> YamlSource:
        """Return a file's text; raises BadInput."""
        try:
            with path.open("rb") as file:
                data = file.read(yaml_source.MAX_BYTES + 1)  # one more: a longer file is refused
        except OSError as error:
            raise unreadable(path, error) from None
        return yaml_source.read(data, str(path))

    def named(self, file: str) -> Entry:
        """Return the entry of the file of this path."""
        return Entry(name=Path(file).stem, path=Path(file), origin="named")

    def exists(self, file: str) -> bool:
        """Say whether there is a file of this path."""
        return Path(file).is_file()

    def full_path(self, file: str) -> str:
        """Return the absolute path of a file."""
        return str(Path(file).absolute())

    def project(self) -> YamlSource | None:
        """Return the project's `vdbg.yaml`, None where there is none; raises BadInput."""
        path = self._project / PROJECT_FILE
        return self.read(path) if path.is_file() else None


def _yaml_files(folder: Path) -> Iterator[Path]:
    if folder.is_dir():
        yield from sorted(path for path in folder.iterdir() if path.suffix in {".yaml", ".yml"} and path.is_file())
