"""`vdbg-env lines build`: line tables for a released wheel, from the wheel alone.

The stock wheel says which compiler made it, for which architectures, and in which order its units were linked. Its
sources are configured the same way, the units asked for are compiled again with line info, and each function's
instructions are compared with the stock ones: where they are identical, the new line table is the stock code's.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import PurePath, PurePosixPath
from typing import Final, Literal

from gpucore.code_identity import INSTRUCTION, CodeIdentity, identify
from gpucore.code_map import CodeMap, identifier_in
from gpucore.core import Fault, WarpGroup, decode_core
from gpucore.dwarf import OtherHeaders, SourceFrame
from gpucore.elf import Buffer
from gpucore.line_pack import LineRecord
from gpucore.line_packs import LinePack, Provenance
from gpucore.mangling import demangle, short_name
from gpucore.toolkit import own_frame
from vdbg_env.common.errors import BadInput
from vdbg_env.crash.files import BinaryFile, BinarySource, CoreFiles
from vdbg_env.crash.line_packs import PackedLines, PackFile
from vdbg_env.lines.packs import Packed, PackRequest, pack_lines
from vdbg_env_lines.stock import (
    Choice,
    StockCubin,
    StockLibrary,
    Wanted,
    choose,
    one_compiler,
    read_stock,
    require_compiler,
)
from vdbg_env_lines.units import (
    CompiledUnit,
    ConfiguredTree,
    Release,
    TreeRequest,
    Unit,
    UnitBuilds,
    UnitOrder,
    match_by_order,
    torch_arch_list,
)


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Mangled names of the stock cubin's functions: with identical instructions, with others, and not built at all.

    `renamed` are those of `identical` whose name in the build is another: stock name -> name built. nvcc puts a hash of
    the source's path into names with internal linkage, and other headers give other names to a template's arguments.
    """

    identical: tuple[str, ...]
    differing: tuple[str, ...]
    missing: tuple[str, ...]
    renamed: tuple[tuple[str, str], ...]

    @property
    def total(self) -> int:
        """How many functions the stock cubin has."""
        return len(self.identical) + len(self.differing) + len(self.missing)

    @property
    def complete(self) -> bool:
        """Whether every function of the stock cubin has identical instructions in the build."""
        return not self.differing and not self.missing


def compare(stock: StockCubin, built: Buffer) -> Comparison:
    """Compare by the exact name, then by the name without its path's hash, then by the code of the same template.

    Raises UnreadableBinary when the build's cubin is damaged.
    """
    by_name: dict[str, CodeIdentity] = {}
    by_stable: dict[str, CodeIdentity] = {}
    for function in identify(CodeMap(built)):
        by_name[function.function.name] = function
        by_stable.setdefault(function.stable_name, function)
    taken = {ours.function.name for ours in stock.functions} | {ours.stable_name for ours in stock.functions}
    by_code: dict[bytes, list[CodeIdentity]] = {}
    for name, function in by_name.items():
        if name not in taken and function.stable_name not in taken:
            by_code.setdefault(function.hash, []).append(function)
    identical, differing, missing, renamed = [], [], [], []
    for ours in stock.functions:
        name = ours.function.name
        theirs = by_name.get(name) or by_stable.get(ours.stable_name)
        if theirs is None:
            theirs = _alike(ours, by_code.get(ours.hash, []))
        if theirs is None:
            missing.append(name)
        elif theirs.hash != ours.hash:
            differing.append(name)
        else:
            identical.append(name)
            if theirs.function.name != name:
                renamed.append((name, theirs.function.name))
    return Comparison(
        identical=tuple(identical), differing=tuple(differing), missing=tuple(missing), renamed=tuple(renamed)
    )


def _alike(ours: CodeIdentity, same_code: list[CodeIdentity]) -> CodeIdentity | None:
    """Take the function of the same name but for its template arguments, the one most alike, out of those left.

    Small functions of other names are often the same instructions, and their lines are not this one's.
    """
    stem = _stem(ours)
    near = [theirs for theirs in same_code if _stem(theirs) == stem]
    if not near:
        return None
    found = max(near, key=lambda theirs: _alike_letters(ours.function.name, theirs.function.name))
    same_code.remove(found)
    return found


def _alike_letters(one: str, other: str) -> int:
    pairs = enumerate(zip(one, other, strict=False))
    return next((at for at, (a, b) in pairs if a != b), min(len(one), len(other)))


def _stem(identity: CodeIdentity) -> str:
    return identifier_in(short_name(demangle(identity.function.name)))


# Find the source of each cubin that was chosen: by the order of its library's link, else by the names of its kernels.
#
# The order is proof enough to compile one source for each cubin. Where it does not hold (sources that were changed, or
# another list of files), the sources that name a cubin's kernels are compiled in turn, until the code is the same.


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


# Pack the lines of units that were compiled again: the code they are found by is the stock wheel's.


