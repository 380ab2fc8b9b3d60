"""The folder of all runs: where it is, one run in it by name, and an index of the finished ones.

The index can be deleted at any time, and is then made again from the records.
"""

from __future__ import annotations

import json
import os
import sqlite3
from collections.abc import Mapping, Set
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vdbg_env.common.console import nearest
from vdbg_env.common.errors import BadInput, VdbgError, quoted
from vdbg_env.common.files import parse_json
from vdbg_env.record.run_directory import LOCK, RunDirectory

RUNS_VARIABLE = "VDBG_ENV_RUNS"
RUNS_FOLDER = "vdbg-runs"
LATEST = "latest"
INDEX = ".runs.sqlite"
JOB_SCRIPT, JOB_OUTPUT = "job.sh", "slurm.txt"  # of a run that is queued as a job
_FILES = ("run.json", "events.jsonl", "report.json")
# What SQLite says about a file that is damaged, no database, or has another program's tables: the index is made anew.
_NOT_OURS = {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_ERROR}
_SCHEMA = 3  # of the documents: one of another release is not read
_TABLE = "CREATE TABLE known (kind TEXT, name TEXT, stamp TEXT, document TEXT, PRIMARY KEY (kind, name))"
_BUSY_S = 1.0  # how long another command may keep the index; the records are read without it then


def runs_home(environment: Mapping[str, str]) -> Path:
    """Return the folder of all runs: that of VDBG_ENV_RUNS, else `vdbg-runs` here."""
    return Path(environment.get(RUNS_VARIABLE) or RUNS_FOLDER)


@dataclass(frozen=True, kw_only=True)
class RunFolder:
    """A recorded run that no process works on: its folder's name, its size in bytes, the time of its last event."""

    path: str
    runbook: str
    size: int
    modified: float


@dataclass(frozen=True, kw_only=True)
class RunFolders:
    """The runs of a folder by what may be done with them: removed, or left because they run or cannot be read."""

    ended: tuple[RunFolder, ...]
    running: tuple[str, ...]
    unreadable: tuple[str, ...]


def run_folders(home: Path) -> RunFolders:
    """Look at every run directly below a folder; a link is not one, and neither is a folder without our `run.json`."""
    ended, running, unreadable = [], [], []
    entries = sorted(home.iterdir()) if home.is_dir() else []
    for path in (p for p in entries if p.is_dir() and not p.is_symlink()):
        run = RunDirectory(path)
        try:
            if not (path / "run.json").is_file():
                continue
            folder = _folder(run)
            try:
                with run.alone():
                    ended.append(folder)
            except BadInput:
                running.append(path.name)
        except (VdbgError, OSError):  # such as another user's
            unreadable.append(path.name)
    return RunFolders(ended=tuple(ended), running=tuple(running), unreadable=tuple(unreadable))


def remove_run(home: Path, folder: RunFolder) -> None:
    """Remove a run with all that is in it; raises BadInput when a process works on it, or it has changed since."""
    run = RunDirectory(home / folder.path)
    try:
        with run.alone():
            if run.path.is_symlink() or _folder(run) != folder:
                raise BadInput(
                    f"{run.path} changed since it was listed, and was not removed",
                    cause="another program writes there",
                    next_step="vdbg-env runs prune, then the same again with --yes",
                )
            run.remove()
    except FileNotFoundError:
        return  # gone already
    except OSError as error:
        raise BadInput(
            f"{run.path} cannot be removed: {error.strerror}",
            cause="it, or a file that a container wrote into it, belongs to another user",
            next_step="use sudo",
        ) from error


def _folder(run: RunDirectory) -> RunFolder:
    head = run.read_head()
    last = run.events if run.events.is_file() else run.path / "run.json"
    return RunFolder(
        path=run.path.name,
        runbook=head.runbook,
        size=_size(run.path),
        modified=last.stat(follow_symlinks=False).st_mtime,
    )


def _size(folder: Path) -> int:
    """Return the bytes of all files below a folder but the lock; links are not followed."""
    found, waiting = 0, [os.fspath(folder)]
    while waiting:  # no recursion: what a workload nested has no bound
        with suppress(OSError), os.scandir(waiting.pop()) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    waiting.append(entry.path)
                elif entry.name != LOCK:
                    found += entry.stat(follow_symlinks=False).st_size
    return found


def find_run(name: str, environment: Mapping[str, str]) -> RunDirectory:
    """Return a run by its name in the folder of all runs, by its path, or as `latest`: the one that began last.

    Raises BadInput with the nearest name.
    """
    home = runs_home(environment)
    for path in (home / name, Path(name)):
        if _is_run(path):
            return RunDirectory(path.resolve())
        if _has(path, JOB_SCRIPT):
            raise BadInput(
                f"the run of {name} has not begun",
                cause="its job waits for nodes, or ended before it could begin",
                next_step=f"squeue --me --start; what the job printed: {quoted(path / JOB_OUTPUT)}",
            )
    known = [p for p in home.iterdir() if _is_run(p)] if home.is_dir() else []
    if name == LATEST and known:
        return RunDirectory(max(known, key=lambda path: (path / "run.json").stat().st_mtime_ns).resolve())
    with suppress(OSError):  # no folder, or another user's
        if any(_is_run(path) for path in Path(name).iterdir()):
            raise BadInput(
                f"{name} is a folder of runs, not a run", next_step=f"VDBG_ENV_RUNS={quoted(name)} vdbg-env runs list"
            )
    close = nearest(name, [path.name for path in known])
    hint = f" (did you mean {close!r}?)" if close else ""
    raise BadInput(f"no run {name!r} in {home}{hint}", next_step="vdbg-env runs list")


