"""A run that is told to stop while an engine, controller or server that it waits for does not respond."""

import os
import subprocess
import time


def ended_within(limit_s: float, process: "subprocess.Popen[str]", number: int) -> tuple[str, str]:
    """Send a signal, if not 0, and return what the run wrote; what it waits for is still stopped."""
    process.send_signal(number)
    began = time.monotonic()
    try:
        out, err = process.communicate(timeout=limit_s)
    finally:
        process.kill()
    print(f"it took {time.monotonic() - began:.2f} s to end, at load {os.getloadavg()[0]:.1f}")
    assert "Traceback" not in err, err
    return out, err
