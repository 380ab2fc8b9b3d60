"""Read a small file that others may have written: a pipe is not waited for, and no memory is taken for a huge one."""

from __future__ import annotations

import errno
import json
import os
import stat
from pathlib import Path
from typing import Any

LARGEST_DOCUMENT = 64 << 20  # bytes; a run's own are hardly ever above one


def read_whole(path: Path, limit: int = LARGEST_DOCUMENT) -> bytes:
    """Return what is in a regular file; raises OSError for what is not one, or is larger than `limit` bytes."""
    with os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
        about = os.fstat(file.fileno())
        if not stat.S_ISREG(about.st_mode):
            raise OSError(errno.EINVAL, "it is not a file", str(path))
        data = file.read(limit + 1) if about.st_size <= limit else b""
        if about.st_size > limit or len(data) > limit:
            raise OSError(errno.EFBIG, f"it is larger than {limit} bytes", str(path))
        return data


def read_document(path: Path) -> Any:
    """Return the JSON value in a file; raises OSError as `read_whole` does, ValueError for what is not JSON."""
    try:
        return json.loads(read_whole(path))
    except RecursionError:
        raise ValueError(f"{path} is nested too deeply") from None
