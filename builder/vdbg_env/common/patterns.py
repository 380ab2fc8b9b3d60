r"""Regular expressions over output: which ones a runbook may use, and the engine that searches for them and for words.

RE2 searches in time linear in the output. A supervisor in a container of another Python than the host's has no RE2, and
searches with `re`, which backtracks: it must watch the time. So a pattern is legal when both compile it and mean the
same by it; one difference stays, as RE2's `\s` is no vertical tab.
"""

from __future__ import annotations

import os
import re
import signal
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import accumulate
from types import FrameType, TracebackType
from typing import Any, NamedTuple, TypeVar

try:
    import re2
except ImportError:  # a package of compiled code, for one version of Python
    re2 = None

__all__ = ["BadPattern", "any_of_lines", "any_word", "check", "of_lines", "re2"]

MAX_LENGTH = 2000  # characters
_MEMORY = 64 << 20  # bytes of one compiled pattern; RE2 grows them as it needs, and is slower without
_LINES = b"(?m)"
_END = -1  # of a word, in a tree of words

_INSTEAD = {  # what RE2 calls by its first characters -> what it is, and what to write
    "(?=": "look-ahead cannot be matched in linear time: match the text that follows too",
    "(?!": "look-ahead cannot be matched in linear time: use a second matcher and a condition",
    "(?<": "look-behind cannot be matched in linear time: match the text before too",
    "(?P": "a back-reference cannot be matched in linear time: compare two groups in a condition",
    "(?>": "an atomic group cannot be matched in linear time: use a plain group '(?:'",
    "(?(": "a conditional group cannot be matched in linear time: use two matchers",
    "(?#": "a comment inside a pattern is not supported: use a comment of YAML",
    r"\Z": "the end of a line is written '$'",
}
_DIFFERENT = {  # what both compile, each with another meaning
    r"\\A": "the start of a line is written '^'",
    r"\(\?[a-zA-Z]*-[a-zA-Z]*m": "'^' and '$' always mean a line: leave out '-m'",
    r"\{,\d*\}": "a repeat without a lower limit is written '{0,5}'",
    r"\[:\^?\w+:\]": r"a named class, such as '[:digit:]', is not supported: write '\d', or the characters",
}


class BadPattern(Exception):
    """A pattern that is refused; `offset` counts characters from its start."""

    def __init__(self, what: str, *, offset: int = 0) -> None:
        super().__init__(what)
        self.what = what
        self.offset = offset


def check(pattern: str) -> None:
    """Refuse a pattern that one of the two engines does not take, or that says nothing; raises BadPattern."""
    if len(pattern) > MAX_LENGTH:
        raise BadPattern(f"a pattern of {len(pattern)} characters; at most {MAX_LENGTH} are read")
    try:
        with warnings.catch_warnings(action="ignore"):  # of what is refused below
            compiled = re.compile(pattern.encode())
    except re.error as error:
        raise BadPattern(f"not a regular expression: {error.msg}", offset=error.pos or 0) from None
    except (RecursionError, OverflowError):
        raise BadPattern("not a regular expression: nested too deeply") from None
    try:
        _linear(pattern.encode())
    except re2.error as error:
        message = str(error.args[0], "utf-8", "replace")
        fragment = message.rpartition(": ")[2]
        reference = re.fullmatch(r"\\\d", fragment)
        what = (
            _INSTEAD["(?P" if reference else fragment[:3]]
            if reference or fragment[:3] in _INSTEAD
            else (f"RE2, which matches in linear time, does not take it: {message}")
        )
        raise BadPattern(what, offset=max(0, pattern.find(fragment))) from None
    for different, instead in _DIFFERENT.items():
        if found := re.search(rf"(?<!\\)(?:\\\\)*({different})", pattern):
            raise BadPattern(instead, offset=found.start(1))
    if compiled.match(b""):
        raise BadPattern("matches the empty text, so every line: say what must be there")


def of_lines(pattern: bytes) -> Any:
    """Compile a pattern for RE2, to be searched for in a text of many lines: no match crosses their ends.

    None where RE2 is missing or refuses it: a run of an earlier release may have patterns that are not legal now.
    """
    try:
        return re2 and _linear(_LINES + pattern)
    except re2.error:
        return None


