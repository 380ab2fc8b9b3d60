"""Find known values in bytes, all their forms at once, also where line breaks or terminal codes split them.

The values are searched for by Aho-Corasick (`ahocorasick_rs`) where that library can be imported. A supervisor in a
container has the standard library alone: there lines are searched one by one, each once (see `needle_index`).
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from vdbg_env.record.redaction.needle_index import NeedleIndex

# What may stand inside of a value on a terminal or in wrapped text: colours and titles, line ends.
_CODES = re.compile(rb"\x1b(?:\[[0-?]{0,64}[ -/]{0,8}[@-~]|\][^\x07\x1b]{0,4096}(?:\x07|\x1b\\)?|[@-Z\\^_])")
_PREFIX = 8  # bytes of a value that the automaton knows: a table for whole values would not fit into a cache
Candidates = Iterable[tuple[int, bytes]]


class Prefixes:
    """Searches for the beginnings of words, all at once."""

    def __init__(self, words: Iterable[bytes]) -> None:
        self._words: dict[bytes, list[bytes]] = {}
        for word in words:
            self._words.setdefault(word[:_PREFIX], []).append(word)
        self._search = _search(tuple(self._words)) if self._words else lambda _data: ()

    def find(self, data: bytes) -> Candidates:
        """Yield each word that is in `data`, with its place."""
        for at, prefix in self._search(data):
            yield from ((at, word) for word in self._words.get(prefix, ()) if data.startswith(word, at))


def _search(prefixes: tuple[bytes, ...]) -> Callable[[bytes], Candidates]:
    try:
        from ahocorasick_rs import BytesAhoCorasick, Implementation
    except ImportError:
        return _indexed(prefixes)
    automaton: Any = BytesAhoCorasick(prefixes, implementation=Implementation.DFA)

    def search(data: bytes) -> Candidates:
        return ((at, prefixes[n]) for n, at, _ in automaton.find_matches_as_indexes(data, overlapping=True))

    return search


def _indexed(prefixes: tuple[bytes, ...]) -> Callable[[bytes], Candidates]:
    index = NeedleIndex(prefixes)
    return lambda data: ((at, prefixes[number]) for at, number in index.hits(data))


class LiteralFinder:
    """Finds `values`, which are forms of known secrets."""

    def __init__(self, values: tuple[bytes, ...]) -> None:
        self._values = tuple(filter(None, dict.fromkeys(whole(value) for value in values)))
        self._prefixes = Prefixes(self._values)
        self._longest = max(map(len, self._values), default=0)
        self._beginnings: dict[bytes, list[bytes]] = {}
        rests: dict[bytes, list[bytes]] = {}
        for value in self._values:
            self._beginnings.setdefault(value[:2], []).append(value)
            rests.setdefault(value[:1], []).append(value[1:])
        self._rests = {first: tuple(sorted(found, key=len, reverse=True)) for first, found in rests.items()}

    def spans(self, data: bytes, before: bytes = b"") -> Iterator[tuple[int, int]]:
        """Yield the start and end of each value; `before` is the last byte that was written ahead of `data`."""
        if not self._values:
            return
        joined = whole(data)
        found = [(at, at + len(value)) for at, value in self._prefixes.find(joined)]
        rests = self._rests.get(before, ())
        if rests and joined.startswith(rests):
            found.append((0, next(len(rest) for rest in rests if joined.startswith(rest))))
        if found:
            place = Places(data)
            yield from ((place.of(start), place.of(end - 1) + 1) for start, end in found)

    def open_end(self, data: bytes) -> int:
        """Return where the last bytes of `data` begin that may be the start of a value; its length if none are."""
        tail = data[-4 * self._longest :] if self._longest else b""
        joined = whole(tail)
        for at in range(max(0, len(joined) - self._longest), len(joined) - 1):
            rest = joined[at:]
            if any(value.startswith(rest) for value in self._beginnings.get(rest[:2], ())):
                return len(data) - len(tail) + Places(tail).of(at)
        return len(data)


def whole(data: bytes) -> bytes:
    """Return `data` without line ends and terminal codes: a value that they split is whole again."""
    if b"\x1b[" in data or b"\x1b]" in data:
        data = _CODES.sub(b"", data)
    return data.translate(None, b"\r\n")


class Places:
    """Where the bytes of `whole(data)` are in `data`."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._codes: list[tuple[int, int]] = []  # of each: its place without codes, and the bytes of codes so far
        if b"\x1b[" in data or b"\x1b]" in data:
            left_out = 0
            for code in _CODES.finditer(data):
                left_out += len(code[0])
                self._codes.append((code.end() - left_out, left_out))
            self._data = _CODES.sub(b"", data)

    def of(self, at: int) -> int:
        """Return the place in `data` of byte `at` of the whole."""
        place, ends = at, self._ends(0, at)
        while place != at + ends:
            place, ends = at + ends, ends + self._ends(place, at + ends)
        while self._data[place : place + 1] in {b"\r", b"\n"}:
            place += 1
        number = bisect_right(self._codes, (place, len(self._data) * 64))
        return place + (self._codes[number - 1][1] if number else 0)

    def _ends(self, start: int, end: int) -> int:
        return self._data.count(b"\n", start, end) + self._data.count(b"\r", start, end)
