"""Read durations (`15m`, `1h30m`) and sizes (`2GiB`, `500MB`) as people write them; a bare number is refused."""

from __future__ import annotations

import re

_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_BYTES = {
    "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12,
    "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40,
}  # fmt: skip
DURATION = r"^([0-9]+(\.[0-9]+)?(ms|s|m|h|d))+$"
SIZE = r"^[0-9]+(\.[0-9]+)?\s?(B|KB|MB|GB|TB|KiB|MiB|GiB|TiB)$"
MAX_DURATION_S = 30 * 86400.0


def duration_s(text: object) -> float:
    """Return a duration in seconds; raises ValueError with advice."""
    if not isinstance(text, str):
        raise ValueError(f"a duration needs its unit: write '{text}s', '{text}m' or '{text}h'")
    parts = re.findall(r"([0-9]+(?:\.[0-9]+)?)(ms|s|m|h|d)", text)
    if not re.match(DURATION, text) or len(text) > 40:
        raise ValueError(f"{text!r} is not a duration such as '30s', '15m' or '1h30m'")
    seconds = sum(float(number) * _SECONDS[unit] for number, unit in parts)
    if not 0 < seconds <= MAX_DURATION_S:
        raise ValueError(f"{text!r} is not between 1ms and 30d")
    return seconds


def size_bytes(text: object) -> int:
    """Return a size in bytes; raises ValueError with advice."""
    if not isinstance(text, str):
        raise ValueError(f"a size needs its unit: write '{text}MiB' or '{text}GiB'")
    found = re.match(r"^([0-9]+(?:\.[0-9]+)?)\s?([KMGT]i?B|B)$", text)
    if not found or len(text) > 40:
        raise ValueError(f"{text!r} is not a size such as '500MB' or '2GiB'")
    return int(float(found[1]) * _BYTES[found[2]])


def duration_text(seconds: float) -> str:
    """Return a duration as people write it: `90` as `1m30s`."""
    if seconds < 1:
        return f"{seconds * 1000:g}ms"
    text, rest = "", seconds
    for unit in ("d", "h", "m"):
        count, rest = divmod(rest, _SECONDS[unit])
        text += f"{count:g}{unit}" if count else ""
    return text + (f"{rest:g}s" if rest or not text else "")


def size_text(count: int) -> str:
    """Return a size in the largest binary unit that leaves a whole or short number."""
    for unit in ("TiB", "GiB", "MiB", "KiB"):
        if count >= _BYTES[unit]:
            return f"{count / _BYTES[unit]:.4g}{unit}"
    return f"{count}B"
