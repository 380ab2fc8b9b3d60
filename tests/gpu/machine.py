"""Which GPU is here: asked of nvidia-smi, else of the driver's own library, for many containers lack the former."""

from __future__ import annotations

import shutil
import subprocess
import sys
from dataclasses import dataclass

MARK = "REHEARSAL"
"""Stands in the name of the GPU that stand-ins report, and so in everything that is made of it."""

# cuInit makes no context, so that the suite itself holds nothing on the GPU; in a process of its own all the same.
_ASK_THE_DRIVER = """
import ctypes
cuda = ctypes.CDLL("libcuda.so.1")
status = cuda.cuInit(0)
if status:
    raise SystemExit(f"cuInit gives {status}")
count, version, name = ctypes.c_int(), ctypes.c_int(), ctypes.create_string_buffer(256)
cuda.cuDeviceGetCount(ctypes.byref(count))
cuda.cuDriverGetVersion(ctypes.byref(version))
for number in range(count.value):
    major, minor = ctypes.c_int(), ctypes.c_int()
    cuda.cuDeviceGetName(name, 256, number)
    cuda.cuDeviceGetAttribute(ctypes.byref(major), 75, number)
    cuda.cuDeviceGetAttribute(ctypes.byref(minor), 76, number)
    cuda_version = f"{version.value // 1000}.{version.value % 1000 // 10}"
    print(f"{name.value.decode()}, for CUDA {cuda_version}, {major.value}.{minor.value}")
"""


@dataclass(frozen=True, kw_only=True)
class Machine:
    """The GPUs here, in the order of their numbers; `arch` is that of the first, as `sm_90`."""

    gpus: tuple[str, ...]
    driver: str
    arch: str

    @property
    def rehearsal(self) -> bool:
        """Whether stand-ins answer for a GPU that is not there."""
        return any(MARK in name for name in self.gpus)

    def __str__(self) -> str:
        more = f" and {len(self.gpus) - 1} more" if len(self.gpus) > 1 else ""
        return f"{self.gpus[0]}{more}, {self.arch}, driver {self.driver}"


def look() -> Machine | str:
    """Return the machine, or in one sentence why nothing can be run on a GPU here."""
    smi = shutil.which("nvidia-smi")
    query = [smi or "", "--query-gpu=name,driver_version,compute_cap", "--format=csv,noheader"]
    said = _ask(query) if smi else "nvidia-smi is not installed"
    rows = _rows(said)
    if not rows:
        by_driver = _ask([sys.executable, "-c", _ASK_THE_DRIVER])
        rows = _rows(by_driver)
        if not rows:
            return f"no NVIDIA GPU answers here ({_last(said)}; {_last(by_driver)}): run `make gpu` where one does"
    arch = "sm_" + rows[0][2].replace(".", "")
    return Machine(gpus=tuple(row[0] for row in rows), driver=rows[0][1], arch=arch)


def _ask(command: list[str]) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"{command[0].rpartition('/')[2]} does not answer: {type(error).__name__}"
    return done.stdout if done.returncode == 0 else (done.stderr or done.stdout)


def _rows(said: str) -> list[list[str]]:
    rows = [[cell.strip() for cell in line.split(",")] for line in said.splitlines()]
    return [row for row in rows if len(row) == 3 and row[2].replace(".", "").isdigit()]


def _last(said: str) -> str:
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    return lines[-1][:120] if lines else "nothing"
