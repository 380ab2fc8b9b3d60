"""Find the Python that the workload starts, its packages and the paths of its libraries, without importing any."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import PurePath

from vdbg_env.application.ports.programs import ProgramRunner
from vdbg_env.common.errors import HostNotAble
from vdbg_env.evidence.tools.tool_version import tool_version
from vdbg_env.runbook.workload.recognise import recognise

# Metadata only: importing torch takes half a minute, opens the GPU, and fails if the driver is broken. The
# current folder is left out: a json.py in it must not be taken for Python's own.
_HERE_LEFT_OUT = "import sys\nsys.path = [p for p in sys.path if p]\n"
_ASK = (
    _HERE_LEFT_OUT + "import importlib.metadata as m, json\n"
    "found = {}\n"
    "for name in sys.argv[1:]:\n"
    "    try: found[name] = m.version(name)\n"
    "    except m.PackageNotFoundError: pass\n"
    "print(json.dumps(found))\n"
)
_ASK_FOLDER = (
    _HERE_LEFT_OUT + "import importlib.util as u\n"
    "s = u.find_spec('vllm')\n"
    "print(*(s.submodule_search_locations or [] if s else []), sep='\\n')\n"
)
# `#!/opt/venv/bin/python3`, `#!/usr/bin/env python3`, and a shell script that hands over to a Python, as pip writes one
# where the path of the interpreter is too long for the kernel.
_STARTED_BY = re.compile(
    r"""#!\s*(?:\S*/env\s+(?:-S\s+)?)?(\S*python[\d.]*t?)\b|#!.*\n(?:'''|\s*)exec'?\s+"?([^"\s]*python[\d.]*t?)\b"""
)
_RELEASE = re.compile(r"\d+(?:\.\d+)+")


def workload_python(programs: ProgramRunner, argv: Sequence[str] = (), *, here: bool = True) -> str | None:
    """Return the interpreter that a command line starts; None for a compiled program, and where there is none.

    For a command that does not show it (a shell script, a launcher that chooses), and for no command, it is the Python
    that `vllm` starts with, else the one on PATH. In an image (`here` False) no script can be opened, and PATH names
    the Python that they were installed for.
    """
    if here and _is_compiled(programs, argv):
        return None
    starter = recognise(tuple(argv)).starter
    found = starter and _interpreter(programs, starter, here=here)
    return found or _interpreter(programs, "vllm", here=here) or programs.which("python3")


def toolkit_release(programs: ProgramRunner) -> str | None:
    """Return the release of the nvcc that kernels would be compiled with at run time, None without one."""
    nvcc = programs.which("nvcc")
    try:
        return (tool_version(programs.run([nvcc, "--version"], timeout_s=20).stdout) or None) if nvcc else None
    except HostNotAble:
        return None


def installed_versions(programs: ProgramRunner, python: str, packages: Sequence[str]) -> dict[str, str]:
    """Return the version of each package that is installed; raises HostNotAble when Python cannot be asked."""
    done = programs.run([python, "-c", _ASK, *packages], timeout_s=60)
    try:
        document = json.loads(done.stdout)
    except ValueError:
        raise HostNotAble(f"{python} could not be asked what is installed") from None
    return {str(name): str(version) for name, version in document.items()}


def installed_vllm(programs: ProgramRunner, argv: Sequence[str] = (), *, here: bool = True) -> str | None:
    """Return the release of the vLLM installed here (`0.33.0` of `0.33.0+cu130`), None where there is none."""
    try:
        python = workload_python(programs, argv, here=here)
        found = installed_versions(programs, python, ("vllm",)) if python else {}
    except (HostNotAble, OSError):
        return None
    release = _RELEASE.match(found.get("vllm", ""))
    return release[0] if release else None


def workload_libraries(programs: ProgramRunner, argv: Sequence[str], *, here: bool = True) -> list[str]:
    """Return the places of the workload's device code: its program if that is compiled, and its vLLM's folder.

    In an image (`here` False) a program cannot be opened; its reader finds out whether it is an ELF file.

    Raises HostNotAble when its Python cannot be asked.
    """
    program = programs.which(argv[0]) if argv else None
    targets = [program] if program and (not here or _is_compiled(programs, argv)) else []
    python = workload_python(programs, argv, here=here)
    if python:
        told = programs.run([python, "-c", _ASK_FOLDER], timeout_s=30)
        targets += told.stdout.splitlines() if told.code == 0 else []
    return targets


def _is_compiled(programs: ProgramRunner, argv: Sequence[str]) -> bool:
    """Whether a command line starts a program that no interpreter runs; a Python is an ELF file too, and is none."""
    if not argv or recognise(tuple(argv)).kind != "program":
        return False
    return programs.head(programs.which(argv[0]) or "").startswith(b"\x7fELF")


def _interpreter(programs: ProgramRunner, word: str, *, here: bool) -> str | None:
    """Return the Python behind a word of a command line: itself, or what starts the script that it names."""
    path = programs.which(word)
    if path is None:
        return None
    head = programs.head(path) if here else b""
    if not head.startswith(b"#!"):
        return path if "python" in PurePath(path).name else None
    started = _STARTED_BY.match(head.decode("utf-8", "replace"))
    return programs.which(started[1] or started[2]) if started else None
