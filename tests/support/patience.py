"""How long to be patient with a machine that others use too."""

import os
import subprocess
import sys
import time

IDLE_START_S = 0.02  # a bare Python, on two idle cores


def patience(seconds: float) -> float:
    """Return `seconds`, longer by as much as this machine is slower now than when idle at what tests mostly do.

    One start of a program may be lucky on a crowded machine: how many want its processors counts too.
    """
    began = time.monotonic()
    subprocess.run([sys.executable, "-I", "-S", "-c", "pass"], check=True)
    slower = (time.monotonic() - began) / IDLE_START_S
    crowd = os.getloadavg()[0] / len(os.sched_getaffinity(0))
    return seconds * max(1.0, slower, crowd)
