"""Finds in a mangled C++ name what makes it deep and its demangled form long, without demangling it.

Itanium C++ ABI, chapter 5.1. A back reference (`S_`, `S0_`, `T_`, `T0_` ...) repeats something said earlier, which may
hold back references itself: thirty of them in two hundred characters come to gigabytes. Each can be overwritten by a
name of the same length that says nothing, and then repeats nothing.
"""

from __future__ import annotations

import heapq
import re
from collections.abc import Sequence
from dataclasses import dataclass
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
# What may stand before a number that is one digit alone (`v1` operators, constructors), or no length (`fL0p_`).
_ONE_DIGIT: Final = re.compile(r"(?:[vCD]|CI)$")
_MAY_BE_NO_LENGTH: Final = re.compile(r"fL$")
# Pack expansions print what they hold once for each element; the type of a conversion refers to what comes after it.
_MULTIPLIER: Final = re.compile(r"Dp|sp|cv")


@dataclass(frozen=True, kw_only=True)
class Reference:
    """A span that reads like a back reference; `certain` says that it does not lie within an identifier."""

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
            # What is skipped stands within an identifier; all up to its first character counts.
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
