"""C++ integer expressions that can be printed and computed: the types, conversions and arithmetic of CUDA C++.

Arithmetic that is undefined in C++ (signed overflow, division by zero) raises `Undefined`: such a launch proves
nothing, because the compiler may assume that it never happens.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final


class Undefined(Exception):
    """The expression has no defined value for these operands."""


@dataclass(frozen=True)
class Type:
    """An integer type of CUDA C++: its name, width in bits and signedness."""

    name: str
    bits: int
    signed: bool

    def wrap(self, value: int) -> int:
        """Return the value converted to this type."""
        value &= (1 << self.bits) - 1
        return value - (1 << self.bits) if self.signed and value >> (self.bits - 1) else value

    def checked(self, value: int) -> int:
        """Return the result of an operation of this type; raises `Undefined` where a signed one overflows."""
        wrapped = self.wrap(value)
        if self.signed and wrapped != value:
            raise Undefined
        return wrapped


INT: Final = Type("int", 32, True)
UNSIGNED: Final = Type("unsigned", 32, False)
LONG: Final = Type("long long", 64, True)
SIZE: Final = Type("unsigned long long", 64, False)
CHAR: Final = Type("signed char", 8, True)
BYTE: Final = Type("unsigned char", 8, False)
SHORT: Final = Type("short", 16, True)
HALF: Final = Type("unsigned short", 16, False)

# What an expression is evaluated in: variables and parameters by name, and the thread's coordinates.
Env = dict[str, Any]


@dataclass(frozen=True)
class Expr:
    """An expression: its type, its text, and its value in an environment."""

    type: Type
    text: str
    value: Callable[[Env], int]


def promoted(kind: Type) -> Type:
    """Return the type after the integer promotions."""
    return INT if kind.bits < 32 else kind


def common(a: Type, b: Type) -> Type:
    """Return the type after the usual arithmetic conversions."""
    a, b = promoted(a), promoted(b)
    if a.bits != b.bits:
        return a if a.bits > b.bits else b
    return a if not a.signed else b


def constant(value: int, kind: Type = INT) -> Expr:
    """Return a literal."""
    suffix = {UNSIGNED: "u", LONG: "ll", SIZE: "ull"}.get(kind, "")
    text = f"{value}{suffix}" if value >= 0 else f"({value}{suffix})"
    return Expr(kind, text, lambda env: value)


def variable(name: str, kind: Type) -> Expr:
    """Return a variable, a parameter or `threadIdx.x`."""
    return Expr(kind, name, lambda env: int(env[name]))


def cast(kind: Type, inner: Expr) -> Expr:
    """Return a conversion."""
    evaluate = inner.value
    return Expr(kind, f"({kind.name})({inner.text})", lambda env: kind.wrap(evaluate(env)))


def divide(a: int, b: int) -> int:
    """Return the quotient rounded towards zero."""
    if b == 0:
        raise Undefined
    return abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)


_OPERATIONS: Final[dict[str, Callable[[int, int], int]]] = {
    "+": lambda a, b: a + b,
    "-": lambda a, b: a - b,
    "*": lambda a, b: a * b,
    "/": divide,
    "%": lambda a, b: a - divide(a, b) * b,
    "&": lambda a, b: a & b,
    "|": lambda a, b: a | b,
    "^": lambda a, b: a ^ b,
}
COMPARISONS: Final[dict[str, Callable[[int, int], bool]]] = {
    "<": lambda a, b: a < b,
    "<=": lambda a, b: a <= b,
    ">": lambda a, b: a > b,
    ">=": lambda a, b: a >= b,
    "==": lambda a, b: a == b,
    "!=": lambda a, b: a != b,
}


def binary(operator: str, a: Expr, b: Expr) -> Expr:
    """Return `a operator b`; shifts take the type of their left operand and need a small right one."""
    left, right = a.value, b.value
    if operator in ("<<", ">>"):
        kind = promoted(a.type)

        def shifted(env: Env) -> int:
            value, by = kind.wrap(left(env)), right(env)
            if not 0 <= by < kind.bits:
                raise Undefined
            return kind.checked(value << by) if operator == "<<" else value >> by

        return Expr(kind, f"({a.text} {operator} {b.text})", shifted)
    kind, operation = common(a.type, b.type), _OPERATIONS[operator]
    return Expr(
        kind,
        f"({a.text} {operator} {b.text})",
        lambda env: kind.checked(operation(kind.wrap(left(env)), kind.wrap(right(env)))),
    )


def compare(operator: str, a: Expr, b: Expr) -> Expr:
    """Return a comparison, as an int."""
    kind, operation, left, right = common(a.type, b.type), COMPARISONS[operator], a.value, b.value
    return Expr(
        INT, f"({a.text} {operator} {b.text})", lambda env: int(operation(kind.wrap(left(env)), kind.wrap(right(env))))
    )


def choose(condition: Expr, a: Expr, b: Expr) -> Expr:
    """Return `condition ? a : b`."""
    kind, test, yes, no = common(a.type, b.type), condition.value, a.value, b.value
    return Expr(
        kind,
        f"({condition.text} ? {a.text} : {b.text})",
        lambda env: kind.wrap(yes(env) if test(env) else no(env)),
    )


def smallest(kind: Type, a: Expr, b: Expr, name: str = "min") -> Expr:
    """Return `min` or `max` of two values of one type."""
    a, b, pick = cast(kind, a), cast(kind, b), min if name == "min" else max
    left, right = a.value, b.value
    return Expr(kind, f"{name}({a.text}, {b.text})", lambda env: pick(left(env), right(env)))
