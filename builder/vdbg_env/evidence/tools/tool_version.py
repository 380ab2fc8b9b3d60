"""Read the version out of a tool's output."""

from __future__ import annotations

import re

_RELEASE = re.compile(r"release (\d+\.\d+)")
_VERSION = re.compile(r"\b(?:release |[Vv]ersion |[Vv]|)(\d+\.\d+(?:\.\d+)*)")


def tool_version(said: str) -> str:
    """Return the version in what a tool prints for --version, "" if there is none."""
    found = _RELEASE.search(said) or _VERSION.search(said)
    return found[1] if found else ""
