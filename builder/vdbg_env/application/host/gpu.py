"""The GPU of this machine that a build is made for."""

from __future__ import annotations

import re

from vdbg_env.application.ports import ProgramRunner
from vdbg_env.common.errors import HostNotAble
from vdbg_env.image.profile.request import HostGpu


def first_gpu(programs: ProgramRunner) -> HostGpu | None:
    """Return this machine's first GPU, None where there is none or its driver does not respond."""
    if programs.which("nvidia-smi") is None:
        return None
    try:
        ran = programs.run(
            ["nvidia-smi", "--query-gpu=driver_version,compute_cap", "--format=csv,noheader"], timeout_s=20
        )
    except HostNotAble:  # a driver that hangs is for doctor to report; the build needs no GPU
        return None
    first = re.match(r"([0-9.]+), ([0-9]+\.[0-9])$", ran.stdout, re.MULTILINE) if ran.code == 0 else None
    return HostGpu(driver=first[1], arch=first[2]) if first else None
