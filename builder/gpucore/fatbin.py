"""Expands what a fat binary stores: raw, LZ4 block or zstd, never beyond a stated size.

`nvcc --compress-mode` of 13.x writes zstd frames (balance, size) or LZ4 blocks (speed); wheels of the CUDA 11 and 12
era hold LZ4. Sizes in fat binaries are claims: no more is ever produced than the claim, nor than `LARGEST`.
"""

from __future__ import annotations

import ctypes
import re
import struct
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from enum import IntEnum, IntFlag, StrEnum
from functools import cache, partial
from itertools import pairwise
from operator import itemgetter
from typing import Final

import lz4.block
import zstandard

from gpucore.cubin import TABLES_START
from gpucore.elf import (
    ELF_MAGIC,
    EM_CUDA,
    ET_CORE,
    ET_EXEC,
    ET_REL,
    HEADER_SIZE,
    SHT_NOBITS,
    Buffer,
    Elf,
    Section,
    looks_like_archive,
    looks_like_elf,
    looks_like_pe,
    members,
    read_sections,
)
from gpucore.errors import UnreadableBinary

LARGEST: Final = 1 << 30
"""One GiB: ten times the largest cubin seen in a published wheel, and the most that one expansion may take."""

_FIRST_PIECE: Final = 16 << 10
_LARGEST_PIECE: Final = 64 << 10  # most of the last piece is expanded in vain
_LZ4_STEPS: Final = (16 << 10, 128 << 10, 1 << 20, 8 << 20)  # each starts anew: LZ4 blocks cannot be continued
_REUSED_UP_TO: Final = 1 << 20  # a decompressor keeps a window as large as the largest payload it has read
_idle: Final[list[zstandard.ZstdDecompressor]] = []  # to make one takes longer than to expand a small payload's start


class Compression(StrEnum):
    """How the payload of a fat binary entry is stored."""

    RAW = "raw"
    LZ4 = "lz4"
    ZSTD = "zstd"


def expand(stored: memoryview, how: Compression, size: int) -> Buffer:
    """Return the whole payload; `size` is the number of bytes it must come to.

    Raw payloads are returned as they are, without a copy. Raises UnreadableBinary when the payload is damaged, comes to
    another size, or claims more than `LARGEST`.
    """
    if how is Compression.RAW:
        return stored
    _check_claim(size)
    try:
        data = _lz4(stored, size) if how is Compression.LZ4 else _zstd(stored, size)
    except (lz4.block.LZ4BlockError, zstandard.ZstdError, MemoryError) as error:
        raise UnreadableBinary(f"a payload does not decompress as {how}: {error}") from error
    if len(data) != size:
        raise UnreadableBinary(f"a payload decompresses to {len(data):,} bytes where {size:,} are claimed")
    return data


def expand_in_pieces(stored: memoryview, how: Compression, size: int) -> Iterator[Buffer]:
    """Yield the payload from its start, in pieces that grow from 16 KiB on: for those who may stop early.

    Raises UnreadableBinary as `expand` does, for what is damaged up to there.
    """
    match how:
        case Compression.RAW:
            yield from (stored[at : at + _LARGEST_PIECE] for at in range(0, len(stored), _LARGEST_PIECE))
        case Compression.LZ4:
            yield from _lz4_pieces(stored, size)
        case Compression.ZSTD:
            _check_claim(size)
            yield from _zstd_pieces(stored, reused=size <= _REUSED_UP_TO)


def _zstd_pieces(stored: memoryview, *, reused: bool) -> Iterator[Buffer]:
    length = _FIRST_PIECE
    try:
        decompressor = _idle.pop() if reused else zstandard.ZstdDecompressor(max_window_size=LARGEST)
    except IndexError:
        decompressor = zstandard.ZstdDecompressor(max_window_size=LARGEST)
    try:
        with decompressor.stream_reader(stored) as reader:
            while piece := reader.read(length):
                yield piece
                length = min(2 * length, _LARGEST_PIECE)
    except (zstandard.ZstdError, MemoryError) as error:
        raise UnreadableBinary(f"a payload does not decompress as {Compression.ZSTD}: {error}") from error
    finally:
        if reused:
            _idle.append(decompressor)


