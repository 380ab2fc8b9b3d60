"""Search lines for the patterns of a step, never for longer than the step may wait.

Python's `re` backtracks: three `.*` in a pattern need hours for a line of 7 KB. But while it backtracks it lets signals
in, after every 4096 instructions of one attempt at a match. So an interval timer runs while lines are searched, and its
handler raises out of a search that lasts too long.
"""

from __future__ import annotations

import re
import signal
import time
from collections.abc import Callable, Iterator
from itertools import groupby
from types import FrameType, TracebackType
from typing import Any, NamedTuple, TypeVar

from vdbg_env.record.redaction.needle_index import NeedleIndex
from vdbg_env.supervisor.job import MatcherSpec

MATCHES_KEPT = 200  # of one matcher that takes all
TEXT_KEPT = 2000  # bytes of a matched line
TICK_S = 0.25  # a search is ended at the second tick that it sees
_WORKED_S = 0.9 * TICK_S  # the processor time between two ticks, where no other program has some of it
GIVEN_UP_AFTER = 3  # lines on which a pattern took too long
# `re` counts its instructions anew for each place at which a match could begin. In a line this short all places
# together take half a second at most between two looks for signals; a longer one is searched as one attempt.
SHORT = 512

_COLOURS = re.compile(rb"\x1b\[[0-9;]*m")
_FLAGS = re.compile(rb"^\(\?[aiLmsux]+\)")


T = TypeVar("T")


class TooSlow(Exception):
    """Raised out of a search that lasts too long."""


class SearchTimer:
    """Raises TooSlow out of searches that work for longer than a tick; to be entered in the main thread.

    Processor time counts: on a busy machine a search waits for longer than it works, and what it looks at is not lost.
    `hurry` returns whether the step is to end now: what takes long is then not searched any further.
    """

    def __init__(self, hurry: Callable[[], bool] = lambda: False) -> None:
        self.hurry = hurry
        self._searches = 0
        self._searching = False
        self._at_last_tick = 0
        self._used = 0.0  # seconds of processor time when the running search was first seen
        self._before: Any = None

    def __enter__(self) -> None:
        self._before = signal.signal(signal.SIGALRM, self._tick)
        signal.setitimer(signal.ITIMER_REAL, TICK_S, TICK_S)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, self._before)

    def search(self, search: Callable[[bytes], T], line: bytes) -> T:
        """Return what `search` makes from `line`; raises TooSlow."""
        try:
            self._searches += 1
            self._searching = True
            return search(line)
        finally:
            self._searching = False

    def _tick(self, _number: int, _frame: FrameType | None) -> None:
        used = time.process_time()
        if not self._searching or self._searches != self._at_last_tick:
            self._at_last_tick, self._used = self._searches, used
        elif used - self._used >= _WORKED_S:
            raise TooSlow


class LineMatch(NamedTuple):
    """One match: `offset` in bytes of the redacted stream, `line` 1-based."""

    matcher: str
    stream: str
    line: int
    offset: int
    text: str
    groups: dict[str, str]


class LineMatcher:
    """Looks for one pattern in single lines; keeps the first, the last, or all matches up to a limit."""

    def __init__(self, spec: MatcherSpec) -> None:
        self.spec = spec
        self.count = 0
        self.kept: list[LineMatch] = []
        self.slow = 0
        pattern = re.compile(spec.pattern.encode())
        self._search = pattern.search
        self._search_long = _as_one_attempt(pattern).match

    @property
    def done(self) -> bool:
        """Whether no further line needs to be searched."""
        return self.slow >= GIVEN_UP_AFTER or (self.spec.take == "first" and self.count > 0)

    def look(self, line: bytes, stream: str, number: int, offset: int, timer: SearchTimer) -> bool:
        """Search one line, the `number`-th of its stream, and return whether it matched; raises TooSlow."""
        if b"\x1b" in line:
            line = _COLOURS.sub(b"", line)  # a pattern's anchors and a finding's words mean the text
        found = timer.search(self._search if len(line) <= SHORT else self._search_long, line)
        if not found:
            return False
        self.count += 1
        groups = {k: _text(v) for k, v in found.groupdict().items() if v is not None}
        entry = LineMatch(self.spec.name, stream, number, offset, _text(line[:TEXT_KEPT]), groups)
        if self.spec.take == "last":
            self.kept = [entry]
        elif len(self.kept) < MATCHES_KEPT:
            self.kept.append(entry)
        return True


