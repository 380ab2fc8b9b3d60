"""Write a buffer whole, and open files that other programs may have put something else in place of."""

from __future__ import annotations

import errno
import os
import stat

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