def complete_run(_context: object, _parameter: object, begun: str) -> list[str]:
    """Return the names of runs that begin so, for the completion of a shell."""
    home = runs_home(os.environ)
    known = [path.name for path in home.iterdir() if _is_run(path)] if home.is_dir() else []
    return [name for name in [LATEST, *sorted(known, reverse=True)] if name.startswith(begun)]


def _is_run(path: Path) -> bool:
    return _has(path, "run.json")


def _has(path: Path, name: str) -> bool:
    try:
        return (path / name).is_file()
    except PermissionError:  # another user's
        return False


class RunIndex:
    """What is known of the runs of a folder; it counts only while a run's files have not changed since.

    `kind` names the list: each keeps its own document of a run.
    """

    def __init__(self, home: Path, kind: str) -> None:
        self._home = home
        self._kind = kind
        self._known: dict[str, tuple[str, str]] = {}
        self._new: list[tuple[str, str, str]] = []
        self._gone: Set[str] = frozenset()
        with suppress(sqlite3.Error):
            self._known = self._read()

    def names(self) -> tuple[tuple[str, str], ...]:
        """Return the name of each run, the oldest first, and the stamp of its files."""
        found = []
        with suppress(FileNotFoundError), os.scandir(self._home) as entries:
            for entry in entries:
                stamps = [_stamp(f"{entry.path}/{name}") for name in _FILES]
                if stamps[0] is not None:
                    found.append((stamps[0], entry.name, f"{_SCHEMA} {stamps}"))
        names = tuple((name, stamp) for _, name, stamp in sorted(found))
        self._gone = self._known.keys() - {name for name, _ in names}
        return names

    def get(self, name: str, stamp: str) -> Mapping[str, Any] | None:
        """Return what was put in for a run, None where there is nothing or its files have changed."""
        known = self._known.get(name)
        if known is None or known[0] != stamp:
            return None
        try:
            document = parse_json(known[1])
        except (ValueError, TypeError, RecursionError):
            return None
        return document if isinstance(document, dict) else None

    def put(self, name: str, stamp: str, document: Mapping[str, Any]) -> None:
        """Keep what is known of a run."""
        self._new.append((name, stamp, json.dumps(document)))

    def save(self) -> None:
        """Write what was put in; a folder that cannot be written has no index."""
        if not self._new and not self._gone:
            return
        try:
            self._write()
        except sqlite3.Error as error:
            if getattr(error, "sqlite_errorcode", sqlite3.SQLITE_NOTADB) not in _NOT_OURS:
                return  # in use, full, read-only: it stays
            with suppress(OSError, sqlite3.Error):
                (self._home / INDEX).unlink()
                self._write()

    def _read(self) -> dict[str, tuple[str, str]]:
        path = self._home / INDEX
        if not path.is_file():
            return {}
        connection = sqlite3.connect(f"file:{path.absolute()}?mode=ro", uri=True, timeout=_BUSY_S)
        try:
            if _tables(connection) != [_TABLE]:
                return {}
            rows = connection.execute("SELECT name, stamp, document FROM known WHERE kind = ?", (self._kind,))
            return {name: (stamp, document) for name, stamp, document in rows}
        finally:
            connection.close()

    def _write(self) -> None:
        if (self._home / INDEX).is_symlink():  # SQLite would make its tables where that leads
            return
        connection = sqlite3.connect(self._home / INDEX, timeout=_BUSY_S)
        try:
            with connection:
                if not (found := _tables(connection)):
                    connection.execute(_TABLE)
                elif found != [_TABLE]:
                    raise sqlite3.DatabaseError("it has other tables, views or triggers")
                gone = [(self._kind, name) for name in self._gone]
                connection.executemany("DELETE FROM known WHERE kind = ? AND name = ?", gone)
                new = [(self._kind, *row) for row in self._new]
                connection.executemany("INSERT OR REPLACE INTO known VALUES (?, ?, ?, ?)", new)
        finally:
            connection.close()


def _tables(connection: sqlite3.Connection) -> list[str]:
    """Return how all is made that the index has; a view or trigger of another program may never end."""
    return [text for (text,) in connection.execute("SELECT sql FROM sqlite_master WHERE sql IS NOT NULL")]


def _stamp(path: str) -> tuple[int, int] | None:
    """Return time and size of a file, None where there is none; one that may not be looked at is a file too."""
    try:
        about = os.stat(path)  # noqa: PTH116 - of thirty thousand files
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError:
        return 0, 0
    return about.st_mtime_ns, about.st_size
