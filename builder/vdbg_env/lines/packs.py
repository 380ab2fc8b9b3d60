"""Make line packs from libraries built with line info, say what a pack has, merge packs and carry them elsewhere."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from gpucore.code_identity import CompilerNote, compiler_notes, outermost_count
from gpucore.code_map import CodeMap
from gpucore.errors import UnreadableBinary
from gpucore.fatbin import EntryKind, find_device_code
from gpucore.line_packs import LinePack, PackedHeaders, PackWriter, Provenance, merge, records_of
from vdbg_env.common.errors import BadInput
from vdbg_env.crash.files import BinaryFile, BinarySource
from vdbg_env.crash.line_packs import LineStore, PackFile
from vdbg_env.image.plan import LABEL_DIGEST
from vdbg_env.lines.stores import CarriedPack, PackTarget


@dataclass(frozen=True, kw_only=True)
class PackSummary:
    """What a pack has; `digest` is its sha256, `problem` says why it cannot be used."""

    name: str
    digest: str
    size: int
    functions: int = 0
    binaries: tuple[Provenance, ...] = ()
    problem: str | None = None

    @property
    def builds(self) -> str:
        """The builds that were packed, in words."""
        return " and ".join(dict.fromkeys(binary.build for binary in self.binaries)) or "unknown build"


def summarize(file: PackFile, *, check: bool = False) -> PackSummary:
    """Return what a pack has; with `check` all of it is read, else only its header and provenance."""
    digest, size = hashlib.sha256(file.data).hexdigest(), len(file.data)
    try:
        pack = LinePack(file.data)
        if check:
            pack.check()
        return PackSummary(
            name=file.name, digest=digest, size=size, functions=len(pack), binaries=pack.binaries,
        )  # fmt: skip
    except UnreadableBinary as error:
        return PackSummary(name=file.name, digest=digest, size=size, problem=error.what)


# `vdbg-env lines pack`: take the line tables out of libraries that were built with line info.


_REVISION: Final = "org.opencontainers.image.revision"

Tell = Callable[[str], None]


@dataclass(frozen=True, kw_only=True)
class PackRequest:
    """What to pack; `archs` keeps to some architectures.

    `release` and `plan` are noted of every binary; without them those that the labels of an image name. `names` are
    what functions are called in the pack where the binary calls them otherwise, by target. `shown` says what paths are
    called there. `headers` are noted of every binary.
    """

    targets: tuple[str, ...]
    release: str = ""
    plan: str = ""
    archs: tuple[str, ...] = ()
    names: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    shown: Callable[[str], str] = lambda path: path
    headers: tuple[PackedHeaders, ...] | None = None


@dataclass(frozen=True, kw_only=True)
class Packed:
    """A pack, and what went into it; `problems` are files of folders and images that could not be read, and why."""

    data: bytes
    functions: int
    binaries: tuple[Provenance, ...]
    problems: tuple[str, ...]

    @property
    def digest(self) -> str:
        """The sha256 of the pack, by which stores name it."""
        return hashlib.sha256(self.data).hexdigest()


def pack_lines(request: PackRequest, *, binaries: BinarySource, tell: Tell = lambda _: None) -> Packed:
    """Return a pack of the lines of every function in the targets.

    Raises BadInput for a target that does not exist, and where nothing in them has line info.
    """
    writer = PackWriter()
    packed: list[Provenance] = []
    problems: list[str] = []
    for file in _files(request.targets, binaries):
        tell(file.name)
        try:
            found = _of_file(file, request, writer, request.names.get(file.name, {}))
        except UnreadableBinary as error:
            if file.asked_for:
                raise
            problems.append(f"{file.name}: {error.what}")
            continue
        packed += [found] if found else []
    if not len(writer):
        raise _nothing(packed, problems)
    return Packed(data=writer.build(), functions=len(writer), binaries=tuple(packed), problems=tuple(problems))


@dataclass
class _Counts:
    """What was seen in one binary."""

    functions: int = 0
    with_lines: int = 0
    notes: dict[CompilerNote, None] = field(default_factory=dict)


def _of_file(file: BinaryFile, request: PackRequest, writer: PackWriter, names: Mapping[str, str]) -> Provenance | None:
    """Add the lines of one file; None for a file without device code. A damaged cubin leaves the whole file out."""
    if file.problem is not None:
        raise UnreadableBinary(file.problem)
    digest = hashlib.sha256(file.data).hexdigest()
    counts = _Counts()
    records = []
    for code in find_device_code(file.data):
        if code.entry.kind != EntryKind.ELF or (request.archs and code.entry.target not in request.archs):
            continue
        cubin = CodeMap(code.entry.payload())
        found = list(records_of(cubin, code.entry.target, digest))
        counts.functions += outermost_count(cubin)
        counts.with_lines += len(found)
        counts.notes |= dict.fromkeys(note for note in compiler_notes(cubin.elf) if note.tool == "ptxas")
        records += found
    if not counts.functions:
        return None
    for record in records:
        paths = tuple(map(request.shown, record.tree.strings))
        writer.add(replace(record, name=names.get(record.name, record.name), tree=replace(record.tree, strings=paths)))
    binary = _provenance(file, digest, request, counts)
    if records:
        writer.add_binary(binary)
    return binary


def _provenance(file: BinaryFile, digest: str, request: PackRequest, counts: _Counts) -> Provenance:
    whole = counts.with_lines == counts.functions
    return Provenance(
        digest=digest,
        binary=file.name.rpartition("/")[2],
        release=request.release or file.labels.get(_REVISION, ""),
        compiler=" ".join(dict.fromkeys(note.release for note in counts.notes)),
        options=" | ".join(sorted({note.options for note in counts.notes}))[:1024],
        plan=request.plan or file.labels.get(LABEL_DIGEST, ""),
        verdict="full" if whole else "partial" if counts.with_lines else "none",
        functions=counts.functions,
        with_lines=counts.with_lines,
        headers=request.headers,
    )


def _files(targets: Sequence[str], binaries: BinarySource) -> Iterator[BinaryFile]:
    for target in targets:
        with binaries.open(target) as files:
            yield from files


def _nothing(packed: Sequence[Provenance], problems: Sequence[str]) -> BadInput:
    if not packed:
        return BadInput("no device code in what was given", details=tuple(problems))
    return BadInput(
        f"none of {sum(binary.functions for binary in packed):,} functions has line info",
        cause="a release wheel: it is built without -lineinfo",
        next_step="vdbg-env lines build vllm==VERSION compiles its sources again with lines",
        details=tuple(problems),
    )


# Carry packs: merge several, and put those of some stores into another place.


def merged(stores: Iterable[LineStore]) -> tuple[bytes, PackSummary]:
    """Return one pack of all packs of some stores; raises UnreadableBinary when one is damaged."""
    data = merge(LinePack(file.data) for store in stores for file in store.packs())
    return data, summarize(PackFile(name="", data=data))


def carry(stores: Sequence[LineStore], target: PackTarget) -> tuple[str, ...]:
    """Put the packs of some stores into a target, each read to its end before; raises as both ports."""
    packs = [_sound(file) for store in stores for file in store.packs()]
    if not packs:
        raise BadInput(f"{', '.join(store.name for store in stores)} has no line pack")
    return target.put(packs)


def _sound(file: PackFile) -> CarriedPack:
    found = summarize(file, check=True)
    if found.problem:
        raise UnreadableBinary(f"{file.name}: {found.problem}", next_step="get it again, or pack it again")
    digest = hashlib.sha256(file.data).hexdigest()
    return CarriedPack(digest=digest, functions=found.functions, builds=found.builds, data=file.data)
