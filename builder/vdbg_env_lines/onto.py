"""`vdbg-env build --onto`: the production image, with line tables in the kernels that were asked for.

Nothing of the image is rebuilt. The units that hold the kernels are compiled again by the compiler that their cubins
name; where every function has the stock instructions, the new line tables are added to the stock cubin. Host code,
constants and all other kernels stay as they are, and the proof is read back from the finished image.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from gpucore.elf import SHT_NOBITS, Elf, Section
from gpucore.graft import add_line_tables, rewrite_library
from gpucore.lineinfo import read_coverage
from vdbg_env.common.console import duration
from vdbg_env.common.errors import BadInput, NotProven, OtherLines
from vdbg_env.crash.files import BinaryFile
from vdbg_env.image.plan import LABEL_PROOF
from vdbg_env.image.profile import OwnPackage
from vdbg_env_lines.build import (
    BuiltUnit,
    HeadersShare,
    LinesBuilt,
    LinesRequest,
    lines_of_other_headers,
    pack_built,
    rebuild,
)
from vdbg_env_lines.result import Written, headers_json, lines_json, lines_text
from vdbg_env_lines.stock import StockCubin, StockLibrary, extension_of, read_stock, require_runnable
from vdbg_env_lines.swap import DockerSwaps, Installed, Swap
from vdbg_env_lines.units import UnitBuilds

# Prove a swapped image from its own files: the same code, the same host part, and line tables where they belong.


_MOVED: Final = (".nv_fatbin", ".nvFatBinSegment", ".rela.dyn")
_RELA: Final = struct.Struct("<QQq")


@dataclass(frozen=True, kw_only=True)
class LibraryProof:
    """What was found of one library in the finished image, compared with the original that is next to it.

    `cubins` are all that it holds, `with_lines` those that carry a line table; `functions` are those of the latter and
    `identical` how many of them have the original's instructions; `sections` are host sections with unchanged bytes.
    """

    path: str
    kept: str
    cubins: int
    with_lines: int
    functions: int
    identical: int
    sections: int


@dataclass(frozen=True, kw_only=True)
class OntoProof:
    """The proof of a swapped image."""

    libraries: tuple[LibraryProof, ...]

    def label(self) -> str:
        """Return it in one short line, for the image's label."""
        functions = sum(library.functions for library in self.libraries)
        identical = sum(library.identical for library in self.libraries)
        with_lines = sum(library.with_lines for library in self.libraries)
        cubins = sum(library.cubins for library in self.libraries)
        return (
            f"{with_lines} of {cubins} cubins carry line info; "
            f"{identical} of {functions} of their functions are the original's instructions, host code unchanged"
        )


def prove_swap(
    images: DockerSwaps,
    image_id: str,
    swaps: Mapping[str, Swap],
    replaced: Mapping[str, Mapping[int, frozenset[str]]],
) -> OntoProof:
    """Read every swapped library and its original from the image; raises NotProven for what is not as it should be."""
    proofs = []
    for path, swap in swaps.items():
        new, kept = _read(images, image_id, path), _read(images, image_id, swap.kept)
        if kept != swap.stock:
            raise NotProven(f"{swap.kept} of the image is not the original", next_step="build again")
        proofs.append(_prove(swap, new, replaced[path]))
    return OntoProof(libraries=tuple(proofs))


def _read(images: DockerSwaps, image_id: str, path: str) -> bytes:
    with images.files(image_id, [path]) as files:
        found = next(files, None)
        if found is None:
            raise NotProven(f"the image has no {path}", next_step="build again")
        return bytes(found.data)


def _prove(swap: Swap, new: bytes, replaced: Mapping[int, frozenset[str]]) -> LibraryProof:
    before, after = _library(swap.path, swap.stock), _library(swap.path, new)
    if [unit.targets for unit in before.units] != [unit.targets for unit in after.units]:
        raise NotProven(f"{swap.path} of the image has other units than the original")
    pairs = [
        (old, now, old.target in replaced.get(unit.number, frozenset()))
        for unit, other in zip(before.units, after.units, strict=True)
        for old, now in zip(unit.cubins, other.cubins, strict=True)
    ]
    wrong = [problem for old, now, lines in pairs for problem in _cubin_problems(old, now, lines=lines)]
    wrong += _host_problems(Elf(swap.stock), Elf(new))
    if wrong:
        raise NotProven(
            f"{swap.path} of the image is not the original with line tables added",
            details=tuple(f"{swap.path}: {problem}" for problem in wrong[:10]),
            next_step="report this, with the image's name: nothing was tagged",
        )
    changed = [(old, now) for old, now, lines in pairs if lines]
    return LibraryProof(
        path=swap.path,
        kept=swap.kept,
        cubins=len(pairs),
        with_lines=len(changed),
        functions=sum(len(old.functions) for old, _ in changed),
        identical=sum(_identical(old, now) for old, now in changed),
        sections=sum(1 for _ in _compared(Elf(swap.stock))),
    )


def _library(path: str, data: bytes) -> StockLibrary:
    (library,) = read_stock([BinaryFile(name=path, data=data)])
    return library