def _lz4_pieces(stored: memoryview, size: int) -> Iterator[Buffer]:
    _check_claim(size)
    done = 0
    for target in _LZ4_STEPS if lz4_start() else ():
        if target >= size:
            break
        piece = _lz4_up_to(target, stored)
        if piece is None:
            break  # damaged, as `expand` says in words
        yield memoryview(piece)[done:]
        done = target
    yield memoryview(expand(stored, Compression.LZ4, size))[done:]


def _lz4_up_to(target: int, stored: memoryview) -> bytearray | None:
    """Expand the first `target` bytes of a longer payload."""
    start = lz4_start()
    data = bytearray(target)
    room = (ctypes.c_char * target).from_buffer(data)
    # What these bytes need at the most, but for the length of a last match that is cut off.
    for taken in (stored[: target + (target >> 6) + 1024], stored):
        if start and start(bytes(taken), room, len(taken), target, target) == target:
            return data
    return None


@cache
def lz4_start() -> Callable[..., int] | None:
    """Return LZ4_decompress_safe_partial, which the Python module has in it and does not offer; None without it."""
    try:
        function = ctypes.CDLL(lz4.block._block.__file__).LZ4_decompress_safe_partial
    except (OSError, AttributeError):
        return None
    function.argtypes = [ctypes.c_char_p, ctypes.c_void_p, ctypes.c_int, ctypes.c_int, ctypes.c_int]
    function.restype = ctypes.c_int
    return function


def _check_claim(size: int) -> None:
    if size > LARGEST:
        raise UnreadableBinary(f"a payload claims {size:,} bytes; the most read here is {LARGEST:,}")


def _lz4(stored: memoryview, size: int) -> Buffer:
    data: bytes = lz4.block.decompress(stored, uncompressed_size=size)
    return data


def _zstd(stored: memoryview, size: int) -> Buffer:
    # The library allocates what the frame header claims before it looks at `max_output_size`.
    claimed = zstandard.frame_content_size(stored)
    if claimed > size:
        raise UnreadableBinary(f"a zstd frame claims {claimed:,} bytes where its entry claims {size:,}")
    return zstandard.ZstdDecompressor().decompress(stored, max_output_size=size)


# Reads fat binaries: containers of PTX and cubins, one entry per architecture, each raw or compressed.
#
# The format is not published. Layout and flags as nvcc 11 to 13 write them: magic 0xBA55ED50, a 16-byte container
# header, then entries whose header says its own size. A cubin whose storage this reader cannot explain is an error,
# never a skip: a skipped cubin would be counted as proven.


FATBIN_MAGIC: Final = 0xBA55ED50

_CONTAINER: Final = struct.Struct("<IHHQ")
_ENTRY: Final = struct.Struct("<HHIQIIHHIIIQQQ")
_PADDING_STEP: Final = 4096


class EntryKind(IntEnum):
    """What an entry holds. Other numbers are kept as they are: only cubins are judged."""

    PTX = 1
    ELF = 2
    LTO_IR = 8  # `code=lto_90`: compiled at link time, stored in a form of NVIDIA's own


class EntryFlag(IntFlag):
    """The flags of an entry that have been seen and explained."""

    BITS_64 = 0x1
    DEVICE_DEBUG = 0x2  # nvcc -G
    LINUX = 0x10
    LZ4 = 0x2000
    ZSTD = 0x8000
    ARCH_SPECIFIC = 0x100000  # sm_90a
    FAMILY_SPECIFIC = 0x200000  # sm_100f
    CAPABILITIES = 0x1000000  # a capability table stands in the header (sm_100 and later)


