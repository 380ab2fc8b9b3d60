"""Finds in a mangled C++ name what makes it deep and its demangled form long, without demangling it.

Itanium C++ ABI, chapter 5.1. A back reference (`S_`, `S0_`, `T_`, `T0_` ...) repeats something said earlier, which may
hold back references itself: thirty of them in two hundred characters come to gigabytes. Each can be overwritten by a
name of the same length that says nothing, and then repeats nothing.
"""

from __future__ import annotations

import heapq
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Final

# Eight digits are more than any name has references; a pattern without a limit takes quadratic time for `SSSS...`.
_REFERENCE: Final = re.compile(r"S[0-9A-Z]{0,8}_|T(?:L[0-9]{0,8}_)?[0-9]{0,8}_")
_PADDED: Final = re.compile(r"[ST]L?0[0-9A-Z]{7}")
_TOKEN: Final = re.compile(
    rf"(?P<reference>{_REFERENCE.pattern})|(?P<literal>L[a-z]n?[0-9a-f]{{1,40}}E)|(?P<number>[0-9]+)"
)
# A number that is no identifier's length: an enumerator's value, a lambda's number, a bound. An identifier may start
# with `E` or `_` too, so what follows decides.
_NO_LENGTH: Final = re.compile(r".[0-9]+E(?![a-z])|(?:E|A|Dv)[0-9]+_(?![_G])")
# What may be before a number that is one digit alone (`v1` operators, constructors), or no length (`fL0p_`).
_ONE_DIGIT: Final = re.compile(r"(?:[vCD]|CI)$")
_MAY_BE_NO_LENGTH: Final = re.compile(r"fL$")
# Pack expansions print what they hold once for each element; the type of a conversion refers to what comes after it.
_MULTIPLIER: Final = re.compile(r"Dp|sp|cv")


@dataclass(frozen=True, kw_only=True)
class Reference:
    """A span that reads like a back reference; `certain` says that it is not within an identifier."""

    start: int
    end: int
    certain: bool

    @property
    def blank(self) -> str:
        """What says nothing in as many characters: a name of question marks, or, in an identifier, those alone."""
        length = self.end - self.start
        return f"{length - 1}{'?' * (length - 1)}" if self.certain and length <= 10 else "?" * length


@dataclass(frozen=True, kw_only=True)
class MangledName:
    """A mangled name taken apart; `multiplied_from` is the place from where a reference may be printed many times."""

    text: str
    references: tuple[Reference, ...]
    multiplied_from: int

    def without(self, references: Sequence[Reference]) -> str:
        """Return the name with these references overwritten; if it is still a name, it repeats less."""
        parts: list[str] = []
        at = 0
        for reference in references:
            parts += self.text[at : reference.start], reference.blank
            at = reference.end
        return "".join((*parts, self.text[at:]))


def is_padded(mangled: str) -> bool:
    """Say whether a back reference is written with zeros before it, as no compiler does: it is not looked for here."""
    return _PADDED.search(mangled) is not None


def take_apart(mangled: str) -> MangledName:
    """Find the back references of a mangled name: all of them, and some places that only look like one."""
    references, skipped, at, after = [], [], 0, -1
    while token := _TOKEN.search(mangled, at):
        start, at = token.span()
        if token["reference"]:
            references.append(Reference(start=start, end=at, certain=True))
        elif token["number"]:
            length = int(token["number"]) if at - start < 7 else 0
            if not length or at + length > len(mangled) or (start != after and _NO_LENGTH.match(mangled, start - 1)):
                continue
            inside = _REFERENCE.finditer(mangled, at, at + length)
            references += (Reference(start=m.start(), end=m.end(), certain=False) for m in inside)
            skipped.append((at, at + length))
            at = after = at + length
    return MangledName(text=mangled, references=tuple(references), multiplied_from=_first_multiplier(mangled, skipped))


def _first_multiplier(mangled: str, identifiers: Sequence[tuple[int, int]]) -> int:
    at = 0
    for start, end in (*identifiers, (len(mangled), len(mangled))):
        found = _MULTIPLIER.search(mangled, at, start)
        if found:
            return found.start()
        at = end
    return len(mangled)


def most_structure(mangled: str) -> int:
    """Return how many characters may stand outside the identifiers: an upper bound of how deep a name can nest.

    A number is an identifier's length or something else, and only the whole grammar tells; where both are possible
    both are followed, so that nothing can hide behind a number that only looks like a length.
    """
    counted = {0: 0}  # place -> the most that can stand outside identifiers before it
    places = [0]
    most = 0
    while places:
        place = heapq.heappop(places)
        count = counted.pop(place)
        token = _TOKEN.search(mangled, place)
        if token is None:
            most = max(most, count + len(mangled) - place)
            continue
        for after in _readings(mangled, token):
            # What is skipped is part of an identifier, and everything up to its first character counts.
            total = count + min(after, token.end()) - place
            if after not in counted:
                heapq.heappush(places, after)
            counted[after] = max(counted.get(after, 0), total)
    return most


