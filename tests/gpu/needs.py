"""What the GPU suite needs beyond Python, and what to type where it is missing; the standard library only."""

from __future__ import annotations

import importlib.util
import re
import shutil
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]
_IMPORTED_AS = {
    "google-re2": "re2",
    "pyyaml": "yaml",
    "ruamel.yaml": "ruamel.yaml",
}
TOOLS = {
    "nvidia-smi": "the driver's library is asked for the GPU instead",
    "nvcc": "no CUDA sample can be built: everything but PyTorch's is skipped",
    "cuobjdump": "cuda-gdb shows no instructions",
    "nvdisasm": "no second opinion on the faulting instruction",
    "cuda-gdb": "no second opinion on the cores",
    "compute-sanitizer": "its four tools are skipped",
    "py-spy": "a hang's Python stacks are not taken",
}


def module_of(requirement: str) -> str:
    """Return the name under which a requirement of pyproject.toml is imported."""
    name = re.split(r"[<>=~! \[;]", requirement, maxsplit=1)[0]
    return _IMPORTED_AS.get(name.lower(), name.replace("-", "_"))


def missing_modules() -> tuple[str, ...]:
    """Return the requirements of pyproject.toml that cannot be imported here, as they are written there."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return tuple(name for name in project["dependencies"] if not _is_here(module_of(name)))


def _is_here(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:  # the parent of a dotted name
        return False


def advice(missing: tuple[str, ...]) -> str:
    """Say what is missing and what to type, with a network and without."""
    listed = "".join(f"\n    {name}" for name in missing)
    return (
        f"vdbg-env cannot be imported here, these packages are missing:{listed}\n"
        "with a network:   python3 -m pip install .\n"
        "without:          scripts/gpu-wheels DIR on a machine that has one, then here\n"
        "                  python3 -m pip install --no-index --no-deps --target gpu-packages DIR/*.whl\n"
        "                  PYTHONPATH=builder:gpu-packages python3 -m pytest tests/gpu"
    )


def missing_tools() -> tuple[str, ...]:
    """Return a sentence for each tool that is not on the PATH: its name, and what is lost without it."""
    return tuple(f"{name} is not here: {lost}" for name, lost in TOOLS.items() if shutil.which(name) is None)
