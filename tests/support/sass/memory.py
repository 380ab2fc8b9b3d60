"""Memory without limits: every address holds something small and fixed, until it is written to."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

REGION_BITS: Final = 40  # each array has 1 TiB of its own, so that an index may go far astray


@dataclass(frozen=True)
class Region:
    """What an array holds before anything is written: elements of a size, or pointers into the array at `pointer`."""

    number: int
    size: int
    salt: int
    pointer: int | None = None


class Memory:
    """Bytes by address. Two of the same regions hold the same."""

    def __init__(self, regions: Iterable[Region] = ()) -> None:
        self._regions = {region.number: region for region in regions}
        self._written: dict[int, int] = {}

    def copy(self) -> Memory:
        """Return memory that holds the same and is written to apart."""
        other = Memory(self._regions.values())
        other._written = dict(self._written)
        return other

    def read(self, address: int, size: int) -> bytes:
        """Return the bytes at an address."""
        region = self._regions.get(address >> REGION_BITS)
        unit = (region.size if region else 0) or 4
        first, last = address // unit, (address + size - 1) // unit
        held = b"".join(_element(region, unit, n) for n in range(first, last + 1))
        held = held[address - first * unit :][:size]
        if self._written:
            written = self._written
            return bytes(written.get(address + i, byte) for i, byte in enumerate(held))
        return held

    def write(self, address: int, data: bytes) -> None:
        """Put bytes at an address."""
        for i, byte in enumerate(data):
            self._written[address + i] = byte


def _element(region: Region | None, unit: int, n: int) -> bytes:
    mixed = (n ^ (region.salt if region else 0)) * 0x9E3779B97F4A7C15 & (1 << 64) - 1
    mixed ^= mixed >> 29
    mixed = mixed * 0xBF58476D1CE4E5B9 >> 40 & 0xFFFFFF
    if region and region.pointer is not None:
        return (region.pointer + (mixed % 64) * 256).to_bytes(8, "little")
    value = mixed % 64
    return (value if value < 62 else -1).to_bytes(unit, "little", signed=True)


class Allocations(Memory):
    """What a program allocated, by address and size: zeros until they are written to. Nothing else is mapped."""

    def __init__(self, sizes: Mapping[int, int], contents: Mapping[int, bytes]) -> None:
        super().__init__()
        self._sizes = dict(sizes)
        for address, data in contents.items():
            self.write(address, data)

    def hold(self, address: int, size: int) -> bool:
        """Whether all of these bytes are allocated."""
        return any(start <= address and address + size <= start + length for start, length in self._sizes.items())

    def read(self, address: int, size: int) -> bytes:
        """Return the bytes at an address."""
        return bytes(self._written.get(address + n, 0) for n in range(size))
