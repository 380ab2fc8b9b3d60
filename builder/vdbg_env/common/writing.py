"""Write a buffer whole."""

from __future__ import annotations

import os


def write_whole(descriptor: int, data: bytes) -> None:
    """Write all of `data`, however often the kernel takes only a part; raises OSError where it takes none."""
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]
