"""Turns mangled names into what the source says, and long names into short ones."""

from __future__ import annotations

import re
from functools import lru_cache

from pydemumble import demangle as _pydemumble

# pydemumble recurses in C++ once per nested construct and has no limit of its own: 20,000 of them end the process.
# Real names stay far below this, those of CUTLASS included, because most of their length is identifiers.
_DEEPEST = 4_000
_LONGEST_ARGUMENTS = 48


@lru_cache(maxsize=16_384)
def demangle(name: str) -> str:
    """Return the C++ name of a mangled one; a name that is not mangled, or too deeply nested, comes back as it is.

    ptxas names a callee that it placed inside its kernel's section `$<kernel>$<callee>`: the callee is returned.
    """
    inner = _callee(name)
    if not inner.startswith("_Z") or _structure(inner) > _DEEPEST or not inner.isascii() or "\0" in inner:
        return inner
    return _pydemumble(inner) or inner


@lru_cache(maxsize=16_384)
def short_name(demangled: str) -> str:
    """Return a demangled name without return type and parameters, long template arguments as `<...>`."""
    name = _without_parameters(demangled)
    name = _last_word(name)
    return _fold_arguments(name)


def _callee(name: str) -> str:
    if name.startswith("$") and "$" in name[1:]:
        return name.split("$", 2)[2] or name
    return name


def _structure(mangled: str) -> int:
    """Return how many characters stand outside the identifiers, an upper bound of how deep the name can nest."""
    count = at = 0
    for match in re.finditer(r"[0-9]+", mangled):
        if match.start() < at:
            continue
        count += match.start() - at
        digits = match[0]
        # The number is the identifier's length where that fits; elsewhere it is an array bound or a literal.
        length = int(digits) if len(digits) < 7 else 0
        at = match.end() + (length if match.end() + length <= len(mangled) else 0)
    return count + max(0, len(mangled) - at)


def _groups(name: str) -> list[tuple[int, int, str]]:
    """Return (start, end, bracket) of each outermost bracket pair, angle brackets of operators not counted."""
    spans, depth, start = [], 0, 0
    skip = {m.start() + i for m in re.finditer(r"operator\s*(<=>|<<=?|>>=?|->\*?|<=?|>=?|\(\))", name)
            for i in range(len(m[0]))}  # fmt: skip
    for i, c in enumerate(name):
        if i in skip or (c == ">" and name[i - 1 : i] == "-"):
            continue
        if c in "<([{":
            if depth == 0:
                start = i
            depth += 1
        elif c in ">)]}" and depth:
            depth -= 1
            if depth == 0:
                spans.append((start, i + 1, name[start]))
    return spans


def _without_parameters(name: str) -> str:
    """Cut the parameter list: the last outermost round bracket that is not part of the name itself."""
    for start, end, bracket in reversed(_groups(name)):
        # "(anonymous namespace)::f" and "f()::'lambda'" go on after the bracket: those belong to the name.
        if bracket == "(" and start and not name.startswith("::", end):
            return name[:start]
    return name


def _last_word(name: str) -> str:
    """Drop a return type: everything up to the last blank that stands outside all brackets."""
    operator = name.find("operator")
    limit = operator if operator >= 0 else len(name)
    masked = list(name)
    for start, end, _ in _groups(name):
        masked[start:end] = "_" * (end - start)
    blank = "".join(masked).rfind(" ", 0, limit)
    return name[blank + 1 :]


def _fold_arguments(name: str) -> str:
    for start, end, bracket in reversed(_groups(name)):
        if bracket == "<" and end - start > _LONGEST_ARGUMENTS:
            name = f"{name[:start]}<...>{name[end:]}"
    return name
