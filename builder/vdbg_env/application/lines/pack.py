"""Pack the lines of units that were compiled again: the code they are found by is the stock wheel's."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import PurePosixPath

from gpucore.code_identity import INSTRUCTION
from gpucore.core import Fault, WarpGroup, decode_core
from gpucore.dwarf import OtherHeaders, SourceFrame
from gpucore.line_pack import LineRecord
from gpucore.line_packs import LinePack, Provenance
from gpucore.mangling import demangle, short_name
from vdbg_env.application.line_packs.pack import Packed, PackRequest, pack_lines
from vdbg_env.application.lines.build import LinesBuilt
from vdbg_env.application.lines.compare import Comparison
from vdbg_env.common.errors import BadInput
from vdbg_env.crash.files import BinaryFile, CoreFiles
from vdbg_env.crash.line_packs import PackedLines, PackFile


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
    """Look the places of a core up in a pack: those of its faults, without a fault those where warps stand."""
    with files.open(path) as core:
        read = decode_core(
            core.data, file=core.name, modified=core.modified, lines=PackedLines([_OnePack(pack)] if pack else [])
        )
        asked: Sequence[Fault | WarpGroup] = read.faults or read.warp_groups
        places = tuple((place.kernel or "", place.location) for place in asked)
    return CoreLines(
        file=path,
        shown=next((location.chain[0] for _, location in places if location and location.chain), None),
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