_ZSTD: Final = int(EntryFlag.ZSTD)  # an enum's own operators take twenty times as long, and there are thousands
_LZ4: Final = int(EntryFlag.LZ4)


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One entry of a fat binary.

    `identifier` is the source path that nvcc notes with -lineinfo or -G, else empty. `size` is the payload's size in
    bytes once expanded, `offset` that of the entry from the start of the bytes given.
    """

    kind: int
    arch: int
    flags: int
    identifier: str
    stored: memoryview
    compressed_size: int
    size: int
    offset: int

    @property
    def target(self) -> str:
        """The architecture as nvcc names it: `sm_90a` for a cubin, `compute_90` for PTX."""
        flags = self.flags
        suffix = "a" if flags & EntryFlag.ARCH_SPECIFIC else "f" if flags & EntryFlag.FAMILY_SPECIFIC else ""
        return f"{'sm' if self.kind == EntryKind.ELF else 'compute'}_{self.arch}{suffix}"

    @property
    def compression(self) -> Compression:
        """How the payload is stored; raises UnreadableBinary, naming the flags, when they do not explain it."""
        match bool(self.flags & _ZSTD), bool(self.flags & _LZ4):
            case True, False:
                return Compression.ZSTD
            case False, True:
                return Compression.LZ4
            case False, False if self.compressed_size == 0:
                return Compression.RAW
        raise self._unexplained()

    def payload(self) -> Buffer:
        """Return the whole payload; raises UnreadableBinary when it is damaged or stored in an unknown way."""
        data = expand(self.stored, self.compression, self.size)
        if self.kind == EntryKind.ELF and not looks_like_elf(data):
            raise self._unexplained()
        return data

    def payload_in_pieces(self) -> Iterator[Buffer]:
        """Yield the payload from its start, piece by piece; raises as `payload` does, but for wrong first bytes."""
        return expand_in_pieces(self.stored, self.compression, self.size)

    def starts_as_elf(self) -> bool:
        """Return whether the payload is an ELF file by its first bytes, whatever the entry says that it is."""
        try:
            return looks_like_elf(next(self.payload_in_pieces(), b""))
        except UnreadableBinary:
            return False  # link-time code is stored in a form that only NVIDIA knows

    def _unexplained(self) -> UnreadableBinary:
        unknown = self.flags & ~sum(EntryFlag)
        named = f"unknown flags {unknown:#x} of {self.flags:#x}" if unknown else f"flags {self.flags:#x}"
        return UnreadableBinary(
            f"a {self.target} entry is stored in a way this reader does not know: {named}",
            offset=self.offset,
            cause="a CUDA toolkit newer than this program with another compression, or a damaged file",
            next_step="update vdbg-env; `cuobjdump -all -lelf FILE` says whether NVIDIA's own tool reads it",
        )


@dataclass(frozen=True, kw_only=True)
class Container:
    """One container: the entries of one translation unit; `offset` and `end` are where it is in the bytes given."""

    offset: int
    end: int
    entries: tuple[Entry, ...]


def looks_like_fatbin(data: Buffer) -> bool:
    """Return whether the bytes start with a fat binary container."""
    return bytes(data[:4]) == FATBIN_MAGIC.to_bytes(4, "little")


def looks_like_entry(data: Buffer) -> bool:
    """Return whether the bytes start with the header of an entry, by its kind and version."""
    return len(data) >= _ENTRY.size and data[0] != 0 and bytes(data[1:4]) == b"\0\1\1"


def entries(data: Buffer) -> Iterator[Entry]:
    """Yield every entry of a run of containers, as in `.nv_fatbin`, `__nv_relfatbin` or a `.fatbin` file.

    Nothing is expanded yet. Zero padding between containers is passed over; anything else there, and any size that
    leaves its container, raises UnreadableBinary.
    """
    for container in containers(data):
        yield from container.entries


def containers(data: Buffer) -> Iterator[Container]:
    """Yield every container of a run of them: in a linked library, one for each translation unit, in link order.

    Raises UnreadableBinary as `entries` does.
    """
    view = memoryview(data)
    place = _skip_zeros(view, 0)
    while place < len(view):
        start, end = _container(view, place)
        yield Container(offset=place, end=end, entries=tuple(_entries_of(view, start, end)))
        place = _skip_zeros(view, end)


def _container(view: memoryview, place: int) -> tuple[int, int]:
    """Return where the entries of the container at `place` start and end."""
    if place + _CONTAINER.size > len(view):
        raise UnreadableBinary("a fat binary container is cut short", offset=place)
    magic, version, header_size, size = _CONTAINER.unpack_from(view, place)
    if magic != FATBIN_MAGIC:
        raise UnreadableBinary(f"no fat binary container here: {magic:#010x} is not its magic number", offset=place)
    if version != 1 or header_size < _CONTAINER.size:
        raise UnreadableBinary(
            f"a fat binary container of version {version} with a header of {header_size} bytes; version 1 is known",
            offset=place,
            cause="a CUDA toolkit newer than this program, or a damaged file",
        )
    start = place + header_size
    if size > len(view) - start:
        raise UnreadableBinary(f"a fat binary container of {size:,} bytes runs past the end", offset=place)
    return start, start + size


def _entries_of(view: memoryview, place: int, end: int) -> Iterator[Entry]:
    while place < end:
        if place + _ENTRY.size > end:
            if not any(view[place:end]):
                return
            raise UnreadableBinary("a fat binary entry is cut short", offset=place)
        (
            kind, _version, header_size, stored_size, compressed_size, _options, _minor, _major,
            arch, name_offset, name_length, flags, _reserved, expanded_size,
        ) = _ENTRY.unpack_from(view, place)  # fmt: skip
        payload = place + header_size
        if header_size < _ENTRY.size or stored_size > end - payload or compressed_size > stored_size:
            raise UnreadableBinary("a fat binary entry does not lie within its container", offset=place)
        length = compressed_size or stored_size
        yield Entry(
            kind=kind,
            arch=arch,
            flags=flags,
            identifier=_identifier(view[place:payload], name_offset, name_length, place),
            stored=view[payload : payload + length],
            compressed_size=compressed_size,
            size=expanded_size if compressed_size else length,
            offset=place,
        )
        place = payload + stored_size


def _identifier(header: memoryview, offset: int, length: int, place: int) -> str:
    if length == 0:
        return ""
    if offset < _ENTRY.size or offset + length > len(header):
        raise UnreadableBinary("a fat binary entry's identifier lies outside its header", offset=place)
    # A device-link stub bears its source's name with a blank behind it.
    return bytes(header[offset : offset + length]).rstrip(b"\0 ").decode("utf-8", "backslashreplace")


def _skip_zeros(view: memoryview, place: int) -> int:
    """Return the next place that is not zero, or the end; in steps, since padding is a claim too."""
    while place < len(view):
        chunk = bytes(view[place : place + _PADDING_STEP])
        rest = chunk.lstrip(b"\0")
        if rest:
            return place + len(chunk) - len(rest)
        place += len(chunk)
    return place


# Finds device code outside the sections that nvcc writes: fat binaries and cubins in any bytes of a file.
#
# NVIDIA's libraries keep cubins in `.data` (libcufft), `.cask_resource` (libcublasLt) and `.rodata` (CUPTI); a DLL has
# its sections in a PE file. What starts as a container or a cubin is read by its header. Headers that no code follows,
# as programs that write such files hold them, are passed over.


Span = tuple[int, int]
Searched = Callable[[], None]

_CONTAINER_START: Final = struct.pack("<IHH", FATBIN_MAGIC, 1, 16)
_CUBIN_START: Final = ELF_MAGIC + b"\2\1\1"


def _searcher(start: bytes) -> Callable[[memoryview], Iterable[int]]:
    """Return what finds each place of one string: at 10 GB/s with `ahocorasick_rs`, at a tenth of it without."""
    try:
        from ahocorasick_rs import BytesAhoCorasick
    except ImportError:
        pattern = re.compile(re.escape(start))
        return lambda piece: [found.start() for found in pattern.finditer(piece)]
    search = BytesAhoCorasick([start])  # of one string alone: an automaton of both is ten times slower
    return lambda piece: [at for _, at, _ in search.find_matches_as_indexes(piece)]


@cache
def _searchers() -> tuple[Callable[[memoryview], Iterable[int]], ...]:
    return _searcher(_CONTAINER_START), _searcher(_CUBIN_START)


_CUDA: Final = EM_CUDA.to_bytes(2, "little")
_PIECE: Final = 1 << 20  # bounds how many hits are kept at once
_PIECES_A_TIME: Final = 8
_OVERLAP: Final = max(len(_CONTAINER_START), len(_CUBIN_START)) - 1
_MOST_IN_VAIN: Final = 1 << 22  # section headers of what turns out not to be a cubin: half a second


def find_embedded(
    data: memoryview, known: Iterable[Span], searched: Searched = lambda: None
) -> Iterator[tuple[int, Entry | memoryview]]:
    """Yield the entries of fat binaries, and bare cubins, that start outside the `known` ranges, with their offsets.

    A range may reach over the end of the bytes: its offset is a claim of the file. `searched` is called each time
    some megabytes were searched.

    Raises UnreadableBinary when a container starts as one and is damaged further on.
    """
    at = 0
    cubins = _Cubins(data)
    for start, end in sorted([*known, (len(data), len(data))]):
        yield from _between(data, at, min(start, len(data)), cubins, searched)
        at = max(at, end)


def _between(
    data: memoryview, at: int, end: int, cubins: _Cubins, searched: Searched
) -> Iterator[tuple[int, Entry | memoryview]]:
    for number, start in enumerate(range(at, end, _PIECE), 1):
        piece_end = min(start + _PIECE, end)
        if piece_end <= at:
            continue  # inside what was read already
        for found in _starts(data, start, min(piece_end + _OVERLAP, end)):
            if not at <= found < piece_end:
                continue
            size = 0
            if bytes(data[found : found + len(_CONTAINER_START)]) == _CONTAINER_START:
                size = _container_size(data, found, end)
                for entry in entries(data[found : found + size]) if size else ():
                    yield found + entry.offset, replace(entry, offset=found + entry.offset)
            elif size := cubins.size_at(found, end):
                yield found, data[found : found + size]
            at = found + (size or len(_CUBIN_START))
        if number % _PIECES_A_TIME == 0 or piece_end == end:
            searched()


def _starts(data: memoryview, start: int, end: int) -> list[int]:
    """Return where the first bytes of containers and cubins are, in order."""
    piece = data[start:end]
    return sorted(start + at for search in _searchers() for at in search(piece))


def _container_size(data: memoryview, at: int, end: int) -> int:
    """Return the size of a container with its header; 0 for a header that no entry follows.

    Raises UnreadableBinary where an entry follows and the container does not end in these bytes.
    """
    first = at + len(_CONTAINER_START) + 8
    if first + 4 > end or not looks_like_entry(data[first:end]):
        return 0
    (size,) = struct.unpack_from("<Q", data, at + 8)
    if not 0 < size <= end - first:
        raise UnreadableBinary(f"a fat binary container of {size:,} bytes runs past the end", offset=at)
    return 16 + int(size)


class _Cubins:
    """Measures cubins by their headers, and keeps count of headers that were read in vain."""

    def __init__(self, data: memoryview) -> None:
        self._data: Final = data
        self._in_vain = 0

    def size_at(self, at: int, end: int) -> int:
        """Return the size of a cubin; 0 for another machine's code, and for a header that no cubin follows.

        Raises UnreadableBinary for a damaged cubin, and for headers without number that lead nowhere.
        """
        if end - at < HEADER_SIZE:
            return 0
        names_follow = bytes(self._data[at + HEADER_SIZE : end][: len(TABLES_START)]) == TABLES_START
        try:
            elf = Elf(self._data[at:end])
        except UnreadableBinary as error:
            if names_follow:
                raise UnreadableBinary(f"a damaged cubin: {error.what}", offset=at) from error
            return 0
        if not elf.is_cuda or elf.type not in (ET_REL, ET_EXEC) or not elf.section_count:
            if names_follow and elf.type != ET_CORE:
                raise UnreadableBinary("a cubin whose ELF header is damaged", offset=at)
            return 0
        size = elf.end
        if size <= end - at:
            self._check_that_it_ends(at, size)
            return size
        if names_follow or not any(elf.header(0)[1:]):  # a whole table of sections starts with an empty row
            raise UnreadableBinary(f"a damaged cubin: it ends at {size:#x} of {end - at:#x} bytes", offset=at)
        self._in_vain += elf.section_count
        if self._in_vain > _MOST_IN_VAIN:
            raise UnreadableBinary("these bytes are full of headers of cubins that are not there", offset=at)
        return 0

    def _check_that_it_ends(self, at: int, size: int) -> None:
        """Refuse a cubin that reaches over the next one: a damaged size would hide that."""
        for start in _starts(self._data, at + HEADER_SIZE, at + size):
            head = bytes(self._data[start : start + 20])
            if head.startswith(_CUBIN_START) and head.endswith(_CUDA):
                raise UnreadableBinary(f"a damaged cubin: it reaches over the one at {start:#x}", offset=at)


# Finds the device code of one file: host ELF or PE file, static library, bare fat binary or bare cubin.
#
# In a host ELF file, nvcc keeps final code in `.nv_fatbin` and relocatable code (`-rdc=true`) in `__nv_relfatbin`; a
# linked library may have both. All other bytes of a file are searched too (`embedded`). Not seen is code that is stored
# encrypted, in a library's private compression, or in a separate file.


_SECTIONS: Final = (".nv_fatbin", "__nv_relfatbin")
_PE_SECTIONS: Final = tuple(name[:8] for name in _SECTIONS)
NO_SECTION: Final = "(no section)"
# Tables of symbols, strings, relocations and hashes have a form that leaves no room for code.
_TABLES: Final = frozenset({2, 3, 4, 5, 6, 9, 11, 0x6FFFFFF6, 0x6FFFFFFE, 0x6FFFFFFF})
_TIMES_EXPANDED: Final = 300  # real libraries expand to 5 to 10 times their size
_EXPANDED: Final = 1 << 30  # so small that it is read, whatever the file's size
_ARCH_OPTION: Final = re.compile(rb"-(?:arch|gpu-name)[ =]+sm_\d+([af])\b")


@dataclass(frozen=True, kw_only=True)
class DeviceCode:
    """One entry of device code, with the member of a static library that it is in (else empty).

    `section` is empty for code where nvcc puts it, else the name of the section in which it was found, or NO_SECTION.
    """

    entry: Entry
    member: str = ""
    section: str = ""


def may_hold_device_code(start: Buffer) -> bool:
    """Judge a file by its first eight bytes: ELF, PE, archive or fat binary."""
    looks = (looks_like_elf, looks_like_pe, looks_like_archive, looks_like_fatbin)
    return any(look(memoryview(start)) for look in looks)


def find_device_code(data: Buffer, searched: Searched = lambda: None) -> Iterator[DeviceCode]:
    """Yield the device code of a file, first what is where nvcc puts it; a bare cubin counts as one raw entry.

    `searched` is called each time some megabytes were searched for code that is elsewhere.

    Raises UnreadableBinary when the file is damaged, is a GPU core dump, is none of the kinds named above, or claims
    to expand to more than any compiler's output does.
    """
    view = memoryview(data)
    most = max(_EXPANDED, _TIMES_EXPANDED * len(view))
    for code in _in_archive(view, searched) if looks_like_archive(view) else _in_file(view, searched):
        most -= code.entry.size if code.entry.compressed_size else 0
        if most < 0:
            raise UnreadableBinary(
                f"its entries claim to expand to over {_TIMES_EXPANDED} times the file's size",
                offset=code.entry.offset,
                cause="a damaged file, or one that is made to fill memory",
            )
        yield code


def _in_archive(view: memoryview, searched: Searched) -> Iterator[DeviceCode]:
    for member in members(view):
        if may_hold_device_code(member.data) and not looks_like_archive(member.data):
            found = _in_file(member.data, searched)
        else:
            found = _elsewhere(member.data, [], _Places([]), searched)
        yield from (replace(code, member=member.name) for code in found)


def _in_file(view: memoryview, searched: Searched) -> Iterator[DeviceCode]:
    if looks_like_fatbin(view):
        yield from (DeviceCode(entry=entry) for entry in entries(view))
    elif looks_like_pe(view):
        named = [((s.start, s.end), s.name) for s in read_sections(view)]
        own = [span for known in _PE_SECTIONS for span, name in named if name == known]
        places = _Places([(span, partial(str, name)) for span, name in named])
        yield from _in_sections(view, own, [], places, searched)
    elif not looks_like_elf(view):
        raise UnreadableBinary(
            "neither ELF, nor a DLL, nor a static library, nor a fat binary",
            next_step="name a library, object file, archive, wheel, .cubin, .fatbin, a folder of these, or an image",
        )
    elif bytes(view[4:6]) != b"\x02\x01":
        yield from _elsewhere(view, [], _Places([]), searched)  # 32-bit or big-endian: nvcc no longer has such hosts
    else:
        elf = Elf(view)
        if elf.is_cuda:
            yield DeviceCode(entry=_bare_cubin(elf))
            return
        own = []
        for name in _SECTIONS:
            for section in elf.sections_named(name):
                elf.contents(section)  # raises where the file is cut off
                if section.size and section.type != SHT_NOBITS:
                    own.append(_span(section))
        # A header that leads out of the file is damaged: what it says about these bytes is not believed.
        sections = [s for s in elf.sections if s.size and s.type != SHT_NOBITS and s.offset + s.size <= len(view)]
        places = _Places([(_span(s), partial(elf.name, s)) for s in sections])
        yield from _in_sections(view, own, [_span(s) for s in sections if s.type in _TABLES], places, searched)


class _Places:
    """The sections of a file, by where they are; a name is read only when it is asked for."""

    def __init__(self, sections: list[tuple[Span, Callable[[], str]]]) -> None:
        self._sections: Final = sorted(sections, key=itemgetter(0))
        self._starts: Final = [start for (start, _), _ in self._sections]

    def name_at(self, offset: int) -> str:
        """Return the name of the section that has the byte at `offset`; NO_SECTION where none has one."""
        number = bisect_right(self._starts, offset) - 1
        if number >= 0:
            (_, end), name = self._sections[number]
            if offset < end:
                return name() or NO_SECTION
        return NO_SECTION


def _span(section: Section) -> Span:
    return section.offset, section.offset + section.size


def _in_sections(
    view: memoryview, own: list[Span], tables: list[Span], places: _Places, searched: Searched
) -> Iterator[DeviceCode]:
    """Yield what is in nvcc's `own` sections, then what is anywhere else but in `tables`."""
    for (_, end), (start, _) in pairwise(sorted(own)):
        if start < end:  # each of a thousand headers could lead to the same bytes
            raise UnreadableBinary(
                "two sections of device code share bytes: the section table is damaged", offset=start
            )
    for start, end in own:
        yield from (DeviceCode(entry=entry) for entry in entries(view[start:end]))
    yield from _elsewhere(view, [*own, *tables], places, searched)


