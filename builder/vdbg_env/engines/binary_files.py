"""Finds binaries in files, folders and wheels, and maps them: one at a time, nothing unpacked that is not looked at."""

from __future__ import annotations

import mmap
import os
import tempfile
import zipfile
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Final

from vdbg_env.application.ports import BinaryFile, Buffer
from vdbg_env.cuda.device_code import may_hold_device_code
from vdbg_env.errors import BadInput

_START: Final = 8
_WHEELS: Final = (".whl", ".zip")
_COPY_STEP: Final = 1 << 20


class BinaryFiles:
    """A BinarySource over the file system.

    A file that is named is always yielded. Of a folder or a wheel, the files that start as an ELF file, a static
    library or a fat binary are; what cannot be opened is yielded with its problem, so that nothing is passed over.
    Members of a wheel lie in a temporary folder while they are looked at, one at a time: the disk space needed is that
    of the largest.
    """

    @contextmanager
    def open(self, target: str) -> Generator[Iterator[BinaryFile], None, None]:
        """Yield every candidate in `target`; raises BadInput when it does not exist or cannot be read."""
        path = Path(target)
        if not path.exists():
            raise BadInput(f"no such file or folder: {target}")
        files = _in_folder(path) if path.is_dir() else _in_file(path)
        try:
            yield files
        finally:
            files.close()


def _in_file(path: Path) -> Generator[BinaryFile, None, None]:
    try:
        if path.suffix in _WHEELS:
            yield from _in_wheel(path)
        else:
            yield BinaryFile(name=str(path), data=mapped(path), path=path, asked_for=True)
    except (OSError, zipfile.BadZipFile) as error:
        raise BadInput(f"{path} cannot be read: {_reason(error)}") from error


def _in_folder(folder: Path) -> Generator[BinaryFile, None, None]:
    seen: set[tuple[int, int]] = set()
    unreadable: list[OSError] = []
    for root, folders, names in os.walk(folder, onerror=unreadable.append):
        folders.sort()
        for name in sorted(names):
            path = Path(root, name)
            try:
                yield from _found(path, seen)
            except (OSError, zipfile.BadZipFile) as error:
                yield BinaryFile(name=str(path), data=b"", path=path, problem=_reason(error))
    for closed in unreadable:
        yield BinaryFile(name=str(closed.filename), data=b"", problem=_reason(closed))


def _found(path: Path, seen: set[tuple[int, int]]) -> Iterator[BinaryFile]:
    """Yield the file once, under the first of the names that lead to it; `libx.so` is often a link to `libx.so.1`."""
    if path.is_symlink() and not path.exists():
        return
    status = path.stat()
    if not path.is_file() or (status.st_dev, status.st_ino) in seen:
        return
    seen.add((status.st_dev, status.st_ino))
    if path.suffix == ".whl":
        yield from _in_wheel(path)
        return
    with path.open("rb", buffering=0) as file:
        start = file.read(_START)
    if may_hold_device_code(start):
        yield BinaryFile(name=str(path), data=mapped(path), path=path)


def _in_wheel(path: Path) -> Generator[BinaryFile, None, None]:
    with zipfile.ZipFile(path) as wheel, tempfile.TemporaryDirectory(prefix="vdbg-verify-") as folder:
        for member in wheel.infolist():
            name = f"{path}:{member.filename}"
            try:
                with wheel.open(member) as stream:
                    yield from spooled(name, stream, Path(folder))
            except (zipfile.BadZipFile, NotImplementedError, RuntimeError, EOFError) as error:
                # Damaged, in a compression Python lacks, encrypted, or cut short, in this order.
                yield BinaryFile(name=name, data=b"", problem=_reason(error))


def spooled(name: str, stream: IO[bytes], folder: Path) -> Iterator[BinaryFile]:
    """Yield the stream's contents as a mapped file in `folder` if it may hold device code; the file then goes away."""
    start = stream.read(_START)
    if not may_hold_device_code(start):
        return
    path = folder / Path(name).name
    try:
        with path.open("wb") as file:
            file.write(start)
            while piece := stream.read(_COPY_STEP):
                file.write(piece)
        yield BinaryFile(name=name, data=mapped(path), path=path)
    finally:
        path.unlink(missing_ok=True)


def mapped(path: Path) -> Buffer:
    """Return the file's bytes, mapped; the mapping lasts as long as anything refers to it."""
    with path.open("rb") as file:
        if os.fstat(file.fileno()).st_size == 0:
            return b""
        mapping = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    mapping.madvise(mmap.MADV_SEQUENTIAL)
    return memoryview(mapping)


def _reason(error: Exception) -> str:
    return (error.strerror if isinstance(error, OSError) else None) or str(error) or type(error).__name__
