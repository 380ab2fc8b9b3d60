"""Columns of 32-bit numbers as bytes: one plane for each byte of the numbers, the highest first left out when zero.

Planes compress better than numbers of varying length, and both ways run at the speed of slices. A column of n numbers
takes n bytes at least: no count can claim more memory than four times the bytes that are there.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Iterable, Sequence
from itertools import accumulate
from typing import Final

from vdbg_env.common.errors import UnreadableBinary

_MASK: Final = 0xFFFFFFFF


class ColumnWriter:
    """Appends numbers and columns to a row of bytes."""

    def __init__(self) -> None:
        self.data: Final = bytearray()

    def number(self, value: int) -> None:
        """Append one unsigned number of 32 bits."""
        self.data.extend(value.to_bytes(4, "little"))

    def raw(self, value: bytes) -> None:
        """Append bytes whose length the reader knows."""
        self.data.extend(value)

    def column(self, values: Sequence[int]) -> None:
        """Append a column with its length."""
        self.number(len(values))
        if not values:
            return
        planes = max(1, (max(values).bit_length() + 7) // 8)
        column = array("I", values)
        if sys.byteorder == "big":
            column.byteswap()
        flat = column.tobytes()
        self.data.append(planes)
        for plane in range(planes):
            self.data.extend(flat[plane::4])

    def differences(self, values: Sequence[int]) -> None:
        """Append a column as the differences of neighbours, modulo 2**32 with the sign in the lowest bit."""
        self.column([_folded(b - a) for a, b in zip((0, *values[:-1]), values, strict=True)])


class ColumnReader:
    """Reads what ColumnWriter wrote; raises UnreadableBinary where the bytes end early."""

    def __init__(self, data: memoryview, at: int = 0) -> None:
        self._data: Final = data
        self._at = at

    @property
    def at_end(self) -> bool:
        """Whether every byte has been read."""
        return self._at == len(self._data)

    def number(self) -> int:
        """Read one number."""
        return int.from_bytes(self.raw(4), "little")

    def raw(self, size: int) -> bytes:
        """Read bytes of a known length."""
        start, self._at = self._at, self._at + size
        if self._at > len(self._data):
            raise UnreadableBinary("a record of a line pack is cut short", offset=start)
        return bytes(self._data[start : self._at])

    def column(self) -> array[int]:
        """Read a column."""
        count = self.number()
        column = array("I")
        if not count:
            return column
        planes = self.raw(1)[0]
        if not 1 <= planes <= 4:
            raise UnreadableBinary(f"a column of a line pack has {planes} planes", offset=self._at)
        stored = self.raw(count * planes)
        flat = bytearray(4 * count)
        for plane in range(planes):
            flat[plane::4] = stored[plane * count : (plane + 1) * count]
        column.frombytes(bytes(flat))
        if sys.byteorder == "big":
            column.byteswap()
        return column

    def differences(self) -> array[int]:
        """Read a column of differences; raises UnreadableBinary when a number leaves its 32 bits."""
        values = list(accumulate(map(_unfolded, self.column())))
        if values and not 0 <= min(values) <= max(values) <= _MASK:
            raise UnreadableBinary("a column of a line pack has a number beyond 32 bits", offset=self._at)
        return array("I", values)


def _folded(difference: int) -> int:
    """Return a difference with its sign in the lowest bit; one that does not fit is taken modulo 2**32."""
    folded = difference << 1 if difference >= 0 else (-difference << 1) - 1
    if folded > _MASK:
        raise UnreadableBinary("two neighbours of a line table differ by 2 GiB or more")
    return folded


def _unfolded(folded: int) -> int:
    return -((folded + 1) >> 1) if folded & 1 else folded >> 1


def flattened(rows: Iterable[Sequence[int]]) -> list[int]:
    """Return rows of numbers as one list."""
    return [value for row in rows for value in row]
