"""Sizes in bytes and durations in seconds, as text."""

from __future__ import annotations


def size_text(size: int) -> str:
    """Return a size in the largest binary unit that leaves a number of at least one: `512 B`, `3.1 MiB`."""
    value, unit = float(size), "B"
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if value < 1024 or unit == "TiB":
            break
        value /= 1024
    return f"{size} B" if unit == "B" else f"{value:.1f} {unit}"


def duration(seconds: float | None) -> str:
    """Return a duration in seconds as a person would say it: `0.4 s`, `42 s`, `7 min 58 s`, `3 h 02 min`."""
    if seconds is None:
        return "unknown time"
    if seconds < 10:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02} min"