def any_of_lines(patterns: Iterable[bytes]) -> Any:
    """Compile patterns as one, which finds where any of them matches, for RE2."""
    return _linear(_LINES + b"|".join(b"(?:%s)" % pattern for pattern in patterns), never_capture=True)


def any_word(words: Iterable[bytes]) -> Any:
    """Compile words of small letters as one pattern, which finds the longest of them at each place.

    RE2 finds them in any case. `re` is four times as fast where it does not: it is given text of small letters.
    """
    tree: dict[int, Any] = {}
    for word in words:
        node = tree
        for byte in word:
            node = node.setdefault(byte, {})
        node[_END] = {}
    pattern = _from_tree(tree) or b"[^\\x00-\\xff]"  # of no words: matches nowhere
    return _linear(pattern, case_sensitive=False) if re2 else re.compile(pattern)


def _from_tree(node: dict[int, Any]) -> bytes:
    """Return a pattern of the words below a node: `re` then tries at each byte only those that may follow."""
    rests: dict[bytes, list[int]] = {}
    for byte, below in node.items():
        if byte != _END:
            rests.setdefault(_from_tree(below), []).append(byte)
    branches = []
    for rest, firsts in rests.items():
        escaped = b"".join(re.escape(bytes([byte])) for byte in firsts)
        branches.append((escaped if len(firsts) == 1 else b"[" + escaped + b"]") + rest)
    if not branches:
        return b""
    whole = branches[0] if len(branches) == 1 and _END not in node else b"(?:" + b"|".join(branches) + b")"
    return whole + b"?" if _END in node else whole


def _linear(pattern: bytes, **options: bool) -> Any:
    chosen = re2.Options()
    chosen.encoding = re2.Options.Encoding.LATIN1  # bytes as they are: output may be no UTF-8
    chosen.log_errors = False
    chosen.never_nl = True
    chosen.max_mem = _MEMORY
    for name, value in options.items():
        setattr(chosen, name, value)
    return re2.compile(pattern, chosen)


# Search lines for the patterns of a step, never for longer than the step may wait.
#
# With RE2 a block of output is searched as a whole, for all patterns at once. Without it each line is searched by `re`,
# which backtracks: three `.*` in a pattern need hours for a line of 7 KB. But while it backtracks it lets signals in,
# after every 4096 instructions of one attempt at a match. So an interval timer runs meanwhile, and its handler raises
# out of a search that lasts too long.


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
_FRAME = 4 << 10  # bytes of a line of a traceback
_FLAGS = re.compile(rb"^\(\?[aiLmsux]+\)")


# Two lines of which the second is source that a traceback of Python or pytest quotes: the message is in another one.
QUOTED_SOURCE = re.compile(
    rb"\n(?:[^\n]{0,400}?[\])>E|])? {2,}raise \w|\n(?:[^\n]{0,400}?[\])] )?> {4,}\S|"
    rb'  File "[^"\n]{1,4096}", line \d[^\n]*\n(?:[^\n]{0,400}?[\])>E|])? {4,}[^\s|]'
)


class MatcherSpec(NamedTuple):
    """A named pattern to search lines of output for."""

    name: str
    pattern: str
    source: str = "output"
    take: str = "first"
    stop: bool = False
    decisive: bool = False  # what the step is about: a server that lives on is ended after its grace


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
        self._quotes = False  # the first match is a line of source
        self.linear = of_lines(spec.pattern.encode())
        if self.linear is None:
            pattern = re.compile(spec.pattern.encode())
            self._search = pattern.search
            self._search_long = _as_one_attempt(pattern).match

    @property
    def done(self) -> bool:
        """Whether no further line needs to be searched."""
        return self.slow >= GIVEN_UP_AFTER or (self.spec.take == "first" and self.count > 0 and not self._quotes)

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
        if self.spec.take == "first":  # of source that quotes the message and the message itself, the latter
            before = block.lines[line - 1][-_FRAME:] if line else b""
            quotes = QUOTED_SOURCE.search(before + b"\n" + block.lines[line][:_FRAME]) is not None
            if self._quotes and quotes:
                return
            self._quotes = quotes
            self.kept.clear()
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
            self._any = any_of_lines(one.spec.pattern.encode() for one in linear)
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
