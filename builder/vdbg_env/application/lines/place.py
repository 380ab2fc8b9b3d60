"""Find the source of each cubin that was chosen: by the order of its library's link, else by the names of its kernels.

The order is proof enough to compile one source for each cubin. Where it does not hold (sources that were changed, or
another list of files), the sources that name a cubin's kernels are compiled in turn, until the code is the same.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from gpucore.code_map import identifier_in
from gpucore.mangling import demangle, short_name
from vdbg_env.application.lines.choose import Choice
from vdbg_env.application.lines.stock import StockLibrary
from vdbg_env.application.ports.unit_builds import ConfiguredTree, UnitBuilds, UnitOrder
from vdbg_env.image.units import Unit, match_by_order

MOST_TRIED: Final = 3
"""How many sources are compiled for one cubin: the heaviest takes a minute."""


@dataclass(frozen=True, kw_only=True)
class Unplaced:
    """A choice without a unit of the configured sources, and why."""

    choice: Choice
    reason: str


@dataclass(frozen=True, kw_only=True)
class Candidates:
    """The sources that name a choice's kernels, those with most names first; `reason` says why they are tried."""

    choice: Choice
    units: tuple[Unit, ...]
    reason: str


@dataclass(frozen=True, kw_only=True)
class Placed:
    """What to compile: one source for each choice, or several to try, and choices that no source is known for."""

    orders: Mapping[UnitOrder, Choice]
    candidates: tuple[Candidates, ...]
    unplaced: tuple[Unplaced, ...]


def place(
    chosen: Sequence[Choice], libraries: Sequence[StockLibrary], tree: ConfiguredTree, builds: UnitBuilds
) -> Placed:
    """Find the source of each choice."""
    orders: dict[UnitOrder, Choice] = {}
    candidates: list[Candidates] = []
    unplaced: list[Unplaced] = []
    matches = {library.name: _match(library, tree) for library in libraries}
    for choice in chosen:
        found = matches[choice.library.name]
        unit = None if isinstance(found, str) else found[choice.unit.number]
        if unit is not None:
            orders[UnitOrder(unit=unit, target=choice.target)] = choice
            continue
        reason = found if isinstance(found, str) else "the sources list another file there, for other architectures"
        named = _named(choice, tree, builds)
        if named:
            candidates.append(Candidates(choice=choice, units=named, reason=reason))
        else:
            unplaced.append(Unplaced(choice=choice, reason=reason))
    return Placed(orders=orders, candidates=tuple(candidates), unplaced=tuple(unplaced))


def _match(library: StockLibrary, tree: ConfiguredTree) -> tuple[Unit | None, ...] | str:
    units = [unit for unit in tree.units if unit.extension == library.extension]
    if not units:
        return f"the configured sources do not build {library.extension}: it is another project's"
    matched = match_by_order([unit.targets for unit in library.units], units)
    if matched is None:
        return (
            f"{library.extension} was linked from {len(library.units)} CUDA sources, "
            f"and these sources have {len(units)} for it"
        )
    return matched


def _named(choice: Choice, tree: ConfiguredTree, builds: UnitBuilds) -> tuple[Unit, ...]:
    """Return the sources that name the kernels asked for; where none does, those that name others of the cubin.

    A kernel of a library of templates, such as CUB's, is named in no source of the project.
    """
    units = [u for u in tree.units if u.extension == choice.library.extension and choice.target in u.targets]
    cubin = choice.unit.cubin(choice.target)
    for kernels in (choice.kernels, cubin.kernel_names if cubin else ()):
        names = frozenset(filter(None, (identifier_in(short_name(demangle(kernel))) for kernel in kernels)))
        counts = builds.mentions(tree, units, names) if names and units else ()
        ranked = sorted(zip(counts, units, strict=False), key=lambda pair: -pair[0])
        if found := tuple(unit for count, unit in ranked if count)[:MOST_TRIED]:
            return found
    return ()
