"""Line packs on this machine, and the lines that they have for code that was built without."""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Final, Protocol, cast

from platformdirs import user_data_path

from gpucore.code_identity import CodeIdentity, identify, identity_at
from gpucore.code_map import CodeMap, Function, PlaceQuery, identifier_in, matching, parse_place
from gpucore.dwarf import BorrowedLines, Chain, LinesByName, Place
from gpucore.errors import UnreadableBinary
from gpucore.fatbin import EntryKind, find_device_code
from gpucore.line_pack import LineRecord, pack_keys
from gpucore.line_packs import LinePack, distinct, match
from gpucore.mangling import demangle, short_name
from vdbg_env.common import plug_ins
from vdbg_env.common.errors import ANY_ERROR, BAD_INPUT, BadInput, unreadable
from vdbg_env.crash.files import BinarySource, Buffer, mapped_for_good


@dataclass(frozen=True, kw_only=True)
class PackFile:
    """A line pack, mapped: its name as a user would name it, and its bytes; `path` where it is a file here."""

    name: str
    data: Buffer
    path: Path | None = None


class LineStore(Protocol):
    """A place that has line packs."""

    @property
    def name(self) -> str:
        """The place as a user would name it."""
        ...

    @property
    def local(self) -> bool:
        """Whether reading all of its packs fetches nothing."""
        ...

    def packs(self, keys: Collection[bytes] = (), *, release: str | None = None) -> Iterator[PackFile]:
        """Yield the packs that may have a function of one of these keys (`pack_keys`), all of them where none is given.

        A pack is fetched when it is taken. Where the place knows it, those of builds that name the release are first.
        Raises BadInput when the place does not exist or has something else, HostNotAble when it cannot be reached.
        """
        ...


SUFFIX: Final = ".lines"


class PackFolder:
    """A LineStore over a file, or over every `*.lines` at or below a folder; `optional` may be missing."""

    local: Final = True

    def __init__(self, path: Path, *, optional: bool = False) -> None:
        self._path: Final = path
        self.name: Final = str(path)
        self._optional: Final = optional

    def packs(self, keys: Collection[bytes] = (), *, release: str | None = None) -> Iterator[PackFile]:
        """Yield every pack, whatever the keys: looking into a file here costs less than an index of them."""
        del keys, release
        for path in self.paths():
            try:
                yield PackFile(name=str(path), data=mapped_for_good(path), path=path)
            except OSError as error:
                raise unreadable(path, error) from error

    def paths(self) -> list[Path]:
        """Return the files, by name; raises BadInput when the folder is missing."""
        if self._path.is_dir():
            return sorted(path for path in self._path.rglob(f"*{SUFFIX}") if path.is_file())
        if self._path.is_file():
            return [self._path]
        if self._optional:
            return []
        raise BadInput(
            f"no line pack {self._path}",
            cause="a mistyped path, or a folder that is not mounted here",
            next_step="vdbg-env lines pack LIBRARY -o FILE.lines makes one",
        )


def write_whole(path: Path, data: bytes | memoryview) -> None:
    """Write a file whole or not at all; a pipe or device, as `/dev/null`, is written to and not replaced.

    Raises BadInput when that is not possible.
    """
    from vdbg_env.record.run_directory import replacement  # only what writes needs the record

    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        special = path.exists() and not (path.is_file() or path.is_dir())
        with path.open("wb") if special else replacement(path) as file:
            file.write(data)
    except OSError as error:
        raise BadInput(f"{path} cannot be written: {error.strerror or error}") from error


VARIABLE: Final = "VDBG_LINES"


def packed_lines(named: Sequence[str] = ()) -> PackedLines:
    """Return the lines of the packs that `--lines` names, and of those that are always looked through."""
    return PackedLines(open_stores(named))


def local_lines() -> PackedLines:
    """Return the lines of the packs that are always looked through and are on this machine: nothing is fetched."""
    return PackedLines([open_store(name) for name in _listed() if not _is_address(name)] + [_default()])


