"""Find binaries in files, folders, wheels and tar archives: one at a time, nothing unpacked that is not looked at."""

from __future__ import annotations

import os
import zipfile
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from gpucore.fatbin import may_hold_device_code
from vdbg_env.adapters.files.candidates import (
    ARCHIVES,
    HEAD,
    WHEELS,
    Allowance,
    in_archive,
    in_wheel,
    opened_binary,
    reason,
)
from vdbg_env.application.ports.files import BinaryFile
from vdbg_env.common.errors import BadInput


class BinaryFiles:
    """A BinarySource over the file system.

    A file that is named is always yielded. Of a folder, a wheel or a tar, the files that start as an ELF file, a static
    library or a fat binary are, also of wheels and tars within; what cannot be opened is yielded with its problem.
    Members of an archive are in a scratch file while they are looked at: the disk space needed is that of the largest.
    """

    @contextmanager
    def open(self, target: str) -> Generator[Iterator[BinaryFile], None, None]:
        """Yield every candidate in `target`; raises BadInput when it does not exist or cannot be read."""
        path = Path(target)
        try:
            path.stat()
        except FileNotFoundError:
            raise BadInput(f"no such file or folder: {target}") from None
        except OSError as error:
            raise BadInput(f"{target} cannot be read: {reason(error)}") from None
        if not path.is_dir() and not path.is_file():
            raise BadInput(f"{target} is a pipe or a device; its bytes cannot be mapped", next_step="save it to a file")
        files = _in_folder(path) if path.is_dir() else _in_file(path)
        try:
            yield files
        finally:
            files.close()


def _in_file(path: Path) -> Generator[BinaryFile, None, None]:
    try:
        if path.suffix in WHEELS:
            yield from in_wheel(path, str(path), Allowance(path.stat().st_size))
            return
        if not _is_candidate(path) and _is_tar(path):
            from vdbg_env.adapters.files.archives import in_tar

            yield from in_tar(path, str(path), Allowance(path.stat().st_size))
            return
        with path.open("rb") as file, opened_binary(str(path), file.fileno(), path=path, asked_for=True) as found:
            yield found
    except (OSError, zipfile.BadZipFile) as error:
        raise BadInput(f"{path} cannot be read: {reason(error)}") from error


def _in_folder(folder: Path) -> Generator[BinaryFile, None, None]:
    seen: set[tuple[int, int]] = set()
    closed: list[OSError] = []
    paths: list[Path] = []
    for root, folders, names in os.walk(folder, onerror=closed.append):
        folders.sort()
        # A file before the links to it: it is reported under its name.
        paths += sorted((Path(root, name) for name in names), key=lambda p: (p.is_symlink(), p.name))
    for number, path in enumerate(paths):
        part = number / len(paths), (number + 1) / len(paths)
        try:
            yield from (replace(file, part=part) for file in _found(path, seen))
        except (OSError, zipfile.BadZipFile) as error:
            yield BinaryFile(name=str(path), data=b"", path=path, problem=reason(error), part=part)
    for denied in closed:
        yield BinaryFile(name=str(denied.filename), data=b"", problem=reason(denied))


def _found(path: Path, seen: set[tuple[int, int]]) -> Iterator[BinaryFile]:
    """Yield the file once, under the first name that leads to it; `libx.so` is often a link to `libx.so.1`."""
    if not path.is_file():  # a pipe, a device, a link to nowhere
        return
    status = path.stat()
    if (status.st_dev, status.st_ino) in seen:
        return
    seen.add((status.st_dev, status.st_ino))
    if _is_candidate(path):
        with path.open("rb", buffering=0) as file, opened_binary(str(path), file.fileno(), path=path) as found:
            yield found
    elif path.name.endswith(ARCHIVES):
        yield from in_archive(path, str(path))


def _is_candidate(path: Path) -> bool:
    with path.open("rb", buffering=0) as file:
        return may_hold_device_code(file.read(HEAD))


def _is_tar(path: Path) -> bool:
    from vdbg_env.adapters.files.archives import is_tar  # loaded on first use: most targets are no archives

    with path.open("rb") as file:
        return is_tar(file)
