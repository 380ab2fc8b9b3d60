"""What a workload may put in place of a file."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

KINDS = ("pipe", "socket", "link", "loop", "folder", "device")
OUTSIDE = b"of another user\n"


def put(kind: str, path: Path) -> Path:
    """Put something that is not a file at `path`, and return the file that a link leads to."""
    outside = path.parent / "outside"
    outside.write_bytes(OUTSIDE)
    with suppress(IsADirectoryError):
        path.unlink(missing_ok=True)
    if path.is_dir():
        shutil.rmtree(path)
    match kind:
        case "pipe":
            os.mkfifo(path)
        case "socket":
            here = os.open(path.parent, os.O_RDONLY)  # the name of a socket may have 107 bytes
            try:
                with socket.socket(socket.AF_UNIX) as server:
                    server.bind(f"/proc/self/fd/{here}/{path.name}")
            finally:
                os.close(here)
        case "link":
            path.symlink_to(outside)
        case "loop":
            path.symlink_to(path)
        case "folder":
            path.mkdir()
        case "device":
            try:
                os.mknod(path, 0o600 | stat.S_IFCHR, os.makedev(1, 5))  # /dev/zero
            except PermissionError:
                path.symlink_to("/dev/zero")
    return outside


@contextmanager
def no_wait_without_end(seconds: int = 60) -> Iterator[None]:
    """Fail in place of waiting for ever at a pipe."""

    def fail(_number: int, _frame: object) -> None:
        raise AssertionError(f"still waiting after {seconds} s")

    before = signal.signal(signal.SIGALRM, fail)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
