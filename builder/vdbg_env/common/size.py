"""Sizes in bytes, as text."""

from __future__ import annotations


def size_text(size: int) -> str:
    """Return a size in the largest binary unit that leaves a number of at least one: `512 B`, `3.1 MiB`."""
    value, unit = float(size), "B"
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if value < 1024 or unit == "TiB":
            break
        value /= 1024
    return f"{size} B" if unit == "B" else f"{value:.1f} {unit}"
