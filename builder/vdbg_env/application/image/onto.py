"""`vdbg-env build --onto`: the production image, with line tables in the kernels that were asked for.

Nothing of the image is rebuilt. The units that hold the kernels are compiled again by the compiler that their cubins
name; where every function has the stock instructions, the new line tables are added to the stock cubin. Host code,
constants and all other kernels stay as they are, and the proof is read back from the finished image.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from gpucore.graft import add_line_tables, rewrite_library
from vdbg_env.application.image.onto_proof import OntoProof, prove_swap
from vdbg_env.application.lines.build import BuiltUnit, LinesBuilt, LinesRequest, rebuild
from vdbg_env.application.lines.choose import require_runnable
from vdbg_env.application.lines.pack import HeadersShare, lines_of_other_headers, pack_built
from vdbg_env.application.lines.stock import extension_of, read_stock
from vdbg_env.application.ports.images import ImageSwaps, Installed, Swap
from vdbg_env.application.ports.unit_builds import UnitBuilds
from vdbg_env.common.errors import BadInput, NotProven, OtherLines
from vdbg_env.image.plan import LABEL_PROOF
from vdbg_env.image.profile import OwnPackage

LABEL_BASE = "dev.vdbg-env.onto"
"""The image that a swapped one was made from, by its id."""


@dataclass(frozen=True, kw_only=True)
class OntoRequest:
    """Which image, what of it (`lines`, whose requirement is not used), and the names of the result.

    With `guard` that package is put in front of the image's entry point; without, nothing but libraries changes.
    `accept_other_headers` takes lines of other headers than the image's vLLM was built with.
    """

    image: str
    project: str
    lines: LinesRequest
    tags: tuple[str, ...]
    guard: OwnPackage | None = None
    accept_other_headers: bool = False


@dataclass(frozen=True, kw_only=True)
class OntoResult:
    """A proven image: what it was made from, what was compiled, and the proof that was read back from it.

    `headers` are those of other releases than the image's vLLM was built with that lines are of.
    """

    base: Installed
    image_id: str
    tags: tuple[str, ...]
    lines: LinesBuilt
    proof: OntoProof
    duration_s: float
    headers: tuple[HeadersShare, ...] = ()


def build_onto(
    request: OntoRequest, *, images: ImageSwaps, builds: UnitBuilds, clock: Callable[[], float]
) -> OntoResult:
    """Compile, swap, prove, and only then tag.

    Raises BadInput when the image has no such kernel, or none for the architecture, or names another compiler;
    NotProven when nothing compiled is the image's own code, or the finished image is not what it should be; OtherLines
    when lines are of other headers than the image's vLLM was built with.
    """
    started = clock()
    base = images.installed(request.image, request.project)
    targets = images.targets(base, request.project)
    require_runnable({extension_of(path): found for path, found in targets.items()}, request.lines.wanted)
    with images.files(base.image_id, [f"{base.folder}/{request.project}"]) as files:
        libraries = tuple(read_stock(files))
    if not libraries:
        raise BadInput(
            f"{request.project} {base.release.version} of {request.image} has no device code",
            cause="it is a build without CUDA",
            next_step="name an image with the CUDA wheel",
        )
    lines = rebuild(request.lines, libraries, base.release, origin=request.image, builds=builds)
    headers = _other_headers(lines, accepted=request.accept_other_headers)
    swaps = _swaps(lines, images, base)
    built = images.swap(base.image_id, tuple(swaps.values()))
    made = [built]
    try:
        if request.guard:
            built = images.guard(built, base.python, request.guard)
            made.append(built)
        proof = prove_swap(images, built, swaps, _replaced(lines))
        image_id = images.tag(built, request.tags, {LABEL_PROOF: proof.label(), LABEL_BASE: base.image_id})
    except BaseException:
        for image in reversed(made):
            images.discard(image)
        raise
    return OntoResult(
        base=base, image_id=image_id, tags=request.tags, lines=lines, proof=proof, duration_s=clock() - started,
        headers=headers,
    )  # fmt: skip


def _other_headers(lines: LinesBuilt, *, accepted: bool) -> tuple[HeadersShare, ...]:
    """Return what lines of the image would be of other headers; raises OtherLines unless that was accepted."""
    swapped = replace(lines, built=_identical(lines))
    packed = pack_built(swapped)
    shares = lines_of_other_headers(swapped, packed.data, whole=True) if packed else ()
    if shares and not accepted:
        share = shares[0]
        project = next((one for one in lines.tree.projects if one.title == share.headers.project), None)
        raise OtherLines(
            f"{share.instructions:,} of {share.of:,} instructions would have a {share.headers}",
            cause="the package index has no such release of these headers, and identical code does not prove "
            "identical line numbers",
            details=project.commands if project else (),
            next_step=f"get them with the commands above, and --dep {project.flag}; or --accept-other-headers"
            if project and project.flag
            else "--accept-other-headers",
        )
    return shares


def _replaced(lines: LinesBuilt) -> Mapping[str, Mapping[int, frozenset[str]]]:
    """Return what gets line tables: library -> number of the unit -> targets."""
    found: dict[str, dict[int, frozenset[str]]] = {}
    for unit in _identical(lines):
        targets = found.setdefault(unit.choice.library.name, {})
        number = unit.choice.unit.number
        targets[number] = targets.get(number, frozenset()) | {unit.choice.target}
    return found


def _identical(lines: LinesBuilt) -> tuple[BuiltUnit, ...]:
    return tuple(unit for unit in lines.built if unit.comparison and unit.comparison.complete)


def _swaps(lines: LinesBuilt, images: ImageSwaps, base: Installed) -> dict[str, Swap]:
    cubins: dict[str, dict[int, dict[str, bytes]]] = {}
    for unit in _identical(lines):
        stock, comparison = unit.choice.unit.cubin(unit.choice.target), unit.comparison
        if stock is None or comparison is None or unit.compiled.cubin is None:
            continue
        names = {built: name for name, built in comparison.renamed}
        new = add_line_tables(stock.entry.payload(), unit.compiled.cubin, names)
        cubins.setdefault(unit.choice.library.name, {}).setdefault(unit.choice.unit.number, {})[unit.choice.target] = (
            new
        )
    if not cubins:
        raise _nothing_identical(lines)
    swaps: dict[str, Swap] = {}
    for path, replaced in cubins.items():
        with images.files(base.image_id, [path]) as files:
            stock_library = bytes(next(files).data)
        swaps[path] = Swap(path=path, stock=stock_library, new=rewrite_library(stock_library, replaced))
    return swaps


def _nothing_identical(lines: LinesBuilt) -> NotProven:
    failed = [unit for unit in lines.built if unit.comparison is None]
    reasons = [left.reason for left in lines.unplaced]
    reasons += [f"{unit.source} did not compile: {unit.compiled.output[-200:]}" for unit in failed]
    reasons += [
        f"{unit.source} for {unit.choice.target}: {len(unit.comparison.identical)} of {unit.comparison.total} identical"
        for unit in lines.built
        if unit.comparison
    ]
    return NotProven(
        "nothing that was compiled is the image's own code, so the image stays as it is",
        details=tuple(dict.fromkeys(reasons))[:10],
        cause="the image's vLLM was changed locally, or is built from other external sources",
        next_step="--dep VARIABLE=DIR names a local tree, as in VLLM_CUTLASS_SRC_DIR=~/cutlass",
    )
