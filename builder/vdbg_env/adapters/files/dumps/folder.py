"""Dumps in a folder of this machine, reached by descriptors alone: a name that is swapped for a link leads nowhere."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Generator, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path, PurePosixPath

from vdbg_env.common.errors import BadInput
from vdbg_env.common.writing import refusal_cause
from vdbg_env.record.dump_files import HEAD_BYTES, PACKED_HEAD_BYTES, Dump, is_packed, kind_of

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
