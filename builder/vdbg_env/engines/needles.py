"""Finds plain words of which every match of a pattern holds one, so that most lines need no search at all."""

from __future__ import annotations

import importlib
import re
from typing import Any

_LEAST = 3  # a shorter word stands on nearly every line
_MOST = 12  # more words cost more than the search they save

# The parser is what `re` itself uses; there is no public way to the structure of a pattern. When a Python without it
# comes, no needles are found and every line is searched: slower, and just as right.
_parser: Any = importlib.import_module("re._parser") if hasattr(re, "_parser") else None


def needles(pattern: str) -> tuple[tuple[str, ...], bool]:
    """Return the words (one of them is in every match; none if that cannot be said) and whether case is ignored."""
    if _parser is None:
        return (), False
    parsed = _parser.parse(pattern)
    ignore_case = bool(parsed.state.flags & re.IGNORECASE)
    words = _required(list(parsed), ignore_case=ignore_case) or frozenset()
    if not words or len(words) > _MOST or any(not w.isascii() for w in words):
        return (), ignore_case
    return tuple(sorted(words)), ignore_case


def _required(items: list[Any], *, ignore_case: bool) -> frozenset[str] | None:
    """Return the best set of words for a sequence of the parsed pattern: the one whose shortest word is longest."""
    candidates: list[frozenset[str]] = []
    run = ""
    for operation, argument in items:
        name = str(operation)
        if name == "LITERAL":
            run += chr(argument).lower() if ignore_case else chr(argument)
            continue
        candidates.append(frozenset({run}))
        run = ""
        inner: frozenset[str] | None = None
        if name == "SUBPATTERN" and not (argument[1] or argument[2]):  # no flags of its own
            inner = _required(list(argument[3]), ignore_case=ignore_case)
        elif name == "BRANCH":
            options = [_required(list(option), ignore_case=ignore_case) for option in argument[1]]
            if all(options):
                inner = frozenset(word for option in options if option for word in option)
        elif name in {"MAX_REPEAT", "MIN_REPEAT", "POSSESSIVE_REPEAT"} and argument[0] >= 1:
            inner = _required(list(argument[2]), ignore_case=ignore_case)
        if inner:
            candidates.append(inner)
    candidates.append(frozenset({run}))
    usable = [c for c in candidates if min(map(len, c)) >= _LEAST]
    return max(usable, key=lambda c: min(map(len, c)), default=None)
