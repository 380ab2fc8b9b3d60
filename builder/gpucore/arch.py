"""The two ways to write an architecture: 9.0a as PyTorch has it, sm_90a as the compiler and its cubins have it."""

from __future__ import annotations

import re
from typing import Final

_TARGET: Final = re.compile(r"sm_(\d+)(\d)([af]?)$")
_ARCH: Final = re.compile(r"(\d+)\.(\d)([af]?)$")


def as_arch(text: str) -> str:
    """Return an architecture as PyTorch writes it, 9.0a for sm_90a; any other text as it is."""
    found = _TARGET.match(text)
    return f"{found[1]}.{found[2]}{found[3]}" if found else text


def as_target(text: str) -> str:
    """Return an architecture as the compiler writes it, sm_90a for 9.0a; any other text as it is."""
    found = _ARCH.match(text)
    return f"sm_{found[1]}{found[2]}{found[3]}" if found else text
