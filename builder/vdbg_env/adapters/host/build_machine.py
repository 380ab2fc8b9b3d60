"""What a build may use of this machine."""

from __future__ import annotations

import os

import psutil

from vdbg_env.image.plan.parallelism import Machine


def build_machine() -> Machine:
    """Return the cores that this process may use, and the memory that is free."""
    return Machine(cores=len(os.sched_getaffinity(0)), free_memory=psutil.virtual_memory().available)
