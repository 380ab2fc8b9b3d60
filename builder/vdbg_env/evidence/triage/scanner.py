"""Find the few lines of a log that are worth a look, in one pass over its bytes and in constant memory.

All literals of all rules are one RE2 automaton, whose speed does not depend on their number; only the lines it stops at
are decoded. A line break may occur between any two bytes of a literal, because a log may be wrapped
hard at the width of a terminal; such a line is joined again before it is read.

Signs that a run makes progress are frequent, so they are looked for only while the answer depends on them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Any

import re2

from vdbg_env.common.errors import BadInput

CHUNK = 1 << 20
HOLD = 4 << 10  # bytes kept back at the end, because a candidate may not be cut in two
CONTEXT = 8 << 10  # bytes kept from before, to see how a wrapped line began
MAX_RUN = 1 << 20  # without a line break in so many bytes, the bytes are scanned as they are
MAX_JOINED = 12
# RE2 takes what its states need, and past this falls back to a matcher ten to a hundred times slower. Logs of a real
# vLLM need 16 MiB (docs/benchmarks/triage.md): the rest is for more rules and for text that has not been seen.
AUTOMATON_MEMORY = 48 << 20

_BREAK = rb"[\r\n]*"
_NOTHING = rb"[^\x00-\xff]"  # matches no byte
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
        self._at_start = True
        self._frequent = frozenset(frequent)
        self.watch(literals)
        self._buffer = b""
        self._start = 0  # scanning continues here
        self._counted = 0  # line breaks are counted up to here
        self._line = 1  # number of the line at `_counted`

    @property
    def lines(self) -> int:
        """The number of the line that the scan has reached."""
        return self._line

    def watch(self, literals: Iterable[str]) -> None:
        """Change what is looked for, from the next byte on."""
        self._literals = frozenset(literals)
        self._patterns: dict[bool, Any] = {}

    def feed(self, chunk: bytes) -> Iterator[Candidate]:
        """Take the next bytes and yield the candidates among the lines that are complete."""
        self._buffer += chunk
        waiting = len(self._buffer) - self._start
        limit = self._buffer.rfind(b"\n", self._start, max(self._start, len(self._buffer) - HOLD)) + 1
        if limit == 0:
            if waiting < MAX_RUN:
                return
            limit = len(self._buffer) - HOLD
        yield from self._scan(limit)
        self._forget(limit)

    def finish(self) -> Iterator[Candidate]:
        """Scan what is left."""
        yield from self._scan(len(self._buffer))
        self._forget(len(self._buffer))

    def _scan(self, limit: int) -> Iterator[Candidate]:
        buffer, at = self._buffer, self._start
        while at < limit:
            match = self._pattern().search(buffer, at, min(len(buffer), limit + HOLD))
            if match is None or match.start() >= limit:
                break
            begin = buffer.rfind(b"\n", 0, match.start()) + 1
            end = _line_end(buffer, match.end())
            begin, end = _unfold(buffer, begin, end)
            data = buffer[begin:end].replace(b"\r\n", b"").replace(b"\n", b"")
            at = max(end, match.end())
            yield Candidate(number=self._number(begin), data=data)
        self._start = max(at, limit)

    def _pattern(self) -> Any:
        """Return the automaton of what is looked for now.

        That of the start is let go when health is first seen, because most logs never need it again and each takes
        megabytes; from its second use on both are kept.
        """
        if self.alert not in self._patterns:
            if not self.alert and self._at_start:
                self._patterns.clear()
                self._at_start = False
            literals = self._literals | self._frequent if self.alert else self._literals
            self._patterns[self.alert] = _automaton(literals)
        return self._patterns[self.alert]

    def _number(self, offset: int) -> int:
        if offset < self._counted:
            return self._line - self._buffer.count(b"\n", offset, self._counted)
        self._line += self._buffer.count(b"\n", self._counted, offset)
        self._counted = offset
        return self._line

    def _forget(self, limit: int) -> None:
        self._number(max(limit, self._counted))
        keep = max(0, min(limit, self._start) - CONTEXT)
        self._buffer = self._buffer[keep:]
        self._start -= keep
        self._counted -= keep


def _automaton(literals: Iterable[str]) -> Any:
    options = re2.Options()
    options.encoding = re2.Options.Encoding.LATIN1
    options.log_errors = False
    options.max_mem = AUTOMATON_MEMORY
    words = _shortest({literal.encode() for literal in literals})
    try:
        return re2.compile(b"|".join(_wrappable(word) for word in words) if words else _NOTHING, options)
    except re2.error:
        raise BadInput(
            f"the triage rules have {len(words)} texts to look for, more than fit into one search",
            next_step="leave out rules that your logs do not need, or --rules itself for the shipped ones",
        ) from None


def _shortest(words: set[bytes]) -> list[bytes]:
    """Return the words that hold no other one: a line with a longer word is found by the shorter one in it."""
    every = b"\n".join(words)
    inner = [word for word in words if every.count(word) > 1]
    return sorted(word for word in words if not any(other in word for other in inner if other != word))


@lru_cache(4096)
def _wrappable(word: bytes) -> bytes:
    return _BREAK.join(map(_escaped, word))


@cache
def _escaped(byte: int) -> bytes:
    escaped: bytes = re2.escape(bytes([byte]))
    return escaped


def _line_end(buffer: bytes, offset: int) -> int:
    end = buffer.find(b"\n", offset)
    return len(buffer) if end < 0 else end


def _unfold(buffer: bytes, begin: int, end: int) -> tuple[int, int]:
    """Widen [begin, end) to the whole of a line that was wrapped at a fixed width."""
    width = _wrap_width(buffer, begin, end)
    if width is None:
        return begin, end
    for _ in range(MAX_JOINED):
        before = buffer.rfind(b"\n", 0, max(0, begin - 1)) + 1
        if begin == 0 or begin - 1 - before != width or _STARTS_A_LINE.match(buffer, begin, end):
            break
        begin = before
    for _ in range(MAX_JOINED):
        last = buffer.rfind(b"\n", begin, end) + 1 or begin
        after = _line_end(buffer, end + 1)
        if end >= len(buffer) or end - last != width or _STARTS_A_LINE.match(buffer, end + 1, after):
            break
        end = after
    return begin, end


def _wrap_width(buffer: bytes, begin: int, end: int) -> int | None:
    """The width a log is wrapped at, seen from the lines around; None when no line is cut."""
    around = buffer[max(0, begin - CONTEXT // 2) : end].split(b"\n")[1:]
    widths = [len(line) for line in around]
    widest = max(widths, default=0)
    if not 60 <= widest <= 320:
        return None
    at_widest = widths.count(widest)
    return widest if at_widest >= 2 and at_widest * 8 >= len(widths) else None
