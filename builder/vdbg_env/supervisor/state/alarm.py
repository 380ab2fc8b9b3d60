"""A file by which a rank that hangs has all ranks take their stacks, before any of them is ended."""

from __future__ import annotations

import os
from contextlib import suppress

from vdbg_env.common.writing import open_file
from vdbg_env.supervisor.state import lock_file

HEARD_S = lock_file.BEAT_S + 5.0  # after so long every rank has looked, and has taken most of its stacks


def sound(path: str) -> None:
    """Raise the alarm; where the disk takes no file, the other ranks are ended without their stacks."""
    with suppress(OSError):
        os.close(open_file(path))


def heard(path: str) -> bool:
    """Return whether a rank raised it."""
    return os.path.exists(path)  # noqa: PTH110
