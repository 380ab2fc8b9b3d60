"""Regular expressions over output: which ones a runbook may use, and the engine that searches for them and for words.

RE2 searches in time linear in the output. A supervisor in a container of another Python than the host's has no RE2, and
searches with `re`, which backtracks: it must watch the time. So a pattern is legal when both compile it and mean the
same by it; one difference stays, as RE2's `\\s` is no vertical tab.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterable
from typing import Any

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
