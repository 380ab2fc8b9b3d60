"""What a build may use of this machine."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from vdbg_env.image.plan import Machine


def build_machine() -> Machine:
    """Return what a build may use: the cores of this process, and the memory that is free."""
    import psutil

    from vdbg_env.image.plan import Machine

    return Machine(cores=len(os.sched_getaffinity(0)), free_memory=psutil.virtual_memory().available)
