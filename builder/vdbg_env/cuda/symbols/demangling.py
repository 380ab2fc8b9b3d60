"""Turns mangled names into what the source says, and long names into short ones."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final

from pydemumble import demangle as _pydemumble

from vdbg_env.cuda.symbols.mangled_name import MangledName, is_padded, most_structure, take_apart

# pydemumble recurses in C++ once per nested construct and has no limit: 20,000 of them end the process.
# Real names stay far below this, those of CUTLASS included, because most of their length is identifiers.
_DEEPEST = 4_000
_LONGEST_ARGUMENTS = 48

LONGEST: Final = 1 << 16
"""The most characters of a demangled name; the longest in the published wheels of torch and vLLM has 12,926."""

CUT: Final = "… (name cut)"
"""What stands at the end of a name that was cut, with question marks where it would have repeated itself."""

_KEPT = 2_048  # names: at LONGEST characters each they are a few hundred megabytes at most

# Nor does pydemumble limit what it prints, so before it may print it is told how much that can be.
_MOST_PRINTED = 1 << 22
_MOST_ASKED = 100  # times for one name: those of CUTLASS, with 200 back references, take some twenty
_WIDEST = 40  # characters that one of a mangled name stands for: `Ss` is a basic_string with all its arguments


@lru_cache(maxsize=_KEPT)
def demangle(name: str) -> str:
    """Return the C++ name of a mangled one; a name that is not mangled, or too deeply nested, comes back as it is.

    No more than LONGEST characters come back: a longer name ends in CUT. ptxas names a callee that it placed inside its
    kernel's section `$<kernel>$<callee>`: the callee is returned.
    """
    inner = _callee(name)
    if not inner.startswith("_Z") or not inner.isascii() or "\0" in inner or is_padded(inner):
        return inner
    if len(inner) > _DEEPEST and most_structure(inner) > _DEEPEST:
        return inner
    return _within_bounds(take_apart(inner)) or inner


@lru_cache(maxsize=_KEPT)
def short_name(demangled: str) -> str:
    """Return a demangled name without return type and parameters, long template arguments as `<...>`."""
    if demangled.isidentifier():
        return demangled
    name = _without_parameters(demangled)
    name = _last_word(name)
    return _fold_arguments(name)


def parameter_types(demangled: str) -> tuple[str, ...]:
    """Return the types in a demangled name's parameter list; none where there is no list, it is cut, or it is void."""
    start = len(_without_parameters(demangled))
    if start == len(demangled) or CUT in demangled:
        return ()
    end = next(end for at, end, _ in _groups(demangled) if at == start)
    inner = demangled[start + 1 : end - 1]
    masked = list(inner)
    for at, to, _ in _groups(inner):
        masked[at:to] = "_" * (to - at)
    commas = [at for at, letter in enumerate(masked) if letter == ","]
    parts = [inner[at:to].strip() for at, to in zip([0, *(c + 1 for c in commas)], [*commas, len(inner)], strict=True)]
    return () if parts in ([""], ["void"]) else tuple(parts)


def _within_bounds(name: MangledName) -> str:
    """Demangle a name whose length must not be trusted; empty when it is none.

    The back references are let in from the left, as many at a time as cannot lead beyond `_MOST_PRINTED`: one more at
    most doubles what is printed, since what it repeats stands there already.
    """
    let_in = _affordable(name, 0, _WIDEST * len(name.text))
    for _ in range(_MOST_ASKED):
        if let_in == len(name.references):
            return _cut(_pydemumble(name.text))
        text: str = _pydemumble(name.without(name.references[let_in:]))
        more = _affordable(name, let_in, len(text))
        if not text or len(text) > LONGEST or more == let_in:
            break
        let_in = more
    return text[:LONGEST] + CUT if text else ""


def _affordable(name: MangledName, let_in: int, length: int) -> int:
    """Return how many references may be let in when with `let_in` of them `length` characters are printed."""
    for number, reference in enumerate(name.references[let_in:], let_in):
        length *= 2 if reference.end <= name.multiplied_from else len(name.text)
        if length > _MOST_PRINTED:
            return number
    return len(name.references)


def _cut(text: str) -> str:
    return text if len(text) <= LONGEST else text[:LONGEST] + CUT


def _callee(name: str) -> str:
    if name.startswith("$") and "$" in name[1:]:
        return name.split("$", 2)[2] or name
    return name


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
    if depth and name.endswith(CUT):
        spans.append((start, len(name), name[start]))
    return spans


def _without_parameters(name: str) -> str:
    """Cut the parameter list: the last outermost round bracket that is not part of the name itself."""
    for start, end, bracket in reversed(_groups(name)):
        # "(anonymous namespace)::f" and "f()::'lambda'" continue after the bracket: those belong to the name.
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
