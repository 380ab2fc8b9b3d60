"""The two ways to write an architecture: 9.0a as PyTorch has it, sm_90a as the compiler and its cubins have it."""

from __future__ import annotations

import re
from typing import Final

_TARGET: Final = re.compile(r"sm_(\d+)(\d)([af]?)$")
_ARCH: Final = re.compile(r"(\d+)\.(\d)([af]?)$")

GPU_NAMES: Final = {
    "V100": "7.0",
    "T4": "7.5", "RTX2080": "7.5", "RTX8000": "7.5",
    "A100": "8.0", "A800": "8.0", "A30": "8.0",
    "A2": "8.6", "A10": "8.6", "A10G": "8.6", "A16": "8.6", "A40": "8.6", "A6000": "8.6",
    "RTX3080": "8.6", "RTX3090": "8.6",
    "ORIN": "8.7",
    "L4": "8.9", "L20": "8.9", "L40": "8.9", "L40S": "8.9", "RTX4080": "8.9", "RTX4090": "8.9",
    "H100": "9.0", "H200": "9.0", "H20": "9.0", "H800": "9.0", "GH200": "9.0",
    "B100": "10.0", "B200": "10.0", "GB200": "10.0",
    "B300": "10.3", "GB300": "10.3",
    "THOR": "11.0",
    "RTX5080": "12.0", "RTX5090": "12.0", "RTXPRO6000": "12.0",
    "GB10": "12.1", "DGXSPARK": "12.1",
}  # fmt: skip
"""Compute capabilities by the names of GPUs without blanks and signs, from NVIDIA's list of CUDA GPUs."""


def arch_of_gpu(name: str) -> str | None:
    """Return the compute capability of a GPU by its name, such as 9.0 for `H100` or `NVIDIA H100 80GB HBM3`, or None.

    A name that NVIDIA gave to several architectures, such as RTX 6000, is not known here.
    """
    words = re.sub(r"(?i)nvidia|geforce|tesla|jetson", " ", name).upper().replace("-", " ").split()
    for count in range(1, len(words) + 1):
        if (arch := GPU_NAMES.get("".join(words[:count]))) is not None:
            return arch
    return None


def as_arch(text: str) -> str:
    """Return an architecture as PyTorch writes it, 9.0a for sm_90a; any other text as it is."""
    found = _TARGET.match(text)
    return f"{found[1]}.{found[2]}{found[3]}" if found else text


def as_target(text: str) -> str:
    """Return an architecture as the compiler writes it, sm_90a for 9.0a; any other text as it is."""
    found = _ARCH.match(text)
    return f"sm_{found[1]}{found[2]}{found[3]}" if found else text
