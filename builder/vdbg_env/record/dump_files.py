"""What a crash left in a dump volume: which files are dumps, and which of them retention would remove."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol, TypeVar

from vdbg_env.common.console import size_text
from vdbg_env.common.files import ZSTD

DumpKind = Literal["gpu-core", "host-core", "compressed", "other", "unreadable"]
HEAD_BYTES = 64
PACKED_HEAD_BYTES = 1 << 20  # of a compressed file: its first block must be whole for its first bytes to be known

_ELF = b"\x7fELF"
_ET_CORE = 4
_EM_CUDA = 190  # elf.h; cuda-gdb writes its cores as ELF files of this machine
_GZIP, _BZIP2, _XZ, _LZ4 = b"\x1f\x8b", b"BZh", b"\xfd7zXZ\x00", b"\x04\x22\x4d\x18"


@dataclass(frozen=True, kw_only=True)
class Dump:
    """One file of a dump volume: `path` is relative to it, `size` in bytes, `modified` in seconds since the epoch.

    Of an unreadable one, or folder, `problem` says why, and size and time are 0 where they are not known either.
    """

    path: str
    size: int
    modified: float
    kind: DumpKind
    problem: str = ""


class Stored(Protocol):
    """What retention looks at: `size` in bytes, `modified` in seconds since the epoch."""

    @property
    def path(self) -> str: ...

    @property
    def size(self) -> int: ...

    @property
    def modified(self) -> float: ...


Thing = TypeVar("Thing", bound=Stored)


@dataclass(frozen=True, kw_only=True)
class Retention:
    """What to keep: the newest `keep` dumps, none older than `older_than_s` seconds, no more than `max_bytes` in all.

    Each rule that is None removes nothing; the same rules hold for other things that pile up.
    """

    keep: int | None = None
    older_than_s: float | None = None
    max_bytes: int | None = None


@dataclass(frozen=True, kw_only=True)
class Removal:
    """One dump that retention removes, and the rule that says so."""

    dump: Dump
    why: str


@dataclass(frozen=True, kw_only=True)
class Exported:
    """One dump as it was copied: its size in bytes and the SHA-256 of what arrived."""

    path: str
    size: int
    sha256: str


def kind_of(head: bytes) -> DumpKind:
    """Return a file's kind by its first bytes, `HEAD_BYTES` of them, or `PACKED_HEAD_BYTES` where it `is_packed`.

    A compressed file is a dump where it expands to one; a name makes nothing a dump.
    """
    if is_packed(head):
        return "other" if packed_kind(head) is None else "compressed"
    return _core_kind(head) or "other"


def packed_kind(head: bytes) -> Literal["gpu-core", "host-core"] | None:
    """Return which core a compressed file expands to, by its first `PACKED_HEAD_BYTES`; None where it is none."""
    return _core_kind(_expanded(head))


def is_packed(head: bytes) -> bool:
    """Return whether a file that begins like this is compressed."""
    return head.startswith((_GZIP, _BZIP2, _XZ, _LZ4, *ZSTD))


def _core_kind(head: bytes) -> Literal["gpu-core", "host-core"] | None:
    if not head.startswith(_ELF) or len(head) < 20:
        return None
    order: Literal["little", "big"] = "big" if head[5] == 2 else "little"
    file_type, machine = int.from_bytes(head[16:18], order), int.from_bytes(head[18:20], order)
    if file_type != _ET_CORE:
        return None
    return "gpu-core" if machine == _EM_CUDA else "host-core"


def _expanded(head: bytes) -> bytes:
    """Return the first bytes that a compressed file expands to; none where it is damaged or not enough of it is given.

    The libraries are loaded here, as most commands never need them.
    """
    import bz2
    import io
    import lzma
    import zlib

    import lz4.frame
    import zstandard

    try:
        if head.startswith(_GZIP):
            return zlib.decompressobj(wbits=31).decompress(head, HEAD_BYTES)
        if head.startswith(_BZIP2):
            return bz2.BZ2Decompressor().decompress(head, HEAD_BYTES)
        if head.startswith(_XZ):
            return lzma.LZMADecompressor(memlimit=256 << 20).decompress(head, HEAD_BYTES)
        if head.startswith(ZSTD):
            return (
                zstandard.ZstdDecompressor().stream_reader(io.BytesIO(head), read_across_frames=True).read(HEAD_BYTES)
            )
        unpacker = lz4.frame.LZ4FrameDecompressor()
        expanded: bytes = unpacker.decompress(head, max_length=HEAD_BYTES)
        return expanded
    except (OSError, EOFError, ValueError, RuntimeError, zlib.error, lzma.LZMAError, zstandard.ZstdError):
        return b""


def retire(dumps: Sequence[Dump], retention: Retention, *, now: float) -> tuple[Removal, ...]:
    """Return which dumps to remove, oldest first; what is no dump, or may be none, is never among them.

    `now` is in seconds since the epoch.
    """
    held = [dump for dump in dumps if dump.kind not in {"other", "unreadable"}]
    return tuple(Removal(dump=dump, why=why) for dump, why in retired(held, retention, now=now))


def retired(things: Sequence[Thing], retention: Retention, *, now: float) -> tuple[tuple[Thing, str], ...]:
    """Return which of the things to remove and the rule that says so, oldest first."""
    removals: list[tuple[Thing, str]] = []
    total = 0
    for place, thing in enumerate(sorted(things, key=lambda t: (t.modified, t.path), reverse=True), 1):
        total += thing.size
        if why := _why(thing, place, total, retention, now):
            removals.append((thing, why))
    return tuple(reversed(removals))


def _why(thing: Stored, place: int, total: int, retention: Retention, now: float) -> str | None:
    """Return the rule that removes a thing; `total` is its size and that of every newer one."""
    if retention.keep is not None and place > retention.keep:
        return {0: "none is kept", 1: "not the newest"}.get(retention.keep, f"not among the newest {retention.keep}")
    if retention.older_than_s is not None and now - thing.modified > retention.older_than_s:
        return f"{age_text(now - thing.modified)} old"
    if retention.max_bytes is not None and total > retention.max_bytes:
        return f"with the newer ones more than {size_text(retention.max_bytes)}"
    return None


def age_text(seconds: float) -> str:
    """Return an age in its largest whole unit."""
    for length, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= length:
            return f"{int(seconds // length)} {unit}"
    return f"{max(0, int(seconds))} s"
