"""Text without line ends and terminal codes, in which a value that they split is whole again."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterator
from functools import cached_property

# What may stand inside of a value on a terminal or in wrapped text: colours and titles, line ends.
_CODES = re.compile(rb"\x1b(?:\[[0-?]{0,64}[ -/]{0,8}[@-~]|\][^\x07\x1b]{0,4096}(?:\x07|\x1b\\)?|[@-Z\\^_])")
_COLOURS = re.compile(rb"\x1b\[[0-9;]{0,64}m")
_LINE_END = re.compile(rb"[\r\n]")


class WholeText:
    """What is left of `data` (`text`), and where it was (`place_of`).

    `hidden` are the ranges of `data` that its codes take, as far as these may swallow text: a title does, and so does
    what only begins like a code. Where all codes are colours there are none.
    """

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._last = 0, 0
        self.hidden: list[tuple[int, int]] = []
        self.plain = self._without_codes()
        text = self.plain.replace(b"\n", b"")
        self.text = text.replace(b"\r", b"") if b"\r" in text else text  # four times as fast as one `translate`

    def place_of(self, at: int) -> int:
        """Return the place in the data of byte `at` of the text."""
        place = self._further(at) if at >= self._last[0] else at + bisect_right(self._ends, at)
        number = bisect_right(self._codes, (place, len(self._data)))
        return place + (self._codes[number - 1][1] if number else 0)

    def _without_codes(self) -> bytes:
        data = self._data
        first = data.find(b"\x1b")
        if first < 0:
            return data
        if _COLOURS.match(data, first):  # a log: colours alone are removed in half the time
            plain = _COLOURS.sub(b"", data)
            if b"\x1b" not in plain:
                return plain
        spans = [code.span() for code in _CODES.finditer(data, first)]
        if not any(data[start + 1] in b"[]" for start, _ in spans):
            return data  # no terminal's text
        self.hidden = spans
        kept = zip((0, *(end for _, end in spans)), (*(start for start, _ in spans), len(data)), strict=True)
        return b"".join(data[start:end] for start, end in kept)

    @cached_property
    def _codes(self) -> list[tuple[int, int]]:
        """The place of each code in the data without codes, with the bytes of codes so far."""
        if len(self.plain) == len(self._data):
            return []
        return list(_counted(self.hidden or (code.span() for code in _COLOURS.finditer(self._data))))

    @cached_property
    def _ends(self) -> list[int]:
        """The place in the text of each line end."""
        return [end.start() - number for number, end in enumerate(_LINE_END.finditer(self.plain))]

    def _further(self, at: int) -> int:
        """Return the place without codes, counted from that of the last byte asked for: most are asked in order."""
        data, (last, start) = self.plain, self._last
        end = start + at - last
        while ends := data.count(b"\n", start, end) + data.count(b"\r", start, end):
            start, end = end, end + ends
        while data[end : end + 1] in {b"\r", b"\n"}:
            end += 1
        self._last = at, end
        return end


def _counted(spans: Iterator[tuple[int, int]] | list[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    left_out = 0
    for start, end in spans:
        left_out += end - start
        yield end - left_out, left_out


def whole(data: bytes) -> bytes:
    """Return `data` without line ends and terminal codes."""
    return WholeText(data).text
