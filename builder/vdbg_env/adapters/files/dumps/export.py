"""Copy dumps into a folder or a tar, whole or not at all."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path, PurePosixPath

from vdbg_env.application.ports.core_dumps import DumpStore
from vdbg_env.common.errors import BadInput
from vdbg_env.common.tar import tarfile
from vdbg_env.record.atomic_write import prepared
from vdbg_env.record.dump_files import Dump, Exported

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
