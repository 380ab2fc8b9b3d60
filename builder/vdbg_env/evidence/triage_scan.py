"""Read one log as it streams: find the few lines that are worth a look, and keep what they show.

All literals of all rules are one Aho-Corasick automaton: its speed depends neither on their number nor on the text, and
it takes a few megabytes. It is made once; what is found and not looked for at the time is passed over. It runs over
blocks from which the line breaks have been taken out, because a log may be wrapped hard at the width of a terminal, in
the middle of a literal; such a line is joined again before it is read.

Where a block ends is decided by the log alone, never by its chunks, so the answer cannot depend on them.
Signs that a run makes progress are frequent, so they are looked for only while the answer depends on them.
"""

from __future__ import annotations

import re
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from operator import attrgetter
from typing import NamedTuple

from ahocorasick_rs import BytesAhoCorasick, Implementation

from vdbg_env.common.patterns import QUOTED_SOURCE
from vdbg_env.evidence.finding import HowKnown
from vdbg_env.evidence.log_line import MAX_LINE, LogLine, decode, rank_of_file, rank_of_process, unwrap
from vdbg_env.evidence.triage_rules import Rule, RuleBook, which_of

BLOCK = 512 << 10  # a block ends with the first line that ends after so many bytes
MAX_BLOCK = 1 << 20  # or here, where no line does
AHEAD = 4 << 10  # bytes of the next block that may hold the rest of a wrapped line
STEADY = 4 << 20  # bytes of a log from which on a faster automaton earns its making (20 ms, 7 MB)
MAX_JOINED = 12
_LINES_AROUND = 48  # lines before one that show whether its log is wrapped
_WIDEST = 320  # a wrapped line
_ALIKE = 4  # bytes by which two lines begin alike
_CONTEXT = (_LINES_AROUND + 2) * (_WIDEST + 1)
HELD = 4  # blocks of the log in which the earlier lines of a process are looked for
_HEAD = 1 << 10  # bytes of a line that say who wrote it
_TIMED, _TIMED_LINES = 32 << 10, 200  # bytes and lines before one without a time that are looked at for one
_LABELS = 200  # bytes of a line that have its time
_MAY_HAVE_A_TIME = re.compile(rb"\d\d:\d\d:\d\d").search
_WRITERS = 1 << 14  # lines whose writers are remembered, because a hostile log has the same ones looked at again

_BEGINS_A_CHILDS_END = b"\nProcess "
_ENDED_CHILD = re.compile(rb"Process ([A-Za-z][\w.:/+-]{0,63}):(?=\n)")

_CRLF = re.compile(rb"\r\n")  # bytes.replace takes three times as long where few lines end so
_SURE_STARTS = b"([{|"  # a line that begins with one of these is not the rest of another
_STARTS_A_LINE = re.compile(
    rb"\s*(?:\x1b\[[0-9;]*m)*(?:[(\[{|]|\+[-=]|(?:DEBUG|INFO|WARNING|ERROR|CRITICAL|FATAL)[: ]|\d{4}-\d\d-\d\d|\d+: |"
    rb"=====|Traceback|File \"|[A-Za-z0-9][\w.-]{0,127} {1,40}\||"  # the last is Compose's
    rb"[A-Za-z_.]+(?:Error|Exception|Warning)\b|Failed: |\[|[A-Z][a-z]{2} [ \d]\d \d\d:)"
)


_DISMISSING = 2  # of a literal that is looked for, what else it is


class Candidate(NamedTuple):
    """A line that holds a literal: the 1-based number of its first physical line, and its bytes without breaks.

    `found` are all literals in these bytes, by their numbers, each with the places where it begins and ends; the line
    begins at `origin`.
    """

    number: int
    data: bytes
    found: Sequence[tuple[int, int, int]] = ()
    origin: int = 0


