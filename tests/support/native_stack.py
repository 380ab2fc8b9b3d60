"""Runs a command below the check that writes native stacks, and finds its lines."""

import subprocess
import sys
from pathlib import Path

CHECK = Path(__file__).parents[2] / "runbooks" / "lib" / "checks" / "native_stack.py"
ARGV = [sys.executable, "-I", "-S", str(CHECK)]


def followed(*words: str, path: Path | None = None) -> "subprocess.CompletedProcess[str]":
    """Follow a command to its end; programs are looked for in `path` first where it is given."""
    env = {"PATH": f"{path}:/usr/bin:/bin"} if path else None
    return subprocess.run(
        [*ARGV, *words], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=120, check=False, env=env
    )


def crashes(ran: "subprocess.CompletedProcess[str]") -> list[str]:
    """Return the lines that name a crash."""
    return [line for line in ran.stdout.splitlines() if line.startswith("native crash: ")]
