"""`vdbg-env lines build`: line tables for a released wheel, from the wheel alone.

The stock wheel says which compiler made it, for which architectures, and in which order its units were linked. Its
sources are configured the same way, the units asked for are compiled again with line info, and each function's
instructions are compared with the stock ones: where they are identical, the new line table is the stock code's.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field

from vdbg_env.application.lines.choose import Choice, Wanted, choose
from vdbg_env.application.lines.compare import Comparison, compare
from vdbg_env.application.lines.stock import StockLibrary, one_compiler, read_stock
from vdbg_env.application.ports import BinarySource
from vdbg_env.application.ports.unit_builds import (
    CompiledUnit,
    ConfiguredTree,
    Release,
    TreeRequest,
    UnitBuilds,
    UnitOrder,
)
from vdbg_env.common.errors import BadInput
from vdbg_env.image.units.compile_commands import Unit
from vdbg_env.image.units.link_order import match_by_order
from vdbg_env.image.units.targets import torch_arch_list


@dataclass(frozen=True, kw_only=True)
class LinesRequest:
    """What to build line tables for: `requirement` names the wheel, `wanted` what of it.

    `compiler` is given where the cubins do not name theirs; `externals` are local trees by CMake's variable.
    """

    requirement: str
    wanted: Wanted
    compiler: str | None = None
    externals: Mapping[str, str] = field(default_factory=dict)
    jobs: int = 1


@dataclass(frozen=True, kw_only=True)
class BuiltUnit:
    """One cubin compiled again and compared; `comparison` is None where it could not be compiled."""

    choice: Choice
    source: str
    compiled: CompiledUnit
    comparison: Comparison | None


@dataclass(frozen=True, kw_only=True)
class Unplaced:
    """A choice without a unit of the configured sources, and why."""

    choice: Choice
    reason: str


@dataclass(frozen=True, kw_only=True)
class LinesBuilt:
    """All that was found: where the libraries are from, their compiler, what was compiled, and what could not be."""

    origin: str
    release: Release
    compiler: str
    tree: ConfiguredTree
    built: tuple[BuiltUnit, ...]
    unplaced: tuple[Unplaced, ...]


def build_lines(request: LinesRequest, *, builds: UnitBuilds, binaries: BinarySource) -> LinesBuilt:
    """Fetch, choose, configure, compile and compare.

    Raises BadInput when the wheel has no such kernel, HostNotAble and EngineFailed when it cannot be built here.
    """
    wheel = builds.wheel(request.requirement)
    with binaries.open(str(wheel.path)) as files:
        libraries = tuple(read_stock(files))
    if not libraries:
        raise BadInput(f"{wheel.path.name} has no device code", next_step="name a wheel built for CUDA")
    return rebuild(request, libraries, wheel.release, origin=wheel.path.name, builds=builds)


def rebuild(
    request: LinesRequest, libraries: Sequence[StockLibrary], release: Release, *, origin: str, builds: UnitBuilds
) -> LinesBuilt:
    """Choose of these libraries, configure the release that they are from, compile and compare; raises as above."""
    chosen = choose(libraries, request.wanted)
    used = tuple({choice.library.name: choice.library for choice in chosen}.values())
    compiler = request.compiler or one_compiler(used)
    tree = builds.configure(
        TreeRequest(
            release=release,
            compiler=compiler,
            arch_list=torch_arch_list(t for library in libraries for t in library.targets),
            externals=request.externals,
        )
    )
    placed, unplaced = _place(chosen, used, tree)
    return LinesBuilt(
        origin=origin,
        release=release,
        compiler=compiler,
        tree=tree,
        built=tuple(_compile(placed, tree, builds, request.jobs)),
        unplaced=unplaced,
    )


def _place(
    chosen: Sequence[Choice], libraries: Sequence[StockLibrary], tree: ConfiguredTree
) -> tuple[dict[UnitOrder, Choice], tuple[Unplaced, ...]]:
    """Find the unit of each choice by the order of its library's link."""
    orders: dict[UnitOrder, Choice] = {}
    unplaced: list[Unplaced] = []
    matches = {library.name: _match(library, tree) for library in libraries}
    for choice in chosen:
        match matches[choice.library.name]:
            case str(reason):
                unplaced.append(Unplaced(choice=choice, reason=reason))
            case units:
                unit = units[choice.unit.number]
                if unit is None:
                    reason = "the sources list another file there, for other architectures"
                    unplaced.append(Unplaced(choice=choice, reason=reason))
                else:
                    orders[UnitOrder(unit=unit, target=choice.target)] = choice
    return orders, tuple(unplaced)


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


def _compile(
    orders: Mapping[UnitOrder, Choice], tree: ConfiguredTree, builds: UnitBuilds, jobs: int
) -> Iterator[BuiltUnit]:
    with closing(builds.compile(tree, tuple(orders), jobs=jobs)) as compiled:  # to close it early ends the compilers
        for done in compiled:
            choice = orders[done.order]
            stock = choice.unit.cubin(choice.target)
            comparison = compare(stock, done.cubin) if stock and done.cubin is not None else None
            yield BuiltUnit(choice=choice, source=done.order.unit.source, compiled=done, comparison=comparison)
