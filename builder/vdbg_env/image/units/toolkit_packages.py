"""Which packages hold a CUDA compiler of one release, and which one holds a header that a source includes."""

from __future__ import annotations

import re
from typing import Final

from vdbg_env.common.errors import BadInput

_RELEASE: Final = re.compile(r"(\d+)\.(\d+)\.(\d+)$")

# Beginning of a header's name -> the package that has it, without its suffix.
_HEADERS: Final = {
    "cublas": "nvidia-cublas", "nvblas": "nvidia-cublas", "curand": "nvidia-curand", "cusparse": "nvidia-cusparse",
    "cusolver": "nvidia-cusolver", "cufft": "nvidia-cufft", "nvrtc": "nvidia-cuda-nvrtc", "nvtx": "nvidia-nvtx",
    "nvToolsExt": "nvidia-nvtx",
    "cupti": "nvidia-cuda-cupti", "nvJitLink": "nvidia-nvjitlink", "nvml": "nvidia-nvml-dev", "nccl": "nvidia-nccl",
    "cudnn": "nvidia-cudnn",
}  # fmt: skip
_MISSING: Final = re.compile(r"fatal error: ([\w./-]+): No such file or directory")


def compiler_packages(release: str) -> tuple[str, ...]:
    """Return the requirements of nvcc of exactly this release, with the headers that it compiles against.

    Raises BadInput for a release that the package index cannot have.
    """
    found = _RELEASE.match(release)
    if not found or int(found[1]) < 13:
        raise BadInput(
            f"no packages are known for the CUDA compiler {release}",
            cause="NVIDIA's packages have nvcc from CUDA 13 on; nvidia-cuda-nvcc-cu12 has ptxas and libnvvm alone",
            next_step="--compiler /usr/local/cuda-12.9, an installed toolkit of that very release",
        )
    major, minor = found[1], found[2]
    series = f">={major}.{minor}.0,<{major}.{int(minor) + 1}.0"
    exact = ("nvidia-cuda-nvcc", "nvidia-nvvm", "nvidia-cuda-crt")
    return (
        *(f"{name}=={release}" for name in exact),
        f"nvidia-cuda-runtime{series}",
        f"nvidia-cuda-cccl{series}",
    )


def missing_header(output: str) -> str | None:
    """Return the header that a compiler could not find, by what it printed."""
    found = _MISSING.search(output)
    return found[1] if found else None


def header_package(header: str, release: str) -> str | None:
    """Return the package that has a header of the CUDA toolkit, for a compiler of this release; None if unknown."""
    name = header.rpartition("/")[2]
    package = next((package for start, package in _HEADERS.items() if name.startswith(start)), None)
    major = release.partition(".")[0]
    if package is None:
        return None
    suffixed = major == "12" or package in ("nvidia-nccl", "nvidia-cudnn")
    return f"{package}-cu{major}" if suffixed else package
