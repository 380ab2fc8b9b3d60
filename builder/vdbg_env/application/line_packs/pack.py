"""`vdbg-env lines pack`: take the line tables out of libraries that were built with line info."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from gpucore.code_identity import CompilerNote, compiler_notes, outermost_count
from gpucore.code_map import CodeMap
from gpucore.errors import UnreadableBinary
from gpucore.fatbin import EntryKind, find_device_code
from gpucore.line_packs import PackedHeaders, PackWriter, Provenance, records_of
from vdbg_env.common.errors import BadInput
from vdbg_env.crash.files import BinaryFile, BinarySource
from vdbg_env.image.plan import LABEL_DIGEST

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
