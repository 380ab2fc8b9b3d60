"""How long to be patient with a machine that others use too."""

import subprocess
import sys
import time

IDLE_START_S = 0.02  # a bare Python, on two idle cores


def patience(seconds: float) -> float:
    """Return `seconds`, longer by as much as this machine is slower now than when idle at what tests mostly do."""
    began = time.monotonic()
    subprocess.run([sys.executable, "-I", "-S", "-c", "pass"], check=True)
    return seconds * max(1.0, (time.monotonic() - began) / IDLE_START_S)
