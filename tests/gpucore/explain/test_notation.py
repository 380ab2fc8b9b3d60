"""The text of a formula, read with the precedence that C gives the signs, has the value of the formula."""

import random
from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpucore.explain import operations as op
from gpucore.explain.algebra import Atom, Poly, TooLarge, atom, constant, leaf, of, zx
from gpucore.explain.notation import Legend, Words
from tests.support.sass.written import Written

NAMES = ("threadIdx.x", "blockIdx.x", "gridDim.x", "blockDim.y", "n", "group", "stride")
LEAVES = {name: leaf("special", name) for name in NAMES}
_BINARY: Mapping[str, Callable[[int, int], int]] = {
    "udiv": lambda a, b: a // b, "urem": lambda a, b: a % b, "and": lambda a, b: a & b, "or": lambda a, b: a | b,
    "xor": lambda a, b: a ^ b, "umin": min, "umax": max, "shr": lambda a, b: a >> b, "shl": lambda a, b: a << b,
}  # fmt: skip


def words() -> Words:
    legend = SimpleNamespace(loops={}, loads={}, argument=lambda a: None, variable_of=lambda a: None)
    return Words(cast(Legend, legend))


class Unfit(Exception):
    """A value leaves the numbers in which signs and widths make no difference."""


def value(x: Poly | Atom, given: Mapping[str, int]) -> int:
    """Return a formula's value by its structure alone; every part has to be a small number that is not negative."""
    if isinstance(x, Poly):
        total = 0
        for m, c in x.terms.items():
            term = op.signed(c, x.bits)
            for a in m:
                term *= value(a, given)
            total += term
        number = total
    elif x.kind == "special":
        number = given[str(x.args[0])]
    elif x.kind in {"zx", "sx"}:
        number = value(cast(Poly, x.args[0]), given)
    elif x.kind == "select":
        holds, first, second = (value(cast(Poly, q), given) for q in x.args)  # the reader computes both sides
        number = first if holds else second
    elif x.kind in {"eq", "lt_u"}:
        left, right = (value(cast(Poly, q), given) for q in x.args)
        number = int(left == right if x.kind == "eq" else left < right)
    elif x.kind == "not":
        number = 1 - value(cast(Atom, x.args[0]), given)
    elif x.kind == "all":
        number = min([value(cast(Atom, q), given) for q in x.args])
    else:
        left, right = (value(cast(Poly, q), given) for q in x.args)
        if (x.kind in {"udiv", "urem"} and not right) or (x.kind in {"shr", "shl"} and right > 31):
            raise Unfit
        number = _BINARY[x.kind](left, right)
    if not 0 <= number < 1 << 30:
        raise Unfit
    return number


def grown(rng: random.Random, depth: int) -> Poly:
    """Return a random formula of what kernels compute indexes with."""
    if depth == 0 or rng.random() < 0.2:
        return LEAVES[rng.choice(NAMES)] if rng.random() < 0.8 else constant(rng.choice([1, 2, 3, 4, 7, 31, 64]))
    a, b = grown(rng, depth - 1), grown(rng, depth - 1)
    kind = rng.choice(["+", "+", "-", "*", "*", "udiv", "urem", "and", "or", "xor", "umin", "umax", "shr", "shl", "?"])
    if kind in "+-*":
        return a + b if kind == "+" else a - b if kind == "-" else a * b
    if kind == "?":
        condition = op.compare(rng.choice(["LT", "EQ", "NE", "GE"]), a, b, True)
        assert condition is not None
        if rng.random() < 0.4:
            other = op.compare("LT", grown(rng, depth - 1), b, True)
            assert other is not None
            condition = op.both(condition, other) if rng.random() < 0.5 else op.either(condition, other)
        return op.select(condition, b, grown(rng, depth - 1))
    if kind in {"shr", "shl"}:
        b = b if rng.random() < 0.5 else constant(rng.randrange(1, 8))
    return leaf(kind, a, b)


@settings(max_examples=600, deadline=None)
@given(seed=st.integers(0, 10**9), depth=st.integers(1, 4))
def test_the_text_of_a_formula_has_its_value(seed: int, depth: int) -> None:
    rng = random.Random(seed)
    try:
        p = grown(rng, depth)
        text = words().poly(p)
    except TooLarge:
        return
    if "..." in text:
        return
    for _ in range(12):
        given_values = {name: rng.randrange(1, 30) for name in NAMES}
        try:
            expected = value(p, given_values)
        except Unfit:
            continue
        assert Written(given_values.__getitem__).value(text) == expected, text


x, y, n, group = (LEAVES[name] for name in ("threadIdx.x", "blockIdx.x", "n", "group"))


@pytest.mark.parametrize(
    ("p", "text"),
    [
        (leaf("udiv", y, n * group), "(blockIdx.x / (group*n))"),
        (leaf("urem", y, constant(4) * group), "(blockIdx.x % (4*group))"),
        (leaf("udiv", n * group, y), "(group*n / blockIdx.x)"),
        (y - n * group * leaf("udiv", y, n * group), "(blockIdx.x % (group*n))"),
        (
            leaf("udiv", leaf("urem", y, n * group), leaf("umin", group, n)),
            "((blockIdx.x % (group*n)) / min(group, n))",
        ),
        (leaf("shr", x, n + 1), "(threadIdx.x >> (n + 1))"),
        (leaf("and", x * n, constant(15)), "(n*threadIdx.x & 15)"),
        (leaf("sgxt", x * n, constant(8)), "(char)(n*threadIdx.x)"),
        (-leaf("sgxt", -x, constant(16)), "-(short)(-threadIdx.x)"),
    ],
)
def test_a_product_stands_in_brackets_where_a_sign_would_take_it_apart(p: Poly, text: str) -> None:
    def in_order(written: str) -> str:
        return "".join(sorted(written))

    assert in_order(words().poly(p)) == in_order(text)
    given_values = dict(zip(NAMES, (3, 29, 11, 5, 2, 3, 13), strict=True))
    plain = words().poly(p)
    assert Written(given_values.__getitem__).value(plain) == Written(given_values.__getitem__).value(text)


def test_a_value_that_is_subtracted_twice_is_no_decrement() -> None:
    negative = of(atom("sx", -x, bits=64))
    assert words().poly(zx(n) - negative) == "n - (-threadIdx.x)"
