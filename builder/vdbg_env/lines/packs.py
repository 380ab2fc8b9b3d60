"""Make line packs from libraries built with line info, say what a pack has, merge packs, remove unused ones."""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from platformdirs import user_cache_path

from gpucore.code_identity import CompilerNote, compiler_notes, outermost_count
from gpucore.code_map import CodeMap
from gpucore.errors import UnreadableBinary
from gpucore.fatbin import EntryKind, find_device_code
from gpucore.line_pack import PACK_MAGIC, LineRecord
from gpucore.line_packs import LinePack, PackedHeaders, PackWriter, Provenance, merge, records_of
from gpucore.mangling import demangle
from vdbg_env.common.console import json_text, printable, size_text
from vdbg_env.common.errors import BadInput
from vdbg_env.common.files import opened
from vdbg_env.crash.files import BinaryFile, BinarySource
from vdbg_env.crash.line_packs import SUFFIX, LineStore, PackFile
from vdbg_env.evidence.kernel_makers import KernelOrigin, kernel_makers
from vdbg_env.image.plan import LABEL_DIGEST


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
        next_step=_with_lines(packed),
        details=tuple(problems),
    )


def _with_lines(packed: Sequence[Provenance]) -> str:
    """Return what gives lines to binaries without any, by the library that the first of them is in."""
    makers = kernel_makers()
    maker = makers.by_library(packed[0].binary, KernelOrigin()).maker
    if maker and maker.lines == "never":
        return f"it is {maker.name}'s, whose code is closed: vdbg-env core --parameters FILE shows what it was given"
    if maker and maker.lines == "wheel":
        return f"vdbg-env lines build {maker.project}==VERSION --core FILE compiles its sources again with lines"
    return "build it with NVCC_PREPEND_FLAGS=-lineinfo in an empty build folder, and pack what that makes"


def merged(stores: Iterable[LineStore]) -> tuple[bytes, PackSummary]:
    """Return one pack of all packs of some stores; raises UnreadableBinary when one is damaged."""
    data = merge(LinePack(file.data) for store in stores for file in store.packs())
    return data, summarize(PackFile(name="", data=data))


# Packs of this machine that may go.


def cache_folder() -> Path:
    """Return the folder of packs that were fetched: `vdbg-env/lines` in the user's cache folder."""
    return user_cache_path("vdbg-env") / "lines"


def least_used(folder: Path, most_bytes: int) -> list[Path]:
    """Return the packs to remove for the others to fit into some bytes: those unused for longest.

    A file that only has the name of a pack is none.
    """
    found = []
    for path in folder.glob(f"*{SUFFIX}"):
        with contextlib.suppress(OSError), opened(path) as file:  # removed by another process, or another user's
            if file.read(len(PACK_MAGIC)) == PACK_MAGIC:
                status = os.fstat(file.fileno())
                found.append((status.st_mtime, status.st_size, path))
    found.sort(key=lambda row: (-row[0], row[2]))
    removed, total = [], 0
    for _, size, path in found:
        total += size
        if total > most_bytes:
            removed.append(path)
    return removed


def prune(folder: Path, most_bytes: int, *, remove: bool) -> tuple[tuple[str, int], ...]:
    """Return the packs unused for longest, until the others fit into some bytes, and remove them if asked to.

    Each has its path and its size. Raises BadInput where one cannot be removed.
    """
    found = {path: path.stat().st_size for path in least_used(folder, most_bytes)}
    for path in found if remove else ():
        try:
            path.unlink(missing_ok=True)
        except OSError as error:
            raise BadInput(f"{path} cannot be removed: {error.strerror or error}") from error
    return tuple((str(path), size) for path, size in found.items())


# Text.


def packed_text(result: Packed, name: str) -> str:
    """Return what was packed."""
    head = f"{printable(name)}: lines of {result.functions:,} functions in {size_text(len(result.data))}"
    return "\n".join([head, *_binaries(result.binaries), *(f"note: {printable(p)}" for p in result.problems)]) + "\n"


def summary_text(found: PackSummary) -> str:
    """Return what a pack has."""
    lines = [
        f"{printable(found.name)}: lines of {found.functions:,} functions in {size_text(found.size)}",
        f"  sha256   {found.digest}",
        *_binaries(found.binaries),
    ]
    return "\n".join(lines) + "\n"


def function_lines(records: Iterable[LineRecord]) -> Iterator[str]:
    """Yield a line for each function."""
    for record in records:
        covered = record.covered / record.size if record.size else 0.0
        yield printable(
            f"{record.hash.hex()[:16]}  {' '.join(record.archs):12} {record.size:8} bytes {covered:6.1%}  "
            f"{demangle(record.name)}"
        )


def packs_text(found: Iterable[PackSummary]) -> str:
    """Return a line for each pack."""
    rows = [
        f"{one.digest[:12]}  {size_text(one.size):>9}  {one.functions:8,}  {printable(f'{one.builds}  {one.name}')}\n"
        for one in found
    ]
    return "".join([f"{'SHA256':12}  {'SIZE':>9}  {'FUNCTIONS':>8} BUILD, FILE\n", *rows]) if rows else ""


def _binaries(binaries: Iterable[Provenance]) -> Iterator[str]:
    for binary in binaries:
        build = ", ".join(part for part in (binary.release, binary.compiler and f"nvcc {binary.compiler}") if part)
        yield printable(
            f"  {binary.binary:40} {binary.with_lines:,} of {binary.functions:,} functions with lines"
            + (f"  ({build})" if build else "")
        )
        if binary.headers is None:
            yield "    headers: unknown (the pack does not say which releases of other projects its lines are of)"
        for headers in binary.headers or ():
            said = headers.other or f"{headers.project} {headers.used}, as the wheel was built with"
            yield printable(f"    headers: {said}")


# JSON: docs/schemas/lines-v1.schema.json is the contract and says what each field means.


def packs_json(found: Sequence[PackSummary], functions: Mapping[str, Sequence[LineRecord]] = {}) -> str:
    """Return what packs have, with the functions of those whose digest `functions` has."""
    documents = []
    for one in found:
        document = {
            "name": one.name,
            "sha256": one.digest,
            "size": one.size,
            "functions": one.functions,
            "binaries": [asdict(binary) for binary in one.binaries],
            "problem": one.problem,
        }
        listed = functions.get(one.digest)
        documents.append(document if listed is None else document | {"listed": [_function_json(x) for x in listed]})
    return json_text({"schema": "vdbg-env/lines/v1", "packs": documents})


def packed_json(result: Packed, name: str) -> str:
    """Return what `lines pack` packed, and the files that it could not read."""
    pack = {
        "name": name,
        "sha256": result.digest,
        "size": len(result.data),
        "functions": result.functions,
        "binaries": [asdict(binary) for binary in result.binaries],
    }
    return json_text({"schema": "vdbg-env/lines/v1", "packs": [pack], "problems": result.problems})


def _function_json(record: LineRecord) -> dict[str, Any]:
    return {
        "name": record.name,
        "demangled": demangle(record.name),
        "kernel": record.kernel,
        "archs": record.archs,
        "code": record.hash.hex(),
        "size": record.size,
        "covered": record.covered,
        "places": len(record.tree),
        "parameters": [asdict(place) for place in record.parameters],
        "binaries": record.sources,
    }
