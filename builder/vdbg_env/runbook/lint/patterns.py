"""Refuse patterns that can take time out of all proportion, before they meet gigabytes of output.

The supervisor has the standard library only, whose `re` does the matching and backtracks. A pattern
is accepted when RE2, which matches in linear time, compiles it too (no back-references, no look-around), when nothing
in it can match one text in two ways inside a repeated group (such patterns take exponential time), and when outside
of groups at most one repeat may run over what follows it. The worst that remains grows with the square of a line.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache, reduce
from operator import or_

import re2

from vdbg_env.evidence.triage.document import compile_pattern

MAX_LENGTH = 2000
# A repeat that may run over what follows it is tried at every length. Without a limit that multiplies the time by the
# length of a line, and so does a long repeat after it that is scanned anew each time. By that degree, the number of
# tries that repeats with a limit may take.
MAX_TRIES = {0: 1000, 1: 100}
_SHORT = 4  # what a repeat with a limit up to this scans is not counted

_TOKEN = re.compile(
    r"(?P<escape>\\(?:x[0-9a-fA-F]{2}|.))|(?P<set>\[\^?\]?(?:\\.|[^\]\\])*\])"
    r"|(?P<open>\((?:\?(?:P?<\w+>|[a-zA-Z-]*:|(?P<flags>[a-zA-Z-]+)(?=\))))?)|(?P<close>\))|(?P<or>\|)"
    r"|(?P<repeat>[*+?]\??|\{(?P<least>\d*)(?P<comma>,?)(?P<most>\d*)\}\??)|(?P<one>.)",
    re.DOTALL,
)
_PLACES = {"^", "$", r"\A", r"\b", r"\B"}  # match between characters
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


_NESTED = "a repeat inside a repeated group can match the same text in too many ways: say what ends it"
_ALIKE = "a repeated choice whose branches begin alike can match in too many ways: pull out what they share"
_OPEN = (
    "several repeats may run over what follows them: say what ends one, such as '[^:]*:', or use two matchers and "
    "'has(matched.a) && has(matched.b)'"
)


class BadPattern(Exception):
    """A pattern that is refused; `offset` counts characters from its start."""

    def __init__(self, what: str, *, offset: int = 0) -> None:
        super().__init__(what)
        self.what = what
        self.offset = offset


def check(pattern: str) -> None:
    """Refuse a pattern that does not compile or may take too long; raises BadPattern."""
    if len(pattern) > MAX_LENGTH:
        raise BadPattern(f"a pattern of {len(pattern)} characters; at most {MAX_LENGTH} are read")
    try:
        compiled = re.compile(pattern.encode())
    except re.error as error:
        raise BadPattern(f"not a regular expression: {error.msg}", offset=error.pos or 0) from None
    except (RecursionError, OverflowError):
        raise BadPattern("not a regular expression: nested too deeply") from None
    _check_linear(pattern)
    if compiled.match(b""):
        raise BadPattern("matches the empty text, so every line: say what must be there")
    _cost_of_group(_parse(pattern), _After(), None)


def _check_linear(pattern: str) -> None:
    try:
        compile_pattern(pattern)
    except re2.error as error:
        message = str(error.args[0], "utf-8", "replace")
        fragment = message.rpartition(": ")[2]
        if re.fullmatch(r"\\\d", fragment):
            what = "a back-reference cannot be matched in linear time: compare two groups in a condition"
        else:
            what = _INSTEAD.get(fragment[:3], f"RE2, which matches in linear time, does not take it: {message}")
        raise BadPattern(what, offset=max(0, pattern.find(fragment))) from None


@dataclass(frozen=True, kw_only=True)
class _Atom:
    """One character out of a set, as bits by their number."""

    characters: int


@dataclass(frozen=True, kw_only=True)
class _Repeat:
    """A node some times over; without `most` there is no limit."""

    body: _Node
    least: int
    most: int | None
    offset: int


@dataclass(kw_only=True)
class _Group:
    """A choice of sequences, at `offset` of the pattern."""

    offset: int = 0
    branches: list[list[_Node]] = field(default_factory=lambda: [[]])


_Node = _Atom | _Repeat | _Group


def _parse(pattern: str) -> _Group:
    """Return the structure of a pattern that both engines have compiled; what matches no character is left out."""
    any_case = any("i" in (token["flags"] or token["open"]) for token in _TOKEN.finditer(pattern) if token["open"])
    stack = [_Group()]
    for token in _TOKEN.finditer(pattern):
        here = stack[-1].branches[-1]
        match token.lastgroup:
            case "open" | "flags":
                stack.append(_Group(offset=token.start()))
            case "close" if len(stack) > 1:
                closed = stack.pop()
                stack[-1].branches[-1].append(closed)
            case "or":
                stack[-1].branches.append([])
            case "repeat" | "most" | "comma" | "least" if here and (times := _times(token)):
                least, most = times
                here.append(_Repeat(body=here.pop(), least=least, most=most, offset=token.start()))
            case _ if token[0] not in _PLACES:
                here.append(_Atom(characters=_characters(token[0], any_case)))
    return stack[0]


def _times(token: re.Match[str]) -> tuple[int, int | None] | None:
    """Return how often a repeat may come; None for braces that are text."""
    match token[0][0]:
        case "*":
            return 0, None
        case "+":
            return 1, None
        case "?":
            return 0, 1
    if not token["least"]:
        return None
    least = int(token["least"])
    return least, (int(token["most"]) if token["most"] else None) if token["comma"] else least


@lru_cache(maxsize=1024)
def _characters(text: str, any_case: bool) -> int:
    """Return the bytes that one character or set of a pattern matches, as the bits of a number."""
    try:
        compiled = re.compile(text.encode(), re.IGNORECASE if any_case else re.NOFLAG)
    except re.error:  # a character of several bytes, or one that is special only elsewhere
        compiled = re.compile(re.escape(text.encode()[:1]))
    found = sum(1 << number for number in range(256) if compiled.fullmatch(bytes([number])))
    return found or sum(1 << byte for byte in set(text.encode()))


def _first(node: _Node) -> tuple[int, bool]:
    """Return the characters that a match of a node may begin with, and whether it may be empty."""
    match node:
        case _Atom():
            return node.characters, False
        case _Repeat():
            characters, empty = _first(node.body)
            return characters, empty or node.least == 0
        case _Group():
            firsts = [_first_of(branch) for branch in node.branches]
            return reduce(or_, (characters for characters, _ in firsts)), any(empty for _, empty in firsts)


def _first_of(sequence: Sequence[_Node]) -> tuple[int, bool]:
    characters = 0
    for node in sequence:
        more, empty = _first(node)
        characters |= more
        if not empty:
            return characters, False
    return characters, True


_Scans = frozenset[int]
"""The characters of each long repeat that may be scanned anew from every length of a repeat before it."""


def _scans(node: _Node, later: _Scans, follows: int, *, own: bool = True) -> _Scans:
    """Return the later scans that no character of `node` ends and, with `own`, those that begin in it."""
    match node:
        case _Atom():
            return frozenset(one for one in later if one & node.characters)
        case _Repeat():
            inside = _scans(node.body, later, follows, own=own) | (later if node.least == 0 else frozenset())
            scanned = own and follows and (node.most is None or node.most > _SHORT)
            return inside | {_all(node.body)} if scanned else inside
        case _Group():
            return frozenset().union(*(_scans_of(branch, later, follows, own) for branch in node.branches))


def _scans_of(sequence: Sequence[_Node], later: _Scans, follows: int, own: bool) -> _Scans:
    for node in reversed(sequence):
        later = _scans(node, later, follows, own=own)
        follows |= _first(node)[0]
    return later


def _all(node: _Node) -> int:
    """Return every character that a node may match anywhere."""
    match node:
        case _Atom():
            return node.characters
        case _Repeat():
            return _all(node.body)
        case _Group():
            return reduce(or_, (_all(inner) for branch in node.branches for inner in branch), 0)


@dataclass(frozen=True, kw_only=True)
class _After:
    """What is to the right of a node: the characters that may follow, and what is scanned from there."""

    follows: int = 0
    scans: _Scans = frozenset()


@dataclass(frozen=True, kw_only=True)
class _Cost:
    """How the time grows: with the length of a line to the power of `degree` (of the start apart), times `tries`."""

    degree: int = 0
    tries: int = 1

    def times(self, other: _Cost) -> _Cost:
        return _Cost(degree=self.degree + other.degree, tries=self.tries * other.tries)


def _cost_of_group(group: _Group, after: _After, loop: int | None) -> _Cost:
    """Return the cost of a group's worst branch; `loop` is where the repeated group around it begins."""
    if loop is not None:
        firsts = [_first_of(branch) for branch in group.branches]
        seen = after.follows if any(empty for _, empty in firsts) else 0
        for characters, _ in firsts:
            if characters & seen:
                raise BadPattern(_ALIKE, offset=loop)
            seen |= characters
    costs = [_cost_of_sequence(branch, after, loop) for branch in group.branches]
    return _Cost(degree=max(cost.degree for cost in costs), tries=max(cost.tries for cost in costs))


