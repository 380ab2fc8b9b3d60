"""What the workload's interpreter has installed, whether it fits, and names of runbooks that it does not know."""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path, PurePath
from typing import TYPE_CHECKING

from vdbg_env.common import yaml_source
from vdbg_env.common.errors import HostNotAble
from vdbg_env.common.programs import ProgramRunner
from vdbg_env.common.resources import SHIPPED_DATA
from vdbg_env.common.yaml_source import Complaint, Value, read_tables
from vdbg_env.evidence.finding import Finding, HowKnown, Level, NextStep
from vdbg_env.evidence.knowledge import shipped_knowledge
from vdbg_env.runbook.workload import recognise

if TYPE_CHECKING:
    from vdbg_env.image.knowledge import Knowledge

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
_TORCH_FILE = "python3*/*-packages/torch/version.py"
_TORCH = re.compile(r"""^__version__ = ['"]([^'"]+)""", re.MULTILINE)
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


def installed_versions(programs: ProgramRunner, python: str, packages: Sequence[str]) -> dict[str, str]:
    """Return the version of each package that is installed; raises HostNotAble when Python cannot be asked."""
    done = programs.run([python, "-c", _ASK, *packages], timeout_s=60)
    try:
        document = json.loads(done.stdout)
    except (ValueError, RecursionError):
        raise HostNotAble(f"{python} could not be asked what is installed") from None
    return {str(name): str(version) for name, version in document.items()}


def torch_on_disk(programs: ProgramRunner, argv: Sequence[str]) -> str | None:
    """Return the release of the torch next to the workload's Python, which is not started; None where none is found."""
    python = workload_python(programs, argv)
    if python is None:
        return None
    prefix = Path(python).parent.parent
    found = (path for places in ("lib*", "local/lib") for path in sorted(prefix.glob(f"{places}/{_TORCH_FILE}")))
    said = (_TORCH.search(programs.head(str(path)).decode("utf-8", "replace")) for path in found)
    return next((one[1] for one in said if one), None)


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


# Check whether driver, toolkit, torch and vLLM fit one another, by the dated compatibility tables.


# The CUDA runtime that PyTorch's wheels bring, by the names it has had, the newest first.
RUNTIMES = ("nvidia-cuda-runtime", "nvidia-cuda-runtime-cu13", "nvidia-cuda-runtime-cu12")


@dataclass(frozen=True, kw_only=True)
class Versions:
    """What is installed; None where it is not, or could not be found out. `runtime` is the CUDA that torch brings."""

    vllm: str | None = None
    torch: str | None = None
    runtime: str | None = None
    toolkit: str | None = None
    driver: str | None = None

    @property
    def torch_cuda(self) -> str | None:
        """Return torch's CUDA as `13.0`: by its version's local part, else by the runtime installed with it."""
        local = re.search(r"\+cu(\d+)(\d)$", self.torch or "")
        if local:
            return f"{local[1]}.{local[2]}"
        return ".".join(self.runtime.split(".")[:2]) if self.runtime else None


@cache
def shipped_tables() -> Knowledge:
    """Read the shipped tables; raises BadDocument where one is wrong."""
    from vdbg_env.image.knowledge import read_knowledge  # its models are of builds: few runs need them

    return read_knowledge(read_tables(SHIPPED_DATA / "images" / "knowledge"))


def mismatches(versions: Versions, tables: Knowledge) -> tuple[Finding, ...]:
    """Return a warning for each pair that the tables rule out; what they do not speak of is no finding."""
    return (*_torch_of_vllm(versions, tables), *_driver(versions, tables), *_toolkit(versions))


def _torch_of_vllm(versions: Versions, tables: Knowledge) -> Iterator[Finding]:
    if versions.torch and versions.torch.endswith("+cpu"):
        yield _finding(f"torch {versions.torch} is built without CUDA", "install the torch of vLLM's own wheel")
        return
    row = tables.vllm.get(_release(versions.vllm))
    if row and versions.torch and _release(versions.torch) != row.torch:
        yield _finding(
            f"vLLM {versions.vllm} is built against torch {row.torch}, and {versions.torch} is installed",
            f"pip install torch=={row.torch}, or build vLLM against this torch",
        )