class LineScanner:
    """Takes the bytes of one log in chunks of any size and yields candidate lines, in order.

    `literals` are all that may be looked for, `frequent` those of lines that a healthy log is full of. These are looked
    for only while `alert` is set, the others while `watch` names them. A line in which one is after a `dismissing` text
    is none of the candidates. While `hold` is set, `before` can look back. The
    consumer may change all of them between two candidates.
    """

    def __init__(
        self, literals: Iterable[str], frequent: Iterable[str], dismissing: frozenset[str] = frozenset()
    ) -> None:
        self._frequent, self._dismissing, watched = frozenset(frequent), dismissing, frozenset(literals)
        self.texts = tuple(sorted(self._frequent | watched))
        self._alert = True
        self.hold = False
        self._automaton = _automaton(self.texts, fast=False)
        self._buffer = bytearray()
        self._context = b""  # the end of what is before the buffer
        self._line = 1  # number of the first line in the buffer
        self._tail = False  # the last block ended within a line
        self._scanned = 0
        self._sets: dict[tuple[frozenset[str], bool], list[int]] = {}
        self._opening: bytes | None = None  # how the log begins
        self._ended = (b"", 0)  # where a process was named last that is not that of the lines below
        self._block = b""  # what is scanned; where the line in it begins that was yielded last, and its number
        self._begin, self._number = 0, 1
        # Blocks before this one, each with its first line, and where it ends.
        self._past: deque[tuple[int, bytes, int]] = deque(maxlen=HELD)
        self._writer_of = lru_cache(_WRITERS)(lambda line: unwrap(decode(line)).writer)
        self.watch(watched)

    @property
    def lines(self) -> int:
        """How many lines were scanned; the last one counts without a line break too."""
        return self._line - (not self._tail)

    @property
    def alert(self) -> bool:
        """Whether frequent literals are looked for too."""
        return self._alert

    @alert.setter
    def alert(self, wanted: bool) -> None:
        if wanted is not self._alert:
            self._alert = wanted
            self.watch(self._watched)

    def watch(self, literals: frozenset[str]) -> None:
        """Change what is looked for."""
        self._watched = literals
        if (literals, self._alert) not in self._sets:  # what is looked for changes back and forth between a few sets
            often = self._frequent if self._alert else frozenset()
            self._sets[literals, self._alert] = [
                _DISMISSING if text in self._dismissing else text in literals or text in often for text in self.texts
            ]
        self._looked_for = self._sets[literals, self._alert]

    def before(self, writer: str | None, mark: bytes, count: int) -> int:
        """Return the line from which on a process wrote so many lines, up to the one before the candidate yielded last.

        `mark` is in all lines of the process, perhaps in others too. Where that is long ago, it is the first line that
        is still held.
        """
        count += self._begin < 0  # a wrapped line that began in the block before is met there itself
        after = first = self._line if self._begin < 0 else self._number  # the line at `end`
        for first, text, end in ((self._line, self._block, max(0, self._begin)), *reversed(self._past)):
            at = end
            while (at := text.rfind(mark, 0, at)) >= 0:
                at = text.rfind(b"\n", 0, at) + 1
                count -= self._writer_of(text[at : at + _HEAD].partition(b"\n")[0]) == writer
                if not count:
                    return after - _breaks(text, at, end)
            after = first
        return first

    def stamp_before(self, writer: str | None) -> str | None:
        """Return the time of the last line of a process that has one, of the few before the candidate yielded last.

        The lines of all processes count where it has no label.
        """
        here = max(0, self._begin)
        text = (self._context if here < _TIMED else b"") + self._block[max(0, here - _TIMED) : here]
        for line in reversed(text.split(b"\n")[-_TIMED_LINES:]):
            if (stamped := _stamped(line)) and writer in {None, stamped[1]}:
                return stamped[0]
        return None

    def quotes_source(self, line: bytes) -> bool:
        """Say whether the candidate yielded last is a line of source that a traceback of Python or pytest quotes."""
        if b"    " not in line and b"  raise " not in line:  # as in nearly all
            return False
        text, end = self._text_before()
        before = text[text.rfind(b"\n", 0, max(0, end - 1)) + 1 : max(0, end - 1)]
        return QUOTED_SOURCE.search(before[-4 * _HEAD :] + b"\n" + line[: 4 * _HEAD]) is not None

    def process_before(self) -> str | None:
        """Return the process that Python's multiprocessing names in a line before the candidate yielded last.

        It prints that line without any prefix, and the traceback below it; a line with a prefix is none of the two.
        """
        text, end = self._text_before()
        begin = text.rfind(_BEGINS_A_CHILDS_END, max(0, end - _TIMED), end) + 1
        if not begin or (self._ended[0] is text and self._ended[1] == begin):
            return None
        named = _ENDED_CHILD.match(text, begin)
        below = text[named.end() : end].split(b"\n") if named else []
        said = (unwrap(decode(line[:_HEAD])) for line in below)
        if named is None or len(below) > TRACEBACK or any(one.writer or one.level for one in said):
            self._ended = text, begin  # nor is what comes after it
            return None
        return named[1].decode()

    def _text_before(self) -> tuple[bytes, int]:
        """Return a text that has what is before the candidate yielded last, and where that ends in it."""
        return (self._block, self._begin) if self._begin > 0 else (self._context, len(self._context) + self._begin)

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

    def first_time(self) -> str | None:
        """Return the time of the first of the first lines that has one and is not the kernel's."""
        for line in (self._opening or b"").split(b"\n")[:_TIMED_LINES]:
            if not _OF_THE_KERNEL(line) and (stamped := _stamped(line)):
                return stamped[0]
        return None

    def last_lines(self) -> Iterator[tuple[int, bytes]]:
        """Yield the last lines that were scanned and are not blank, each with its number, from the end."""
        lines = self._context.split(b"\n")[:-1]
        for before, line in enumerate(reversed(lines[-_LINES_AROUND:])):
            if line and not line.isspace():
                yield self.lines - before, line[:_HEAD]

    def _block_end(self) -> int | None:
        """Return where the first block ends, None while more bytes are needed."""
        if len(self._buffer) < BLOCK + AHEAD:
            return None
        end = self._buffer.find(b"\n", BLOCK, MAX_BLOCK) + 1 or MAX_BLOCK
        return end if end + AHEAD <= len(self._buffer) else None

    def _scan(self, end: int) -> Iterator[Candidate]:
        self._scanned += end
        if self._scanned >= STEADY > self._scanned - end:
            self._automaton = _automaton(self.texts, fast=True)
        with memoryview(self._buffer) as buffer:  # each further copy of a block takes as long as a tenth of the search
            block = bytes(buffer[: end + AHEAD])
        del self._buffer[:end]
        if b"\r" in block:
            ahead = _CRLF.sub(b"\n", block[end:])
            if block[end - 1 : end + 1] == b"\r\n":  # a break that the block ends within is left as it is
                own = _CRLF.sub(b"\n", block[:end])
                block, end = own + ahead, len(own)
            else:
                block = _CRLF.sub(b"\n", block)
                end = len(block) - len(ahead)
        ahead, tail = block[end:], block[max(0, end - _CONTEXT) : end]
        whole = tail.endswith(b"\n")
        left = b"" if whole else ahead.partition(b"\n")[0]  # of the line that the block ends in
        joined = block.replace(b"\n", b"")
        length = len(joined) - len(ahead.replace(b"\n", b""))
        self._block = block
        if self._opening is None:
            self._opening = block[:_TIMED]
        yield from self._candidates(joined, length + len(left))
        if self.hold:
            self._past.append((self._line, block, end))
        else:
            self._past.clear()
        self._line, self._tail = self._line + end - length, not whole
        self._context = (self._context + tail)[-_CONTEXT:]
        if not whole:
            self._context += left + b"\n"

    def _candidates(self, joined: bytes, limit: int) -> Iterator[Candidate]:
        """Yield the candidates that begin before `limit` in the block without its line breaks."""
        before = len(self._context)
        text = self._context + self._block
        # Up to `taken` of what is joined, which is `at` of the text in line `number`, all has been yielded.
        taken, at, number = 0, before, self._line
        dismissed = -1
        matches = self._automaton.find_matches_as_indexes(joined, overlapping=True)
        for index, (literal, place, ended) in enumerate(matches):
            if place < taken or place >= limit or not (wanted := self._looked_for[literal]):
                continue
            if wanted == _DISMISSING:
                dismissed = place
                continue
            found = _passed(text, at, place - taken)
            begin = text.rfind(b"\n", 0, found) + 1
            number += found - at - (place - taken)
            if dismissed >= place - (found - begin):
                at = _line_end(text, found)
                taken = place + at - found
                continue
            end = _line_end(text, found)
            if end - found < ended - place:  # a line break is in the text that was found
                end = _line_end(text, _passed(text, found, ended - 1 - place))
            if text[begin] not in _SURE_STARTS or (end < len(text) and text[end + 1 : end + 2] not in _SURE_STARTS):
                begin, end = _unfold(text, begin, end)
            data = text[begin:end]
            after = breaks = 0
            if b"\n" in data:
                after, breaks = _breaks(text, found, end), _breaks(data, 0, len(data))
                data = data.replace(b"\n", b"")
            first = place - (found - begin) + breaks - after
            taken = first + len(data)
            if place - first > MAX_LINE - AHEAD:
                data = data[:AHEAD] + data[place - first - AHEAD // 2 :]
                inside, origin = self.literals_in(data), 0
            elif begin < before:
                inside, origin = self.literals_in(data), 0
            else:
                inside, origin = _inside(matches, index, first, taken), first
            at, number = end, number + after
            self._begin, self._number = begin - before, number - breaks
            yield Candidate(number - breaks, data, inside, origin)

    def literals_in(self, data: bytes) -> Sequence[tuple[int, int, int]]:
        """Return the literals in a line, by their numbers, each with the places where it begins and ends."""
        return self._automaton.find_matches_as_indexes(data, overlapping=True)


def _inside(matches: Sequence[tuple[int, int, int]], index: int, first: int, last: int) -> list[tuple[int, int, int]]:
    """Return the matches between two places, of which one is known, in the order of their ends."""
    low, high = index, index + 1
    while low and matches[low - 1][2] > first:
        low -= 1
    while high < len(matches) and matches[high][2] <= last:
        high += 1
    return [one for one in matches[low:high] if one[1] >= first]


def _passed(text: bytes, at: int, count: int) -> int:
    """Return the place in a text that so many characters other than line breaks are before, from a place on."""
    begin, end = at, at + count
    while breaks := _breaks(text, begin, end + 1):
        begin, end = end + 1, end + breaks
    return end


def _breaks(text: bytes, begin: int, end: int) -> int:
    """Return how many line breaks are between two places; bytes.count takes twice as long."""
    return end - begin - len(text[begin:end].replace(b"\n", b""))


@lru_cache(2)  # all logs of a run are searched by one
def _automaton(texts: tuple[str, ...], *, fast: bool) -> BytesAhoCorasick:
    kind = Implementation.DFA if fast else Implementation.ContiguousNFA
    return BytesAhoCorasick([text.encode() for text in texts], implementation=kind)


def _unfold(text: bytes, begin: int, end: int) -> tuple[int, int]:
    """Widen some lines of a text to the whole of a line that was wrapped at a fixed width."""
    before = text.rfind(b"\n", 0, begin - 1) + 1 if begin else 0
    own = text.rfind(b"\n", 0, end) + 1
    width = max(begin - 1 - before, end - own)  # that of the log, if it is wrapped here
    if not 60 <= width <= _WIDEST:
        return begin, end
    continues = begin - 1 - before == width and not _starts_a_line(text, begin)
    if not (continues or (end - own == width and not _starts_a_line(text, end + 1))):
        return begin, end
    if not _is_wrapped(text, own, end, width):
        return begin, end
    for _ in range(MAX_JOINED):
        if begin == 0:
            break
        before = text.rfind(b"\n", 0, begin - 1) + 1
        if begin - 1 - before != width or _starts_a_line(text, begin):
            break
        begin = before
    for _ in range(MAX_JOINED):
        if end == len(text) or end - own != width:
            break
        own = end + 1
        if _starts_a_line(text, own):
            break
        end = _line_end(text, own)
    return begin, end


def _line_end(text: bytes, at: int) -> int:
    end = text.find(b"\n", at)
    return len(text) if end < 0 else end


def _stamped(line: bytes) -> tuple[str, str | None] | None:
    """Return the time of a line and its writer; None where it has no time."""
    said = unwrap(decode(line[:_HEAD])) if _MAY_HAVE_A_TIME(line, 0, _LABELS) else None
    stamp = said and (said.container or said.stamp)
    return (stamp, said.writer) if said and stamp else None


def _starts_a_line(text: bytes, at: int) -> bool:
    return _STARTS_A_LINE.match(text, at, _line_end(text, at)) is not None


def _is_wrapped(text: bytes, begin: int, end: int, width: int) -> bool:
    """Return whether a log is cut at a width, as seen from the lines before the one given: none is longer.

    Where most lines of that width are followed by one that begins alike, it is the format that has the width.
    """
    lines = at_width = alike = 0
    head = b""
    while end - begin <= width:
        after, head = head, text[begin : begin + _ALIKE]
        at_width += end - begin == width
        alike += end - begin == width and head == after
        lines += 1
        if not begin or lines > _LINES_AROUND:
            return at_width >= 3 and at_width * 8 >= lines and alike * 2 <= at_width
        end = begin - 1
        begin = text.rfind(b"\n", 0, end) + 1
    return False


# What the lines found show, kept in memory that does not grow with the log.


MAX_TEXT = 600
_SOURCE = 400  # bytes of a line of source with its wrappings, at most
_LEAD = 60  # characters before the words that a rule was met by, in the excerpt of a longer line
MAX_PER_RULE = 64
MAX_LOOKS = 32  # for the time of a line that has none, in one log
_COMBINATIONS = 1 << 10  # of the literals in a line, and of the rules that it meets, that are remembered
MAX_SETTINGS = 32  # lines that say a flag or variable is not known
MAX_CORES = 8  # cores of GPUs that one log names
FIRST_CLUES, LAST_CLUES = 64, 192
DETAIL_LINES = 15
TRACEBACK = 250  # lines of a process around its death that hold the traceback
FIRST_DEATHS = 8  # of a log; the first one counts
IGNORED_LINES = 80  # of a traceback that Python prints of an error in a finalizer
TELLING = 13  # an exception of a lower precision only says that something else went wrong
REQUEST = 1  # precision of an exception that a server catches: a request failed, or its client went away
OTHERS = range(3, 6)  # precision of an exception that says that another process, or the user, ended something
QUOTING = range(6, 10)  # precision of an exception that quotes what another process raised

_OWN_RANK = re.compile(r"\[rank(\d{1,6})\]")  # of PyTorch, the rank among all; a launcher's may be that on its node
_VALIDATION = re.compile(r"\d+ validation errors? for \w+$")  # pydantic names the reason in the lines that follow
# A warning of Python's module of that name, and the words of a program that gets over an error.
_WEAK = which_of(
    r"^(?:\S+:\d+: |W\d{4} )?(?:[\w.]*Warning|WARNING|Warning|warning): |^\S+\.py:\d+: \w*Warning: |"
    r"\b(?:[Rr]etrying\b|[Rr]etry (?:in|after|attempt) |[Ww]ill (?:retry|try again|fall back)|[Ff]all(?:ing|s)? back\b|"
    r"\b(?:[Nn]o|[Ww]ithout(?: any)?) (?:[\w-]+ ){0,2}?(?:errors?|failures?|exceptions?|faults?)\b|"
    r"(?:errors?|failures?|[a-z]\w*[Ee]rrors?)[=:] ?0(?:[\s,;]|$)|"
    r"[Ii]gnor(?:ing|ed)\b|[Ss]kipp(?:ing|ed)\b|[Nn]on-fatal|[Cc]ontinuing (?:with|without|anyway))"
)
# A line of source code, as tracebacks and notebooks quote it, is not the message that it makes, nor is their header.
CODE = re.compile(
    r"^Traceback \(most recent call last\):$|"
    r"^\s*(?:-+> ?)?(?:\[?\d+\]?(?:\(\S+\))? +)?(?:raise \w|except \w|msg = |f?\"|warnings\.warn\()"
)

_OF_THE_KERNEL = re.compile(
    rb"(?:<\d{1,3}>)?\[[ \d]*\.\d+\]|\[[A-Z][a-z]{2} [A-Z][a-z]{2} [ \d]\d [\d: ]+\]|.{0,200}? kernel: "
).match

_EVIDENCE = {"root", "messenger", "stall", "exception"}
_COUNTED = {*_EVIDENCE, "cascade", "victim"}

_HEALTH = {"progress", "well"}


@dataclass(kw_only=True, slots=True)  # made for each line that a rule knows; a frozen one takes three times as long
class Sighting:
    """A line that meets a rule.

    `weak`: the line is a warning; `exiting`: an orderly shutdown had begun before it; `passing`: a run can continue
    after it; `cleared`: a good start shows that it was got over.

    `process` wrote the line, `writer` is the same for all lines of a process, `label` is that of a pod or container,
    `died` is the process whose death it reports, `since` the line from which on its writer may have said why.
    Where it has no `stamp`, `not_before` is that of the line before it that has one.
    `kernel_text` is the line that names `kernel`, which may be a later one. `fix` is its rule's, with the names that
    the line has.
    """

    rule: Rule
    file: str
    line: int
    text: str
    process: str | None = None
    writer: str | None = None
    label: str | None = None
    died: str | None = None
    since: int | None = None
    rank: int | None = None
    stamp: str | None = None
    not_before: str | None = None
    kernel: str | None = None
    kernel_text: str | None = None
    fix: str | None = None
    weak: bool = False
    exiting: bool = False
    passing: bool = False
    cleared: bool = False
    count: int = 1

    @property
    def failure(self) -> str:
        """The class its rule names; only rules that name one are kept as evidence of a failure."""
        return self.rule.failure or ""


@dataclass(frozen=True, kw_only=True)
class LogEvidence:
    """What one log showed: sightings in order, how many lines it has, whether it ended in order.

    `work` is the first line that shows that the run did its work, with its number; `survived`: how many failures the
    run continued after. `stopped` is the first line of the shutdown. `last` is the number of its last line that is not
    blank, `calm` that of the last one of level INFO, 0 where none of the last lines is. `rank` is that of its name.
    `began` is the first time that it has, but for lines of the kernel's log.

    `settings` is what the program prints about flags and variables it does not know, `release` is vLLM's, `cores`
    are the files into which GPU cores were written. `of_the_kernel`: its last lines are all of the kernel's log.
    `clues` are lines that no rule knows, and that have a word of an error: the first of them and the last.
    """

    file: str
    lines: int
    sightings: tuple[Sighting, ...] = ()
    cascades: tuple[Sighting, ...] = ()
    victims: tuple[Sighting, ...] = ()
    clues: tuple[Candidate, ...] = ()
    shut_down: bool = False
    stopped: Sighting | None = None
    last: int = 0
    calm: int = 0
    rank: int | None = None
    began: str | None = None
    work: tuple[int, str] | None = None
    survived: int = 0
    settings: tuple[str, ...] = ()
    release: str | None = None
    cores: tuple[str, ...] = ()
    of_the_kernel: bool = False
    notes: tuple[str, ...] = ()

    @property
    def worked(self) -> bool:
        """Whether it shows that the run did its work at some time."""
        return self.work is not None

    @property
    def writers(self) -> int:
        """How many processes wrote into it, by the prefixes of its lines."""
        return max(1, len({s.writer for s in (*self.sightings, *self.cascades) if s.writer}))


@dataclass
class LogClassifier:
    """Takes the bytes of one log in chunks; `finish` gives the evidence. `file` is the log's name as shown."""

    book: RuleBook
    file: str
    _scanner: LineScanner = field(init=False)
    # Of each literal, the places of its rules in the book; None where a line with it is no evidence.
    _places: list[tuple[int, ...] | None] = field(init=False)
    _texts: dict[str, tuple[str, ...]] = field(init=False)  # of each rule that is looked for whatever the state
    _rank: int | None = field(init=False)
    _said: set[int] = field(default_factory=set)  # the ranks that its lines begin with
    _kept: dict[int, Sighting] = field(default_factory=dict)  # by their identity, in order
    _survivable: dict[int, Sighting] = field(default_factory=dict)  # those of them that a later line may drop
    _cascades: list[Sighting] = field(default_factory=list)
    _dead: set[str | None] = field(default_factory=set)  # pods and containers in which a process died
    _passing: set[str | None] = field(default_factory=set)  # those of which something kept may yet be survived
    _last: dict[str | None, Sighting] = field(default_factory=dict)  # kept of each process
    _settled: bool = False  # something kept is an answer already, so clues are not needed
    _sets: dict[tuple[bool, frozenset[str]], frozenset[str]] = field(default_factory=dict)
    _unchanged: bool = False  # nothing was kept since the last good start
    _victims: list[Sighting] = field(default_factory=list)
    _counts: Counter[str] = field(default_factory=Counter)
    _stalls: dict[tuple[str, str | None], Sighting] = field(default_factory=dict)
    _first_clues: list[Candidate] = field(default_factory=list)
    _last_clues: deque[Candidate] = field(default_factory=lambda: deque(maxlen=LAST_CLUES))
    _closed: set[int] = field(default_factory=set)  # lines of roots that every later detail is too far from
    _placed: dict[str, str | None] = field(default_factory=dict)  # `not_before`, by class
    _looks: int = MAX_LOOKS
    _survived: int = 0
    _asked: dict[tuple[int, ...], tuple[int, ...]] = field(default_factory=dict)
    _together: dict[tuple[str, ...], _Together] = field(default_factory=dict)
    _ignored: dict[str | None, int] = field(default_factory=dict)
    _exiting: set[str | None] = field(default_factory=set)  # pods and containers that shut down in order
    _stopped: Sighting | None = None
    _work: tuple[int, str] | None = None
    _settings: dict[str, None] = field(default_factory=dict)
    _release: str | None = None
    _cores: dict[str, None] = field(default_factory=dict)

    def __post_init__(self) -> None:
        frequent = [literal for rule in self.book.scanned if rule.role in _HEALTH for literal in rule.literals]
        self._scanner = LineScanner(self.book.texts, frequent, self.book.dismissing)
        self._texts = {rule.id: rule.literals for rule in self.book.scanned if rule.role not in _HEALTH}
        self._scanner.watch(self._wanted())
        self._places = [
            None if text in self.book.dismissing else self.book.holders.get(text, ()) for text in self._scanner.texts
        ]
        self._rank = rank_of_file(self.file)

    def feed(self, chunk: bytes) -> None:
        """Take the next bytes of the log."""
        for candidate in self._scanner.feed(chunk):
            self._read(candidate)

    def finish(self) -> LogEvidence:
        """Take the end of the log and return what was seen."""
        for candidate in self._scanner.finish():
            self._read(candidate)
        if len(self._said) == 1 and self._rank is not None:  # what all lines say is truer than the name of the file
            named, self._rank = self._rank, next(iter(self._said))
            for sighting in (*self._kept.values(), *self._cascades, *self._victims):
                sighting.rank = self._rank if sighting.rank == named else sighting.rank
        stalled = [s for s in self._stalls.values() if s.count >= s.rule.repeats]
        last = list(self._scanner.last_lines())
        return LogEvidence(
            file=self.file,
            lines=self._scanner.lines,
            sightings=tuple(sorted([*self._kept.values(), *stalled], key=lambda s: s.line)),
            cascades=tuple(self._deaths()),
            victims=tuple(self._victims),
            clues=(*self._first_clues, *self._last_clues),
            shut_down=bool(self._exiting),
            stopped=self._stopped if self._exiting else None,
            last=last[0][0] if last else 0,
            calm=next((number for number, line in last if unwrap(decode(line)).level in {"INFO", "DEBUG"}), 0),
            rank=self._rank,
            began=self._scanner.first_time(),
            work=self._work,
            survived=self._survived,
            settings=tuple(self._settings),
            release=self._release,
            cores=tuple(self._cores),
            of_the_kernel=bool(last) and all(_OF_THE_KERNEL(line) for _, line in last),
        )

    def _wanted(self) -> frozenset[str]:
        """Return the literals worth looking for: not those of rules that have been met often enough."""
        often = frozenset(rule for rule, count in self._counts.items() if count >= MAX_PER_RULE)
        if (self._settled, often) not in self._sets:
            clues = () if self._settled else self.book.clue_literals
            texts = (texts for rule, texts in self._texts.items() if rule not in often)
            self._sets[self._settled, often] = frozenset(clues).union(*texts)
        return self._sets[self._settled, often]

    def _read(self, candidate: Candidate) -> None:
        known = [self._places[literal] for literal, _, _ in candidate.found]
        if None in known or _is_source(candidate.data):
            return
        met: list[tuple[Rule, Mapping[str, str]]] = []
        if any(known):
            line = unwrap(decode(candidate.data))
            body = line.body.encode()
            if candidate.data.endswith(body):
                found, begin = candidate.found, candidate.origin + len(candidate.data) - len(body)
            else:  # it was coloured, or in JSON
                found, begin = self._scanner.literals_in(body), 0
            met = self.book.confirmed(
                self._rules_of(tuple([one[0] for one in found if one[1] >= begin])), body, line.text
            )
            if line.level in {"INFO", "DEBUG"}:
                met = [(rule, groups) for rule, groups in met if rule.any_level]
            if met and (CODE.match(line.text) or self._scanner.quotes_source(candidate.data)):
                return
        key = tuple([rule.id for rule, _ in met])
        if (together := self._together.get(key)) is None:
            if len(self._together) >= _COMBINATIONS:
                self._together.clear()
            together = self._together[key] = _Together([rule for rule, _ in met])
        if together.is_vague and not self._settled:
            self._keep_clue(candidate)
        if not met:
            return
        if (taking := together.taking) is not None:
            if taking.takes_back:
                taken = [s for s in self._kept.values() if s.rule.id == taking.takes_back and s.writer == line.writer]
                self._drop(taken)
            else:
                self._dismiss(together.reach, candidate, line)
            return
        enough = False
        counts = self._counts
        for name in together.counted:
            counts[name] += 1
            enough = enough or counts[name] == MAX_PER_RULE
        for place in together.strongest:
            rule, groups = met[place]
            if rule.role not in _COUNTED or counts[rule.id] <= MAX_PER_RULE:
                self._note(rule, groups, candidate, line)
        if enough:
            self._scanner.watch(self._wanted())
        self._look_for_health()

    def _rules_of(self, literals: tuple[int, ...]) -> tuple[int, ...]:
        """Return the places of the rules that ask for one of some literals, in order."""
        if (places := self._asked.get(literals)) is None:
            if len(self._asked) >= _COMBINATIONS:
                self._asked.clear()
            places = tuple(sorted({place for literal in literals for place in self._places[literal] or ()}))
            self._asked[literals] = places
        return places

    def _look_for_health(self) -> None:
        stalled = bool(self._stalls) and not self._dead
        self._scanner.alert = not self._work or stalled or any(not _concerns(self._dead, s) for s in self._passing)
        self._scanner.hold = bool(self._kept or self._ignored)  # what a later line of its process may belong to

    def _settle(self, *, settled: bool) -> None:
        self._settled = settled
        self._scanner.watch(self._wanted())

    def _keep_clue(self, candidate: Candidate) -> None:
        if len(self._first_clues) < FIRST_CLUES:
            self._first_clues.append(candidate)
        else:
            self._last_clues.append(candidate)

    def _note(self, rule: Rule, groups: Mapping[str, str], candidate: Candidate, line: LogLine) -> None:
        self._release = groups.get("release", self._release)
        match rule.role:
            case "root" | "messenger" | "exception":
                self._keep(self._sighting(rule, groups, candidate, line), candidate, line)
            case "ignored":
                self._ignored[line.writer] = candidate.number
            case "stall" if not self._dead:  # what is dead, or waits for what is, generates no tokens either
                known = self._stalls.get((rule.id, line.label))
                self._stalls[rule.id, line.label] = (
                    replace(known, count=known.count + 1) if known else self._sighting(rule, groups, candidate, line)
                )
            case "cascade":
                death = self._sighting(rule, groups, candidate, line)
                if len(self._cascades) < FIRST_DEATHS:
                    first = next((s.line for s in self._kept.values() if s.writer == line.writer), candidate.number)
                    death = replace(death, since=self._since(TRACEBACK, first, candidate, line))
                self._cascades.append(death)
                if line.label not in self._dead or self._counts[rule.id] == 1:  # a rule may need another one
                    self._dead = {s.label for s in self._deaths()}
            case "victim":
                self._victims.append(self._sighting(rule, groups, candidate, line))
            case "shutdown":
                broken = (s for s in self._kept.values() if not s.weak and s.rule.role != "exception")
                if not any(_concerns({s.label}, line.label) for s in broken) and not _concerns(self._dead, line.label):
                    if not self._exiting:
                        self._stopped = self._sighting(rule, groups, candidate, line)
                    self._exiting.add(line.label)
            case "begin":
                self._exiting = {label for label in self._exiting if not _concerns({line.label}, label)}
            case "ready":
                self._work = self._work or (candidate.number, _excerpt(line.text, rule))
                if not self._unchanged:
                    self._forget(line.label, attrgetter("cleared"))
                self._unchanged = True
            case "progress" | "well":
                self._work = self._work or (candidate.number, _excerpt(line.text, rule))
                if not _concerns(self._dead, line.label) and (self._passing or self._stalls or self._first_clues):
                    self._forget(line.label, attrgetter("passing") if rule.role == "progress" else _of_another)
            case "detail":
                self._detail(self._sighting(rule, groups, candidate, line), candidate, line)
            case "setting" if "names" in groups and len(self._settings) < MAX_SETTINGS:
                self._settings[groups["names"]] = None
            case "core" if len(self._cores) < MAX_CORES:
                self._cores[groups["core"].strip()] = None
            case "setting" | "dismiss" | "stall" | "core":
                pass

    def _sighting(self, rule: Rule, groups: Mapping[str, str], candidate: Candidate, line: LogLine) -> Sighting:
        kernel = groups.get("kernel") or groups.get("new")
        text = _excerpt(line.text, rule)
        died = groups.get("process", rule.process)
        rank = int(groups["rank"]) if "rank" in groups else line.rank
        if "rank" not in groups and died and "Worker" in died:  # the line is of the engine that misses it
            rank = rank_of_process(died)
        if line.mark and (begun := _OWN_RANK.match(line.mark)):
            self._said.add(int(begun[1]))
        failure = self.book.classes[rule.failure] if rule.failure else None
        weak = not rule.any_level and not (failure and failure.lasting) and is_weak(line)
        survivable = rule.survivable
        if survivable is None:
            survivable = bool(failure and failure.survivable)
        return Sighting(
            rule=rule,
            file=self.file,
            line=candidate.number,
            text=text,
            process=line.process,
            writer=line.writer,
            label=line.label,
            died=died,
            rank=self._rank if rank is None else rank,
            stamp=line.container or line.stamp,
            kernel=kernel,
            kernel_text=text if kernel else None,
            fix=rule.fix.format_map(_Named(groups)) if rule.fix else None,
            weak=weak,
            exiting=_concerns(self._exiting, line.label),
            passing=weak or rule.role == "stall" or survivable,
            cleared=weak or bool(failure and failure.cleared_by_start),
        )

    def _since(self, count: int, earlier: int, candidate: Candidate, line: LogLine) -> int:
        """Return the line from which on its writer wrote so many lines before this one.

        The lines of others are told apart only where it matters: for an earlier line that is farther away.
        """
        mark = line.mark.encode()
        if earlier < candidate.number - count and mark and mark in candidate.data:
            return self._scanner.before(line.writer, mark, count)
        return candidate.number - count

    def _is_within(self, count: int, earlier: int, candidate: Candidate, line: LogLine) -> bool:
        return earlier >= self._since(count, earlier, candidate, line)

    def _keep(self, sighting: Sighting, candidate: Candidate, line: LogLine) -> None:
        """Keep a root; one that only says that the next line was raised gives way to that line."""
        ignored = self._ignored.pop(sighting.writer, None) if self._ignored else None
        if sighting.rule.role == "exception" and ignored and self._is_within(IGNORED_LINES, ignored, candidate, line):
            return
        if last := self._last.get(sighting.writer):
            of_request = self._work and last.rule.precision == REQUEST and _of_another(sighting)
            if of_request and self._is_within(TRACEBACK, last.line, candidate, line):
                return  # that request ended, not the server
            if _is_wrapper(last) and self._is_within(1, last.line, candidate, line):
                self._drop([last])
                if sighting.rule.role == "exception":
                    sighting = replace(last, line=sighting.line, text=sighting.text)
            elif _is_header(last, sighting) and self._is_within(2, last.line, candidate, line):
                self._drop([last])
        if not sighting.stamp:
            if sighting.failure not in self._placed and self._looks:  # a later one of its class is not before it
                self._looks -= 1
                self._placed[sighting.failure] = self._scanner.stamp_before(sighting.writer)
            sighting.not_before = self._placed.get(sighting.failure)
        if not sighting.process and not line.writer and not line.level:
            sighting.process = self._scanner.process_before()
        self._kept[id(sighting)] = sighting
        self._last[sighting.writer] = sighting
        if sighting.passing or sighting.cleared or _of_another(sighting):
            self._survivable[id(sighting)] = sighting
        if sighting.passing:
            self._passing.add(sighting.label)
        self._unchanged = False
        if not self._settled and _settles(sighting):
            self._settle(settled=True)

    def _deaths(self) -> list[Sighting]:
        """Return the lines that report a death, without those that need another line."""
        met = {s.rule.id for s in self._cascades}
        return [s for s in self._cascades if s.rule.needs is None or s.rule.needs in met]

    def _forget(self, label: str | None, passed: Callable[[Sighting], bool]) -> None:
        """Drop what a pod, or a run without any, has survived, and count it anew should it happen again."""
        self._stalls = {key: s for key, s in self._stalls.items() if not _concerns({label}, s.label)}
        self._first_clues.clear()
        self._last_clues.clear()
        self._unchanged = False
        gone = [s for s in self._survivable.values() if passed(s) and _concerns({label}, s.label)]
        if not gone:
            return
        self._survived += len(gone)
        self._drop(gone)
        saturated = [s.rule.id for s in gone if self._counts[s.rule.id] >= MAX_PER_RULE]
        for sighting in gone:
            self._counts[sighting.rule.id] = 0
        if saturated:
            self._scanner.watch(self._wanted())

    def _dismiss(self, reach: int, candidate: Candidate, line: LogLine) -> None:
        last = self._last.get(line.writer)
        if last is None:
            return
        first = self._since(reach, last.line, candidate, line) if reach else candidate.number
        self._drop([s for s in self._kept.values() if s.line >= first and s.writer == line.writer])

    def _drop(self, gone: Sequence[Sighting]) -> None:
        for sighting in gone:
            del self._kept[id(sighting)]
            self._survivable.pop(id(sighting), None)
        self._passing = {s.label for s in self._survivable.values() if s.passing}
        writers = {s.writer for s in gone if self._last.get(s.writer) is s}
        left = {s.writer: s for s in self._kept.values()} if len(writers) > 1 else None
        for writer in writers:
            last = (
                left.get(writer)
                if left is not None
                else next((s for s in reversed(self._kept.values()) if s.writer == writer), None)
            )
            if last:
                self._last[writer] = last
            else:
                self._last.pop(writer, None)
        if self._settled and not any(map(_settles, self._kept.values())):
            self._settle(settled=False)
        self._closed.difference_update(s.line for s in gone)
        for failure in {s.failure for s in gone}:
            self._placed.pop(failure, None)

    def _detail(self, sighting: Sighting, candidate: Candidate, line: LogLine) -> None:
        for root in reversed(self._kept.values()):
            if root.writer != sighting.writer or root.rule.how_known is HowKnown.LOG:
                continue
            named = root.kernel is not None or sighting.kernel is None
            if named or root.line in self._closed:
                return
            if self._is_within(DETAIL_LINES, root.line, candidate, line):
                root.kernel, root.kernel_text = sighting.kernel, sighting.text
            else:
                self._closed.add(root.line)
            return


def _settles(sighting: Sighting) -> bool:
    return not sighting.weak and sighting.rule.precision >= TELLING


class _Named(dict[str, str]):
    """The names that a line has; one that it has not is a placeholder to fill in."""

    def __missing__(self, name: str) -> str:
        return name.upper()


def _concerns(labels: set[str | None], label: str | None) -> bool:
    """Return whether what happened in some pods or containers concerns a line; one without a label may be of any."""
    return bool(labels) if label is None else not labels.isdisjoint((None, label))


def _excerpt(text: str, rule: Rule) -> str:
    """Return what is shown of a line: its beginning, of a long one the part that the rule was met by."""
    if len(text) <= MAX_TEXT or (place := rule.place_in(text)) < MAX_TEXT // 2:
        return text[:MAX_TEXT]
    return "…" + text[place - _LEAD : place - _LEAD + MAX_TEXT - 1]


def _of_another(sighting: Sighting) -> bool:
    """Return whether a line only says that something else ended, which a run that then ends well got over."""
    return sighting.rule.role == "exception" and sighting.rule.precision in OTHERS


def is_weak(line: LogLine) -> bool:
    """Return whether a line is a warning, or speaks of an error that its program got over."""
    if line.level in {"ERROR", "CRITICAL", "FATAL"}:
        return False
    return line.level == "WARNING" or _WEAK(line.text.encode()) is not None


def _is_source(line: bytes) -> bool:
    """Return whether a line, with its wrappings, is one of a traceback that is no evidence.

    A whole traceback in one line, as loggers write in JSON, has breaks that are escaped.
    """
    return (
        (b"  raise " in line or b"frame #0: c10::Error::Error(" in line or b"Exception raised from " in line)
        and len(line) <= _SOURCE
        and b"\\" not in line
    )


def _is_wrapper(sighting: Sighting) -> bool:
    return sighting.rule.role == "root" and sighting.text.endswith("raised:")


def _is_header(before: Sighting, sighting: Sighting) -> bool:
    """Return whether a line only says that the next ones have the reason."""
    precise = before.rule.precision <= sighting.rule.precision
    return before.rule.role == "exception" and precise and _VALIDATION.search(before.text) is not None


class _Together:
    """What some rules say of a line that meets all of them.

    `is_vague`: the line is a clue as well; `taking` is the rule that takes earlier lines back or dismisses some, which
    ends what the line says. `strongest` are the places of the rules that count.
    """

    def __init__(self, rules: Sequence[Rule]) -> None:
        self.is_vague = all(rule.precision < TELLING and rule.role == "exception" for rule in rules)
        self.taking = next((rule for rule in rules if rule.takes_back or rule.role == "dismiss"), None)
        self.reach = max((rule.reach for rule in rules if rule.role == "dismiss"), default=0)
        self.counted = tuple(rule.id for rule in rules if rule.role in _COUNTED)
        self.strongest = (0,) if len(rules) == 1 else tuple(_strongest(rules))


def _strongest(met: Sequence[Rule]) -> Iterator[int]:
    """Yield the places of the rules that count for a line: it is not the root of a failure that it passes on, a known
    failure is not an ordinary exception as well.
    """
    passed_on = {rule.failure for rule in met if rule.role == "messenger"}
    named = any(rule.role in {"root", "messenger", "stall", "victim"} for rule in met)
    named = named or any(rule.role == "cascade" and rule.failure for rule in met)
    passing_on = any(rule.role == "cascade" for rule in met)
    exceptions = [rule for rule in met if rule.role == "exception" and (rule.precision in QUOTING or not passing_on)]
    best = exceptions[-1] if exceptions else None
    for place, rule in enumerate(met):
        if rule.role == "root" and rule.failure in passed_on:
            continue
        if rule.role == "exception" and (named or rule is not best):
            continue
        yield place