def _readings(mangled: str, token: re.Match[str]) -> list[int]:
    """Return every place at which the name may continue after a token."""
    start, end = token.span()
    if not token["number"]:
        return [end]
    length = int(token["number"]) if end - start < 7 else 0
    readings = [end + length] if 0 < length <= len(mangled) - end else [end]
    before = mangled[max(0, start - 2) : start]
    if mangled.startswith(("E", "_"), end) or _MAY_BE_NO_LENGTH.search(before):
        readings.append(end)
    if _ONE_DIGIT.search(before):
        readings.append(start + 1)
    return list(dict.fromkeys(readings))


# Turns mangled names into what the source says, and long names into short ones.


# pydemumble recurses in C++ once per nested construct and has no limit: 20,000 of them end the process.
# Real names stay far below this, those of CUTLASS included, because most of their length is identifiers.
_DEEPEST = 4_000
_LONGEST_ARGUMENTS = 48

LONGEST: Final = 1 << 16
"""The most characters of a demangled name; the longest in the published wheels of torch and vLLM has 12,926."""

CUT: Final = "… (name cut)"
"""The end of a name that was cut, with question marks where it would have repeated itself."""

_KEPT = 2_048  # names: at LONGEST characters each they are a few hundred megabytes at most

# Nor does pydemumble limit what it prints, so before it may print it is told how much that can be.
_MOST_PRINTED = 1 << 22
_MOST_ASKED = 100  # times for one name: those of CUTLASS, with 200 back references, take some twenty
_WIDEST = 40  # the most characters for one of a mangled name: `Ss` is a basic_string with all its arguments


@cache
def _demangler() -> Callable[[str], str]:
    """Return pydemumble's function; without that package every name stays as it is."""
    try:
        from pydemumble import demangle
    except ImportError:
        return lambda name: ""
    printed: Callable[[str], str] = demangle
    return printed


@lru_cache(maxsize=_KEPT)
def demangle(name: str) -> str:
    """Return the C++ name of a mangled one; a name that is not mangled, or too deeply nested, is returned unchanged.

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


def unqualified_of(demangled: str) -> str:
    """Return the name of a function or class with its scopes: no template arguments, parameters or return type."""
    name = _last_word(_without_parameters(demangled))
    for start, end, bracket in reversed(_groups(name)):
        if bracket == "<":
            name = name[:start] + name[end:]
    return name


def first_argument(demangled: str) -> str:
    """Return the first template argument of the last template of a function's name; empty where it has none."""
    name = _last_word(_without_parameters(demangled))
    inner = next((name[start + 1 : end - 1] for start, end, bracket in reversed(_groups(name)) if bracket == "<"), "")
    return _split(inner)[0]


def parameter_types(demangled: str) -> tuple[str, ...]:
    """Return the types in a demangled name's parameter list; none where there is no list, it is cut, or it is void."""
    start = len(_without_parameters(demangled))
    if start == len(demangled) or CUT in demangled:
        return ()
    end = next(end for at, end, _ in _groups(demangled) if at == start)
    inner = demangled[start + 1 : end - 1]
    parts = _split(inner)
    return () if parts in ([""], ["void"]) else tuple(parts)


def _split(inner: str) -> list[str]:
    """Return what the commas outside of all brackets separate, without blanks around."""
    masked = list(inner)
    for at, to, _ in _groups(inner):
        masked[at:to] = "_" * (to - at)
    commas = [at for at, letter in enumerate(masked) if letter == ","]
    return [inner[at:to].strip() for at, to in zip([0, *(c + 1 for c in commas)], [*commas, len(inner)], strict=True)]


def _within_bounds(name: MangledName) -> str:
    """Demangle a name whose length must not be trusted; empty when it is none.

    The back references are let in from the left, as many at a time as cannot lead beyond `_MOST_PRINTED`: one more at
    most doubles what is printed, since what it repeats stands there already.
    """
    let_in = _affordable(name, 0, _WIDEST * len(name.text))
    for _ in range(_MOST_ASKED):
        if let_in == len(name.references):
            return _cut(_demangler()(name.text))
        text: str = _demangler()(name.without(name.references[let_in:]))
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
    """Drop a return type: everything up to the last blank outside all brackets."""
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
