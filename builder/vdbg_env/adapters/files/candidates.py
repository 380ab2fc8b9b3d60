"""Find which files, and members of archives, may hold device code, and map them, one at a time."""

from __future__ import annotations

import errno
import lzma
import mmap
import shutil
import tempfile
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import IO, Final

from gpucore.fatbin import may_hold_device_code
from vdbg_env.application.ports.files import BinaryFile
from vdbg_env.common.mapped import mapped

KEEP_FREE: Final = 256 << 20  # bytes left free on the disk that holds an expanded file
HEAD: Final = 8  # bytes of a file that show whether it is a candidate
WHEELS: Final = (".whl", ".zip")
ARCHIVES: Final = (*WHEELS, ".tar", ".tgz", ".tar.gz", ".tar.xz", ".tar.bz2", ".tar.zst")
DAMAGED: Final = (EOFError, zlib.error, lzma.LZMAError, ValueError, OverflowError, MemoryError)  # of bytes that lie
_DEEPEST: Final = 8  # archives in each other
_TIMES: Final = 100  # wheels and packed images expand to 2 to 10 times their size
_SMALL: Final = 1 << 30  # bytes that any archive may expand to
OPENED: Final = 256 << 10  # bytes that opening an archive counts for: of a thousand archives in archives none is large


class Allowance:
    """The bytes that an archive of a size, with all archives in it, may expand to before it is refused."""

    def __init__(self, size: int) -> None:
        self._size: Final = size
        self._left = self.total = max(_SMALL, _TIMES * size)

    def take(self, count: int, what: str) -> None:
        """Take so many bytes off; raises OSError when there are not so many left, or the count is no count."""
        if count < 0:
            raise OSError(errno.EINVAL, f"a damaged archive: {what} should have {count:,} bytes")
        self._left -= count
        if self._left < 0:
            raise self.refused(f"with {what} it expands")

    def refused(self, what: str) -> OSError:
        """Return the error for an archive that expands to more."""
        limit = f"{self.total:,} bytes, the most that is read of an archive of {self._size:,}"
        return OSError(errno.EFBIG, f"{what} to over {limit}; expand it yourself if it is sound, and name the folder")


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


def spilled(name: str, stream: IO[bytes], depth: int = 0, allowed: Allowance | None = None) -> Iterator[BinaryFile]:
    """Lend a stream's contents if it is a candidate: from a scratch file, which goes away when the next is asked for.

    A library may be larger than memory should hold, and cuobjdump needs a file. Of a wheel or a tar, by its name, those
    of its members are given that are candidates; `depth` counts the archives around the stream, and `allowed` is what
    these may still expand to.
    """
    head = stream.read(HEAD)
    wanted = may_hold_device_code(head)
    if not wanted and not name.endswith(ARCHIVES):
        return
    suffix = "-" + Path(name.replace(":", "/")).name[-100:]
    with tempfile.NamedTemporaryFile(prefix="vdbg-", suffix=suffix) as scratch:
        scratch.write(head)
        _copy(stream, scratch, name, allowed)
        scratch.flush()
        if not wanted:
            yield from in_archive(Path(scratch.name), name, depth, allowed)
            return
        with opened_binary(name, scratch.fileno(), path=Path(scratch.name)) as found:
            yield found


def _copy(source: IO[bytes], target: IO[bytes], name: str, allowed: Allowance | None) -> None:
    """Copy a stream as long as the disk has room for more; a member of a few bytes may expand without end."""
    room = shutil.disk_usage(tempfile.gettempdir()).free - KEEP_FREE
    while chunk := source.read(1 << 20):
        if allowed:
            allowed.take(len(chunk), name.rpartition(":")[2])
        room -= len(chunk)
        if room < 0:
            raise OSError(errno.ENOSPC, f"no room in {tempfile.gettempdir()} to expand {name}: set TMPDIR")
        target.write(chunk)


def in_archive(path: Path, name: str, depth: int = 0, allowed: Allowance | None = None) -> Iterator[BinaryFile]:
    """Yield every candidate of a file with the name of a wheel or a tar; what cannot be read with its problem.

    `depth` counts the archives around it, and `allowed` is what these may still expand to.
    """
    try:
        allowed = allowed or Allowance(path.stat().st_size)
        if depth >= _DEEPEST:
            raise OSError(f"{depth} archives, each in the next")
        if name.endswith(WHEELS):
            yield from in_wheel(path, name, allowed, depth)
            return
        from vdbg_env.adapters.files.archives import in_tar, is_tar  # loaded on first use: most targets are no archives

        with path.open("rb") as file:
            packed = is_tar(file)
        if packed:
            yield from in_tar(path, name, allowed, depth)
    except (OSError, zipfile.BadZipFile) as error:
        yield BinaryFile(name=name, data=b"", problem=reason(error))


def in_wheel(path: Path, name: str, allowed: Allowance, depth: int = 0) -> Iterator[BinaryFile]:
    """Yield every candidate of a wheel or zip file as `NAME:MEMBER`; members that cannot be read with their problem.

    Raises OSError and BadZipFile when the list of members cannot be read, or says that it expands to too much.
    """
    allowed.take(OPENED, name)
    with zipfile.ZipFile(path) as wheel:
        members = wheel.infolist()
        if sum(member.file_size for member in members) > allowed.total:
            raise allowed.refused("its members are said to expand")
        size = path.stat().st_size
        if sum(member.compress_size for member in members) > size:
            raise OSError(errno.EINVAL, "a damaged archive: its members share bytes")
        for member in members:
            inner = f"{name}:{member.filename}"
            try:
                start = member.header_offset
                part = start / size, (start + member.compress_size) / size
                with wheel.open(member) as stream:
                    yield from (replace(file, part=part) for file in spilled(inner, stream, depth + 1, allowed))
            except (zipfile.BadZipFile, NotImplementedError, RuntimeError, *DAMAGED) as error:
                # Damaged, in a compression Python lacks, encrypted, or damaged once more, in this order.
                yield BinaryFile(name=inner, data=b"", problem=reason(error))


def reason(error: Exception) -> str:
    """Return why something could not be read, without the name of the file."""
    return (error.strerror if isinstance(error, OSError) else None) or str(error) or type(error).__name__
