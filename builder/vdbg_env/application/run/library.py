"""Finds runbooks and shared steps: in the files named, `./runbooks`, the user's folder, then in what is shipped."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Literal

from platformdirs import user_config_path

from vdbg_env.common import yaml_source
from vdbg_env.common.errors import BadDocument, BadInput, Complaint, nearest
from vdbg_env.common.resources import data_dir
from vdbg_env.common.yaml_source import YamlSource
from vdbg_env.runbook.load import load
from vdbg_env.runbook.model import Runbook
from vdbg_env.runbook.parsing.library import Library

Origin = Literal["named", "project", "user", "shipped"]


@dataclass(frozen=True, kw_only=True)
class Folder:
    """One place of the search path."""

    origin: Origin
    path: Path


@dataclass(frozen=True, kw_only=True)
class Entry:
    """A runbook file that was found; its name is that of the file, which lint holds it to."""

    name: str
    path: Path
    origin: Origin


def search_path(project: Path | None = None) -> tuple[Folder, ...]:
    """Return the folders that are searched, the first first; `project` is the current folder unless told."""
    here = (project or Path()) / "runbooks"
    shipped = Folder(origin="shipped", path=data_dir("runbooks"))
    user = Folder(origin="user", path=user_config_path("vdbg-env", appauthor=False) / "runbooks")
    if here.resolve() == shipped.path.resolve():  # a checkout of this program
        return (user, shipped)
    return (Folder(origin="project", path=here), user, shipped)


class RunbookLibrary:
    """The runbooks at hand by name; of two with one name the first on the search path is taken."""

    def __init__(self, files: Sequence[Path] = (), folders: Sequence[Folder] | None = None) -> None:
        self._files = tuple(files)
        self._folders = search_path() if folders is None else tuple(folders)

    @cached_property
    def entries(self) -> tuple[Entry, ...]:
        """Every runbook that can be started by name."""
        found: dict[str, Entry] = {}
        for path in self._files:
            found.setdefault(path.stem, Entry(name=path.stem, path=path, origin="named"))
        for folder in self._folders:
            for path in _yaml_files(folder.path):
                found.setdefault(path.stem, Entry(name=path.stem, path=path, origin=folder.origin))
        return tuple(sorted(found.values(), key=lambda entry: entry.name))

    @cached_property
    def steps(self) -> Library:
        """The shared steps of every `lib` folder on the search path."""
        found: dict[str, YamlSource] = {}
        folders = [*dict.fromkeys(path.parent for path in self._files), *(folder.path for folder in self._folders)]
        for folder in folders:
            for path in _yaml_files(folder / "lib"):
                if path.stem not in found:
                    found[path.stem] = _source(path)
        return Library(found)

    def load(self, name: str) -> Runbook:
        """Return the linted runbook called `name`, or the one in the file of that path.

        Raises BadInput with the nearest name when there is none, and BadDocument when it is wrong.
        """
        return self.load_entry(self.entry(name))

    def entry(self, name: str) -> Entry:
        """Return where a runbook lies; raises BadInput with the nearest name."""
        if name.endswith((".yaml", ".yml")) or "/" in name:
            return Entry(name=Path(name).stem, path=Path(name), origin="named")
        known = {entry.name: entry for entry in self.entries}
        if name not in known:
            close = nearest(name, known)
            hint = f" (did you mean {close!r}?)" if close else ""
            raise BadInput(f"no runbook {name!r}{hint}", next_step="vdbg-env runbooks list")
        return known[name]

    def load_entry(self, entry: Entry) -> Runbook:
        """Return the linted runbook of one file; raises BadDocument with every complaint."""
        source = _source(entry.path)
        runbook = load(source, self.steps, runbooks=[x.name for x in self.entries])
        if runbook.name != entry.path.stem:
            what = f"the file is called {entry.path.name}, so the runbook's name is {entry.path.stem!r}"
            raise BadDocument((source.complaint(("metadata", "name"), what),))
        return runbook

    def lint(self, targets: Sequence[str]) -> tuple[tuple[Entry, tuple[Complaint, ...]], ...]:
        """Return every complaint about the runbooks named, or about all that are not shadowed; raises BadInput."""
        entries = [self.entry(target) for target in targets] if targets else list(self.entries)
        return tuple((entry, self._complaints(entry)) for entry in entries)

    def _complaints(self, entry: Entry) -> tuple[Complaint, ...]:
        try:
            self.load_entry(entry)
        except BadDocument as error:
            return error.complaints
        return ()


def _yaml_files(folder: Path) -> Iterator[Path]:
    if folder.is_dir():
        yield from sorted(path for path in folder.iterdir() if path.suffix in {".yaml", ".yml"} and path.is_file())


def _source(path: Path) -> YamlSource:
    try:
        with path.open("rb") as file:
            data = file.read(yaml_source.MAX_BYTES + 1)  # one more, so that a longer file is refused
    except OSError as error:
        raise BadInput(f"cannot read {path}: {error.strerror}") from None
    return yaml_source.read(data, str(path))
