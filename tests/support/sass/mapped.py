"""Device memory as a driver maps it: allocations lie in mappings of whole 2 MiB, and small ones share a mapping.

An index that leaves its array stays in mapped memory for up to 2 MiB, and then reads what lies there.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from tests.support.sass.memory import Memory

MAPPING: Final = 2 << 20
_ALIGNMENT: Final = 512
_SMALL: Final = 1 << 20  # a larger allocation has mappings of its own


class Mapped(Memory):
    """Memory of which only mappings exist; zeros until they are written to."""

    def __init__(self, start: int = 0x7F5A_4000_0000) -> None:
        super().__init__()
        self._next = start
        self._small: tuple[int, int] = (0, 0)
        self._mappings: dict[int, bytearray] = {}
        self.allocations: dict[int, int] = {}

    @property
    def mappings(self) -> Mapping[int, bytes]:
        """What is mapped: 2 MiB by address."""
        return {number * MAPPING: bytes(held) for number, held in sorted(self._mappings.items())}

    def allocate(self, size: int, *, gap: int = 0) -> int:
        """Return the address of new memory; `gap` mappings that do not exist are left before it, if it has its own."""
        size = max(size, 1)
        size += -size % _ALIGNMENT
        at, end = self._small
        if size > _SMALL or gap or at + size > end:
            whole = size + -size % MAPPING
            at = self._next + gap * MAPPING
            self._next = at + whole
            for number in range(at // MAPPING, (at + whole) // MAPPING):
                self._mappings[number] = bytearray(MAPPING)
            end = at + whole
        if size <= _SMALL:
            self._small = at + size, end
        self.allocations[at] = size
        return at

    def hold(self, address: int, size: int) -> bool:
        """Whether all of these bytes are mapped."""
        return all(n in self._mappings for n in range(address // MAPPING, (address + size - 1) // MAPPING + 1))

    def read(self, address: int, size: int) -> bytes:
        """Return the bytes at an address, which must be mapped and not cross the end of a mapping."""
        at = address % MAPPING
        return bytes(self._mappings[address // MAPPING][at : at + size])

    def write(self, address: int, data: bytes) -> None:
        """Put bytes at an address, which must be mapped."""
        while data:
            at = address % MAPPING
            part = data[: MAPPING - at]
            self._mappings[address // MAPPING][at : at + len(part)] = part
            address, data = address + len(part), data[len(part) :]


class Zeros(Memory):
    """Memory that holds zeros until it is written to, as shared and local memory here."""

    def read(self, address: int, size: int) -> bytes:
        """Return the bytes at an address."""
        return bytes(self._written.get(address + n, 0) for n in range(size))
