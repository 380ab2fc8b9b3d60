"""Reads just enough of a test's CUDA source to say what its names mean: functions, their parameters, assignments."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final

_FUNCTION: Final = re.compile(r"__(?:global|device)__[^;{}()]*?\b(\w+)\s*\(")
_SIZES: Final = {
    "char": 1, "bool": 1, "uint8_t": 1, "int8_t": 1, "short": 2, "uint16_t": 2, "int16_t": 2, "__half": 2, "half": 2,
    "__nv_bfloat16": 2, "int": 4, "unsigned": 4, "float": 4, "uint32_t": 4, "int32_t": 4, "long": 8, "double": 8,
    "size_t": 8, "int64_t": 8, "uint64_t": 8, "int2": 8, "uint2": 8, "float2": 8, "int4": 16, "uint4": 16,
    "float4": 16, "double2": 16, "longlong2": 16, "ulonglong2": 16, "short2": 4, "ushort2": 4, "half2": 4,
    "__half2": 4, "char4": 4, "uchar4": 4, "short4": 8,
}  # fmt: skip
_FLOATS: Final = frozenset({"float", "double", "half", "__half", "half2", "__half2", "float2", "float4", "double2"})


@dataclass(frozen=True)
class Declared:
    """A parameter: its type without qualifiers, its name, and how many `*` it has."""

    type: str
    name: str
    stars: int

    @property
    def element(self) -> int | None:
        """The size in bytes of what it points to; None where that is not known."""
        return None if not self.stars else 8 if self.stars > 1 else _SIZES.get(self.type.split()[-1])

    @property
    def unsigned(self) -> bool:
        """Whether its numbers, or those it points to, have no sign."""
        return self.type.startswith(("unsigned", "uint", "size_t", "ulong", "ushort", "uchar"))

    @property
    def floating(self) -> bool:
        """Whether its numbers, or those it points to, are floating."""
        return self.type.split()[-1] in _FLOATS


@dataclass(frozen=True)
class Function:
    """A function that a source defines, by its lines from 1."""

    name: str
    parameters: tuple[Declared, ...]
    body: str
    first: int
    last: int

    @cached_property
    def conditions(self) -> tuple[str, ...]:
        """What the function tests: in `if`, `while`, `for` and `?:`, and what it clamps."""
        found = []
        for match in re.finditer(r"\b(if|while|for)\s*\(", self.body):
            inner = _bracketed(self.body, match.end())
            found += inner.split(";")[1:2] if match[1] == "for" else [inner]
        found += re.findall(r"=([^;=]*?)\?", self.body)
        return tuple(found)

    def assignments(self, name: str) -> Iterator[tuple[int, str]]:
        """Yield the line and the right side of each assignment to a name."""
        for match in re.finditer(rf"(?<![\w.>]){re.escape(name)}\s*=(?!=)\s*", self.body):
            depth, at = 0, match.end()
            while at < len(self.body) and not (depth == 0 and self.body[at] in ",;"):
                depth += {"(": 1, "[": 1, "{": 1, ")": -1, "]": -1, "}": -1}.get(self.body[at], 0)
                if depth < 0:
                    break
                at += 1
            yield self.first + self.body[: match.start()].count("\n"), self.body[match.end() : at].strip()

    @cached_property
    def names(self) -> tuple[tuple[str, str], ...]:
        """The local variables that are set once, in order, each with its right side."""
        found = re.findall(r"\b(\w+)\s*=(?!=)", self.body)
        return tuple((n, next(self.assignments(n))[1]) for n in dict.fromkeys(found) if found.count(n) == 1)


def functions(text: str) -> list[Function]:
    """Return the functions that a source defines."""
    plain = re.sub(r"//[^\n]*|/\*.*?\*/", lambda m: re.sub(r"[^\n]", " ", m[0]), text, flags=re.DOTALL)
    found = []
    for match in _FUNCTION.finditer(plain):
        inner = _bracketed(plain, match.end())
        after = match.end() + len(inner) + 1
        opened = re.match(r"\s*\{", plain[after:])
        if opened is None:
            continue
        body = _bracketed(plain, after + opened.end(), "{}")
        first = plain[: after + opened.end()].count("\n") + 1
        found.append(
            Function(match[1], tuple(map(_declared, _separated(inner))), body, first, first + body.count("\n"))
        )
    return found


def is_access(text: str) -> str | None:
    """Return the pointer's name if a right side is exactly one access, `base[...]` or an atomic of it; else None."""
    text = re.sub(r"^\*?\s*reinterpret_cast<[^>]*>\s*\((.*)\)$", r"\1", text).strip().lstrip("*& ")
    called = re.match(r"(?:atomic\w+|__ld\w+|__nv\w*load\w*)\s*\(", text)
    if called and text.endswith(")") and len(_bracketed(text, called.end())) == len(text) - called.end() - 1:
        text = _separated(_bracketed(text, called.end()))[0].strip().lstrip("&* ")
        text = re.sub(r"\s*\+\s*[^\[\]]*$", "[]", text)
    named = re.match(r"(\w+)((?:\s*(?:\.|->)\s*\w+)*)", text)
    if named is None:
        return None
    rest = text[named.end() :].strip()
    while rest:
        member = re.match(r"(?:\.|->)\s*\w+\s*", rest)
        if member:
            rest = rest[member.end() :]
        elif rest[0] == "[":
            rest = rest[len(_bracketed(rest, 1, "[]")) + 2 :].strip()
        else:
            return None
    return named[1] if "[" in text or "->" in text else None


def _declared(text: str) -> Declared:
    words = re.findall(r"\w+(?:::\w+)*", re.sub(r"=.*|\[[^\]]*\]|<[^<>]*>", "", text))
    kept = [w for w in words[:-1] if w not in {"const", "volatile", "__restrict__", "struct"}]
    return Declared(" ".join(kept) or "?", words[-1] if words else "", text.count("*") + ("[" in text))


def _bracketed(text: str, start: int, pair: str = "()") -> str:
    depth = 1
    for at in range(start, len(text)):
        depth += (text[at] == pair[0]) - (text[at] == pair[1])
        if not depth:
            return text[start:at]
    return text[start:]


def _separated(text: str) -> Sequence[str]:
    parts, depth, start = [], 0, 0
    for at, letter in enumerate(text):
        depth += {"(": 1, "<": 1, "[": 1, "{": 1, ")": -1, ">": -1, "]": -1, "}": -1}.get(letter, 0)
        if letter == "," and depth == 0:
            parts.append(text[start:at])
            start = at + 1
    return [*parts, text[start:]] if text.strip() else []
