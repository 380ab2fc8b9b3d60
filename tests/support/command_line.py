"""Runs the command line in this process, as a user would, and keeps what it printed."""

import contextlib
import io
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass

from vdbg_env.cli import main


@dataclass(frozen=True)
class Ran:
    status: int
    stdout: str
    stderr: str


def vdbg_env(*argv: str) -> Ran:
    """Run `vdbg-env ARGV` and return its exit status and both streams."""
    return _run(argv)


def vdbg_env_without_rights(*argv: str) -> Ran:
    """Run it in a process to which files are closed whose mode says so, also where this is root."""
    closed = ["setpriv", "--bounding-set=-dac_override,-dac_read_search", "--"] if os.geteuid() == 0 else []
    command = [*closed, sys.executable, "-m", "vdbg_env", *argv]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    return Ran(ran.returncode, ran.stdout, ran.stderr)


def _run(argv: Sequence[str]) -> Ran:
    out, err = io.TextIOWrapper(io.BytesIO(), encoding="utf-8"), io.TextIOWrapper(io.BytesIO(), encoding="utf-8")
    before = signal.getsignal(signal.SIGTERM)
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            status = main(argv)
    finally:
        signal.signal(signal.SIGTERM, before)
    for stream in (out, err):
        stream.seek(0)
    return Ran(status, out.read(), err.read())
