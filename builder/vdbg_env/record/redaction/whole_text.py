"""Text without line ends and terminal codes, in which a value that they split is whole again."""

from __future__ import annotations

import re
from bisect import bisect_right
from functools import cached_property
from itertools import accumulate
from typing import NamedTuple

# What may stand inside of a value on a terminal or in wrapped text: colours and titles, line ends.
_CODE = rb"(?:\[[0-?]{0,64}[ -/]{0,8}[@-~]|\][^\x07\x1b]{0,4096}(?:\x07|\x1b\\)?|[@-Z\\^_])"
_CODES, _EACH_CODE = re.compile(b"\x1b" + _CODE), re.compile(b"(\x1b" + _CODE + b")")
_COLOUR = rb"\[[0-;]{0,64}+[mK]"  # also what erases a line behind it: compilers print both
_COLOURS, _SWALLOWING = re.compile(b"\x1b" + _COLOUR), re.compile(b"\x1b(?!" + _COLOUR + b")" + _CODE)


class CodesText(NamedTuple):
    """The codes of some data, each on a line: where it begins, here and in the data."""

    text: bytes
    begins: list[int]
    places: list[int]

    def place_of(self, at: int) -> int:
        """Return the place in the data of byte `at` of the text."""
        number = bisect_right(self.begins, at) - 1
        return self.places[number] + at - self.begins[number]


class WholeText:
    """What is left of `data` without its codes (`plain`), also without line ends (`text`), and where that was.

    `hidden` are the ranges of `data` that its codes take, as far as these may swallow text: a title does, and so does
    what only begins like a code. Where all codes are colours there are none.
    """

    def __init__(self, data: bytes) -> None:
        self._data = data
        self.hidden: list[tuple[int, int]] = []
        self.plain = self._without_codes()
        text = self.plain.replace(b"\n", b"")
        self.text = text.replace(b"\r", b"") if b"\r" in text else text  # four times as fast as one `translate`

    def place_of(self, at: int) -> int:
        """Return the place in the data of byte `at` of the text."""
        return self.in_data(self.in_plain(at))

    def in_plain(self, at: int) -> int:
        """Return the place without codes of byte `at` of the text."""
        return at + bisect_right(self.ends, at)

    def in_data(self, place: int) -> int:
        """Return the place in the data of a place without codes."""
        if self.plain is self._data:
            return place
        ends, left_out = self._codes
        return place + left_out[bisect_right(ends, place)]

    def codes(self, beyond: int) -> CodesText:
        """Return what codes may have swallowed, with `beyond` bytes behind each."""
        parts = [self._data[start + 1 : end + beyond] for start, end in self.hidden]
        begins = [0, *accumulate(len(part) + 1 for part in parts)]
        return CodesText(b"\n".join(parts), begins, [start + 1 for start, _ in self.hidden])

    def _without_codes(self) -> bytes:
        data = self._data
        first = data.find(b"\x1b")
        if first < 0:
            return data
        if _COLOURS.match(data, first):  # a log: colours alone are removed in half the time
            plain = b"".join(_COLOURS.split(data))
            if b"\x1b" in plain:
                self.hidden = [code.span() for code in _SWALLOWING.finditer(data, first)]
                plain = b"".join(_CODES.split(data))
            return plain
        spans = [code.span() for code in _CODES.finditer(data, first)]
        if not any(data[start + 1] in b"[]" for start, _ in spans):
            return data  # no terminal's text
        self.hidden = spans
        kept = zip((0, *(end for _, end in spans)), (*(start for start, _ in spans), len(data)), strict=True)
        return b"".join([data[start:end] for start, end in kept])

    @cached_property
    def _codes(self) -> tuple[list[int], list[int]]:
        """The place of each code in the data without codes, and the bytes of codes so far, none first."""
        lengths = list(map(len, _EACH_CODE.split(self._data)))
        return list(accumulate(lengths[:-1:2])), [0, *accumulate(lengths[1::2])]

    @cached_property
    def ends(self) -> list[int]:
        """The place in the text of each line end."""
        lines = self.plain.replace(b"\r", b"\n").split(b"\n")
        return list(accumulate(map(len, lines[:-1])))


def whole(data: bytes) -> bytes:
    """Return `data` without line ends and terminal codes."""
    return WholeText(data).text