def _cost_of_sequence(sequence: Sequence[_Node], after: _After, loop: int | None) -> _Cost:
    cost = _Cost()
    for node in reversed(sequence):
        cost = cost.times(_cost(node, after, loop))
        if cost.tries > MAX_TRIES.get(cost.degree, 0):
            raise BadPattern(_OPEN, offset=_offset(node))
        characters, empty = _first(node)
        scans = _scans(node, after.scans, after.follows)
        after = _After(follows=characters | (after.follows if empty else 0), scans=scans)
    return cost


def _cost(node: _Node, after: _After, loop: int | None) -> _Cost:
    match node:
        case _Atom():
            return _Cost()
        case _Group():
            return _cost_of_group(node, after, loop)
        case _Repeat():
            return _cost_of_repeat(node, after, loop)


def _cost_of_repeat(repeat: _Repeat, after: _After, loop: int | None) -> _Cost:
    characters, _ = _first(repeat.body)
    around = loop
    inner = after
    if repeat.most is None or repeat.most > 1:
        around = _offset(repeat.body) if isinstance(repeat.body, _Group) else repeat.offset
        inner = _After(follows=after.follows | characters, scans=after.scans)
    inside = _cost(repeat.body, inner, around)
    if repeat.least == repeat.most or not characters & after.follows:
        return inside
    if loop is not None:
        raise BadPattern(_NESTED, offset=loop)
    scanned = _Cost(degree=1 if _scans(repeat.body, after.scans, 0, own=False) else 0)
    if repeat.most is None:
        return inside.times(scanned).times(_Cost(degree=1))
    return inside.times(scanned).times(_Cost(tries=repeat.most - repeat.least + 1))


def _offset(node: _Node) -> int:
    return 0 if isinstance(node, _Atom) else node.offset
