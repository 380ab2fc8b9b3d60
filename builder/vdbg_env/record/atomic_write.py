"""Replace files in folders where a workload may be writing at the same time."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO


@contextmanager
def replacement(path: Path) -> Iterator[IO[bytes]]:
    """Yield a file that becomes `path` at the block's end, whole, durable and with its permissions; else it goes.

    Until then it has a name that cannot be foreseen: under any other a workload may have put a link, and what is
    written would be where that leads, on this machine and not in the workload's container.
    """
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=".", suffix=".new")
    try:
        with os.fdopen(descriptor, "wb") as file:
            yield file
            file.flush()
            os.fchmod(descriptor, path.stat().st_mode & 0o777)
            os.fsync(descriptor)
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink()
        raise
