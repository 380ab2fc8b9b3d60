"""Finds known values and the needles of rules in bytes, also values that line ends or terminal codes split.

`OnePass` is an automaton (Aho-Corasick, of `ahocorasick_rs`) that sees the text in lower case, without line ends and
codes. A needle that many lines have is given to it with what must follow: `tokens/s` is on every other line of an
inference log, `token=` and `--hf-token` are not. A supervisor in a container has the standard library alone:
`LineByLine` looks at each line once (see `needle_index`), for values with the next one.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import accumulate
from typing import Any, NamedTuple

from vdbg_env.record.redaction.literals import PREFIX, LiteralFinder
from vdbg_env.record.redaction.needle_index import PLAIN_FOLD, NeedleIndex, fold_also
from vdbg_env.record.redaction.whole_text import WholeText

_BLANKS = (b" ", b"\t", b"\v", b"\f")
# How what is between a name and its value begins: a quote, a bracket, a sign, or a blank and then one of these.
_ASSIGNED = (
    *(b"=", b":", b"\\", b'"', b"'", b"]"),
    *(blank + after for blank in _BLANKS for after in (b"=", b":", *_BLANKS)),
)
_ENDS_OF_KEYS = (b"i", b"s", b"t", b"_", b"-")  # of apikey, accesskey, accountkey, and of all that is set apart
_IN_WORDS: Mapping[bytes, tuple[tuple[bytes, int], ...]] = {  # the words to look for, and where in them the needle is
    b"token": tuple((b"token" + after, 0) for after in _ASSIGNED),
    b"pass": tuple((b"pass" + after, 0) for after in _ASSIGNED),
    b"pwd": tuple((b"pwd" + after, 0) for after in _ASSIGNED),
    b"key": tuple((end + b"key" + after, len(end)) for end in _ENDS_OF_KEYS for after in _ASSIGNED),
    b"sig": ((b"sig=", 0), (b"signature=", 0)),
}
_FLAGS = tuple(b"--" + bytes([letter]) for letter in b"abcdefghijklmnopqrstuvwxyz0123456789_")
_FLAG = re.compile(rb"--[\w-]{0,80}?(token|key|pass)(?![\w-])", re.IGNORECASE)


class Found(NamedTuple):
    """The ranges of known values in some data, and where needles are, by number.

    The places of `needles` are those of the text without codes: a rule sees `password=` and its value side by side,
    whatever their colours. Where codes may swallow text `in_codes` has places in the data itself.
    """

    values: list[tuple[int, int]]
    needles: list[tuple[int, int]]
    in_codes: list[tuple[int, int]]


class OnePass:
    """Looks for the values of `known` and for `needles`, which are in lower case.

    A needle found is only a candidate; none that a rule would match is left out. Raises ImportError where the library
    is missing.
    """

    def __init__(self, known: LiteralFinder, needles: Sequence[bytes]) -> None:
        from ahocorasick_rs import BytesAhoCorasick, Implementation

        self._known = known
        self._of_flags = {
            needle: number for number, needle in enumerate(needles) if needle in {b"token", b"key", b"pass"}
        }
        values: dict[bytes, list[bytes]] = {}
        for prefix, found in known.prefixes.items():
            values.setdefault(prefix.lower(), []).extend(found)
        words: dict[bytes, list[tuple[int, int]]] = {}
        for number, needle in enumerate(needles):
            for word, at in _IN_WORDS.get(needle, ((needle, 0),)):
                words.setdefault(word, []).append((at, number))
        flags = _FLAGS if self._of_flags else ()
        patterns = tuple(dict.fromkeys((*values, *words, *flags)))
        self._longest = max(map(len, patterns), default=0)
        self._values = [tuple(values.get(pattern, ())) for pattern in patterns]
        self._words = [tuple(words.get(pattern, ())) for pattern in patterns]
        self._flags = [pattern in flags for pattern in patterns]
        self._automaton: Any = BytesAhoCorasick(patterns, implementation=Implementation.DFA)

    def find(self, data: bytes, joined: WholeText, before: bytes = b"") -> Found:
        """Return what is in `data`; `before` is the last byte that was written ahead of it."""
        values: list[tuple[int, bytes]] = []
        needles: list[tuple[int, int]] = []
        for at, number in self._matches(joined.text):
            if self._values[number]:
                values += [(at, value) for value in self._values[number] if joined.text.startswith(value, at)]
            if self._words[number] or self._flags[number]:
                needles += self._needles(joined.plain, joined.in_plain(at), number)
        found = Found(list(self._known.placed(joined, values, before)), sorted(needles), [])
        if joined.hidden:
            found.in_codes.extend((joined.in_data(at), number) for at, number in needles)
            codes = joined.codes(self._longest)
            for at, number in self._matches(codes.text):
                place = codes.place_of(at)
                found.values.extend(_at_place(data, place, self._values[number]))
                found.in_codes.extend(self._needles(data, place, number))
            found.in_codes.sort()
        return found

    def open_end(self, data: bytes) -> int:
        """Return where a value may begin that `data` does not end, its length where none does."""
        return self._known.open_end(data, lambda text: bool(self._matches(text)))

    def _matches(self, text: bytes) -> list[tuple[int, int]]:
        """Return place and number of each pattern, in order."""
        found = self._automaton.find_matches_as_indexes(text.lower(), overlapping=True)
        return sorted((at, number) for number, at, _ in found) if found else []

    def _needles(self, data: bytes, place: int, number: int) -> Iterator[tuple[int, int]]:
        for at, needle in self._words[number]:
            yield place + at, needle
        name = _FLAG.match(data, place) if self._flags[number] else None
        if name:
            yield name.start(1), self._of_flags[name[1].lower()]


def _at_place(data: bytes, place: int, values: Iterable[bytes]) -> Iterator[tuple[int, int]]:
    return ((place, place + len(value)) for value in values if data.startswith(value, place))


LOOKBACK = 64  # no rule looks further back than this from its needle (the dashes of a flag's name)
# What follows these names where a value does: what the rules have between a name and its value, or what may be between
# a flag and its value. The end of a line is either, because the next line is not known.
_BEFORE_VALUE = re.compile(rb"\\?[\"']?\]?[ \t\r\x0b\x0c]{0,4}(?:[=:\n]|\Z)")
_AFTER_FLAG = re.compile(rb"[\"']?,?(?:[ \t\r\x0b\x0c\n]|\Z)")


def _has_value(text: bytes, start: int, end: int) -> bool:
    """Return whether a name may be that of a value: nearly every line of a log says `tokens/s`, hardly one `token=`."""
    if _BEFORE_VALUE.match(text, end):
        return True
    return text.find(b"--", max(0, start - LOOKBACK - 2), start) >= 0 and bool(_AFTER_FLAG.match(text, end))


def _is_key_with_value(text: bytes, start: int, end: int) -> bool:
    """Return whether this is the end of `api-key` or the like, and may be that of a value; `s` is folded to `p`."""
    return start > 0 and text[start - 1] in b"ispt_-" and _has_value(text, start, end)


_COUNTS = {b"token": _has_value, b"pass": _has_value, b"pwd": _has_value, b"key": _is_key_with_value}


class LineByLine:
    """Looks for the same as `OnePass`, by what it remembers of lines."""

    def __init__(self, known: LiteralFinder, needles: Sequence[bytes]) -> None:
        self._known = known
        self._folded = tuple(dict.fromkeys(prefix.translate(PLAIN_FOLD) for prefix in known.prefixes))
        self._values = NeedleIndex(self._folded)
        # The five GitHub prefixes differ in one letter: folded together they are searched for once.
        self._needles = NeedleIndex(needles, fold_also(b"pousr"), _COUNTS)

    def find(self, data: bytes, joined: WholeText, before: bytes = b"") -> Found:
        """Return what is in `data`; `before` is the last byte that was written ahead of it."""
        values: list[tuple[int, int]] = []
        if self._folded:
            found = [(at, v) for at, vs in self._beginning(joined) for v in vs if joined.text.startswith(v, at)]
            values += self._known.placed(joined, found, before)
            codes = joined.codes(PREFIX)
            for at, some in self._candidates(codes.text):
                values += _at_place(data, codes.place_of(at), some)
        needles = list(self._needles.hits(joined.plain))
        return Found(values, needles, list(self._needles.hits(data)) if joined.hidden else [])

    def open_end(self, data: bytes) -> int:
        """Return where a value may begin that `data` does not end, its length where none does."""
        return self._known.open_end(data, lambda text: any(prefix in text for prefix in self._known.prefixes))

    def _beginning(self, joined: WholeText) -> Iterator[tuple[int, list[bytes]]]:
        """Yield where values may begin in the text: lines are alike, and so are the places where two of them meet."""
        lines = joined.plain.replace(b"\r", b"")
        seen = ends = 0  # hits rise: each byte is counted once
        for at, values in self._candidates(lines):
            ends += lines.count(b"\n", seen, at)
            seen = at
            yield at - ends, values
        starts = [max(0, end - PREFIX + 1) for end in joined.ends]
        meetings = [joined.text[start : start + 2 * PREFIX - 2] for start in starts]
        begins: list[int] = []
        for at, values in self._candidates(b"\n".join(meetings)):
            begins = begins or [0, *accumulate(len(part) + 1 for part in meetings)]
            meeting = bisect_right(begins, at) - 1
            yield starts[meeting] + at - begins[meeting], values

    def _candidates(self, text: bytes) -> Iterator[tuple[int, list[bytes]]]:
        """Yield the places where a line of `text` has the prefix of values, which it may not continue with."""
        for at, number in self._values.hits(text):
            values = self._known.prefixes.get(text[at : at + len(self._folded[number])])
            if values:
                yield at, values
