"""Find which files, and members of archives, may hold device code, and map them, one at a time."""

from __future__ import annotations

import errno
import mmap
import shutil
import tempfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import IO, Final

from vdbg_env.application.ports.files import BinaryFile
from vdbg_env.common.mapped import mapped
from vdbg_env.cuda.binary.device_code import may_hold_device_code

KEEP_FREE: Final = 256 << 20  # bytes left free on the disk that holds an expanded file
HEAD: Final = 8  # bytes of a file that show whether it is a candidate
WHEELS: Final = (".whl", ".zip")
ARCHIVES: Final = (*WHEELS, ".tar", ".tgz", ".tar.gz", ".tar.xz", ".tar.bz2", ".tar.zst")
_DEEPEST: Final = 8  # archives in each other


@contextmanager
def opened_binary(
    name: str, descriptor: int, *, path: Path | None = None, asked_for: bool = False
) -> Iterator[BinaryFile]:
    """Yield an open file by its mapped pages; see `mapped`."""
    with mapped(descriptor, name) as view:
        pages = view.obj
        if not isinstance(pages, mmap.mmap):
            yield BinaryFile(name=name, data=b"", path=path, asked_for=asked_for)
            return
        pages.madvise(mmap.MADV_SEQUENTIAL)  # a cold disk reads ahead further
        forget = partial(pages.madvise, mmap.MADV_DONTNEED)
        yield BinaryFile(name=name, data=view, path=path, asked_for=asked_for, forget=forget)


def spilled(name: str, stream: IO[bytes], depth: int = 0) -> Iterator[BinaryFile]:
    """Lend a stream's contents if it is a candidate: from a scratch file, which goes away when the next is asked for.

    A library may be larger than memory should hold, and cuobjdump needs a file. Of a wheel or a tar, by its name, those
    of its members are lent that are candidates; `depth` counts the archives around the stream.
    """
    head = stream.read(HEAD)
    wanted = may_hold_device_code(head)
    if not wanted and not name.endswith(ARCHIVES):
        return
    suffix = "-" + Path(name.replace(":", "/")).name[-100:]
    with tempfile.NamedTemporaryFile(prefix="vdbg-", suffix=suffix) as scratch:
        scratch.write(head)
        _copy(stream, scratch, name)
        scratch.flush()
        if not wanted:
            yield from in_archive(Path(scratch.name), name, depth)
            return
        with opened_binary(name, scratch.fileno(), path=Path(scratch.name)) as found:
            yield found


def _copy(source: IO[bytes], target: IO[bytes], name: str) -> None:
    """Copy a stream as long as the disk has room for more; a member of a few bytes may expand without end."""
    room = shutil.disk_usage(tempfile.gettempdir()).free - KEEP_FREE
    while chunk := source.read(1 << 20):
        room -= len(chunk)
        if room < 0:
            raise OSError(errno.ENOSPC, f"no room in {tempfile.gettempdir()} to expand {name}: set TMPDIR")
        target.write(chunk)


def in_archive(path: Path, name: str, depth: int = 0) -> Iterator[BinaryFile]:
    """Yield every candidate of a file with the name of a wheel or a tar; what cannot be read with its problem.

    `depth` counts the archives around it.
    """
    try:
        if depth >= _DEEPEST:
            raise OSError(f"{depth} archives, each in the next")
        if name.endswith(WHEELS):
            yield from in_wheel(path, name, depth)
            return
        from vdbg_env.adapters.files.archives import in_tar, is_tar  # loaded on first use: most targets are no archives

        with path.open("rb") as file:
            packed = is_tar(file)
        if packed:
            yield from in_tar(path, name, depth)
    except (OSError, zipfile.BadZipFile) as error:
        yield BinaryFile(name=name, data=b"", problem=reason(error))


def in_wheel(path: Path, name: str, depth: int = 0) -> Iterator[BinaryFile]:
    """Yield every candidate of a wheel or zip file as `NAME:MEMBER`; members that cannot be read with their problem.

    Raises OSError and BadZipFile when the list of members cannot be read.
    """
    with zipfile.ZipFile(path) as wheel:
        for member in wheel.infolist():
            inner = f"{name}:{member.filename}"
            try:
                with wheel.open(member) as stream:
                    yield from spilled(inner, stream, depth + 1)
            except (zipfile.BadZipFile, NotImplementedError, RuntimeError, EOFError) as error:
                # Damaged, in a compression Python lacks, encrypted, or cut short, in this order.
                yield BinaryFile(name=inner, data=b"", problem=reason(error))


def reason(error: Exception) -> str:
    """Return why something could not be read, without the name of the file."""
    return (error.strerror if isinstance(error, OSError) else None) or str(error) or type(error).__name__