def has_addresses() -> bool:
    """Whether VDBG_LINES lists a place that is not on this machine."""
    return any(map(_is_address, _listed()))


def open_stores(named: Sequence[str] = ()) -> tuple[LineStore, ...]:
    """Return what `--lines` names, then what VDBG_LINES lists (by blanks or commas), then the default folder.

    Raises BadInput for a place of `--lines` that does not exist; of the others that is a note when they are used.
    """
    asked = [open_store(name) for name in [*named, *_listed()]]
    for store in asked[: len(named)]:
        if isinstance(store, PackFolder):
            store.paths()
    return (*asked, _default())


def _listed() -> list[str]:
    return os.environ.get(VARIABLE, "").replace(",", " ").split()


def _is_address(name: str) -> bool:
    return "://" in name


def _default() -> LineStore:
    return PackFolder(default_folder(), optional=True)


def open_store(name: str) -> LineStore:
    """Return the store that a path or an address names; raises BadInput where nothing here opens such an address."""
    if not _is_address(name):
        return PackFolder(Path(name).expanduser())
    scheme = name.partition("://")[0]
    if opened := plug_ins.plug_in(plug_ins.LINE_STORES, scheme):
        return cast(LineStore, opened(name))
    raise BadInput(f"{name}: nothing here fetches line packs from {scheme}://", next_step="a path, https:// or oci://")


def default_folder() -> Path:
    """Return the folder that is always looked through: `vdbg-env/lines` in the user's data folder."""
    return user_data_path("vdbg-env") / "lines"


MOST_FETCHED: Final = 8
"""How many packs of one address are fetched to look for a name of which only the demangled form is known."""


@dataclass(frozen=True, kw_only=True)
class Held:
    """A record and the pack that has it."""

    record: LineRecord
    pack: LinePack
    name: str

    @property
    def build(self) -> str:
        """The builds that the record is from, in words."""
        known = self.pack.by_digest
        return " and ".join(dict.fromkeys(known[d].build for d in self.record.sources if d in known)) or self.name

    def chain(self, offset: int) -> Chain:
        """Return the source frames of an instruction, those of other headers than the code's marked."""
        return self._marked(self.record.chain(offset))

    def siblings(self, offset: int) -> tuple[Chain, ...]:
        """Return the chains that end in the same leaf line, marked likewise."""
        return tuple(map(self._marked, self.record.siblings(offset)))

    def _marked(self, chain: Chain) -> Chain:
        known = self.pack.by_digest
        # Of several builds with the same lines one that had the right headers is enough.
        said = [[known[digest].headers_of(f.file) for digest in self.record.sources if digest in known] for f in chain]
        return tuple(
            replace(frame, headers=found[0]) if found and all(found) else frame
            for frame, found in zip(chain, said, strict=True)
        )


@dataclass(frozen=True, kw_only=True)
class Found:
    """What all packs have for a function: records of the same code, and records of its name with other code."""

    same: tuple[Held, ...] = ()
    other: tuple[Held, ...] = ()


