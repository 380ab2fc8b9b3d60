"""Runs the command line in this process, as a user would, and keeps what it printed."""

import contextlib
import io
import signal
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