def _identical(old: StockCubin, now: StockCubin) -> int:
    known = {(function.function.name, function.hash) for function in now.functions}
    return sum((function.function.name, function.hash) in known for function in old.functions)


def _cubin_problems(old: StockCubin, now: StockCubin, *, lines: bool) -> Iterator[str]:
    """Yield what is wrong with a cubin: left alone it is the original's bytes, else the original and line tables."""
    before, after = old.entry.payload(), now.entry.payload()
    if not lines:
        if bytes(before) != bytes(after):
            yield f"a cubin for {old.target} was to stay as it was"
        return
    stock, new = Elf(before), Elf(after)
    for number, section in enumerate(stock.sections):
        name = stock.name(section)
        other = new.sections[number]
        same = name == ".shstrtab" or _contents(stock, section) == _contents(new, other)
        if name != new.name(other) or not same or section.address != other.address or section.type != other.type:
            yield f"section {name} of a cubin for {old.target} is not the original's"
    if not read_coverage(after).complete:
        yield f"the line table of a cubin for {old.target} does not cover its functions"


def _host_problems(stock: Elf, new: Elf) -> Iterator[str]:
    for section in _compared(stock):
        other = new.sections[section.number]
        if _contents(stock, section) != _contents(new, other) or section[1:] != other[1:]:
            yield f"section {stock.name(section)} of the host part is not the original's"
    yield from _moved_only(stock, new)


def _moved_only(stock: Elf, new: Elf) -> Iterator[str]:
    """Check the relocations: as many as before, for the same places, and other values for the fat binary alone."""
    old_fatbin, new_fatbin = stock.section(".nv_fatbin"), new.section(".nv_fatbin")
    table = stock.section(".rela.dyn")
    if old_fatbin is None or new_fatbin is None or table is None:
        yield "the sections of the fat binary are missing"
        return
    before = _RELA.iter_unpack(stock.contents(table))
    after = _RELA.iter_unpack(new.contents(new.sections[table.number]))
    for old, now in zip(before, after, strict=True):
        inside = old_fatbin.address <= old[2] < old_fatbin.address + old_fatbin.size
        arrived = new_fatbin.address <= now[2] < new_fatbin.address + new_fatbin.size
        if old[:2] != now[:2] or (old[2] != now[2] and not (inside and arrived)):
            yield f"the relocation of {old[0]:#x} is not the original's"


def _compared(elf: Elf) -> Iterator[Section]:
    return (section for section in elf.sections if elf.name(section) not in _MOVED)


def _contents(elf: Elf, section: Section) -> bytes:
    return b"" if section.type == SHT_NOBITS else bytes(elf.contents(section))


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
    request: OntoRequest, *, images: DockerSwaps, builds: UnitBuilds, clock: Callable[[], float]
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
    swapped = replace(lines, built=_identical_units(lines))
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
    for unit in _identical_units(lines):
        targets = found.setdefault(unit.choice.library.name, {})
        number = unit.choice.unit.number
        targets[number] = targets.get(number, frozenset()) | {unit.choice.target}
    return found


def _identical_units(lines: LinesBuilt) -> tuple[BuiltUnit, ...]:
    return tuple(unit for unit in lines.built if unit.comparison and unit.comparison.complete)


def _swaps(lines: LinesBuilt, images: DockerSwaps, base: Installed) -> dict[str, Swap]:
    cubins: dict[str, dict[int, dict[str, bytes]]] = {}
    for unit in _identical_units(lines):
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


def onto_text(result: OntoResult) -> str:
    """Return what a build onto an image prints at its end, once it is proven."""
    lines = [lines_text(result.lines, Written(headers=result.headers, flag="--dep")).rstrip("\n")]
    for library in result.proof.libraries:
        lines += [
            f"proven    {library.path}: {library.with_lines} of {library.cubins} cubins carry line info",
            f"          {library.identical:,} of {library.functions:,} functions of these are the original's very code,"
            f" {library.sections} host sections unchanged",
            f"original  {library.kept}",
        ]
    lines += [
        f"base      {result.base.image_id}",
        f"image     {result.image_id}",
        *(f"tag       {tag}" for tag in result.tags),
        f"time      {duration(result.duration_s)}",
    ]
    return "\n".join([*lines, ""])


def onto_json(result: OntoResult) -> dict[str, Any]:
    """Return the result as docs/schemas/onto-v1.schema.json describes it."""
    return {
        "schema": "vdbg-env/onto/v1",
        "base": result.base.image_id,
        "image_id": result.image_id,
        "tags": list(result.tags),
        "lines": lines_json(result.lines),
        "proof": {
            "summary": result.proof.label(),
            "libraries": [
                {
                    "path": library.path,
                    "kept": library.kept,
                    "cubins": library.cubins,
                    "with_lines": library.with_lines,
                    "functions": library.functions,
                    "identical": library.identical,
                    "host_sections": library.sections,
                }
                for library in result.proof.libraries
            ],
        },
        "headers": [headers_json(share) for share in result.headers],
        "duration_s": round(result.duration_s, 3),
    }
