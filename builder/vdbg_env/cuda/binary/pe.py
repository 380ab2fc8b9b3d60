"""Reads the section table of a PE file (Windows DLLs and programs), as Microsoft's "PE Format" has it."""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

MAGIC: Final = b"MZ"

_POINTER_AT: Final = 0x3C
_SIGNATURE: Final = b"PE\0\0"
_COFF: Final = struct.Struct("<HHIIIHH")
_SECTION: Final = struct.Struct("<8sIIIIIIHHI")


class PeSection(NamedTuple):
    """A section and where it is in the file; `name` has eight letters at most: `.nv_fatbin` is `.nv_fatb` here."""

    name: str
    start: int
    end: int


def looks_like_pe(data: memoryview | bytes) -> bool:
    """Return whether the bytes start as a program of DOS or Windows."""
    return bytes(data[:2]) == MAGIC


def read_sections(data: memoryview) -> tuple[PeSection, ...]:
    """Return the sections that lie within the file; none where it is not a PE file or its table is cut off."""
    if len(data) < _POINTER_AT + 4:
        return ()
    (header,) = struct.unpack_from("<I", data, _POINTER_AT)
    table = header + len(_SIGNATURE) + _COFF.size
    if table > len(data) or bytes(data[header : header + 4]) != _SIGNATURE:
        return ()
    _, count, _, _, _, optional, _ = _COFF.unpack_from(data, header + len(_SIGNATURE))
    rows = data[table + optional : table + optional + count * _SECTION.size]
    found = []
    for name, _, _, size, start, *_ in _SECTION.iter_unpack(rows[: len(rows) - len(rows) % _SECTION.size]):
        if start + size <= len(data):
            found.append(PeSection(name.rstrip(b"\0").decode("utf-8", "backslashreplace"), start, start + size))
    return tuple(found)
