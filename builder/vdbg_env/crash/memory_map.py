"""Say whose memory an address is: which tensor, block and slot, or how far from it.

A memory map is what one process had at which address, written while it was well (`runbooks/lib/memory-map`, schema
`vdbg-env/memory-map/v1`). After an illegal access the device answers no question: the map must have been made before.
Pure: a map is read from bytes that others may have written, and every answer follows from it.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import accumulate, pairwise
from operator import mul
from typing import Any, Final, Literal

from vdbg_env.common.console import duration, size_text
from vdbg_env.common.errors import BadInput
from vdbg_env.common.files import parse_json

SCHEMA: Final = "vdbg-env/memory-map/v1"
LARGEST_MAP: Final = 16 << 20  # bytes; the writer keeps below one million
_MOST_ROWS: Final = 100_000
_MOST_AXES: Final = 16
_MOST_VIEWS: Final = 5000  # with gaps; an address may have to be looked for in each of them
_MOST_NAMED: Final = 4  # other tensors at the same address
_UNUSED: Final = frozenset({"free", "unlisted"})
_FREED: Final = frozenset({"freed", "pending"})
_STILL_MAPPED: Final = ", so it is mapped: another address was the bad one, or such an access is not allowed there"
_STRIDE: Final = 256  # regions that are passed over at once
_ADDRESSES: Final = 1 << 64
_INDEXED: Final = 48  # bits of an address: what is beyond them was not reached by an index
_PAGE: Final = 1 << 16  # bytes from address 0 on that nothing is ever mapped to
_NEAR: Final = 1 << 30  # bytes; what is farther from everything was not reached by running past an end
_LAYER: Final = re.compile(r"(?:^|\.)(?:layers?|blocks|h)\.(\d{1,6})(?:\.|$)")
_NAMELESS: Final = {
    "used": "a block of {0:,} bytes without a name",
    "graph": "a block of {0:,} bytes without a name, in the pool of CUDA graphs",
    "pending": "a block of {0:,} bytes that was freed and is still in use by a stream",
    "free": "{0:,} bytes that the allocator keeps for later, in no tensor",
    "unlisted": "{0:,} bytes of the allocator's, of which the map had no room to say more",
    "freed": "a block of {0:,} bytes that was freed",
    "section": "an allocation of {0:,} bytes that the core holds",
}

Where = Literal["inside", "past-the-end", "before-the-start", "freed", "between", "far", "one-bit"]
HowKnown = Literal["exact", "base-argument", "nearest"]


@dataclass(frozen=True, kw_only=True)
class Layout:
    """Where the elements of a tensor are: sizes and steps of its axes, in elements of `item` bytes each.

    `axes` names them where the writer knew what they mean.
    """

    dtype: str
    item: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    axes: tuple[str, ...] = ()

    def index(self, offset: int) -> tuple[int, ...] | None:
        """Return the element that a byte is in; None where none is.

        The axis with the longest step is not bounded, so an offset behind the end has an index too, one that is too
        large there. A gap between two rows of a view belongs to another tensor.
        """
        rest, found = offset // self.item, [0] * len(self.shape)
        for number, axis in enumerate(self._order):
            found[axis], rest = divmod(rest, self.strides[axis])
            if number and found[axis] >= self.shape[axis]:
                return None
        return tuple(found) if rest == 0 else None

    @cached_property
    def _order(self) -> tuple[int, ...]:
        """The axes that take an index further, the one with the longest step first."""
        moving = (n for n, size in enumerate(self.shape) if size > 1 and self.strides[n])
        return tuple(sorted(moving, key=lambda n: -self.strides[n]))

    @property
    def is_dense(self) -> bool:
        """Whether every element from the first to the last is the tensor's own."""
        steps = [self.strides[axis] for axis in self._order]
        sizes = accumulate((self.shape[axis] for axis in reversed(self._order)), mul, initial=1)
        return all(step == size for step, size in zip(reversed(steps), sizes, strict=False))


