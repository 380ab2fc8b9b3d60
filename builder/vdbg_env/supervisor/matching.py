"""Search lines for the patterns of a step, never for longer than the step may wait.

With RE2 a block of output is searched as a whole, for all patterns at once. Without it each line is searched by `re`,
which backtracks: three `.*` in a pattern need hours for a line of 7 KB. But while it backtracks it lets signals in,
after every 4096 instructions of one attempt at a match. So an interval timer runs meanwhile, and its handler raises out
of a search that lasts too long.
"""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from itertools import accumulate
from types import FrameType, TracebackType
from typing import Any, NamedTuple, TypeVar

from vdbg_env.common import patterns
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
_RETURNS = re.compile(rb"\r+(?=\n|\Z)")
_FLAGS = re.compile(rb"^\(\?[aiLmsux]+\)")


T = TypeVar("T")
_Groups = Mapping[Any, bytes | None]  # by names, which RE2 gives as bytes


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


class Block:
    """Lines of a stream, the first of which begins at `offset` and is the `number`-th.

    `plain` is without colours and carriage returns: a pattern's anchors and a finding's words mean the text.
    """

    def __init__(self, data: bytes, stream: str, number: int, offset: int) -> None:
        self.stream = stream
        self.number = number
        self.plain = _COLOURS.sub(b"", data) if b"\x1b" in data else data
        if b"\r" in self.plain:
            self.plain = _RETURNS.sub(b"", self.plain)
        self._data = data
        self._offset = offset
        self._lines: list[bytes] | None = None
        self._starts: list[int] | None = None

    @property
    def lines(self) -> list[bytes]:
        """The lines of `plain`."""
        if self._lines is None:
            self._lines = self.plain.split(b"\n")
        return self._lines

    def offset_of(self, line: int) -> int:
        """Return where a line begins in the stream."""
        if self._starts is None:
            lengths = (len(text) + 1 for text in self._data.split(b"\n"))
            self._starts = list(accumulate(lengths, initial=self._offset))
        return self._starts[line]


class LineMatcher:
    """Looks for one pattern in lines; keeps the first, the last, or all matches up to a limit."""

    def __init__(self, spec: MatcherSpec) -> None:
        self.spec = spec
        self.count = 0
        self.kept: list[LineMatch] = []
        self.slow = 0
        self.linear = patterns.of_lines(spec.pattern.encode())
        if self.linear is None:
            pattern = re.compile(spec.pattern.encode())
            self._search = pattern.search
            self._search_long = _as_one_attempt(pattern).match

    @property
    def done(self) -> bool:
        """Whether no further line needs to be searched."""
        return self.slow >= GIVEN_UP_AFTER or (self.spec.take == "first" and self.count > 0)

    def look(self, block: Block, timer: SearchTimer) -> bool:
        """Search a block, and return whether a line of it matched; raises TooSlow where the step is to end."""
        before = self.count
        for line, groups in self._by_re2(block.plain) if self.linear else self._by_re(block.lines, timer):
            self._take(block, line, groups)
            if self.done:
                break
        return self.count > before

    def _by_re2(self, text: bytes) -> Iterator[tuple[int, _Groups]]:
        """Yield each line that matches, and the groups of its first match."""
        at = line = counted = 0
        while found := self.linear.search(text, at):
            start = found.start()
            line += text.count(b"\n", counted, start)
            counted = start
            yield line, found.groupdict()
            at = text.find(b"\n", start) + 1
            if at == 0:
                return

    def _by_re(self, lines: list[bytes], timer: SearchTimer) -> Iterator[tuple[int, _Groups]]:
        for number, line in enumerate(lines):
            try:
                found = timer.search(self._search if len(line) <= SHORT else self._search_long, line)
            except TooSlow:
                self.slow += 1
                if timer.hurry():
                    raise
                if self.done:
                    return
                continue
            if found:
                yield number, found.groupdict()

    def _take(self, block: Block, line: int, groups: _Groups) -> None:
        self.count += 1
        if self.spec.take != "last" and len(self.kept) >= MATCHES_KEPT:
            return
        texts = {os.fsdecode(name): _text(value) for name, value in groups.items() if value is not None}
        text = _text(block.lines[line][:TEXT_KEPT])
        if self.spec.take == "last":
            self.kept.clear()
        self.kept.append(
            LineMatch(self.spec.name, block.stream, block.number + line, block.offset_of(line), text, texts)
        )


class Matchers:
    """All patterns of one source."""

    def __init__(self, matchers: list[LineMatcher], timer: SearchTimer) -> None:
        self.all = matchers
        self._timer = timer
        self._stopped = False
        self._open: list[LineMatcher] = []
        self._any: Any = None  # one pattern of all that are open, for RE2

    def look(self, data: bytes, stream: str, lines_before: int, offset: int) -> list[LineMatcher]:
        """Search a block of lines that begins at `offset` of its stream, and return the matchers that matched."""
        still_open = [one for one in self.all if not one.done]
        if self._stopped or not still_open:
            return []
        block = Block(data, stream, lines_before + 1, offset)
        matched = [one for one in self._linear(still_open, block.plain) if one.look(block, self._timer)]
        slow = [one for one in still_open if one.linear is None]
        if slow:
            counts = [one.count for one in slow]
            with self._timer:
                try:
                    for one in slow:
                        one.look(block, self._timer)
                except TooSlow:
                    self._stopped = True
            matched += [one for one, count in zip(slow, counts, strict=True) if one.count > count]
        return matched

    def _linear(self, still_open: list[LineMatcher], text: bytes) -> list[LineMatcher]:
        """Return those to search for with RE2: none where the text has no match of any."""
        linear = [one for one in still_open if one.linear]
        if linear != self._open:
            self._open = linear
            self._any = patterns.any_of_lines(one.spec.pattern.encode() for one in linear)
        return linear if linear and self._any.search(text) else []

    def notes(self) -> list[str]:
        """Return what was not searched."""
        given_up = [
            f"matcher {m.spec.name}: its pattern took too long on {m.slow} lines"
            + ("; it was not looked for afterwards" if m.slow >= GIVEN_UP_AFTER else ", which it may match")
            for m in self.all
            if m.slow
        ]
        return [*given_up, *["the last output was not searched: the step had to end"] * self._stopped]


def _as_one_attempt(pattern: re.Pattern[bytes]) -> re.Pattern[bytes]:
    """Return a pattern whose `match` finds what the other's `search` does, within one attempt."""
    return re.compile(b"(?s:.)*?(?:" + _FLAGS.sub(b"", pattern.pattern) + b")", pattern.flags)


def _text(data: bytes) -> str:
    return data.decode("utf-8", "replace")
