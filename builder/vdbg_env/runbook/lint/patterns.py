"""Refuses patterns that can take time out of all proportion, before they meet gigabytes of output.

Python's `re` backtracks. A pattern is refused when RE2 (linear time, and at hand inside CEL) does not take it, so no
back-references and no look-around; when a repeat stands inside a repeated group, as in `(a+)+`; when a repeated group
holds a choice whose branches may begin alike, as in `(a|ab)*`; when more than three `.*` stand in one pattern; and when
more than two repeats in a row may take the same character, as in `\\w*\\d*\\w*`.
Matching runs line by line on lines of bounded length, so that what remains is a small power of that length.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from vdbg_env.runbook.expressions.cel import BadExpression, ExpressionFailed, compile_expression

MAX_LENGTH = 2000
MAX_ANYTHING = 3  # `.*` and the like in one pattern: each may multiply the time by the length of a line

MAX_IN_A_ROW = 2  # repeats side by side that may take the same character: each multiplies likewise

_TOKEN = re.compile(
    r"(?P<escape>\\(?:x[0-9a-fA-F]{2}|.))|(?P<set>\[\^?\]?(?:\\.|[^\]\\])*\])"
    r"|(?P<open>\((?:\?(?:P?<\w+>|[a-zA-Z-]*:|[a-zA-Z-]+(?=\))))?)|(?P<close>\))|(?P<or>\|)"
    r"|(?P<repeat>[*+?]\??|\{\d*,?\d*\}\??)|(?P<one>.)",
    re.DOTALL,
)
_PLACES = {"^", "$", r"\A", r"\b", r"\B", r"\z", r"\Z"}  # take no character
_BYTES = [bytes([number]) for number in range(256)]


class BadPattern(Exception):
    """A pattern that is refused; `offset` counts characters from its start."""

    def __init__(self, what: str, *, offset: int = 0) -> None:
        super().__init__(what)
        self.what = what
        self.offset = offset


def check(pattern: str) -> None:
    """Refuse a pattern that does not compile or may run away; raises BadPattern."""
    if len(pattern) > MAX_LENGTH:
        raise BadPattern(f"a pattern of {len(pattern)} characters; at most {MAX_LENGTH} are read")
    try:
        compiled = re.compile(pattern.encode())
    except re.error as error:
        raise BadPattern(f"not a regular expression: {error.msg}", offset=error.pos or 0) from None
    except (RecursionError, OverflowError):
        raise BadPattern("not a regular expression: nested too deeply") from None
    if compiled.match(b""):
        raise BadPattern("matches the empty text, so every line: say what must be there")
    _check_linear(pattern)
    _check_shape(pattern)
    _check_rows(pattern)


def _check_linear(pattern: str) -> None:
    quoted = "".join(rf"\{c}" if c in "\\'" else rf"\x{ord(c):02x}" if ord(c) < 32 else c for c in pattern)
    try:
        compile_expression(f"'x'.matches('{quoted}')", {}).evaluate({})
    except (BadExpression, ExpressionFailed) as error:
        reason = str(error).rpartition("invalid regular expression: ")[2]
        raise BadPattern(f"back-references, look-around and the like are not allowed here ({reason})") from None


@dataclass
class _Group:
    """An open group: where it began, what repeats inside it, and how each of its branches begins."""

    offset: int
    repeats: bool = False
    choices: bool = False
    beginnings: list[str | None] = field(default_factory=list)
    begun: bool = False

    def begin(self, text: str | None) -> None:
        if not self.begun:
            self.beginnings.append(text)
            self.begun = True


def _check_shape(pattern: str) -> None:
    anything = 0
    stack = [_Group(0)]
    last: _Group | None = None  # the group just closed, when a repeat may follow it
    previous = ""
    for token in _TOKEN.finditer(pattern):
        match token.lastgroup:
            case "open":
                stack[-1].begin(None)
                stack.append(_Group(token.start()))
            case "close" if len(stack) > 1:
                closed = stack.pop()
                stack[-1].repeats |= closed.repeats
                stack[-1].choices |= closed.choices and _may_begin_alike(closed)
                last, previous = closed, ")"
                continue
            case "or":
                stack[-1].choices, stack[-1].begun = True, False
            case "repeat" if _unbounded(token[0]):
                if last and last.repeats:
                    what = "a repeat inside a repeated group can take for ever: repeat one of the two only"
                    raise BadPattern(what, offset=last.offset)
                if last and last.choices and _may_begin_alike(last):
                    what = "a repeated choice whose branches begin alike can take for ever: pull out what they share"
                    raise BadPattern(what, offset=last.offset)
                anything += previous in {".", r"[\s\S]", r"[\S\s]"}
                if anything > MAX_ANYTHING:
                    what = f"more than {MAX_ANYTHING} times '.*': say what may stand between, such as '[^:]*'"
                    raise BadPattern(what, offset=token.start() - 1)
                stack[-1].repeats = True
            case "repeat":
                stack[-1].beginnings += [None] if not token[0].startswith("{") else []
            case kind:
                stack[-1].begin(token[0] if kind == "one" and token[0] != "." else None)
        last, previous = None, token[0]


def _check_rows(pattern: str) -> None:
    """Refuse repeats in a row that share a character: `a*a*a*` tries every way to part one line among them."""
    row: list[str] = []  # what is repeated, side by side, each sharing a character with the one before
    single = ""  # the last thing that stands once, when a repeat may follow it
    for token in _TOKEN.finditer(pattern):
        match token.lastgroup:
            case "repeat" if single and _unbounded(token[0]):
                shared = sum(_share(one, single) for one in row)
                if shared >= MAX_IN_A_ROW:
                    what = f"more than {MAX_IN_A_ROW} repeats in a row may take the same character: say what ends each"
                    raise BadPattern(what, offset=token.start())
                ends_the_row = not shared and token[0].startswith("+")  # at least once something that no other takes
                row = [single] if ends_the_row else [*row, single]
                single = ""
            case "repeat":
                single = ""  # it may be missing, or comes a few times: what stands beside it stays side by side
            case "escape" | "set" | "one" if token[0] not in _PLACES:
                row = [] if single else row
                single = token[0]
            case "or":
                row, single = [], ""


def _share(one: str, other: str) -> bool:
    """Say whether two of a pattern's characters or sets have a character in common."""
    first, second = (re.compile(text.encode(), re.DOTALL) for text in (one, other))
    return any(first.fullmatch(byte) and second.fullmatch(byte) for byte in _BYTES)


def _may_begin_alike(group: _Group) -> bool:
    """Say whether two branches may begin with the same character; what is no plain character may be any."""
    known = [text.lower() for text in group.beginnings if text is not None]
    return len(known) < len(group.beginnings) or len(set(known)) < len(known)


def _unbounded(repeat: str) -> bool:
    """Say whether a repeat has no bound, or one so high that it makes no difference."""
    if repeat[0] in "*+":
        return True
    numbers = re.fullmatch(r"\{(\d*)(,?)(\d*)\}\??", repeat)
    if not numbers:
        return False
    if numbers[2] and not numbers[3]:
        return True
    return int(numbers[3] or numbers[1] or 0) > 50