class PackedLines:
    """A LineSource over line packs; stores that cannot be read are in `notes`, and the others still answer."""

    def __init__(self, stores: Sequence[LineStore]) -> None:
        self._stores: Final = tuple(stores)
        self._open: Final[dict[str, LinePack | None]] = {}
        self._found: Final[dict[tuple[bytes, str], Found]] = {}
        self._notes: Final[dict[str, None]] = {}

    @property
    def notes(self) -> tuple[str, ...]:
        """What could not be read, and which functions the packs have of another build only."""
        return tuple(self._notes)

    @property
    def stores(self) -> tuple[str, ...]:
        """The names of the places that are looked through."""
        return tuple(store.name for store in self._stores)

    def lines_at(self, code: CodeMap, place: Place) -> BorrowedLines | None:
        """Return the lines of an instruction by a build with identical code; None where no pack has one."""
        try:
            identity = identity_at(code, place.section, place.offset)
        except UnreadableBinary as error:
            self._notes[f"the code is damaged, so no line pack is asked: {error.what}"] = None
            return None
        if identity is None or not self._stores:
            return None
        offset = place.offset - identity.function.start
        return self._borrowed(self.find(code, identity), identity, offset)

    def find(self, code: CodeMap, identity: CodeIdentity) -> Found:
        """Return what the packs have for a function."""
        key = (identity.hash, identity.function.name)
        if key not in self._found:
            self._found[key] = self._search(code, identity)
        return self._found[key]

    def local_packs(self) -> Iterator[tuple[str, LinePack]]:
        """Yield every pack of the stores on this machine, with its name: nothing is fetched."""
        yield from self._opened(store for store in self._stores if store.local)

    def fetched_packs(self, name: str, release: str | None = None) -> Iterator[tuple[str, LinePack]]:
        """Yield packs of the addresses that are configured: those with a mangled name, else the first of each address.

        Without the mangled name no index says where a function is. At most MOST_FETCHED of an address are then taken,
        those of a release first.
        """
        keys = pack_keys(None, name) if name.startswith("_Z") else ()
        yield from self._opened((store for store in self._stores if not store.local), keys, release, MOST_FETCHED)

    def _opened(
        self, stores: Iterable[LineStore], keys: tuple[bytes, ...] = (), release: str | None = None,
        most: int | None = None,
    ) -> Iterator[tuple[str, LinePack]]:  # fmt: skip
        for store in stores:
            for file in islice(self._files(keys, [store], release), most):
                pack = self._pack(file)
                if pack:
                    yield file.name, pack

    def _borrowed(self, found: Found, identity: CodeIdentity, offset: int) -> BorrowedLines | None:
        chains = [(held, held.chain(offset)) for held in found.same]
        exact = [held for held, chain in chains if chain and not any(frame.headers for frame in chain)]
        holders = {id(held.record): held for held in exact or found.same}
        records = distinct((held.record for held in holders.values()), offset)
        if not records:
            if found.other:
                name = short_name(demangle(identity.function.name))
                builds = " and ".join(
                    dict.fromkeys(f"{held.build}, {' '.join(held.record.archs)}" for held in found.other)
                )
                self._notes[f"{name}: the line packs have another build of it ({builds}); its lines are not shown"] = (
                    None
                )
            return None
        first, *others = (holders[id(record)] for record in records)
        return BorrowedLines(
            build=first.build,
            pack=first.name,
            chain=first.chain(offset),
            siblings=first.siblings(offset),
            others=tuple((held.build, held.chain(offset)) for held in others),
        )

    def _search(self, code: CodeMap, identity: CodeIdentity) -> Found:
        same: list[Held] = []
        other: list[Held] = []
        for file in self._files(pack_keys(identity.hash, identity.function.name), self._stores):
            pack = self._pack(file)
            if pack is None:
                continue
            try:
                found = match(pack, code, identity)
            except UnreadableBinary as error:
                self._lost(file, error)
                continue
            same += (Held(record=record, pack=pack, name=file.name) for record in found.same)
            other += (Held(record=record, pack=pack, name=file.name) for record in found.other)
        return Found(same=tuple(same), other=() if same else tuple(other))

    def _files(
        self, keys: tuple[bytes, ...], stores: Iterable[LineStore], release: str | None = None
    ) -> Iterator[PackFile]:
        for store in stores:
            try:
                yield from store.packs(keys, release=release)
            except ANY_ERROR as error:
                self._notes[f"line packs of {store.name} are not used: {error.what}"] = None

    def _pack(self, file: PackFile) -> LinePack | None:
        if file.name not in self._open:
            try:
                self._open[file.name] = LinePack(file.data)
            except UnreadableBinary as error:
                self._open[file.name] = None
                self._lost(file, error)
        return self._open[file.name]

    def _lost(self, file: PackFile, error: UnreadableBinary) -> None:
        self._notes[f"{file.name} is not used: {error.what}"] = None


MOST_BY_NAME: Final = 4
"""How many answers are shown: the architectures of a wheel differ, and a log does not name the GPU's."""