def _driver(versions: Versions, tables: Knowledge) -> Iterator[Finding]:
    from vdbg_env.image.knowledge import version_key

    row = tables.cuda.get(versions.torch_cuda or "")
    if row and versions.driver and version_key(versions.driver) < version_key(row.driver.least):
        yield _finding(
            f"torch's CUDA {row.version} needs driver {row.driver.least} or newer, and {versions.driver} is here",
            "a newer driver, a wheel for an older CUDA, or VLLM_ENABLE_CUDA_COMPATIBILITY=1 on a data-centre GPU",
        )


def _toolkit(versions: Versions) -> Iterator[Finding]:
    from vdbg_env.image.knowledge import version_key

    ours, theirs = versions.toolkit, versions.torch_cuda
    if ours and theirs and version_key(ours)[:1] != version_key(theirs)[:1]:
        yield _finding(
            f"nvcc is of CUDA {ours} and torch of CUDA {theirs}: what is compiled at run time will not fit",
            f"a toolkit of CUDA {theirs.partition('.')[0]} first on PATH and in CUDA_HOME",
        )


def _release(version: str | None) -> str:
    found = re.match(r"\d+(?:\.\d+)*", version or "")
    return found[0] if found else ""


def _finding(message: str, next_step: str) -> Finding:
    return Finding(
        rule="versions-do-not-fit",
        level=Level.WARNING,
        message=message,
        how_known=HowKnown.HOST_CHECK,
        confidence=0.85,
        next_step=NextStep(next_step),
    )


# Check the flags and variables that runbooks set against what a vLLM release knows.


_Place = tuple[str | int, ...]
_ALIKE = 0.85


def name_complaints(files: Iterable[Path], vllm: str | None = None) -> tuple[Complaint, ...]:
    """Return a complaint for every stale or never-existing name the files, and the shared steps, set.

    `vllm` is a release, the newest known without one. Every file has passed the runbook's own lint.
    """
    shared = sorted((SHIPPED_DATA / "runbooks" / "lib").glob("*.yaml"))
    return tuple(complaint for path in dict.fromkeys([*files, *shared]) for complaint in _of_file(path, vllm))


def _of_file(path: Path, vllm: str | None) -> Iterator[Complaint]:
    source = yaml_source.read(path.read_bytes(), str(path))
    for use in _uses(source.value, ()):
        judged = shipped_knowledge().judge_name(use.flag, vllm)
        instead = judged.replaced_by
        misspelt = judged.status == "unknown" and (use.is_engine_argument or _alike(use.flag, instead))
        if judged.level == "error" or misspelt:
            what = judged.message.replace(use.flag, use.written)
            known = instead and ("instead" in what or "did you mean" in what)
            if use.is_engine_argument and instead:
                what = what.replace(instead, instead[2:].replace("-", "_"))
            yield source.complaint(use.place, what, key=use.is_key, suggestion=None if known else instead)


def _alike(flag: str, known: str | None) -> bool:
    """Return whether a flag is a slip of the pen: what is less alike may be a flag of a script."""
    return known is not None and difflib.SequenceMatcher(None, flag, known).ratio() >= _ALIKE


@dataclass(frozen=True, kw_only=True)
class _Use:
    """One place where a name is set: as the author wrote it, and as the variable or flag that it is in the tables."""

    place: _Place
    written: str
    flag: str
    is_key: bool = True
    is_engine_argument: bool = False


def _uses(value: Value, place: _Place) -> Iterator[_Use]:
    """Yield keys of `env`, keys of `engine_args` as flags, and the flags of vLLM's commands and of what is appended."""
    match value:
        case dict():
            for key, inner in value.items():
                here = (*place, key)
                if place[-1:] == ("env",) and inner is not None:
                    yield _Use(place=here, written=key, flag=key)
                elif place[-1:] == ("engine_args",):
                    yield _Use(place=here, written=key, flag="--" + key.replace("_", "-"), is_engine_argument=True)
                yield from _uses(inner, here)
        case list():
            takes_flags = place[-1:] == ("append",) or (place[-1:] == ("argv",) and "vllm" in value)
            for index, inner in enumerate(value):
                here = (*place, index)
                takes_flags = takes_flags and inner != "--"
                if takes_flags and isinstance(inner, str) and inner.startswith("-") and inner != "-":
                    flag = inner.partition("=")[0]
                    yield _Use(place=here, written=flag, flag=flag, is_key=False)
                yield from _uses(inner, here)
        case _:
            return
