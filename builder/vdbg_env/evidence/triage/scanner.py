"""Find the few lines of a log that are worth a look, in one pass over its bytes and in constant memory.

All literals of all rules are one Aho-Corasick automaton: its speed depends neither on their number nor on the text, and
it takes a few megabytes. It runs over blocks from which the line breaks have been taken out, because a log may be
wrapped hard at the width of a terminal, in the middle of a literal; such a line is joined again before it is read.

Where a block ends is decided by the log alone, never by its chunks, so the answer cannot depend on them.
Signs that a run makes progress are frequent, so they are looked for only while the answer depends on them.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate

from ahocorasick_rs import BytesAhoCorasick, Implementation

BLOCK = 128 << 10  # a block ends with the first line that ends after so many bytes
MAX_BLOCK = 1 << 20  # or here, where no line does
AHEAD = 4 << 10  # bytes of the next block that may hold the rest of a wrapped line
MAX_JOINED = 12
MAX_TURNS = 4  # times in a block that the signs of health are left out again
_LINES_AROUND = 48  # lines before one that show whether its log is wrapped

_NOTHING = b"\x00no literal at all\x00"
_STARTS_A_LINE = re.compile(
    rb"\s*(?:\x1b\[[0-9;]*m)*(?:[(\[{|]|\+[-=]|(?:DEBUG|INFO|WARNING|ERROR|CRITICAL|FATAL)[: ]|\d{4}-\d\d-\d\d|\d+: |"
    rb"=====|Traceback|File \"|"
    rb"[A-Za-z_.]+(?:Error|Exception|Warning)\b|Failed: |\[|[A-Z][a-z]{2} [ \d]\d \d\d:)"
)


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """A line that holds a literal: the 1-based number of its first physical line, and its bytes without breaks."""

    number: int
    data: bytes


class LineScanner:
    """Takes the bytes of one log in chunks of any size and yields candidate lines, in order.

    `frequent` are literals of lines that a healthy log is full of; they are looked for only while `alert` is set. The
    consumer may change `alert`, and call `watch`, between two candidates.
    """

    def __init__(self, literals: Iterable[str], frequent: Iterable[str] = ()) -> None:
        self.alert = True
        self._frequent = frozenset(frequent)
        self._buffer = bytearray()
        self._context: list[bytes] = []  # the last lines before the buffer
        self._line = 1  # number of the first line in the buffer
        self.watch(literals)

    @property
    def lines(self) -> int:
        """The number of the line that the scan has reached."""
        return self._line

    def watch(self, literals: Iterable[str]) -> None:
        """Change what is looked for, from one of the next lines on."""
        self._literals = frozenset(literals)
        self._automata: dict[bool, BytesAhoCorasick] = {}

    def feed(self, chunk: bytes) -> Iterator[Candidate]:
        """Take the next bytes and yield the candidates among the blocks that are complete."""
        self._buffer += chunk
        while (end := self._block_end()) is not None:
            yield from self._scan(end)

    def finish(self) -> Iterator[Candidate]:
        """Scan what is left."""
        while self._buffer:
            end = self._buffer.find(b"\n", BLOCK, MAX_BLOCK) + 1 or MAX_BLOCK
            yield from self._scan(min(end, len(self._buffer)))

    def _block_end(self) -> int | None:
        """Return where the first block ends, None while more bytes are needed."""
        if len(self._buffer) < BLOCK + AHEAD:
            return None
        end = self._buffer.find(b"\n", BLOCK, MAX_BLOCK) + 1 or MAX_BLOCK
        return end if end + AHEAD <= len(self._buffer) else None

    def _scan(self, end: int) -> Iterator[Candidate]:
        ended = self._buffer.count(b"\n", 0, end)
        whole = self._buffer.endswith(b"\n", 0, end)
        text = bytes(self._buffer[: end + AHEAD])
        del self._buffer[:end]
        if b"\r\n" in text:
            text = text.replace(b"\r\n", b"\n")
        own = len(self._context) + ended + (not whole)  # lines before this one are of this block
        lines = [*self._context, *text.split(b"\n")]
        yield from self._candidates(lines, len(self._context), own)
        self._line += ended
        self._context = [line[:AHEAD] for line in lines[:own][-_LINES_AROUND:]]

    def _candidates(self, lines: list[bytes], first: int, limit: int) -> Iterator[Candidate]:
        joined = b"".join(lines)
        widths = list(map(len, lines))
        starts = list(accumulate(widths, initial=0))
        number = self._line - first
        at, full, turns = first, self.alert, 0
        found = self._matches(joined, starts[first], full)
        while (match := next(found, None)) is not None:
            begin, end = bisect_right(starts, match[0]) - 1, bisect_right(starts, match[1] - 1) - 1
            if begin < at:
                continue
            if begin >= limit:
                break
            begin, end = _unfold(lines, widths, begin, end)
            data = b"".join(lines[begin : end + 1])
            at = end + 1
            if self.alert or not full or self._automaton(False).find_matches_as_indexes(data):
                yield Candidate(number=number + begin, data=data)
            if full is not self.alert and (self.alert or turns < MAX_TURNS):
                full, turns = self.alert, turns + 1
                found = self._matches(joined, starts[at], full)

    def _matches(self, joined: bytes, offset: int, full: bool) -> Iterator[tuple[int, int]]:
        text = memoryview(joined)[offset:]
        for _, begin, end in self._automaton(full).find_matches_as_indexes(text):
            yield begin + offset, end + offset

    def _automaton(self, full: bool) -> BytesAhoCorasick:
        if full not in self._automata:
            self._automata[full] = _automaton(self._literals | self._frequent if full else self._literals)
        return self._automata[full]


@lru_cache(16)  # what is looked for changes back and forth between a few sets
def _automaton(literals: frozenset[str]) -> BytesAhoCorasick:
    words = sorted(literal.encode() for literal in literals) or [_NOTHING]
    return BytesAhoCorasick(words, implementation=Implementation.ContiguousNFA)


def _unfold(lines: list[bytes], widths: list[int], begin: int, end: int) -> tuple[int, int]:
    """Widen a range of lines to the whole of a line that was wrapped at a fixed width."""
    width = _wrap_width(widths, end)
    if width is None:
        return begin, end
    for _ in range(MAX_JOINED):
        if begin == 0 or len(lines[begin - 1]) != width or _STARTS_A_LINE.match(lines[begin]):
            break
        begin -= 1
    for _ in range(MAX_JOINED):
        if end + 1 >= len(lines) or len(lines[end]) != width or _STARTS_A_LINE.match(lines[end + 1]):
            break
        end += 1
    return begin, end


def _wrap_width(widths: list[int], end: int) -> int | None:
    """The width a log is wrapped at, seen from the lines around; None when no line is cut."""
    around = widths[max(0, end - _LINES_AROUND) : end + 1]
    widest = max(around)
    if not 60 <= widest <= 320:
        return None
    at_widest = around.count(widest)
    return widest if at_widest >= 2 and at_widest * 8 >= len(around) else None
