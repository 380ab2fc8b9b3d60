"""Write where others may write too: a buffer whole, and files that are no way to somewhere else."""

from __future__ import annotations

import errno
import os
import stat


def write_whole(descriptor: int, data: bytes) -> None:
    """Write all of `data`, however often the kernel takes only a part; raises OSError where it takes none."""
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]


def open_file(path: str | os.PathLike[str]) -> int:
    """Open a file to read and write, made where there is none, closed to other users; raises OSError.

    What another put under its name is an error: a link would have us write where it leads, a pipe would have us wait.
    """
    flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
    try:
        descriptor = os.open(path, flags, 0o600)
    except OSError as error:
        if error.errno != errno.ELOOP:
            raise
        raise OSError(errno.ELOOP, "it is a link, not a file", os.fspath(path)) from None
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "it is not a file", os.fspath(path))
    return descriptor
