"""Line packs that are carried elsewhere."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from vdbg_env.crash.files import Buffer


@dataclass(frozen=True, kw_only=True)
class CarriedPack:
    """A sound line pack on its way to a store: its sha256, how many functions it has, of which builds."""

    digest: str
    functions: int
    builds: str
    data: Buffer


class PackTarget(Protocol):
    """A place that line packs can be put into."""

    def put(self, packs: Sequence[CarriedPack]) -> tuple[str, ...]:
        """Put packs there and return how each, or all together, are asked for.

        Raises BadInput when a folder cannot be written, HostNotAble when a server refuses.
        """
        ...
