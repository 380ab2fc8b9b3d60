"""Read a small file that others may have written: a pipe is not waited for, and no memory is taken for a huge one."""

from __future__ import annotations

import errno
import json
import math
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from vdbg_env.common.writing import open_file

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
    try:
        return parse_json(read_whole(path))
    except RecursionError:
        raise ValueError(f"{path} is nested too deeply") from None


def parse_json(data: str | bytes) -> Any:
    """Return a JSON value; raises ValueError for what is not JSON, as NaN, and for numbers without a finite value.

    Python's own reader takes them, and its writer then writes what no other program reads.
    """
    return json.loads(data, parse_constant=_finite, parse_float=_finite)


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"{text} is not a number of JSON")
    return number
