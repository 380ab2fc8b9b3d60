"""Look for the lines of code that was built without them, in every line pack that is configured."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Final

from gpucore.code_identity import CodeIdentity, identity_at
from gpucore.code_map import CodeMap
from gpucore.dwarf import BorrowedLines, Chain, Place
from gpucore.errors import UnreadableBinary
from gpucore.line_pack import LineRecord, pack_keys
from gpucore.line_packs import LinePack, distinct, match
from gpucore.mangling import demangle, short_name
from vdbg_env.application.ports.files import LineStore, PackFile
from vdbg_env.common.errors import ANY_ERROR

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
