"""Reads `ar` archives (`.a`, static libraries): each member's name and bytes.

Formats: the System V/GNU variant (long names in the member `//`) and the BSD one (`#1/`, long names before the
contents), as in GNU binutils' `ar` and FreeBSD's ar(5).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from vdbg_env.common.errors import UnreadableBinary
from vdbg_env.cuda.binary.elf import Buffer

MAGIC: Final = b"!<arch>\n"
THIN_MAGIC: Final = b"!<thin>\n"

_HEADER_SIZE: Final = 60
_INDEXES: Final = {"/", "/SYM64/", "__.SYMDEF", "__.SYMDEF SORTED"}  # symbol indexes of the linker, no members


@dataclass(frozen=True, kw_only=True)
class Member:
    """One file inside an archive."""

    name: str
    data: memoryview


def looks_like_archive(data: Buffer) -> bool:
    """Return whether the bytes start as an archive, thin ones included."""
    return bytes(data[:8]) in (MAGIC, THIN_MAGIC)


def members(data: Buffer) -> Iterator[Member]:
    """Yield the members of an archive without copying them.

    Raises UnreadableBinary on a damaged header, on a member that does not lie within the bytes, and on a thin archive,
    whose members are other files.
    """
    view = memoryview(data)
    if bytes(view[:8]) == THIN_MAGIC:
        raise UnreadableBinary(
            "a thin archive names its members but does not hold them",
            offset=0,
            next_step="name the folder of the object files instead",
        )
    if bytes(view[:8]) != MAGIC:
        raise UnreadableBinary("not an archive: the magic line is missing", offset=0)
    long_names = b""
    place = len(MAGIC)
    while place < len(view):
        name, size = _header(view, place)
        start = place + _HEADER_SIZE
        place = start + size + size % 2
        contents = view[start : start + size]
        if name == "//":
            long_names = bytes(contents)
        elif name not in _INDEXES:
            member = _named(name, contents, long_names, start - _HEADER_SIZE)
            if member.name not in _INDEXES:
                yield member


def _header(view: memoryview, place: int) -> tuple[str, int]:
    """Return the raw name and the size of the member whose header starts at `place`."""
    header = bytes(view[place : place + _HEADER_SIZE])
    if len(header) < _HEADER_SIZE or header[58:] != b"`\n":
        raise UnreadableBinary("a damaged member header in an archive", offset=place)
    digits = header[48:58].strip()
    if not digits.isdigit():
        raise UnreadableBinary(f"an archive member of size {digits.decode('latin-1')!r}", offset=place + 48)
    size = int(digits)
    if place + _HEADER_SIZE + size > len(view):
        raise UnreadableBinary(f"an archive member of {size} bytes runs past the end of the file", offset=place)
    return header[:16].decode("utf-8", "backslashreplace").rstrip(), size


def _named(raw: str, contents: memoryview, long_names: bytes, place: int) -> Member:
    if raw.startswith("#1/") and raw[3:].isdecimal():
        length = int(raw[3:])
        name = bytes(contents[:length]).rstrip(b"\0")
        return Member(name=name.decode("utf-8", "backslashreplace"), data=contents[length:])
    if raw.startswith("/") and raw[1:].isdecimal():
        start = int(raw[1:])
        if start >= len(long_names):
            raise UnreadableBinary("an archive member's long name lies outside the name table", offset=place)
        name = long_names[start:].split(b"\n", 1)[0].removesuffix(b"/")
        return Member(name=name.decode("utf-8", "backslashreplace"), data=contents)
    return Member(name=raw.removesuffix("/"), data=contents)
