"""Find known values in bytes, all their forms at once, also where line breaks or terminal codes split them.

The values are searched for by Aho-Corasick (`ahocorasick_rs`) where that library can be imported. A supervisor in a
container has the standard library alone: there each line is searched once (see `needle_index`), with the next one.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator
from functools import cached_property
from itertools import accumulate
from typing import Any

from vdbg_env.record.redaction.needle_index import NeedleIndex

# What may stand inside of a value on a terminal or in wrapped text: colours and titles, line ends.
_CODES = re.compile(rb"\x1b(?:\[[0-?]{0,64}[ -/]{0,8}[@-~]|\][^\x07\x1b]{0,4096}(?:\x07|\x1b\\)?|[@-Z\\^_])")
_LINE_END = re.compile(rb"[\r\n]")
_PREFIX = 8  # bytes of a value that the automaton knows: a table for whole values would not fit into a cache
Candidates = Iterable[tuple[int, bytes]]


class Prefixes:
    """Searches for words, all at once, by how they begin."""

    def __init__(self, words: Iterable[bytes]) -> None:
        self._words: dict[bytes, list[bytes]] = {}
        for word in words:
            self._words.setdefault(word[:_PREFIX], []).append(word)
        self._search = _search(tuple(self._words)) if self._words else lambda _data, _joined: ()

    def find(self, data: bytes, joined: bytes) -> Candidates:
        """Yield each word that is in `joined`, which is `whole(data)`, with its place there."""
        for at, prefix in self._search(data, joined):
            yield from ((at, word) for word in self._words.get(prefix, ()) if joined.startswith(word, at))


def _search(prefixes: tuple[bytes, ...]) -> Callable[[bytes, bytes], Candidates]:
    try:
        from ahocorasick_rs import BytesAhoCorasick, Implementation
    except ImportError:
        return _indexed(prefixes)
    automaton: Any = BytesAhoCorasick(prefixes, implementation=Implementation.DFA)

    def search(_data: bytes, joined: bytes) -> Candidates:
        return ((at, prefixes[n]) for n, at, _ in automaton.find_matches_as_indexes(joined, overlapping=True))

    return search


def _indexed(prefixes: tuple[bytes, ...]) -> Callable[[bytes, bytes], Candidates]:
    """Return a search that looks at each line with what follows it, and at lines that it knows once."""
    index = NeedleIndex(prefixes)

    def search(data: bytes, joined: bytes) -> Candidates:
        lines = without_codes(data).translate(None, b"\r").split(b"\n")
        following = [*lines[1:], b""]
        if len(lines) > 2 and min(map(len, lines[1:-1])) < _PREFIX - 1:  # a prefix may be on more than two lines
            following = [joined[end : end + _PREFIX - 1] for end in accumulate(map(len, lines))]
        pairs = b"\n".join(map(bytes.__add__, lines, following))
        starts: list[int] | None = None
        line = begin = seen = 0  # hits rise: each byte is counted once
        for at, number in index.hits(pairs):
            starts = starts or [0, *accumulate(map(len, lines))]
            line += pairs.count(b"\n", seen, at)
            begin = max(begin, pairs.rfind(b"\n", seen, at) + 1)
            seen = at
            yield starts[line] + at - begin, prefixes[number]

    return search


class LiteralFinder:
    """Finds `values`, which are forms of known secrets."""

    def __init__(self, values: tuple[bytes, ...]) -> None:
        self.values = tuple(filter(None, dict.fromkeys(whole(value) for value in values)))
        self._prefixes = Prefixes(self.values)
        self._longest = max(map(len, self.values), default=0)
        self._beginnings: dict[bytes, list[bytes]] = {}
        rests: dict[bytes, list[bytes]] = {}
        for value in self.values:
            self._beginnings.setdefault(value[:2], []).append(value)
            rests.setdefault(value[:1], []).append(value[1:])
        self._rests = {first: tuple(sorted(found, key=len, reverse=True)) for first, found in rests.items()}

    def spans(self, data: bytes, before: bytes = b"") -> Iterator[tuple[int, int]]:
        """Yield the start and end of each value; `before` is the last byte that was written ahead of `data`."""
        if not self.values:
            return
        joined = whole(data)
        found = [(at, at + len(value)) for at, value in self._prefixes.find(data, joined)]
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
            values = self._beginnings.get(joined[at : at + 2])
            if values and any(value.startswith(joined[at:]) for value in values):
                return len(data) - len(tail) + Places(tail).of(at)
        return len(data)


def whole(data: bytes) -> bytes:
    """Return `data` without line ends and terminal codes: a value that they split is whole again."""
    joined = without_codes(data).replace(b"\n", b"")
    return joined.replace(b"\r", b"") if b"\r" in joined else joined  # four times as fast as one `translate`


def without_codes(data: bytes) -> bytes:
    """Return `data` without terminal codes."""
    return _CODES.sub(b"", data) if b"\x1b" in data and (b"\x1b[" in data or b"\x1b]" in data) else data


class Places:
    """Where the bytes of `whole(data)` are in `data`; costs nothing until it is asked."""

    def __init__(self, data: bytes) -> None:
        self._given = data
        self._last = 0, 0

    @cached_property
    def _codes(self) -> list[tuple[int, int]]:
        """The place of each code in the data without codes, with the bytes of codes so far."""
        codes: list[tuple[int, int]] = []
        left_out = 0
        for code in _CODES.finditer(self._given) if b"\x1b[" in self._given or b"\x1b]" in self._given else ():
            left_out += len(code[0])
            codes.append((code.end() - left_out, left_out))
        return codes

    @cached_property
    def _plain(self) -> bytes:
        return without_codes(self._given)

    @cached_property
    def _ends(self) -> list[int]:
        """The place in the whole of each line end."""
        return [end.start() - number for number, end in enumerate(_LINE_END.finditer(self._plain))]

    def of(self, at: int) -> int:
        """Return the place in `data` of byte `at` of the whole."""
        place = self._further(at) if at >= self._last[0] else at + bisect_right(self._ends, at)
        number = bisect_right(self._codes, (place, len(self._given)))
        return place + (self._codes[number - 1][1] if number else 0)

    def _further(self, at: int) -> int:
        """Return the place without codes, counted from that of the last byte asked for: most are asked in order."""
        data, (last, start) = self._plain, self._last
        end = start + at - last
        while ends := data.count(b"\n", start, end) + data.count(b"\r", start, end):
            start, end = end, end + ends
        while data[end : end + 1] in {b"\r", b"\n"}:
            end += 1
        self._last = at, end
        return end
