"""A real gdb for the checks that start one."""

import shutil
import subprocess

import pytest


@pytest.fixture(scope="module")
def gdb() -> str:
    """Return gdb's path; skip where none with Python is installed."""
    found = shutil.which("gdb")
    if not found or subprocess.run([found, "-nx", "-batch", "-ex", "python print(1)"], check=False).returncode:
        pytest.skip("no gdb with Python here: apt-get install gdb")
    return found
