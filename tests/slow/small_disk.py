"""A file system that is soon full."""

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


@contextmanager
def mounted(mount: Path, options: str) -> Iterator[Path]:
    """Yield a file system in memory, mounted with these options; skip the test where that is not allowed."""
    if os.geteuid() != 0:
        pytest.skip("only root may mount a small file system")
    mount.mkdir()
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", options, "vdbg-test", mount], capture_output=True)
    if done.returncode:
        pytest.skip(f"no tmpfs can be mounted here: {done.stderr.decode().strip()}")
    yield mount
    subprocess.run(["umount", "-l", mount], check=True)
