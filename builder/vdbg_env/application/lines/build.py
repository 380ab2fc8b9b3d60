"""`vdbg-env lines build`: line tables for a released wheel, from the wheel alone.

The stock wheel says which compiler made it, for which architectures, and in which order its units were linked. Its
sources are configured the same way, the units asked for are compiled again with line info, and each function's
instructions are compared with the stock ones: where they are identical, the new line table is the stock code's.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import PurePath
from typing import Literal

from vdbg_env.application.lines.choose import Choice, Wanted, choose
from vdbg_env.application.lines.compare import Comparison, compare
from vdbg_env.application.lines.place import Candidates, Unplaced, place
from vdbg_env.application.lines.stock import StockLibrary, one_compiler, read_stock, require_compiler
from vdbg_env.application.ports.unit_builds import (
    CompiledUnit,
    ConfiguredTree,
    Release,
    TreeRequest,
    UnitBuilds,
    UnitOrder,
)
from vdbg_env.common.errors import BadInput
from vdbg_env.crash.files import BinarySource
from vdbg_env.image.units import torch_arch_list

PlacedBy = Literal["link order", "kernel names"]


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
    """One cubin compiled again and compared; `comparison` is None where it could not be compiled.

    `placed_by` says how its source was found.
    """

    choice: Choice
    source: str
    compiled: CompiledUnit
    comparison: Comparison | None
    placed_by: PlacedBy = "link order"


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
    if request.compiler:
        require_compiler(libraries, request.compiler, origin)
    compiler = request.compiler or one_compiler(used)
    tree = builds.configure(
        TreeRequest(
            release=release,
            compiler=compiler,
            arch_list=torch_arch_list(t for library in libraries for t in library.targets),
            externals=request.externals,
        )
    )
    placed = place(chosen, used, tree, builds)
    built = list(_compile(placed.orders, tree, builds, request.jobs))
    unplaced = list(placed.unplaced)
    for candidates in placed.candidates:
        match _try(candidates, tree, builds):
            case BuiltUnit() as unit:
                built.append(unit)
            case Unplaced() as left:
                unplaced.append(left)
    return LinesBuilt(
        origin=origin,
        release=release,
        compiler=compiler,
        tree=tree,
        built=tuple(built),
        unplaced=tuple(unplaced),
    )


def _compile(
    orders: Mapping[UnitOrder, Choice], tree: ConfiguredTree, builds: UnitBuilds, jobs: int
) -> Iterator[BuiltUnit]:
    with closing(builds.compile(tree, tuple(orders), jobs=jobs)) as compiled:  # to close it early ends the compilers
        for done in compiled:
            yield _compared(orders[done.order], done, tree)


def _try(candidates: Candidates, tree: ConfiguredTree, builds: UnitBuilds) -> BuiltUnit | Unplaced:
    """Compile the candidates in turn, until the kernels asked for, or else all functions, are identical.

    The one with most identical functions is taken then; where no function is, the choice has no source here.
    """
    choice, tried = candidates.choice, []
    for unit in candidates.units:
        order = UnitOrder(unit=unit, target=choice.target)
        with closing(builds.compile(tree, (order,), jobs=1)) as compiled:
            built = replace(_compared(choice, next(compiled), tree), placed_by="kernel names")
        tried.append(built)
        found = built.comparison
        if found and (set(choice.kernels) <= set(found.identical) if choice.kernels else found.complete):
            return built
    best = max(tried, key=lambda built: len(built.comparison.identical) if built.comparison else 0)
    if best.comparison and best.comparison.identical:
        return best
    names = ", ".join(PurePath(unit.source).name for unit in candidates.units)
    return Unplaced(
        choice=choice, reason=f"{candidates.reason}; what names its kernels ({names}) compiles to other code"
    )


def _compared(choice: Choice, done: CompiledUnit, tree: ConfiguredTree) -> BuiltUnit:
    stock = choice.unit.cubin(choice.target)
    comparison = compare(stock, done.cubin) if stock and done.cubin is not None else None
    source = tree.shown_path(done.order.unit.source)
    return BuiltUnit(choice=choice, source=source, compiled=done, comparison=comparison)
