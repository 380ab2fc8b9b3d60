"""Finds which translation unit each fat binary of a library is from, by the order in which they were linked.

Nothing in a stock fat binary names its source. But the linker puts one container for each object file one after
another, CMake knows their order, and each container's architectures must be those of its unit's command.
"""

from __future__ import annotations

from collections.abc import Sequence

from vdbg_env.image.units.compile_commands import Unit


def match_by_order(containers: Sequence[Sequence[str]], units: Sequence[Unit]) -> tuple[Unit | None, ...] | None:
    """Return the unit of each container, given by the targets in it, or None when their numbers are not the same.

    A container whose targets are not those that its unit compiles for gets None: another list of architectures, or
    another order. That the code is the same is then still to be shown by comparing it.
    """
    if len(containers) != len(units):
        return None
    pairs = zip(containers, units, strict=True)
    return tuple(unit if _cubins(targets) == _cubins(unit.targets) else None for targets, unit in pairs)


def _cubins(targets: Sequence[str]) -> frozenset[str]:
    return frozenset(target for target in targets if target.startswith("sm_"))
