"""nvcc, the real one; where it links a program, a stand-in takes that program's place and keeps the real one beside it.

REAL_NVCC names the compiler, STAND_INS the folder for what is really linked.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from pathlib import Path

from tests.gpu.machine import MARK
from tests.gpu.samples import samples
from tests.gpu.walking import python_path


def main() -> int:
    """Compile; then put the stand-in where the program was to be."""
    arguments = sys.argv[1:]
    done = subprocess.run([os.environ["REAL_NVCC"], *arguments])
    if arguments == ["--version"]:
        print(f"{MARK}: the real compiler, whose programs are replaced by stand-ins")
    if done.returncode or "-o" not in arguments or "-cubin" in arguments:
        return done.returncode
    target, source = Path(arguments[arguments.index("-o") + 1]), Path(arguments[-1])
    sample = next(s for s in samples() if s.source.name == source.name)
    kept = Path(os.environ["STAND_INS"]) / f"{sample.name}-{hashlib.sha256(target.read_bytes()).hexdigest()[:12]}"
    target.rename(kept)
    target.write_text(starter("program", sample.name, str(kept)))
    target.chmod(0o755)
    return 0


def starter(module: str, *arguments: str) -> str:
    """Return a script that starts a module of this folder, whatever the environment it is started from."""
    root = Path(__file__).parents[2]
    words = " ".join(f"'{word}'" for word in (sys.executable, "-m", f"tests.rehearsal.{module}", *arguments))
    path = f"{python_path()}{os.pathsep}{root}"
    return f"#!/bin/sh\n# {MARK}\nPYTHONPATH='{path}' PYTHONSAFEPATH=1 exec {words} \"$@\"\n"


if __name__ == "__main__":
    sys.exit(main())
