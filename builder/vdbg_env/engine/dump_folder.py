"""Dumps in a folder of this machine, reached by descriptors alone: a name that is swapped for a link leads nowhere."""

from __future__ import annotations

import errno
import hashlib
import os
import stat
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path, PurePosixPath

from vdbg_env.common.errors import BadInput
from vdbg_env.common.files import refusal_cause
from vdbg_env.common.tar import tarfile
from vdbg_env.crash.dumps import DumpStore
from vdbg_env.record.dump_files import HEAD_BYTES, PACKED_HEAD_BYTES, Dump, Exported, is_packed, kind_of
from vdbg_env.record.run_directory import prepared

MARKER = ".vdbg-dumps"  # in a folder that we made, or that a person let us prune
_CHUNK = 1 << 20
_DEEPEST = 64  # folders within folders; below, no dump is looked for
_SWAPPED = {errno.ELOOP, errno.ENOTDIR, errno.ENXIO, errno.EISDIR}


class FolderDumps:
    """Dumps in a folder; `ours` is True where we are known to have made it, as a volume with our label."""

    def __init__(self, folder: Path, *, name: str | None = None, ours: bool = False) -> None:
        self._folder = folder
        self.name = name or str(folder)
        self._ours = ours

    def is_ours(self) -> bool:
        """See `DumpStore.is_ours`."""
        return self._ours or (self._folder / MARKER).is_file()

    def adopt(self) -> None:
        """See `DumpStore.adopt`."""
        try:
            with self._root() as root:
                os.close(os.open(MARKER, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600, dir_fd=root))
        except OSError as error:
            raise BadInput(
                f"cannot write {MARKER} into {self.name}: {error.strerror}",
                cause="it belongs to another user",
                next_step="use sudo",
            ) from error

    def list(self) -> tuple[Dump, ...]:
        """See `DumpStore.list`."""
        try:
            with self._root() as root:
                return tuple(_walked(root, ""))
        except FileNotFoundError:
            return ()
        except OSError as error:
            raise _unreadable(self.name, error) from error

    def remove(self, dumps: Sequence[Dump]) -> None:
        """See `DumpStore.remove`."""
        changed = [dump.path for dump in dumps if not self._removed(dump)]
        if changed:
            raise BadInput(
                f"{changed[0]} of {self.name} changed since it was listed, and was not removed",
                cause="a program still writes there",
                next_step="vdbg-env dumps list, then the same again",
            )

    @contextmanager
    def read(self, path: str) -> Generator[Iterator[bytes], None, None]:
        """See `DumpStore.read`."""
        try:
            with self._parent(path) as (folder, name), _opened(name, os.O_NONBLOCK, folder) as file:
                if not stat.S_ISREG(os.fstat(file).st_mode):
                    raise BadInput(f"{path} of {self.name} is not a file")
                yield _pieces(file)
        except OSError as error:
            raise _unreadable(f"{self.name}/{path}", error) from error

    def _removed(self, dump: Dump) -> bool:
        """Remove a file if it is still the one that was listed; return False when it is another."""
        try:
            with self._parent(dump.path) as (folder, name):
                if _dump(folder, name, dump.path) != dump:
                    return False
                os.unlink(name, dir_fd=folder)
        except FileNotFoundError:
            return True  # gone already
        except OSError as error:
            if error.errno in _SWAPPED:
                return False
            raise BadInput(
                f"cannot remove {dump.path}: {error.strerror}", cause="it belongs to another user", next_step="use sudo"
            ) from error
        return True

    def _root(self) -> AbstractContextManager[int]:
        # The person named this path, so it may lead over links; nothing below it may.
        return _closing(os.open(self._folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC))

    @contextmanager
    def _parent(self, path: str) -> Iterator[tuple[int, str]]:
        """Yield the folder of a file, opened one name at a time, and the file's name in it."""
        parts = PurePosixPath(path).parts
        if not parts or parts[0] == "/" or ".." in parts:
            raise BadInput(f"{path!r} is not inside {self.name}")
        with self._root() as root:
            folder = os.dup(root)
            try:
                for part in parts[:-1]:
                    below = os.open(part, _FOLDER, dir_fd=folder)
                    os.close(folder)
                    folder = below
                yield folder, parts[-1]
            finally:
                os.close(folder)


_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def _walked(folder: int, prefix: str) -> Iterator[Dump]:
    """Yield every regular file below an open folder, in the order of names."""
    for name in sorted(os.listdir(folder)):
        path = prefix + name
        try:
            mode = os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode
            if stat.S_ISDIR(mode) and path.count("/") < _DEEPEST:
                with _closing(os.open(name, _FOLDER, dir_fd=folder)) as below:
                    yield from _walked(below, f"{path}/")
            elif stat.S_ISREG(mode) and path != MARKER and (dump := _dump(folder, name, path)):
                yield dump
        except OSError as error:
            if error.errno not in {errno.ENOENT, *_SWAPPED}:  # else it changed while it was looked at
                size, modified = _size_and_time(folder, name)
                problem = error.strerror or str(error)
                yield Dump(path=path, size=size, modified=modified, kind="unreadable", problem=problem)


def _size_and_time(folder: int, name: str) -> tuple[int, float]:
    try:
        about = os.stat(name, dir_fd=folder, follow_symlinks=False)
    except OSError:
        return 0, 0.0
    return about.st_size if stat.S_ISREG(about.st_mode) else 0, about.st_mtime


def _dump(folder: int, name: str, path: str) -> Dump | None:
    """Return what a file is by its content; None where it is not a regular file."""
    with _opened(name, os.O_NONBLOCK, folder) as file:
        seen = os.fstat(file)
        if not stat.S_ISREG(seen.st_mode):
            return None
        head = os.pread(file, HEAD_BYTES, 0)
        if is_packed(head):
            head = os.pread(file, PACKED_HEAD_BYTES, 0)
        return Dump(path=path, size=seen.st_size, modified=seen.st_mtime, kind=kind_of(head))


def _opened(name: str, flags: int, folder: int) -> AbstractContextManager[int]:
    return _closing(os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | flags, dir_fd=folder))


@contextmanager
def _closing(descriptor: int) -> Iterator[int]:
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _pieces(file: int) -> Iterator[bytes]:
    while piece := os.read(file, _CHUNK):
        yield piece


def _unreadable(what: str, error: OSError) -> BadInput:
    sudo = "use sudo" if error.errno in {errno.EACCES, errno.EPERM} else None
    return BadInput(f"cannot read {what}: {error.strerror}", cause=refusal_cause(error), next_step=sudo)


# Copy dumps into a folder or a tar, whole or not at all.


Tell = Callable[[str], None]


class DumpExport:
    """A DumpDestination: a new folder, or a new tar where the name ends in .tar; complete before it has the name."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.name = str(path)

    def write(self, dumps: Sequence[Dump], store: DumpStore, tell: Tell) -> tuple[Exported, ...]:
        """Copy the dumps; `tell` gets each name first. Raises BadInput when the place exists or cannot be written."""
        if self._path.exists():
            raise BadInput(f"{self._path} exists already", next_step="name another, or remove it first")
        copy = _into_tar if self._path.suffix == ".tar" else _into_folder
        try:
            with prepared(self._path) as path:
                return tuple(copy(store, dumps, path, tell))
        except OSError as error:
            raise BadInput(
                f"cannot write {self._path}: {error.strerror}", next_step="name a folder that exists and has room"
            ) from error


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
    """Returns pieces by the number of bytes asked for, and hashes them on the way."""

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