@dataclass(frozen=True, kw_only=True)
class HeadersShare:
    """Other headers than the code was built with, and how many of the instructions have a line of them."""

    headers: OtherHeaders
    instructions: int
    of: int


@dataclass(frozen=True, kw_only=True)
class CoreLines:
    """What a new pack gives the core that it was built for: how many places it has, and which have no line.

    `shown` is the first line that `core` will show.
    """

    file: str
    shown: SourceFrame | None
    places: int
    without: tuple[str, ...]


def pack_built(result: LinesBuilt) -> Packed | None:
    """Return a pack of every cubin with code of the stock wheel; None when there is none.

    A function whose instructions differ is packed too: it is found by its own code, so never for the stock one. Those
    with the stock code have the stock names, since a look-up needs both.
    """
    units = dict(_units(result))
    if not units:
        return None
    request = PackRequest(
        targets=tuple(units),
        release=f"{result.release.project} {result.release.version}",
        names={name: {built: stock for stock, built in found.renamed} for name, (_, found) in units.items()},
        shown=result.tree.shown_path,
        headers=result.tree.headers,
    )
    return pack_lines(request, binaries=_InMemory({name: cubin for name, (cubin, _) in units.items()}))


def lines_of_other_headers(result: LinesBuilt, pack: bytes, *, whole: bool = False) -> tuple[HeadersShare, ...]:
    """Return how many instructions have a line of other headers than the code's, by project.

    Counted are the kernels that were asked for, where they are the stock code; with `whole`, or where none was asked
    for, every such function.
    """
    identical = {name for unit in result.built if unit.comparison for name in unit.comparison.identical}
    asked = {kernel for unit in result.built for kernel in unit.choice.kernels}
    counted = identical & asked if asked and not whole else identical
    opened = LinePack(pack)
    found: Counter[OtherHeaders] = Counter()
    total = 0
    for record in opened.records():
        if record.name in counted:
            total += record.size // INSTRUCTION
            found.update(_of_other_headers(record, opened.by_digest))
    return tuple(HeadersShare(headers=headers, instructions=count, of=total) for headers, count in found.items())


def _of_other_headers(record: LineRecord, binaries: Mapping[str, Provenance]) -> Counter[OtherHeaders]:
    """Count the instructions with a frame of other headers; the frames of a place are those of its parents too."""
    binary = next((binaries[digest] for digest in record.sources if digest in binaries), None)
    tree = record.tree
    of_file = [binary.headers_of(file) if binary else None for file in tree.strings]
    of_place: list[OtherHeaders | None] = [None]
    for parent, file in zip(tree.parents, tree.files, strict=True):
        of_place.append(of_file[file] or of_place[parent])
    ends = [*record.starts[1:], record.size]
    found: Counter[OtherHeaders] = Counter()
    for start, end, place in zip(record.starts, ends, record.places, strict=True):
        if headers := of_place[place]:
            found[headers] += (end - start) // INSTRUCTION
    return found


def lines_for_core(path: str, pack: bytes, files: CoreFiles) -> CoreLines:
    """Look the places of a core up in a pack: those of its faults, without a fault those where warps are."""
    with files.open(path) as core:
        read = decode_core(
            core.data, file=core.name, modified=core.modified, lines=PackedLines([_OnePack(pack)] if pack else [])
        )
        asked: Sequence[Fault | WarpGroup] = read.faults or read.warp_groups
        places = tuple((place.kernel or "", place.location) for place in asked)
    return CoreLines(
        file=path,
        shown=next((own_frame(location.chain) for _, location in places if location and location.chain), None),
        places=len(places),
        without=tuple(
            f"{short_name(demangle(kernel))}+{location.offset:#x}" if location else short_name(demangle(kernel))
            for kernel, location in places
            if not (location and location.chain)
        ),
    )


def _units(result: LinesBuilt) -> Iterator[tuple[str, tuple[bytes, Comparison]]]:
    for unit in result.built:
        if unit.compiled.cubin is not None and unit.comparison and unit.comparison.identical:
            stem = PurePosixPath(unit.source).stem
            name = f"{unit.choice.library.extension}/{stem}.{unit.choice.target}.cubin"
            yield name, (unit.compiled.cubin, unit.comparison)


class _InMemory:
    """A BinarySource over cubins that are in memory already."""

    def __init__(self, cubins: dict[str, bytes]) -> None:
        self._cubins = cubins

    @contextmanager
    def open(self, target: str) -> Iterator[Iterator[BinaryFile]]:
        if target not in self._cubins:
            raise BadInput(f"no cubin {target}")
        yield iter([BinaryFile(name=target, data=self._cubins[target], asked_for=True)])


class _OnePack:
    """A LineStore of one pack that is in memory."""

    name = "the new pack"
    local = True

    def __init__(self, data: bytes) -> None:
        self._data = data

    def packs(self, keys: Collection[bytes] = (), *, release: str | None = None) -> Iterator[PackFile]:
        del keys, release
        yield PackFile(name=self.name, data=self._data)