@dataclass(frozen=True, kw_only=True)
class Region:
    """A range of memory with one owner: a tensor, a window of another rank, or what the allocator knows of it."""

    address: int
    bytes: int
    kind: str
    name: str = ""
    layout: Layout | None = None
    rank: int | None = None
    freed: tuple[float, float] | None = None
    """Between which moments it was freed, in seconds since 1970."""

    @property
    def end(self) -> int:
        return self.address + self.bytes

    @property
    def layer(self) -> int | None:
        """The number of the model's layer that the name gives."""
        found = _LAYER.search(self.name)
        return int(found[1]) if found else None

    def holds(self, address: int) -> bool:
        """Return whether a byte is this region's, and not in a gap of a view."""
        if not self.address <= address < self.end:
            return False
        return self.layout is None or self.layout.index(address - self.address) is not None

    def words(self, index: Sequence[int] | None = None) -> str:
        """Return what it is, in words; `index` is the element that is meant."""
        if not self.name:
            return _NAMELESS[self.kind].format(self.bytes)
        if self.rank is not None:
            return f"rank {self.rank}'s {self.name}"
        if self.kind != "kv-cache":
            return f"the {self.kind} {self.name}"
        part = "KV"
        axes = self.layout.axes if self.layout else ()
        if index is not None and "key/value" in axes:
            part = {0: "key", 1: "value"}.get(index[axes.index("key/value")], "KV")
        return f"the {part} cache " + (f"of layer {self.layer} ({self.name})" if self.layer is not None else self.name)


@dataclass(frozen=True, kw_only=True)
class MemoryMap:
    """What one process had in memory; `file` is where the map is from. Times are in seconds since 1970."""

    file: str = ""
    written: float | None = None
    moment: str = ""
    pid: int | None = None
    rank: int | None = None
    named: tuple[Region, ...] = ()
    blocks: tuple[Region, ...] = ()
    freed: tuple[Region, ...] = ()
    notes: tuple[str, ...] = ()
    source: Literal["memory-map", "snapshot", "core"] = "memory-map"

    @cached_property
    def names(self) -> _Places:
        """What has a name, by address."""
        return _Places(self.named)

    @cached_property
    def memory(self) -> _Places:
        """What the allocator has, by address."""
        return _Places(self.blocks)

    @cached_property
    def gone(self) -> _Places:
        """What was freed, the newest first at equal addresses."""
        return _Places(self.freed[::-1])


