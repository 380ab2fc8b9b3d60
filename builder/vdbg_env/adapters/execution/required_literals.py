"""Find literals of which every match of a pattern contains one: lines without any need no search."""

from __future__ import annotations

import importlib
import re
from functools import lru_cache
from typing import Any

_LEAST = 3  # a shorter one is on nearly every line
_MOST = 12  # more words cost more than the search they save

# The parser that `re` itself uses; there is no public one. In a Python without it no literals are found and every line
# is searched, which is slower and gives the same matches.
_parser: Any = importlib.import_module("re._parser") if hasattr(re, "_parser") else None


@lru_cache(4096)  # a run searches every step's output for the same few patterns
def needles(pattern: str) -> tuple[str, ...]:
    """Return words, in lower case, of which one is in every match; none where that cannot be said."""
    if _parser is None:
        return ()
    words = _required(list(_parser.parse(pattern))) or frozenset()
    return tuple(sorted(words)) if len(words) <= _MOST and all(w.isascii() for w in words) else ()


def _required(items: list[Any]) -> frozenset[str] | None:
    """Return the best set of words for a sequence of the parsed pattern: the one whose shortest word is longest."""
    candidates: list[frozenset[str]] = []
    run = ""
    for operation, argument in items:
        name = str(operation)
        if name == "LITERAL":
            run += chr(argument).lower()
            continue
        candidates.append(frozenset({run}))
        run = ""
        inner: frozenset[str] | None = None
        if name == "SUBPATTERN":
            inner = _required(list(argument[3]))
        elif name == "BRANCH":
            options = [_required(list(option)) for option in argument[1]]
            if all(options):
                inner = frozenset(word for option in options if option for word in option)
        elif name in {"MAX_REPEAT", "MIN_REPEAT", "POSSESSIVE_REPEAT"} and argument[0] >= 1:
            inner = _required(list(argument[2]))
        if inner:
            candidates.append(inner)
    candidates.append(frozenset({run}))
    usable = [c for c in candidates if min(map(len, c)) >= _LEAST]
    return max(usable, key=lambda c: min(map(len, c)), default=None)
