"""Runs a command below the check that writes native stacks, and finds its lines."""

import contextlib
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

CHECK = Path(__file__).parents[2] / "runbooks" / "lib" / "checks" / "native_stack.py"
ARGV = [sys.executable, "-I", "-S", str(CHECK)]


def followed(*words: str, path: Path | None = None, limit_s: float = 120) -> "subprocess.CompletedProcess[str]":
    """Follow a command to its end; programs are looked for in `path` first where it is given."""
    env = {"PATH": f"{path}:/usr/bin:/bin"} if path else None
    return subprocess.run(
        [*ARGV, *words], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=limit_s, check=False, env=env
    )


def crashes(ran: "subprocess.CompletedProcess[str]") -> list[str]:
    """Return the lines that name a crash."""
    return [line for line in ran.stdout.splitlines() if line.startswith("native crash: ")]


@contextlib.contextmanager
def looked_at(code: str, attached: bool) -> "Iterator[tuple[subprocess.Popen[str], int]]":
    """Follow a Python program that first prints which process will crash, until gdb starts, or has attached to it.

    Gives the process that was started, and gdb's.
    """
    with subprocess.Popen([*ARGV, sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as overseer:
        assert overseer.stdout
        crashing = overseer.stdout.readline().strip()
        tracer = int(_when(Path(f"/proc/{overseer.pid}/task/{overseer.pid}/children"), ""))
        _when(Path(f"/proc/{tracer}/comm"), "gdb\n")
        if attached:
            _when(Path(f"/proc/{crashing}/status"), f"TracerPid:\t{tracer}\n", "\nState:\tt")
        yield overseer, tracer


def _when(file: Path, *texts: str) -> str:
    end = time.monotonic() + 60
    while not all(text in (read := file.read_text()) for text in texts):
        assert time.monotonic() < end, read
        time.sleep(0.001)
    return read