def _elsewhere(view: memoryview, skipped: list[Span], places: _Places, searched: Searched) -> Iterator[DeviceCode]:
    for offset, found in find_embedded(view, skipped, searched):
        entry = found if isinstance(found, Entry) else replace(_bare_cubin(Elf(found)), offset=offset)
        yield DeviceCode(entry=entry, section=places.name_at(offset))


def _bare_cubin(elf: Elf) -> Entry:
    if elf.type == ET_CORE:
        raise UnreadableBinary("a GPU core dump, not a library", next_step="vdbg-env core FILE")
    return Entry(
        kind=EntryKind.ELF,
        arch=elf.arch or 0,
        flags=EntryFlag.BITS_64 | _suffix_flag(elf),
        identifier="",
        stored=elf.data,
        compressed_size=0,
        size=len(elf.data),
        offset=0,
    )


def _suffix_flag(elf: Elf) -> int:
    """Return the flag of sm_90a or sm_100f.

    The options in `.note.nv.tkinfo` have either letter; compilers that call ptxas as a library write none. Then an `a`
    is in `.nv.compat` or in e_flags, where an `f` is not.
    """
    note = elf.section(".note.nv.tkinfo")
    option = _ARCH_OPTION.search(elf.contents(note)) if note else None
    match option and option[1]:
        case b"f":
            return EntryFlag.FAMILY_SPECIFIC
        case b"a":
            return EntryFlag.ARCH_SPECIFIC
        case _:
            return EntryFlag.ARCH_SPECIFIC if elf.accelerated else 0
