"""Open, read and write files that other programs may have put something else in place of.

A pipe is not waited for, and no memory is taken for a huge file.
"""

from __future__ import annotations

import errno
import json
import math
import os
import re
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

_NOT_FILES = {errno.ELOOP, errno.EISDIR, errno.ENXIO, errno.ENODEV}  # a link, a folder, a socket, a device or pipe


class NotAFile(OSError):
    """Raised where something that is not a regular file has the name of one."""


_CAUSES = {
    errno.ENOSPC: "the disk is full",
    errno.EDQUOT: "this user may have no more of the disk",
    errno.EROFS: "the disk is read-only, or has become so after an error: dmesg",
    errno.EIO: "the disk fails: dmesg",
    errno.ESTALE: "the file server has restarted, or removed it: mount it again",
    errno.EACCES: "it belongs to another user",
    errno.EPERM: "it belongs to another user, or is immutable: lsattr",
}


def refusal_cause(error: OSError) -> str:
    """Return the usual cause of the system's refusal of a file."""
    return _CAUSES.get(error.errno or 0, "the system refused a file or stream")


def reason(error: Exception) -> str:
    """Return why something could not be read, without the name of the file."""
    return (error.strerror if isinstance(error, OSError) else None) or str(error) or type(error).__name__


WHEELS = (".whl", ".zip")
ARCHIVES = (*WHEELS, ".tar", ".tgz", ".txz", ".tbz2", ".tar.gz", ".tar.xz", ".tar.bz2", ".tar.zst")
"""How the names of files end that hold other files."""

START = 8
"""Bytes of a file that show whether it may hold device code."""

KEEP_FREE = 256 << 20
"""Bytes to leave free on the disk that holds an expanded file."""

ZSTD = (b"\x28\xb5\x2f\xfd", *(bytes((first,)) + b"\x2a\x4d\x18" for first in range(0x50, 0x60)))
"""How a zstd file begins: with a frame of data, or one of sixteen that are skipped, as pzstd writes them."""

PACKED_ENDS = (".gz", ".zst", ".xz", ".bz2")
"""How the names of files end that `packing_of` knows by their first bytes."""

_PACKED = {"gzip": (b"\x1f\x8b",), "zstd": ZSTD, "xz": (b"\xfd7zXZ\x00",)}
_BZIP2 = re.compile(rb"BZh[1-9](?:1AY&|\x17rE8)")  # with the start of its first block, or of its end: BZh alone is text


def packing_of(head: bytes) -> str | None:
    """Return which program packed a file that begins with these bytes, `START` of them; None where none did."""
    named = (kind for kind, starts in _PACKED.items() if head.startswith(starts))
    return next(named, "bzip2" if _BZIP2.match(head) else None)


def write_whole(descriptor: int, data: bytes) -> None:
    """Write all of `data`, however often the kernel takes only a part; raises OSError where it takes none."""
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]


def open_file(path: str | os.PathLike[str], flags: int = os.O_RDWR | os.O_CREAT) -> int:
    """Return a descriptor of a regular file, mode 0600 where it is made; raises NotAFile, and OSError as `open` does.

    A workload may have put a link in its place: what is written would be where that leads. A pipe is not waited for.
    """
    try:
        descriptor = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC, 0o600)
    except OSError as error:
        if error.errno in _NOT_FILES:
            raise _not_a_file(path) from error
        raise
    if stat.S_ISREG(os.fstat(descriptor).st_mode):
        return descriptor
    os.close(descriptor)
    raise _not_a_file(path)


def _not_a_file(path: str | os.PathLike[str]) -> NotAFile:
    return NotAFile(errno.EINVAL, "it is a link, pipe, device, socket or folder in place of a file", os.fspath(path))


LARGEST_DOCUMENT = 64 << 20  # bytes; a run's own are hardly ever above one


@contextmanager
def opened(path: Path) -> Iterator[IO[bytes]]:
    """Yield a regular file, opened; raises OSError for what is not one, a link too."""
    with os.fdopen(open_file(path, os.O_RDONLY), "rb") as file:
        yield file


def read_whole(path: Path, limit: int = LARGEST_DOCUMENT) -> bytes:
    """Return what is in a regular file; raises OSError for what is not one, or is larger than `limit` bytes."""
    with opened(path) as file:
        size = os.fstat(file.fileno()).st_size
        data = file.read(limit + 1) if size <= limit else b""
        if max(size, len(data)) > limit:
            raise OSError(errno.EFBIG, f"it is larger than {limit} bytes", str(path))
        return data


def read_document(path: Path) -> Any:
    """Return the JSON value in a file; raises OSError as `read_whole` does, ValueError for what is not JSON."""
    return parse_json(read_whole(path))


def parse_json(data: str | bytes) -> Any:
    """Return a JSON value; raises ValueError for what is not JSON, as NaN, or too deep, and for infinite numbers.

    Python's own reader takes them, and its writer then writes what no other program reads.
    """
    try:
        return json.loads(data, parse_constant=_finite, parse_float=_finite)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"{text} is not a number of JSON")
    return number