@dataclass(frozen=True, kw_only=True)
class Owner:
    """Whose memory an address is: `region` is what holds it, or what `distance` bytes are counted from.

    `how_known` is `base-argument` where the distance is from the memory that the access was meant for, `exact` where
    something holds the address, and `nearest` where only the neighbours of the address are known: a guess.
    """

    address: int
    where: Where
    how_known: HowKnown
    region: Region | None = None
    distance: int = 0
    index: tuple[int, ...] | None = None
    byte: int = 0
    also: tuple[Region, ...] = ()
    lies_in: Region | None = None
    """What is at the address, where the access was meant for another region."""
    bit: int | None = None
    at: float | None = None
    unmapped: bool = False
    """Whether the GPU found no memory there that it may access: what a map has at the address is gone."""
    one_of_many: bool = False
    """Whether another thread's address may have been the bad one."""
    map: MemoryMap = field(repr=False)

    @property
    def is_gone(self) -> bool:
        """Whether the map has something in use there that was freed or unmapped since."""
        return self.where == "freed" and self.region is not None and self.region.kind not in _FREED

    @property
    def place(self) -> dict[str, int]:
        """The index on each axis with a name, the outermost first; the byte in the element last where it is not 0."""
        layout = self.region.layout if self.region else None
        if layout is None or self.index is None:
            return {}
        names = layout.axes or tuple(f"dim {n}" for n in range(len(layout.shape)))
        shown = {name: n for name, n, size in zip(names, self.index, layout.shape, strict=True) if size > 1 or n}
        return shown | ({"byte": self.byte} if self.byte else {})

    @property
    def sentence(self) -> str:
        """The answer as one sentence, without a full stop."""
        region = self.region
        if region is None and self.address < _PAGE:
            return f"a null pointer plus {self.address:,} bytes" if self.address else "a null pointer"
        if region is None:
            return "not within 1 GiB of anything in the memory map, so no array was overrun by a little"
        what = region.words(self.index) + self._place_words()
        then = "was there when the memory map was written" if self.unmapped else "lies there"
        landed = f"; {self.lies_in.words()} {then}" if self.lies_in else ""
        match self.where:
            case "inside":
                same = f", which has the same memory as {self.also[0].words()}" if self.also else ""
                return f"inside {what}{same}" + (_STILL_MAPPED if self.unmapped else "")
            case "freed":
                return f"inside {what}{self._gone_words() if self.is_gone else self._freed_words()}"
            case "past-the-end" | "before-the-start":
                guess = " (the nearest memory: what the access was meant for is not known)"
                return f"{self._far(region)} {what}{guess if self.how_known == 'nearest' else landed}"
            case "one-bit" if self.how_known == "base-argument" and self.bit is not None and self.bit < _INDEXED:
                # An index of a power of two, or -1 times one, looks the same: what is certain comes first.
                whose = region.words(self.index)
                return f"{self._far(region)} {whose}, or one bit (bit {self.bit}) away from it{self._place_words()}"
            case "one-bit":
                return f"one bit (bit {self.bit}) away from {what}"
            case _:
                return f"in {what}"

    def _far(self, region: Region) -> str:
        side = "past the end" if self.address >= region.address else "before the start"
        size = f" ({size_text(self.distance)})" if self.distance > _NEAR else ""
        return f"{self.distance:,} bytes{size} {side} of"

    def _place_words(self) -> str:
        layout = self.region.layout if self.region else None
        if layout is None or not self.place:
            return ""
        sizes = dict(zip(layout.axes, layout.shape, strict=False))
        words = []
        for name, n in self.place.items():
            if name == "key/value":
                continue
            size = sizes.get(name)
            words.append(f"{name} {n}" + (f" of 0-{size - 1}" if size and not 0 <= n < size else ""))
        return ": " + ", ".join(words) if words else ""

    def _gone_words(self) -> str:
        at, written = self.at, self.map.written
        age = "" if at is None or written is None or at < written else f", written {duration(at - written)} before this"
        other = ", or another thread's address was the bad one" if self.one_of_many else ""
        return f" by the memory map{age}; the access failed: that memory was freed or unmapped since{other}"

    def _freed_words(self) -> str:
        freed = self.region.freed if self.region else None
        if freed is None:
            return ""
        since = self.at if self.at is not None else self.map.written
        if since is None:
            return ""
        before = "this" if self.at is not None else "the map was written"
        least, most = max(0.0, since - freed[1]), max(0.0, since - freed[0])
        return f" {duration(least)} to {duration(most)} before {before}"