_SANITIZER: Final = re.compile(r"={5,}\s+(?:at|and)\s+(?:\w+ access at )?(?P<place>\S.*)$")
_OFFSET_FIRST: Final = re.compile(r"(?P<offset>0x[0-9a-fA-F]+) in (?:[^\s:]+:\d+:)?(?P<name>\S.*)$")
_DEBUGGER: Final = re.compile(r"(?P<place>0x[0-9a-fA-F]+ <.+\+\d+>)")


def named_place(text: str) -> PlaceQuery | None:
    """Return the function and offset that a line of compute-sanitizer or cuda-gdb names; None without an offset.

    The driver's own lines have an address and no offset: only the core dump says where the function began.
    """
    found = _DEBUGGER.search(text) or _SANITIZER.search(text)
    if found is None:
        return None
    place = found["place"]
    first = _OFFSET_FIRST.match(place)
    try:
        query = parse_place(f"{first['name']}+{first['offset']}" if first else place)
    except BAD_INPUT:
        return None
    return query if query.name else None


def lines_by_name(packs: Iterable[tuple[str, LinePack]], query: PlaceQuery) -> tuple[LinesByName, ...]:
    """Return the lines that packs have for a function and offset, one for each chain, at most MOST_BY_NAME of them."""
    found: dict[tuple[str, Chain], LinesByName] = {}
    needle = identifier_in(query.name or "")
    for name, pack in packs:
        numbers = {
            Function(name=mangled, section=number, start=0, size=0, kernel=True): number
            for number, mangled in pack.names()
            if needle in mangled
        }
        for function in matching(numbers, query.name or ""):
            record = pack.record(numbers[function])
            held = Held(record=record, pack=pack, name=name)
            chain = held.chain(query.value)
            if chain and len(found) < MOST_BY_NAME:
                key = (record.name, chain)
                known = found.get(key)
                archs = tuple(sorted({*record.archs, *(known.archs if known else ())}))
                found[key] = LinesByName(
                    function=record.name, offset=query.value, archs=archs, build=held.build, pack=name, chain=chain
                )
    return tuple(found.values())


MOST_NAMED: Final = 16
"""How many functions with other code are named; all are counted."""


@dataclass(kw_only=True)
class PackCoverage:
    """The functions of one file and architecture: how many the packs have with identical code, with other code, or not.

    What they have of other architectures only does not count. `other_named` are the first of those with other code,
    mangled.
    """

    file: str
    arch: str
    functions: int = 0
    identical: int = 0
    other: int = 0
    other_named: list[str] = field(default_factory=list)

    @property
    def unknown(self) -> int:
        """How many functions no pack has."""
        return self.functions - self.identical - self.other


def compare_with_packs(targets: Sequence[str], binaries: BinarySource, lines: PackedLines) -> tuple[PackCoverage, ...]:
    """Compare every function of the targets with the packs; files that cannot be read are left to `verify`.

    Raises BadInput for a target that does not exist.
    """
    found: dict[tuple[str, str], PackCoverage] = {}
    for target in targets:
        with binaries.open(target) as files:
            for file in files:
                for arch, code in _cubins(file.data) if file.problem is None else ():
                    known = found.setdefault((file.name, arch), PackCoverage(file=file.name, arch=arch))
                    _count(known, arch, code, lines)
    return tuple(found[key] for key in sorted(found))


def _count(coverage: PackCoverage, arch: str, code: CodeMap, lines: PackedLines) -> None:
    for identity in identify(code):
        found = lines.find(code, identity)
        coverage.functions += 1
        coverage.identical += bool(found.same)
        if any(arch in held.record.archs for held in found.other):
            coverage.other += 1
            if len(coverage.other_named) < MOST_NAMED:
                coverage.other_named.append(identity.function.name)


def _cubins(data: Buffer) -> Iterator[tuple[str, CodeMap]]:
    try:
        for code in find_device_code(data):
            if code.entry.kind == EntryKind.ELF:
                yield code.entry.target, CodeMap(code.entry.payload())
    except UnreadableBinary:
        return  # the proof of line info says what is wrong with it
