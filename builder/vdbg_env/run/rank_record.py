"""What a rank leaves on its node: its observation, and the dumps that it moves to the run's folder."""

from __future__ import annotations

import hashlib
import os
import stat
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import count
from pathlib import Path
from typing import Any

from vdbg_env.common.files import read_document, read_whole, write_whole
from vdbg_env.evidence.finding import Artifact, Observation, RankClock
from vdbg_env.record.progress import to_document
from vdbg_env.record.run_directory import disarm
from vdbg_env.run.attempt import Stopped, digest_of, masked, observation
from vdbg_env.run.orders import NODE, Orders
from vdbg_env.runbook.model import ArtifactRule
from vdbg_env.runbook.state import Invocation
from vdbg_env.supervisor.watch import GROWTH

_CHUNK = 1 << 20
_FLOOR = 1 << 30  # bytes left free where dumps are moved to
_TRIES = 100  # to make a folder; each takes microseconds
CLAIMS = (
    "scratch"  # in an attempt's folder: what its ranks have moved there, a numbered file with the size of each dump
)


@dataclass
class Moved:
    """The artifacts that are in the run's folder now, by their rules, and notes on the others."""

    artifacts: dict[str, tuple[Artifact, ...]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


class NoScratch(Exception):
    """Raised where the folder cannot be used; the text says why."""


def open_scratch(scratch: str, directory: Path) -> Path:
    """Return the folder on this node for the rank whose shared folder is `directory`; raises NoScratch.

    It is below a folder that only this user may enter: dumps hold what a process had in its memory.
    """
    if not Path(scratch).is_dir():
        raise NoScratch(f"{scratch} is no folder of this node")
    mine = Path(scratch) / f"vdbg-env-{os.geteuid()}"
    run = hashlib.sha256(os.fsencode(directory.parents[3])).hexdigest()[:16]
    try:
        with suppress(FileExistsError):
            mine.mkdir(mode=0o700)
        found = mine.lstat()
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o077:
            raise NoScratch(f"{mine} is there, and others may write or read in it")
        folder = mine / run / directory.relative_to(directory.parents[3])
        _make(folder)
    except OSError as error:
        raise NoScratch(f"{error.filename}: {error.strerror}") from error
    return folder


class Allowance:
    """The bytes that all ranks of an attempt may move together: who comes first is served first.

    No lock is reliable between nodes, so a dump is entered under the next free number, which only one rank can take.
    """

    def __init__(self, rank: Path, limit: int) -> None:
        self._folder = rank.parent / CLAIMS
        self._mine = self._folder / f".{rank.name}"
        self._limit = limit

    def take(self, size: int) -> int:
        """Return how many bytes were left; so many were taken, unless that was less than `size`."""
        self._folder.mkdir(exist_ok=True)
        self._mine.write_text(str(size))
        left = self._limit
        try:
            for number in count():
                entry = self._folder / str(number)
                if left >= size:
                    with suppress(FileExistsError):
                        os.link(self._mine, entry)
                        break
                elif not entry.exists():
                    break
                left -= int(read_whole(entry, 32))
            return left
        finally:
            self._mine.unlink()


def _make(folder: Path) -> None:
    """Make a folder, whose empty parents another rank may remove at the same time: it has ended already."""
    for left in reversed(range(_TRIES)):
        try:
            folder.mkdir(parents=True, exist_ok=True)
            return
        except (FileNotFoundError, FileExistsError):
            if not left:
                raise


def move_dumps(
    rules: Sequence[ArtifactRule],
    source: Path,
    target: Path,
    *,
    allowance: Allowance,
    literals: tuple[bytes, ...],
    check: Callable[[], None],
) -> Moved:
    """Mask, hash and move the files that the rules name, the oldest first and as allowed; clear the rest.

    What is too large, or was not moved before `check` raised Stopped, is left on the node, and the notes say where.
    """
    moved = Moved()
    disarm(source)
    named: dict[Path, list[ArtifactRule]] = {}
    for rule in rules:
        found = tuple(_files(source, rule.glob))
        for path in found:
            named.setdefault(path, []).append(rule)
        if rule.required and not found:
            moved.notes.append(f"artifact {rule.name}: nothing matches {rule.glob}")
    left = set[Path]()
    for path in sorted(named, key=lambda path: (path.stat().st_mtime_ns, path)):
        size = path.stat().st_size
        name = path.relative_to(source)
        try:
            if not (why := _refusal(size, named[path], allowance, target)):
                moved.notes += masked(path, name, literals, check)
                digest = digest_of(path, check)
                _copy(path, target / name, check)
        except (Stopped, OSError) as error:
            why = "the run was being ended" if isinstance(error, Stopped) else f"it cannot be moved: {error.strerror}"
        if why:
            left.add(path)
            moved.notes.append(f"{name} is left on its node, not searched for secrets, as {path}: {why}")
            continue
        place = str((target / name).relative_to(target.parents[3]))
        for rule in named[path]:
            one = Artifact(name=rule.name, path=place, size=(target / name).stat().st_size, sha256=digest)
            moved.artifacts[rule.name] = (*moved.artifacts.get(rule.name, ()), one)
    moved.notes += _cleared(source, keep=left, asked=set(named))
    return moved


def _files(folder: Path, glob: str) -> Iterator[Path]:
    whole = folder.resolve()
    for path in sorted(folder.glob(glob)):
        if path.is_file() and path.resolve() == whole / path.relative_to(folder):  # no link, nor below one
            yield path


def _refusal(size: int, rules: Sequence[ArtifactRule], allowance: Allowance, target: Path) -> str:
    """Return why a file of so many bytes is not moved."""
    bound = min((rule.max_size for rule in rules if rule.max_size is not None), default=size)
    if size > bound:
        return f"{size} bytes, {rules[0].name} may have {bound}"
    space = os.statvfs(target)
    if space.f_bavail * space.f_frsize < size + _FLOOR:
        return f"{size} bytes, and less than 1 GiB would be free in the run's folder"
    if size > (left := allowance.take(size)):
        return f"{size} bytes, and {left} of --scratch-limit are left for all ranks of this attempt"
    return ""


def _copy(source: Path, target: Path, check: Callable[[], None]) -> None:
    """Copy a file, its holes as holes, and put it in place when all of it is on disk."""
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = target.with_name(f".{target.name}.part")
    try:
        with source.open("rb", buffering=0) as read, partial.open("wb", buffering=0) as write:
            size = 0
            while piece := read.read(_CHUNK):
                check()
                size += len(piece)
                if piece.count(0) == len(piece):
                    write.seek(size)
                else:
                    write_whole(write.fileno(), piece)
            write.truncate(size)
            os.fsync(write.fileno())
        partial.replace(target)
    finally:
        partial.unlink(missing_ok=True)


def _cleared(source: Path, *, keep: set[Path], asked: set[Path]) -> Iterator[str]:
    """Remove all files but those to keep, and the folders that are empty then."""
    others = stuck = 0
    for place, folders, files in os.walk(source, topdown=False):
        for name in files:
            path = Path(place, name)
            if path in keep:
                continue
            try:
                path.unlink()
                others += path not in asked
            except OSError:  # in a folder of another user: the record of this rank is written none the less
                stuck += 1
        for path in (Path(place, name) for name in folders):
            with suppress(OSError):  # what is kept is in it
                path.unlink() if path.is_symlink() else path.rmdir()
    with suppress(OSError):  # another rank's files, or what is kept
        for folder in (source, *source.parents[:4]):
            folder.rmdir()
    if others:
        yield f"{others} files on its node that are no artifact were removed"
    if stuck:
        yield f"{stuck} files on its node could not be removed: they are in {source}"


# Make the observation of a rank from its folder; the engine does so too, for a rank that died before it could.


def observe(
    orders: Orders,
    folder: Path,
    dumps: Path | None,
    literals: tuple[bytes, ...],
    asked_at: Sequence[float],
    limit_s: float,
) -> dict[str, Any]:
    """Return the observation as a document; once its end was asked for, files are read for `limit_s` seconds.

    Artifacts that were written to `dumps`, on the node's own disk, are moved into `folder`.
    """

    def check() -> None:
        if asked_at and time.monotonic() > asked_at[0] + limit_s:
            raise Stopped

    rules = tuple(ArtifactRule.model_validate(dict(rule)) for rule in orders.artifacts)
    (folder / GROWTH).unlink(missing_ok=True)
    invocation = Invocation(step=orders.step, attempt=orders.attempt, argv=(), artifacts=() if dumps else rules)
    seen = with_node(observation(invocation, folder, literals, check=check), folder)
    if dumps:
        allowance = Allowance(folder, orders.scratch_limit)
        moved = move_dumps(rules, dumps, folder, allowance=allowance, literals=literals, check=check)
        seen = replace(seen, artifacts=moved.artifacts, notes=(*seen.notes, *moved.notes))
    return to_document(seen)


def with_node(seen: Observation, folder: Path) -> Observation:
    """Add what the rank found on its node."""
    try:
        found = read_document(folder / NODE)
    except (OSError, ValueError):
        return seen
    clock = seen.clock or RankClock(**found["clock"])
    return replace(seen, node=dict(found["node"]), clock=clock)
