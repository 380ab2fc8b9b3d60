"""Writes the ELF container of a GPU core: sections only, extended numbering where there are many."""

from __future__ import annotations

import struct

from gpucore.elf import Identity

_LOUSER = 0x80000000
_LORESERVE = 0xFF00
_HEADER = 64
_ROW = 64


class CoreElf:
    """Collects sections and strings, then writes the file."""

    def __init__(self, *, identity: Identity, table_first: bool) -> None:
        self._identity = identity
        self._table_first = table_first
        self._names = bytearray(b"\0")
        self._strings = bytearray(b"\0")
        self._sections: list[tuple[int, int, bytes, int, int, int, int]] = []

    def text(self, value: str) -> int:
        """Put a string into `.strtab` and return its offset."""
        at = len(self._strings)
        self._strings += value.encode() + b"\0"
        return at

    def section(
        self, name: str, kind: int, data: bytes, *, link: int = 0, info: int = 0, entry_size: int = 0, address: int = 0
    ) -> int:
        """Add a section of type SHT_LOUSER + `kind` and return its number."""
        self._sections.append((self._name(name), _LOUSER + kind, data, link, info, entry_size, address))
        return len(self._sections)

    def build(self, *, extended_numbering: bool | None) -> bytes:
        """Return the file; None chooses extended numbering when the count does not fit the header."""
        strings, names = self._name(".strtab"), self._name(".shstrtab")
        sections = [
            *self._sections, (strings, 3, bytes(self._strings), 0, 0, 0, 0),
            (names, 3, bytes(self._names), 0, 0, 0, 0),
        ]  # fmt: skip
        count = len(sections) + 1
        extended = count >= _LORESERVE if extended_numbering is None else extended_numbering
        start = _HEADER + (_ROW * count if self._table_first else 0)
        body, rows = bytearray(), []
        for name, kind, data, link, info, entry_size, address in sections:
            body += bytes(-len(body) % 16)
            at = start + len(body)
            rows.append(struct.pack("<IIQQQQIIQQ", name, kind, 0, address, at, len(data), link, info, 1, entry_size))
            body += data
        body += bytes(-len(body) % 16)
        zero = (count, count - 1) if extended else (0, 0)
        table = struct.pack("<IIQQQQIIQQ", 0, 0, 0, 0, 0, *zero, 0, 0, 0) + b"".join(rows)
        header = self._header(_HEADER if self._table_first else start + len(body), count, extended)
        return header + (table + bytes(body) if self._table_first else bytes(body) + table)

    def _name(self, name: str) -> int:
        at = len(self._names)
        self._names += name.encode() + b"\0"
        return at

    def _header(self, table: int, count: int, extended: bool) -> bytes:
        ident = b"\x7fELF" + bytes([2, 1, 1, self._identity.os_abi, self._identity.abi_version]) + bytes(7)
        numbers = (0, 0xFFFF) if extended else (count, count - 1)
        return ident + struct.pack("<HHIQQQIHHHHHH", 4, 190, 1, 0, 0, table, 0, 64, 0, 0, _ROW, *numbers)
