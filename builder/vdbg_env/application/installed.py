"""Which releases the workload's own Python has installed, asked of its metadata alone."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path

from vdbg_env.application.ports import ProgramRunner
from vdbg_env.errors import HostNotAble

# Metadata only: importing torch takes half a minute, opens the GPU, and fails where the driver is broken.
_ASK = (
    "import importlib.metadata as m, json, sys\n"
    "found = {}\n"
    "for name in sys.argv[1:]:\n"
    "    try: found[name] = m.version(name)\n"
    "    except m.PackageNotFoundError: pass\n"
    "print(json.dumps(found))\n"
)
_SHEBANG = re.compile(r"#!\s*(\S*python[\d.]*)")
_RELEASE = re.compile(r"\d+(?:\.\d+)+")


def workload_python(programs: ProgramRunner, *, here: bool = True) -> str | None:
    """Return the Python that `vllm` starts with, else the one on PATH; None where there is neither.

    In an image (`here` False) the script cannot be opened, and PATH names the Python it was installed for.
    """
    script = programs.which("vllm") if here else None
    if script:
        with Path(script).open("rb") as file:
            shebang = _SHEBANG.match(file.read(256).decode("utf-8", "replace"))
        if shebang:
            return shebang[1]
    return programs.which("python3")


def installed_versions(programs: ProgramRunner, python: str, packages: Sequence[str]) -> dict[str, str]:
    """Return the version of each package that is installed; raises HostNotAble when Python cannot be asked."""
    done = programs.run([python, "-I", "-c", _ASK, *packages], timeout_s=60)
    try:
        document = json.loads(done.stdout)
    except ValueError:
        raise HostNotAble(f"{python} could not be asked what is installed") from None
    return {str(name): str(version) for name, version in document.items()}


def installed_vllm(programs: ProgramRunner, *, here: bool = True) -> str | None:
    """Return the release of the vLLM installed here (`0.33.0` of `0.33.0+cu130`), None where there is none."""
    try:
        python = workload_python(programs, here=here)
        found = installed_versions(programs, python, ("vllm",)) if python else {}
    except (HostNotAble, OSError):
        return None
    release = _RELEASE.match(found.get("vllm", ""))
    return release[0] if release else None
