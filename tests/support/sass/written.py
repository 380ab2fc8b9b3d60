"""Evaluates the formulas that the explanation writes for people, with the precedence that C gives the signs.

    value = Written(leaf, parts).value("4*(blockIdx.x / (n*g)) + k")

`leaf` gives the value of a name, `parts` are the lines `part1 is ...`. What is not C (an opcode in braces, `...`) is a
name too, or `NotRead`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

_TOKEN: Final = re.compile(
    r"\s*(0x[0-9a-fA-F]+|\d+|\{[^}]*\}|c\[\d+\]\[0x[0-9a-f]+\]|[A-Za-z_][\w.]*(?:\[\d+:\d+\])?(?: at entry)?"
    r"|<<|>>|<=|>=|==|!=|&&|\|\||[-+*/%&|^~!<>?:(),])"
)
_LEVELS: Final = (
    ("||",), ("&&",), ("|",), ("^",), ("&",), ("==", "!="), ("<", "<=", ">", ">="), ("<<", ">>"), ("+", "-"),
    ("*", "/", "%"),
)  # fmt: skip
_NARROW: Final = {"char": 8, "short": 16}
_CASTS: Final = frozenset({"char", "short", "int", "long", "size_t", "unsigned", "int64_t", "uint32_t", "uint64_t"})


class NotRead(Exception):
    """A text is no formula that this reads."""


def _divided(a: int, b: int) -> int:
    if b == 0:
        raise NotRead("a division by 0")
    return abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)


def _shift(a: int, n: int) -> int:
    if not 0 <= n < 64:
        raise NotRead("a shift by too much")
    return n


_SIGNS: Final[dict[str, Callable[[int, int], int]]] = {
    "||": lambda a, b: int(bool(a or b)), "&&": lambda a, b: int(bool(a and b)), "|": lambda a, b: a | b,
    "^": lambda a, b: a ^ b, "&": lambda a, b: a & b, "==": lambda a, b: int(a == b), "!=": lambda a, b: int(a != b),
    "<": lambda a, b: int(a < b), "<=": lambda a, b: int(a <= b), ">": lambda a, b: int(a > b),
    ">=": lambda a, b: int(a >= b), "<<": lambda a, b: a << _shift(a, b), ">>": lambda a, b: a >> _shift(a, b),
    "+": lambda a, b: a + b, "-": lambda a, b: a - b, "*": lambda a, b: a * b, "/": _divided,
    "%": lambda a, b: a - b * _divided(a, b),
}  # fmt: skip
_FUNCTIONS: Final[dict[str, Callable[..., int]]] = {
    "min": min, "max": max, "abs": abs, "lower32": lambda a: a & 0xFFFFFFFF, "upper32": lambda a: a >> 32 & 0xFFFFFFFF,
    "popc": lambda a: int(a & 0xFFFFFFFF).bit_count(),
}  # fmt: skip


@dataclass
class Written:
    """Computes written formulas."""

    leaf: Callable[[str], int]
    parts: Mapping[str, str] = field(default_factory=dict)
    _tokens: list[str] = field(default_factory=list)
    _at: int = 0

    def value(self, text: str) -> int:
        """Return the value of a text; raises `NotRead`."""
        outer = self._tokens, self._at
        self._tokens, self._at = _tokens(text), 0
        value = self._choice()
        if self._at != len(self._tokens):
            raise NotRead(f"{text!r} goes on after {self._tokens[: self._at]}")
        self._tokens, self._at = outer
        return value

    def _peek(self) -> str:
        return self._tokens[self._at] if self._at < len(self._tokens) else ""

    def _take(self, wanted: str | None = None) -> str:
        token = self._peek()
        if not token or (wanted is not None and token != wanted):
            raise NotRead(f"{token!r} where {wanted or 'more'} should be")
        self._at += 1
        return token

    def _choice(self) -> int:
        condition = self._level(0)
        if self._peek() != "?":
            return condition
        self._take("?")
        first = self._choice()
        self._take(":")
        second = self._choice()
        return first if condition else second

    def _level(self, n: int) -> int:
        if n == len(_LEVELS):
            return self._unary()
        value = self._level(n + 1)
        while self._peek() in _LEVELS[n]:
            sign = self._take()
            value = _SIGNS[sign](value, self._level(n + 1))
        return value

    def _unary(self) -> int:
        token = self._take()
        if token == "-":
            return -self._unary()
        if token == "!":
            return int(not self._unary())
        if token == "~":
            return ~self._unary()
        if token == "(":
            return self._bracketed()
        if token[0].isdigit():
            return int(token, 0)
        if token in self.parts:
            return self.value(self.parts[token])
        if self._peek() == "(" and token in _FUNCTIONS:
            return _FUNCTIONS[token](*self._arguments())
        if not re.match(r"[A-Za-z_{]", token) or self._peek() == "(":
            raise NotRead(token)
        return self.leaf(token)

    def _bracketed(self) -> int:
        if self._peek() in _CASTS and self._tokens[self._at + 1 : self._at + 2] == [")"]:
            bits = _NARROW.get(self._take(), 0)
            self._take(")")
            value = self._unary()
            return ((value & (1 << bits) - 1) ^ 1 << bits - 1) - (1 << bits - 1) if bits else value
        value = self._choice()
        self._take(")")
        return value

    def _arguments(self) -> Sequence[int]:
        self._take("(")
        found = [self._choice()]
        while self._peek() == ",":
            self._take(",")
            found.append(self._choice())
        self._take(")")
        return found


def _tokens(text: str) -> list[str]:
    found, at, text = [], 0, text.rstrip()
    while at < len(text):
        match = _TOKEN.match(text, at)
        if match is None:
            raise NotRead(f"{text[at : at + 20]!r}")
        found.append(match[1])
        at = match.end()
    return found
