"""Durations, signals and places as every writer of a report puts them."""

from __future__ import annotations

import signal


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


def signal_name(number: int | None) -> str | None:
    """Return a signal's name, or None when there is no signal of that number."""
    try:
        return signal.Signals(number).name if number is not None else None
    except ValueError:
        return None


def place(file: str, line: int) -> str:
    """Return the last part of a path and the line, as one says it aloud."""
    return f"{file.replace(chr(92), '/').rsplit('/', 1)[-1]}:{line}"