class Matchers:
    """All patterns of one source: a line is searched only for those of which it has a required literal."""

    def __init__(self, matchers: list[LineMatcher], timer: SearchTimer) -> None:
        words = [(needle.encode(), m) for m in matchers for needle in m.spec.needles]
        self.all = matchers
        self._always = [m for m in matchers if not m.spec.needles]
        self._owners = [owner for _, owner in words]
        self._index = NeedleIndex([word for word, _ in words])
        self._timer = timer
        self._stopped = False

    def look(self, block: bytes, stream: str, lines_before: int, offset: int) -> list[LineMatcher]:
        """Search a block of lines that begins at `offset` of its stream, and return the matchers that matched."""
        if self._stopped or not self.all:
            return []
        with self._timer:
            return list(self._matched(block, stream, lines_before, offset))

    def notes(self) -> list[str]:
        """Return what was not searched."""
        given_up = [
            f"matcher {m.spec.name}: its pattern took too long on {m.slow} lines"
            + ("; it was not looked for afterwards" if m.slow >= GIVEN_UP_AFTER else ", which it may match")
            for m in self.all
            if m.slow
        ]
        return [*given_up, *["the last output was not searched: the step had to end"] * self._stopped]

    def _matched(self, block: bytes, stream: str, lines_before: int, offset: int) -> Iterator[LineMatcher]:
        counted_to, line_number = 0, lines_before + 1
        for start, candidates in self._candidates(block):
            line_number += block.count(b"\n", counted_to, start)
            counted_to = start
            end = block.find(b"\n", start)
            line = block[start : end if end >= 0 else len(block)].rstrip(b"\r")
            for one in candidates:
                try:
                    if not one.done and one.look(line, stream, line_number, offset + start, self._timer):
                        yield one
                except TooSlow:
                    one.slow += 1
                    self._stopped = self._timer.hurry()
                    if self._stopped:
                        return

    def _candidates(self, block: bytes) -> Iterator[tuple[int, list[LineMatcher]]]:
        """Yield the start of each line worth a search, in order, with the matchers to search it for."""
        words = ((at, self._owners[number]) for at, number in self._index.hits(block)) if self._owners else iter(())
        if any(not m.done for m in self._always):
            yield from self._every_line(block, words)
            return
        for start, group in groupby(words, key=lambda hit: block.rfind(b"\n", 0, hit[0]) + 1):
            yield start, list(dict.fromkeys(owner for _, owner in group))

    def _every_line(
        self, block: bytes, words: Iterator[tuple[int, LineMatcher]]
    ) -> Iterator[tuple[int, list[LineMatcher]]]:
        by_line: dict[int, list[LineMatcher]] = {}
        for at, owner in words:
            by_line.setdefault(block.rfind(b"\n", 0, at) + 1, []).append(owner)
        start = 0
        while 0 <= start < len(block):
            yield start, list(dict.fromkeys([*self._always, *by_line.get(start, ())]))
            start = block.find(b"\n", start) + 1 or -1


def _as_one_attempt(pattern: re.Pattern[bytes]) -> re.Pattern[bytes]:
    """Return a pattern whose `match` finds what the other's `search` does, within one attempt."""
    # The line break ends a comment of a verbose pattern.
    end = b"\n)" if pattern.flags & re.VERBOSE else b")"
    return re.compile(b"(?s:.)*?(?:" + _FLAGS.sub(b"", pattern.pattern) + end, pattern.flags)


def _text(data: bytes) -> str:
    return data.decode("utf-8", "replace")