class _Places:
    """Regions by address; they may overlap, as tensors that share storage do."""

    def __init__(self, regions: Iterable[Region]) -> None:
        self._regions: Final = list(regions)[::-1]  # they are looked through from the end: the first of equals is last
        self._regions.sort(key=lambda region: (region.address, -region.bytes))
        self._starts: Final = [region.address for region in self._regions]
        ends = [region.end for region in self._regions]
        self._reach: Final = list(accumulate(ends, max))
        self._tops: Final = [max(ends[at : at + _STRIDE]) for at in range(0, len(ends), _STRIDE)]
        self._by_end: Final = sorted(self._regions, key=lambda region: region.end)
        self._ends: Final = [region.end for region in self._by_end]

    def holding(self, address: int) -> Iterator[Region]:
        """Yield the regions that have a byte, those that begin nearest first."""
        at = bisect_right(self._starts, address) - 1
        while at >= 0 and self._reach[at] > address:
            if self._tops[at // _STRIDE] <= address:  # none of these reaches so far
                at -= at % _STRIDE + 1
                continue
            if self._regions[at].holds(address):
                yield self._regions[at]
            at -= 1

    def first(self, address: int) -> Region | None:
        return next(self.holding(address), None)

    def below(self, address: int) -> Region | None:
        """Return the region that ends last, at or before an address."""
        at = bisect_right(self._ends, address) - 1
        return self._by_end[at] if at >= 0 else None

    def above(self, address: int) -> Region | None:
        """Return the region that begins first, after an address."""
        at = bisect_right(self._starts, address)
        return self._regions[bisect_right(self._starts, self._starts[at]) - 1] if at < len(self._regions) else None


def owner_of(
    memory: MemoryMap, address: int, *, base: int | None = None, width: int = 1, at: float | None = None,
    unmapped: bool = False, one_of_many: bool = False,
) -> Owner:  # fmt: skip
    """Return whose memory an address is.

    `base` is the pointer that the access was computed from, where it is known: distance is then measured from what
    that points to. `width` is how many bytes were accessed, `at` when, in seconds since 1970. `unmapped` says that the
    GPU found no memory there, `one_of_many` that the address of another thread may have been the bad one.
    """
    found = _owner_of(memory, address, base, width, at)
    if not unmapped:
        return found
    gone = found.where in {"inside", "between"} and memory.source != "core"
    return replace(found, where="freed" if gone else found.where, unmapped=True, one_of_many=one_of_many)


def _owner_of(memory: MemoryMap, address: int, base: int | None, width: int, at: float | None) -> Owner:
    meant = _region_at(memory, base) if base is not None else None
    found = _region_at(memory, address)
    if meant is not None and meant != found:
        return _from_base(memory, meant, found, address, at)
    if found is None:
        return _nearest(memory, address, at)
    known: HowKnown = "base-argument" if meant is not None else "exact"
    where: Where = "freed" if found.kind in _FREED else "between" if found.kind in _UNUSED else "inside"
    if address + width > found.end and where == "inside":
        return _past(memory, found, address + width - found.end, address + width - 1, known, at)
    also = (region for region in memory.names.holding(address) if region != found) if found.name else ()
    index, byte = _element(found, address)
    return Owner(
        address=address, where=where, how_known=known, region=found, distance=0, index=index, byte=byte,
        also=tuple(region for _, region in zip(range(_MOST_NAMED), also, strict=False)), at=at, map=memory,
    )  # fmt: skip


def names_of(memory: MemoryMap, pointers: Iterable[int]) -> dict[int, str]:
    """Return what each of these numbers points to, where it is the address of something with a name."""
    named = ((pointer, memory.names.first(pointer)) for pointer in dict.fromkeys(pointers))
    return {pointer: region.words(_element(region, pointer)[0]) for pointer, region in named if region}


def _region_at(memory: MemoryMap, address: int) -> Region | None:
    """Return what is at an address: what has a name, else a block, else what was freed there last."""
    named = memory.names.first(address)
    if named is not None:
        return named
    block = memory.memory.first(address)
    if block is None or block.kind in _UNUSED:
        return memory.gone.first(address) or block
    return block


def _element(region: Region, address: int) -> tuple[tuple[int, ...] | None, int]:
    layout, offset = region.layout, address - region.address
    return (layout.index(offset), offset % layout.item) if layout else (None, 0)


def _from_base(memory: MemoryMap, meant: Region, found: Region | None, address: int, at: float | None) -> Owner:
    """Measure from the memory that the access was meant for."""
    distance = address - meant.end if address >= meant.end else meant.address - address
    if meant.address <= address < meant.end:  # in a gap of a view, which another tensor has
        distance = 0
    if distance > _NEAR and (flipped := _flipped(address, meant)) is not None:
        index, byte = _element(meant, address ^ 1 << flipped)
        return Owner(
            address=address, where="one-bit", how_known="base-argument", region=meant, distance=distance, index=index,
            byte=byte, bit=flipped, lies_in=found, at=at, map=memory,
        )  # fmt: skip
    if address >= meant.address:
        return _past(memory, meant, distance, address, "base-argument", at, found)
    return Owner(
        address=address, where="before-the-start", how_known="base-argument", region=meant, distance=distance,
        lies_in=found, at=at, map=memory,
    )  # fmt: skip


def _past(
    memory: MemoryMap, region: Region, distance: int, address: int, known: HowKnown, at: float | None,
    found: Region | None = None,
) -> Owner:  # fmt: skip
    index, byte = _element(region, address)
    return Owner(
        address=address, where="past-the-end", how_known=known, region=region, distance=distance, index=index,
        byte=byte, lies_in=found, at=at, map=memory,
    )  # fmt: skip


def _flipped(address: int, region: Region) -> int | None:
    """Return the one bit that, turned over, puts an address into a region; None where there is none or several."""
    fitting = [bit for bit in range(64) if region.holds(address ^ 1 << bit)]
    return fitting[0] if len(fitting) == 1 else None


def _nearest(memory: MemoryMap, address: int, at: float | None) -> Owner:
    """Measure from the nearest memory: the weak answer, as nothing says that the access was meant for it."""
    below, above = _beside(memory, address)
    under = address - below.end if below else _ADDRESSES
    over = above.address - address if above else _ADDRESSES
    if below is not None and under <= min(over, _NEAR):
        return _past(memory, below, under, address, "nearest", at)
    if above is not None and over <= _NEAR:
        return Owner(
            address=address, where="before-the-start", how_known="nearest", region=above, distance=over, at=at,
            map=memory,
        )  # fmt: skip
    flips = [(bit, region) for bit in range(64) if (region := _in_use(memory, address ^ 1 << bit))]
    if len(flips) == 1:
        bit, region = flips[0]
        index, byte = _element(region, address ^ 1 << bit)
        return Owner(
            address=address, where="one-bit", how_known="nearest", region=region, index=index, byte=byte, bit=bit,
            at=at, map=memory,
        )  # fmt: skip
    return Owner(address=address, where="far", how_known="nearest", at=at, map=memory)


def _beside(memory: MemoryMap, address: int) -> tuple[Region | None, Region | None]:
    """Return what ends last at or before an address, and what begins first after it; what has a name first."""
    places = (memory.names, memory.memory)
    below = max((region for one in places if (region := one.below(address))), key=_ends, default=None)
    above = min((region for one in places if (region := one.above(address))), key=_begins, default=None)
    return below, above


def _in_use(memory: MemoryMap, address: int) -> Region | None:
    found = memory.names.first(address) or memory.memory.first(address)
    return found if found is not None and found.kind not in _UNUSED else None


def _ends(region: Region) -> tuple[int, bool]:
    return region.end, bool(region.name)


def _begins(region: Region) -> tuple[int, bool]:
    return region.address, not region.name


# Read a map that others may have written.


def read_memory_map(data: bytes, file: str = "") -> MemoryMap:
    """Return the map in a JSON document; raises BadInput for what is none, or says what cannot be."""
    if len(data) > LARGEST_MAP:
        raise _refused(file, f"it has {len(data):,} bytes, and at most {LARGEST_MAP:,} are read")
    try:
        document = parse_json(data)
    except (ValueError, RecursionError) as error:
        raise _refused(file, f"it is not JSON: {error}") from None
    if not isinstance(document, dict) or document.get("schema") != SCHEMA:
        raise _refused(file, f"its schema is not {SCHEMA}")
    left_out = document.get("left_out")
    reader = _Reader(file, gap="unlisted" if isinstance(left_out, dict) and left_out.get("blocks") else "free")
    segments = reader.rows(document, "segments")
    process = document.get("process")
    process = process if isinstance(process, dict) else {}
    return MemoryMap(
        file=file,
        written=reader.seconds(document.get("written"), "written"),
        moment=_text(document.get("moment", ""), 40),
        pid=reader.optional(process, "pid"),
        rank=reader.optional(process, "rank"),
        named=(
            *(reader.tensor(row) for row in reader.rows(document, "tensors")),
            *reader.weights(document),
            *(reader.window(row) for row in reader.rows(document, "windows")),
        ),
        blocks=disjoint(file, (block for row in segments for block in reader.segment(row))),
        freed=tuple(reader.freed(row) for row in reader.rows(document, "freed")),
        notes=tuple(_text(note, 400) for note in reader.list_of(document, "notes")[:20]),
    )


def disjoint(file: str, blocks: Iterable[Region]) -> tuple[Region, ...]:
    """Return blocks by address; raises BadInput where two overlap, which no allocator has."""
    ordered = sorted(blocks, key=lambda block: block.address)
    for one, other in pairwise(ordered):
        if one.end > other.address:
            raise _refused(file, f"two blocks overlap at {other.address:#x}")
    return tuple(ordered)


def _text(value: object, most: int) -> str:
    """Return a value as text that any file can hold: half of a surrogate pair is none."""
    return str(value)[:most].encode("utf-8", "replace").decode()


class _Reader:
    """Takes rows of a document apart; every value that cannot be is a BadInput that names it."""

    def __init__(self, file: str, *, gap: str) -> None:
        self._file: Final = file
        self._gap: Final = gap
        self._count = 0
        self._views = 0

    def list_of(self, row: Mapping[str, Any], name: str) -> list[Any]:
        found = row.get(name, [])
        if not isinstance(found, list):
            raise self._wrong(name, found)
        return found

    def rows(self, document: Mapping[str, Any], name: str) -> list[Mapping[str, Any]]:
        found = self.list_of(document, name)
        self._counted(len(found))
        for row in found:
            if not isinstance(row, dict):
                raise self._wrong(name, row)
        return found

    def tensor(self, row: Mapping[str, Any]) -> Region:
        address, size = self._range(row)
        return Region(
            address=address, bytes=size, kind=self._text(row, "kind") or "tensor",
            name=self._text(row, "name") or "without a name", layout=self._layout(row, size),
        )  # fmt: skip

    def weights(self, document: Mapping[str, Any]) -> Iterator[Region]:
        """Yield the weights that are written in short: each name as what it does not share with the one before."""
        rows = self.list_of(document, "weights")
        self._counted(len(rows))
        name = ""
        for row in rows:
            if not isinstance(row, list) or len(row) != 4 or not isinstance(row[1], str):
                raise self._wrong("weights", row)
            name = _text(name[: self._size(row[0], "weights", zero=True)] + row[1], 200)
            address, size = self._range({"address": row[2], "bytes": row[3]})
            yield Region(address=address, bytes=size, kind="weight", name=name)

    def window(self, row: Mapping[str, Any]) -> Region:
        address, size = self._range(row)
        name = self._text(row, "name") or "memory"
        return Region(address=address, bytes=size, kind="window", name=name, rank=self.optional(row, "rank"))

    def freed(self, row: Mapping[str, Any]) -> Region:
        address, size = self._range(row)
        after, before = (self.seconds(row.get(name), name) for name in ("after", "before"))
        freed = (after, before) if after is not None and before is not None else None
        return Region(address=address, bytes=size, kind="freed", freed=freed)

    def segment(self, row: Mapping[str, Any]) -> Iterator[Region]:
        """Yield the blocks of a segment, and what it has between those that are listed."""
        address, size = self._range(row)
        blocks = self.list_of(row, "blocks")
        self._counted(len(blocks))
        pool = self.list_of(row, "pool")
        graph = any(part != 0 for part in pool)
        at = 0
        for block in blocks:
            if not isinstance(block, list) or len(block) != 3 or block[2] not in ("used", "pending", "free"):
                raise self._wrong("block", block)
            offset, length = self._size(block[0], "block", zero=True), self._size(block[1], "block")
            if offset < at or offset + length > size:
                raise self._wrong("block", block)
            if offset > at:
                yield Region(address=address + at, bytes=offset - at, kind=self._gap)
            kind = "graph" if graph and block[2] == "used" else block[2]
            yield Region(address=address + offset, bytes=length, kind=kind)
            at = offset + length
        if at < size:
            yield Region(address=address + at, bytes=size - at, kind=self._gap)

    def optional(self, row: Mapping[str, Any], name: str) -> int | None:
        found = row.get(name)
        return None if found is None else self._size(found, name, zero=True)

    def seconds(self, found: object, name: str) -> float | None:
        if found is None:
            return None
        if isinstance(found, bool) or not isinstance(found, int | float) or not 0 <= found < 1e12:
            raise self._wrong(name, found)
        return float(found)

    def _range(self, row: Mapping[str, Any]) -> tuple[int, int]:
        text = row.get("address")
        if not isinstance(text, str) or not re.fullmatch(r"0x[0-9a-fA-F]{1,16}", text):
            raise self._wrong("address", text)
        address, size = int(text, 16), self._size(row.get("bytes"), "bytes")
        if address + size > _ADDRESSES:
            raise self._wrong("bytes", size)
        return address, size

    def _layout(self, row: Mapping[str, Any], size: int) -> Layout | None:
        shape, strides = (self._sizes(row, name) for name in ("shape", "strides"))
        if "shape" not in row or "strides" not in row:
            return None
        axes = tuple(_text(axis, 40) for axis in self.list_of(row, "axes"))
        if len(shape) != len(strides) or len(axes) not in {0, len(shape)} or 0 in shape:
            raise self._wrong("shape", list(shape))
        elements = sum((n - 1) * step for n, step in zip(shape, strides, strict=True)) + 1
        if size % elements:
            raise self._wrong("bytes", size)
        layout = Layout(
            dtype=self._text(row, "dtype") or "", item=size // elements, shape=shape, strides=strides, axes=axes
        )
        self._views += not layout.is_dense
        if self._views > _MOST_VIEWS:
            raise _refused(self._file, f"it has more than {_MOST_VIEWS:,} views with gaps")
        return layout

    def _sizes(self, row: Mapping[str, Any], name: str) -> tuple[int, ...]:
        found = self.list_of(row, name)
        if len(found) > _MOST_AXES:
            raise self._wrong(name, len(found))
        return tuple(self._size(value, name, zero=True) for value in found)

    def _text(self, row: Mapping[str, Any], name: str) -> str:
        found = row.get(name, "")
        if not isinstance(found, str):
            raise self._wrong(name, found)
        return _text(found, 200)

    def _size(self, value: object, name: str, *, zero: bool = False) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or not (0 if zero else 1) <= value < _ADDRESSES:
            raise self._wrong(name, value)
        return value

    def _counted(self, more: int) -> None:
        self._count += more
        if self._count > _MOST_ROWS:
            raise _refused(self._file, f"it has more than {_MOST_ROWS:,} rows")

    def _wrong(self, name: str, value: object) -> BadInput:
        return _refused(self._file, f"{name} cannot be {str(value)[:80]!r}")


def _refused(file: str, why: str) -> BadInput:
    return BadInput(
        f"{file or 'the memory map'} is not a memory map: {why}",
        cause="another file, or one that was written or changed by another program",
        next_step="give a run, or a memory-map.json in its folder",
    )


# JSON: docs/schemas/owner-v1.schema.json is the contract and says what each field means.


def owner_json(owner: Owner) -> dict[str, Any]:
    """Return the answer for programs, without the name of its schema."""
    region = owner.region
    below, above = _beside(owner.map, owner.address)
    return {
        "address": hex(owner.address),
        "where": owner.where,
        "how_known": owner.how_known,
        "sentence": owner.sentence,
        "distance": owner.distance if owner.region else None,
        "bit": owner.bit,
        "region": None if region is None else _region_json(region),
        "place": owner.place,
        "also": [_region_json(one) for one in owner.also],
        "lies_in": None if owner.lies_in is None else _region_json(owner.lies_in),
        "below": None if below is None else _region_json(below),
        "above": None if above is None else _region_json(above),
        "map": {
            "file": owner.map.file or None,
            "source": owner.map.source,
            "written": owner.map.written,
            "moment": owner.map.moment or None,
            "pid": owner.map.pid,
            "rank": owner.map.rank,
        },
    }


def _region_json(region: Region) -> dict[str, Any]:
    layout = region.layout
    return {
        "kind": region.kind,
        "name": region.name or None,
        "address": hex(region.address),
        "bytes": region.bytes,
        "layer": region.layer,
        "rank": region.rank,
        "freed": None if region.freed is None else list(region.freed),
        "dtype": (layout.dtype or None) if layout else None,
        "shape": list(layout.shape) if layout else None,
        "axes": (list(layout.axes) or None) if layout else None,
    }
