"""What `dumps` does: list what crashes left, remove what retention says, and carry the rest elsewhere."""

from __future__ import annotations

import hashlib
import os
import shutil
import tarfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from vdbg_env.application.ports import DumpStore
from vdbg_env.common.errors import BadInput
from vdbg_env.record.dump_files import Dump, Exported, Removal, Retention, retire

Tell = Callable[[str], None]


@dataclass(frozen=True, kw_only=True)
class PruneRequest:
    """What to keep, and whether to remove the rest or only to say what would go."""

    retention: Retention
    remove: bool = False


@dataclass(frozen=True, kw_only=True)
class DumpList:
    """Everything a place holds, newest first; `now` is when it was looked at, in seconds since the epoch."""

    place: str
    now: float
    dumps: tuple[Dump, ...]


@dataclass(frozen=True, kw_only=True)
class Prune:
    """What retention removes from a place; `removed` is False while it was only looked at."""

    place: str
    removed: bool
    removals: tuple[Removal, ...]


@dataclass(frozen=True, kw_only=True)
class Export:
    """What was copied from a place to a folder or tar."""

    place: str
    target: str
    files: tuple[Exported, ...]


def list_dumps(store: DumpStore, *, now: float) -> DumpList:
    """Return everything the place holds, newest first; `now` is in seconds since the epoch."""
    dumps = sorted(store.list(), key=lambda dump: (-dump.modified, dump.path))
    return DumpList(place=store.name, now=now, dumps=tuple(dumps))


def prune_dumps(request: PruneRequest, store: DumpStore, *, now: float) -> Prune:
    """Decide what goes and remove it if asked to; raises BadInput when no rule was given."""
    if request.retention == Retention():
        raise BadInput(
            "nothing says what to keep", next_step="vdbg-env dumps prune --keep 5, --older-than 7d or --max-size 50g"
        )
    removals = retire(store.list(), request.retention, now=now)
    if request.remove:
        store.remove([removal.dump.path for removal in removals])
    return Prune(place=store.name, removed=request.remove, removals=removals)


def export_dumps(store: DumpStore, target: Path, names: Sequence[str], tell: Tell) -> Export:
    """Copy dumps into a folder, or into one tar when `target` ends in .tar; whole or not at all.

    `names` picks files; without any, every dump is taken. Raises BadInput when there is nothing to take, when a name
    is not there, and when `target` cannot be written or exists already.
    """
    chosen = _chosen(store, names)
    if target.exists():
        raise BadInput(f"{target} exists already", next_step="name another, or remove it first")
    partial = target.with_name(target.name + ".partial")
    try:
        files = tuple((_into_tar if target.suffix == ".tar" else _into_folder)(store, chosen, partial, tell))
        partial.rename(target)
    except OSError as error:
        raise BadInput(
            f"cannot write {target}: {error.strerror}", next_step="name a folder that exists and has room"
        ) from error
    finally:
        _remove(partial)
    return Export(place=store.name, target=str(target), files=files)


def _chosen(store: DumpStore, names: Sequence[str]) -> list[Dump]:
    held = {dump.path: dump for dump in store.list()}
    if missing := [name for name in names if name not in held]:
        raise BadInput(f"{store.name} has no {missing[0]}", next_step="vdbg-env dumps list")
    chosen = [held[name] for name in names] if names else [d for d in held.values() if d.kind != "other"]
    if not chosen:
        raise BadInput(f"{store.name} holds no dump", next_step="vdbg-env dumps list shows all there is")
    return chosen


def _into_folder(store: DumpStore, dumps: Sequence[Dump], folder: Path, tell: Tell) -> Iterator[Exported]:
    folder.mkdir()
    for dump in dumps:
        tell(dump.path)
        path = folder / PurePosixPath(dump.path)
        path.parent.mkdir(parents=True, exist_ok=True)
        digest, size = hashlib.sha256(), 0
        with store.read(dump.path) as pieces, path.open("wb") as out:
            for piece in pieces:
                digest.update(piece)
                size += len(piece)
                out.write(piece)
        os.utime(path, (dump.modified, dump.modified))
        yield Exported(path=dump.path, size=size, sha256=digest.hexdigest())


def _into_tar(store: DumpStore, dumps: Sequence[Dump], path: Path, tell: Tell) -> Iterator[Exported]:
    with tarfile.open(path, "w", format=tarfile.GNU_FORMAT) as archive:
        for dump in dumps:
            tell(dump.path)
            header = tarfile.TarInfo(dump.path)
            header.size, header.mtime, header.mode = dump.size, int(dump.modified), 0o644
            with store.read(dump.path) as pieces:
                source = _Hashed(pieces, dump.path)
                archive.addfile(header, source)  # type: ignore[arg-type]  # it only ever reads
            yield Exported(path=dump.path, size=dump.size, sha256=source.digest.hexdigest())


class _Hashed:
    """Gives pieces by the number of bytes asked for, and hashes them on the way."""

    def __init__(self, pieces: Iterator[bytes], name: str) -> None:
        self._pieces = pieces
        self._held = b""
        self._name = name
        self.digest = hashlib.sha256()

    def read(self, size: int) -> bytes:
        while len(self._held) < size:
            piece = next(self._pieces, None)
            if piece is None:
                raise BadInput(f"{self._name} became shorter while it was read", next_step="export again")
            self._held += piece
        given, self._held = self._held[:size], self._held[size:]
        self.digest.update(given)
        return given


def _remove(partial: Path) -> None:
    """Remove what a failed export left; a finished one has been renamed away."""
    if partial.is_dir():
        shutil.rmtree(partial)
    else:
        partial.unlink(missing_ok=True)
