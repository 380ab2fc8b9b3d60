"""The variable-length numbers of DWARF (version 2, section 7.6)."""

from __future__ import annotations


def uleb(data: bytes, at: int) -> tuple[int, int]:
    """Return the unsigned number at `at` and where the next byte is; raises IndexError when the bytes end first."""
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift = min(shift + 7, 70)  # more than 64 bits carry no meaning and must not grow a number without bound


def sleb(data: bytes, at: int) -> tuple[int, int]:
    """Return the signed number at `at` and where the next byte is; raises IndexError when the bytes end first."""
    start = at
    value, at = uleb(data, at)
    bits = 7 * min(at - start, 11)
    return (value - (1 << bits) if value >> (bits - 1) & 1 else value), at
