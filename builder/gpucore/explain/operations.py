"""What registers hold that is no sum of products: bits, shifts, minima, comparisons, selects and quotients.

Every function takes polynomials and returns one, as simple as it is known to be. The kinds of atoms that come out, with
their arguments and values, are documented once, in `gpucore.explain.evaluate`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import lru_cache
from itertools import product
from typing import Final, TypeAlias

from gpucore.explain.algebra import (
    FOLDS_OF_SELECT64,
    KEPT,
    MASK32,
    ONES,
    ZERO,
    Atom,
    Poly,
    TooLarge,
    atom,
    constant,
    fits,
    hi,
    inside,
    join,
    leaf,
    lo,
    most,
    never_negative,
    norm,
    of,
    pair,
    sign,
    sx,
    trailing_zeros,
    zx,
)

_DEEPEST: Final = 32
TRUE: Final = atom("true", bits=1)
FALSE: Final = atom("false", bits=1)


def signed(value: int, bits: int = 32) -> int:
    """Return a number of so many bits as a signed one."""
    value &= (1 << bits) - 1
    return value - (1 << bits) if value >> (bits - 1) else value


def commuted(kind: str, a: Poly, b: Poly) -> Poly:
    """Return a commutative operation with its operands in one order, a number last."""
    if b.constant is None and (a.constant is not None or _order(a) > _order(b)):
        a, b = b, a
    return leaf(kind, a, b)


def _order(p: Poly) -> list[tuple[list[int], int]]:
    return [([a.serial for a in m], c) for m, c in p.ordered()]


# Bits.


def bit_and(a: Poly, b: Poly) -> Poly:
    """Return a & b."""
    return _bitwise("and", a, b)


def bit_or(a: Poly, b: Poly) -> Poly:
    """Return a | b."""
    return _bitwise("or", a, b)


def bit_xor(a: Poly, b: Poly) -> Poly:
    """Return a ^ b."""
    return _bitwise("xor", a, b)


def _bitwise(kind: str, a: Poly, b: Poly) -> Poly:
    if a.constant is not None:
        a, b = b, a
    mask = b.constant
    if a.constant is not None and mask is not None:
        x = a.constant
        return constant({"and": x & mask, "or": x | mask, "xor": x ^ mask}[kind])
    if mask == 0:
        return ZERO if kind == "and" else a
    if mask == MASK32:
        return a if kind == "and" else ONES if kind == "or" else ~a
    if a == b:
        return ZERO if kind == "xor" else a
    if kind == "and" and mask is not None:
        a = low_bits(a, mask.bit_length())
        if a.constant is not None:
            return constant(a.constant & mask)
        if all(len(m) == 1 and m[0].most == 1 and c & c - 1 == 0 for m, c in a.terms.items()):
            return a.where(lambda c: c & mask != 0)  # a word of flags
        if mask & (mask + 1) == 0 and most(a) <= mask and fits(a):
            return a
        inner = a.single
        if inner is not None and inner.kind == "and":
            first, second = inner.args
            assert isinstance(first, Poly) and isinstance(second, Poly)
            if second.constant is not None:
                return _bitwise("and", first, constant(second.constant & mask))
        if inner is not None and inner.kind == "select":
            condition, first, second = inner.args
            assert isinstance(condition, Atom) and isinstance(first, Poly) and isinstance(second, Poly)
            if first.constant is not None or second.constant is not None:
                return select(condition, _bitwise("and", first, b), _bitwise("and", second, b))
        low = mask ^ MASK32
        if low & (low + 1) == 0:
            quotient = _quotient_by_power(a, low.bit_length())
            if quotient is not None:
                return quotient * (low + 1)
    if kind == "or":
        (value, one), (same, other) = _masked(a), _masked(b)
        if value == same and one is not None and other is not None:
            return _bitwise("and", value, constant(one | other))
    if kind != "and":
        for left, right in ((a, b), (b, a)):  # bits that do not meet add up
            if fits(right) and most(right) < 1 << trailing_zeros(left):
                return a + b
    return commuted(kind, a, b)


def _masked(p: Poly) -> tuple[Poly, int | None]:
    """Return a value and a mask that give p by `and`, where p moves bits of the value right and back; else no mask."""
    ((m, c),) = p.terms.items() if len(p.terms) == 1 else (((), 0),)
    a = m[0] if len(m) == 1 and c & (c - 1) == 0 else None
    mask = MASK32
    if a is not None and a.kind == "and":
        value, number = a.args
        assert isinstance(value, Poly) and isinstance(number, Poly)
        if number.constant is None:
            return p, None
        mask, a = number.constant, value.single
        if c == 1 and (a is None or a.kind != "shr"):
            return value, mask
    if a is not None and a.kind == "shr":
        value, number = a.args
        assert isinstance(value, Poly) and isinstance(number, Poly)
        if number.constant is not None and c == 1 << number.constant < 1 << 32:
            return value, mask << number.constant & MASK32
    return p, None


_BY_TWO: Final = {
    (0, 0, 0, 1): lambda x, y: bit_and(x, y),
    (0, 1, 1, 1): lambda x, y: bit_or(x, y),
    (0, 1, 1, 0): lambda x, y: bit_xor(x, y),
    (0, 0, 1, 0): lambda x, y: bit_and(x, ~y),
    (0, 1, 0, 0): lambda x, y: bit_and(~x, y),
    (1, 0, 1, 1): lambda x, y: bit_or(x, ~y),
    (1, 1, 0, 1): lambda x, y: bit_or(~x, y),
    (1, 0, 0, 1): lambda x, y: ~bit_xor(x, y),
    (1, 1, 1, 0): lambda x, y: ~bit_and(x, y),
    (1, 0, 0, 0): lambda x, y: ~bit_or(x, y),
}
_BY_THREE: Final = {
    0x80: lambda a, b, c: bit_and(bit_and(a, b), c),
    0xFE: lambda a, b, c: bit_or(bit_or(a, b), c),
    0x96: lambda a, b, c: bit_xor(bit_xor(a, b), c),
    0xF8: lambda a, b, c: bit_or(bit_and(b, c), a),
    0xEA: lambda a, b, c: bit_or(bit_and(a, b), c),
    0xEC: lambda a, b, c: bit_or(bit_and(a, c), b),
    0x78: lambda a, b, c: bit_xor(bit_and(b, c), a),
    0x6A: lambda a, b, c: bit_xor(bit_and(a, b), c),
    0x6C: lambda a, b, c: bit_xor(bit_and(a, c), b),
    0xE0: lambda a, b, c: bit_and(bit_or(b, c), a),
    0xA8: lambda a, b, c: bit_and(bit_or(a, b), c),
    0xC8: lambda a, b, c: bit_and(bit_or(a, c), b),
}


def lop3(a: Poly, b: Poly, c: Poly, table: int) -> Poly:
    """Return any function of three bits, by its truth table: bit 4a+2b+c of `table` is the result."""
    values = (a, b, c)
    fixed = [0 if q == ZERO else 1 if q == ONES else None for q in values]
    same = [values.index(q) for q in values]  # equal operands move together
    free = sorted({same[k] for k in range(3) if fixed[k] is None})

    def result(bits: dict[int, int]) -> int:
        at = [bits[same[k]] if fixed[k] is None else fixed[k] for k in range(3)]
        return table >> (4 * at[0] + 2 * at[1] + at[2]) & 1  # type: ignore[operator]

    def matters(k: int) -> bool:
        others = [j for j in free if j != k]
        settings = [dict(zip(others, bits, strict=True)) for bits in product((0, 1), repeat=len(others))]
        return any(result({**bits, k: 0}) != result({**bits, k: 1}) for bits in settings)

    needed = [k for k in free if matters(k)]
    rows = [
        result(dict.fromkeys(free, 0) | dict(zip(needed, bits, strict=True)))
        for bits in product((0, 1), repeat=len(needed))
    ]
    if not needed:
        return ONES if rows[0] else ZERO
    if len(needed) == 1:
        return values[needed[0]] if rows[1] else ~values[needed[0]]
    if len(needed) == 2:
        return _BY_TWO[tuple(rows)](values[needed[0]], values[needed[1]])  # type: ignore[index]
    known = _BY_THREE.get(table)
    return known(a, b, c) if known else leaf("lop3", a, b, c, constant(table))


def permute(a: Poly, selector: Poly, b: Poly) -> Poly:
    """Return PRMT: four bytes out of the eight of b and a, by the nibbles of the selector."""
    wanted = selector.constant
    if wanted is None:
        return leaf("prmt", a, selector, b)
    sources = [_permuted(wanted >> 4 * k & 15, a, b) for k in range(4)]
    numbers = [s if isinstance(s, int) else 0 for s in sources]
    values = list(dict.fromkeys(s[0] for s in sources if not isinstance(s, int)))
    fixed = sum(number << 8 * k for k, number in enumerate(numbers))
    if not values:
        return constant(fixed)
    if len(values) > 2 or (len(values) == 2 and any(isinstance(s, int) for s in sources)):
        return leaf("prmt", a, constant(wanted & 0xFFFF), b)
    value, other = (values[0], constant(fixed)) if len(values) == 1 else values
    for down in range(4):  # some bytes of one operand, the rest 0 or copies of its sign
        taken = [k for k in range(4) if sources[k] == (value, k + down, False)]
        if taken and all(k in taken or sources[k] == 0 for k in range(4)):
            return bit_and(shift_right(value, 8 * down), constant(sum(255 << 8 * k for k in taken)))
        width = len(taken)
        if taken and taken == list(range(width)) and all(s == (value, width - 1 + down, True) for s in sources[width:]):
            return extend_field(shift_right(value, 8 * down), constant(8 * width), True)
    nibbles = [4 + k if isinstance(s, int) else (0 if s[0] == value else 4) + s[1] + 8 * s[2]
               for k, s in enumerate(sources)]  # fmt: skip
    return leaf("prmt", value, constant(sum(nibble << 4 * k for k, nibble in enumerate(nibbles))), other)


_Byte: TypeAlias = int | tuple[Poly, int, bool]
"""A byte: a number, else a value, which of its bytes, and whether it is eight copies of that byte's upper bit."""


def _permuted(nibble: int, a: Poly, b: Poly) -> _Byte:
    found = _byte(b if nibble & 4 else a, nibble & 3)
    if not nibble & 8:
        return found
    return 255 * (found >> 7) if isinstance(found, int) else (found[0], found[1], True)


def _byte(value: Poly, number: int) -> _Byte:
    """Return a byte of a value, looking through other permutations and masks."""
    if value.constant is not None:
        return value.constant >> 8 * number & 255
    if fits(value) and most(value) < 1 << 8 * number:
        return 0
    inner = value.single
    if inner is not None and inner.kind in {"prmt", "and", "shr"}:
        first, second = inner.args[:2]
        assert isinstance(first, Poly) and isinstance(second, Poly)
        if inner.kind == "shr" and second.constant is not None and second.constant % 8 == 0:
            at = number + second.constant // 8
            return _byte(first, at) if at < 4 else 0
        if inner.kind == "prmt" and second.constant is not None:
            last = inner.args[2]
            assert isinstance(last, Poly)
            return _permuted(second.constant >> 4 * number & 15, first, last)
        mask = second.constant if inner.kind == "and" else None
        if mask is not None and mask >> 8 * number & 255 in (0, 255):
            return _byte(first, number) if mask >> 8 * number & 255 else 0
    return value, number, False


def extend_field(value: Poly, bits: Poly, negative: bool) -> Poly:
    """Return SGXT: the low bits of a value, extended with its sign or with zeros."""
    width = bits.constant
    if width is None:
        return leaf("sgxt" if negative else "ugxt", value, bits)
    if width >= 32:
        return value
    if not width:
        return ZERO
    if not negative:
        return bit_and(value, constant((1 << width) - 1))
    value = low_bits(value, width)
    if value.constant is not None:
        return constant(signed(value.constant, width))
    return value if fits(value) and most(value) < 1 << (width - 1) else leaf("sgxt", value, bits)


@lru_cache(KEPT)
def low_bits(p: Poly, width: int) -> Poly:
    """Return a value that has the same lowest bits, without what only the bits above come from."""
    out = ZERO
    for m, c in p.terms.items():
        zeros = (c & -c).bit_length() - 1
        if zeros < width:
            of_term = _low_bits_of(m[0], width - zeros) if len(m) == 1 else Poly({m: 1}, 32)
            out = out + of_term * c
    return out


def _low_bits_of(a: Atom, width: int) -> Poly:
    first, second = a.args[0] if a.args else None, a.args[1] if len(a.args) > 1 else None
    if a.kind == "select" and isinstance(first, Atom):
        sides = [low_bits(x, width) for x in a.args[1:] if isinstance(x, Poly)]
        return select(first, *sides)
    if isinstance(first, Poly) and isinstance(second, Poly) and second.constant is not None:
        number, ones = second.constant, (1 << width) - 1
        if a.kind == "and" and number & ones in (0, ones):
            return low_bits(first, width) if number & ones else ZERO
        if a.kind == "sgxt" and number >= width:
            return low_bits(first, width)
        if a.kind == "prmt" and isinstance(a.args[2], Poly):
            taken = [_permuted(number >> 4 * k & 15, first, a.args[2]) for k in range((width + 7) // 8)]
            if all(isinstance(x, int) for x in taken):
                return constant(sum(x << 8 * k for k, x in enumerate(taken) if isinstance(x, int)))
            whole = taken[0][0] if isinstance(taken[0], tuple) else None
            if whole is not None and all(x == (whole, k, False) for k, x in enumerate(taken)):
                return low_bits(whole, width)
    return of(a)


def mask_of_bits(first: Poly, count: Poly, wraps: bool) -> Poly | None:
    """Return BMSK.C: so many ones from a bit on; None where that is not known."""
    if first.constant is None or count.constant is None or wraps:
        return None
    return constant(((1 << min(count.constant, 32)) - 1) << min(first.constant, 32))


# Shifts.


def shift_left(value: Poly, by: Poly, wraps: bool = False) -> Poly:
    """Return value << by; beyond 31 it is 0, or `by` modulo 32 where it wraps."""
    if by.constant is None:
        return leaf("shl", value, bit_and(by, constant(31)) if wraps else by)
    count = by.constant & 31 if wraps else by.constant
    return value * (1 << count) if count < 32 else ZERO


def shift_right(value: Poly, by: int) -> Poly:
    """Return value >> by of an unsigned number."""
    if by == 0:
        return value
    if by > 31 or most(value) < 1 << by:
        return ZERO
    if value.constant is not None:
        return constant(value.constant >> by)
    if fits(value) and all(not c % (1 << by) for c in value.terms.values()):
        return Poly({m: c >> by for m, c in value.terms.items()}, 32)
    inner = value.single
    if inner is not None and inner.kind == "mulhi_u":
        quotient = _unsigned_quotient(inner, by)
        if quotient is not None:
            return quotient
    if inner is not None and inner.kind == "shr":
        first, second = inner.args
        assert isinstance(first, Poly) and isinstance(second, Poly)
        if second.constant is not None:
            return shift_right(first, by + second.constant)
    return leaf("shr", value, constant(by))


def shift_right_signed(value: Poly, by: int) -> Poly:
    """Return value >> by of a signed number."""
    if by == 0:
        return value
    if by >= 31:
        return sign(value)
    if value.constant is not None:
        return constant(signed(value.constant) >> by)
    if never_negative(value):
        return shift_right(value, by)
    return _quotient_by_power(value, by) or leaf("sar", value, constant(by))


def _quotient_by_power(value: Poly, by: int) -> Poly | None:
    """Return x / 2^by of a signed x, where a value is x plus what makes a shift of it round towards 0."""
    for a in value.atoms():
        if a.kind != "shr" or value.terms.get((a,)) != 1:
            continue
        first, count = a.args
        assert isinstance(first, Poly) and isinstance(count, Poly)
        x = value - of(a)
        if count.constant == 32 - by and first == sign(x):
            return leaf("sdiv", x, constant(1 << by))
    return None


def funnel_right(low: Poly, high: Poly, by: int) -> Poly:
    """Return the lower word of {high:low} >> by, with by below 64; what is shifted in is 0 from bit 64 on."""
    if by == 0:
        return low
    if by >= 32:
        return shift_right(high, by - 32)
    if high == ZERO:
        return shift_right(low, by)
    whole = pair(low, high)
    if _largest_is_exact(whole) and all(not c % (1 << by) for c in whole.terms.values()):
        return lo(Poly({m: c >> by for m, c in whole.terms.items()}, 64))
    return leaf("funnel", low, high, constant(by))


def _largest_is_exact(p: Poly) -> bool:
    total = 0
    for m, c in p.terms.items():
        if c >> 63:
            return False
        for a in m:
            c *= a.most
        total += c
    return total < 1 << 64


# Minimum, maximum, absolute value.


def smallest(a: Poly, b: Poly, kind: str) -> Poly:
    """Return `smin`, `smax`, `umin` or `umax` of two values."""
    if a == b:
        return a
    if a.constant is not None and b.constant is not None:
        x, y = (signed(a.constant), signed(b.constant)) if kind[0] == "s" else (a.constant, b.constant)
        return constant(min(x, y) if kind.endswith("min") else max(x, y))
    return commuted(kind, a, b)


def absolute(value: Poly) -> Poly:
    """Return |value| of a signed number."""
    if value.constant is not None:
        return constant(abs(signed(value.constant)))
    return value if never_negative(value) else leaf("abs", value)


# Conditions: atoms of one bit.


def negate(condition: Atom) -> Atom:
    """Return the opposite."""
    if condition is TRUE or condition is FALSE:
        return FALSE if condition is TRUE else TRUE
    first = condition.args[0] if condition.args else None
    return first if condition.kind == "not" and isinstance(first, Atom) else atom("not", condition, bits=1)


def both(a: Atom, b: Atom) -> Atom:
    """Return a and b."""
    if a is FALSE or b is FALSE or a is negate(b):
        return FALSE
    if a is TRUE or a is b:
        return b
    return a if b is TRUE else atom("all", a, b, bits=1)


def either(a: Atom, b: Atom) -> Atom:
    """Return a or b."""
    if a.kind == b.kind == "all":  # whichever way a condition between decides
        for x, y in product((0, 1), repeat=2):
            shared, rest, other = a.args[x], a.args[1 - x], b.args[1 - y]
            if shared is b.args[y] and isinstance(shared, Atom) and isinstance(rest, Atom) and other is negate(rest):
                return shared
    return negate(both(negate(a), negate(b)))


def different(a: Atom, b: Atom) -> Atom:
    """Return a xor b."""
    if a in (TRUE, FALSE):
        return negate(b) if a is TRUE else b
    if b in (TRUE, FALSE):
        return negate(a) if b is TRUE else a
    return FALSE if a is b else TRUE if a is negate(b) else atom("different", a, b, bits=1)


def by_table(a: Atom, b: Atom, c: Atom, table: int) -> Atom:
    """Return any function of three conditions, by its truth table: bit 4a+2b+c of `table` is the result."""
    out = FALSE
    for row in range(8):
        if table >> row & 1:
            bits = (row >> 2 & 1, row >> 1 & 1, row & 1)
            terms = [x if bit else negate(x) for x, bit in zip((a, b, c), bits, strict=True)]
            out = either(out, both(both(terms[0], terms[1]), terms[2]))
    return _minimal(a, b, c, table) or out


def _minimal(a: Atom, b: Atom, c: Atom, table: int) -> Atom | None:
    """Return the function in few words, where it is one of one or two of the conditions."""
    plain = {0xF0: a, 0xCC: b, 0xAA: c}
    if table in plain:
        return plain[table]
    if table ^ 0xFF in plain:
        return negate(plain[table ^ 0xFF])
    if table in (0, 0xFF):
        return TRUE if table else FALSE
    for (m, x), (n, y) in ((p, q) for p in plain.items() for q in plain.items() if p[0] > q[0]):
        for negative_x, negative_y in product((False, True), repeat=2):
            left, right = (m ^ 0xFF if negative_x else m), (n ^ 0xFF if negative_y else n)
            xs, ys = (negate(x) if negative_x else x), (negate(y) if negative_y else y)
            if table == left & right:
                return both(xs, ys)
            if table == left | right:
                return either(xs, ys)
            if table == left ^ right:
                return different(xs, ys)
    if table == 0x80:
        return both(both(a, b), c)
    return either(either(a, b), c) if table == 0xFE else None


def compare(relation: str, a: Poly, b: Poly, unsigned: bool) -> Atom | None:
    """Return a comparison of two integers of one width; None for a relation of another kind.

    Greater and not-equal are written by less and equal: opposite conditions are seen to be opposite.
    """
    if relation in {"T", "F"}:
        return TRUE if relation == "T" else FALSE
    if relation == "NE":
        return negate(_equal(a, b))
    if relation == "EQ":
        return _equal(a, b)
    if relation not in {"LT", "LE", "GT", "GE"}:
        return None
    if relation == "LT":
        return _less(a, b, unsigned)
    if relation == "GE":
        return negate(_less(a, b, unsigned))
    return _less(b, a, unsigned) if relation == "GT" else negate(_less(b, a, unsigned))


def _equal(a: Poly, b: Poly) -> Atom:
    for chosen, other in ((a.single, b), (b.single, a)):
        if chosen is None or chosen.kind != "select" or other.constant is None:
            continue
        condition, first, second = chosen.args
        assert isinstance(condition, Atom) and isinstance(first, Poly) and isinstance(second, Poly)
        if first.constant is not None:
            rest = _equal(second, other)
            return either(condition, rest) if first == other else both(negate(condition), rest)
        if second.constant is not None:
            rest = _equal(first, other)
            return either(negate(condition), rest) if second == other else both(condition, rest)
    apart = (a - b).constant
    if apart is not None:
        return FALSE if apart else TRUE
    if b.constant is None and (a.constant is not None or _order(a) > _order(b)):
        a, b = b, a
    return atom("eq", a, b, bits=1)


def _less(a: Poly, b: Poly, unsigned: bool) -> Atom:
    if a == b:
        return FALSE
    if a.constant is not None and b.constant is not None:
        x, y = a.constant, b.constant
        if not unsigned:
            x, y = signed(x, a.bits), signed(y, b.bits)
        return TRUE if x < y else FALSE
    if unsigned:
        if b == ZERO:
            return FALSE
        if a.bits == 32 and _is_remainder(a, b):
            return TRUE
        if a.bits == 32 and _is_remainder(b, a):
            return FALSE if b == ZERO else atom("lt_u", a, b, bits=1)
    elif b == ZERO and a.bits == 32 and never_negative(a):
        return FALSE
    return atom("lt_u" if unsigned else "lt_s", a, b, bits=1)


# Selects.


def select(condition: Atom, a: Poly, b: Poly) -> Poly:
    """Return a where the condition holds, else b."""
    if condition is TRUE or a == b:
        return a
    if condition is FALSE:
        return b
    if condition.kind == "not":
        inner = condition.args[0]
        assert isinstance(inner, Atom)
        return select(inner, b, a)
    a, b = assuming(a, condition), assuming(b, negate(condition))
    if a == b or (condition.kind == "eq" and _same_where_equal(condition, a, b)):
        return b
    return _division_folded(condition, a, b) or _choices_joined(condition, a, b) or leaf("select", condition, a, b)


def _same_where_equal(condition: Atom, a: Poly, b: Poly) -> bool:
    """Say whether two values are the same where an equality holds."""
    x, y = condition.args
    assert isinstance(x, Poly) and isinstance(y, Poly)
    return x.bits == a.bits and a - b in (x - y, y - x)


def _choices_joined(condition: Atom, a: Poly, b: Poly) -> Poly | None:
    """Return one choice where one of two values is itself a choice that may give the other one."""
    for value, other, holds in ((b, a, negate(condition)), (a, b, condition)):
        inner = value.single
        if inner is None or inner.kind != "select":
            continue
        deciding, first, second = inner.args
        assert isinstance(deciding, Atom) and isinstance(first, Poly) and isinstance(second, Poly)
        if first == other:
            return select(both(holds, negate(deciding)), second, other)
        if second == other:
            return select(both(holds, deciding), first, other)
    return None


def _division_folded(condition: Atom, a: Poly, b: Poly) -> Poly | None:
    if condition.kind not in {"eq", "lt_s"}:
        return None
    left, right = condition.args
    assert isinstance(left, Poly) and isinstance(right, Poly)
    if right != ZERO:
        return None
    if condition.kind == "lt_s":
        return _signed_division(left, b) if a == -b else None
    whole = _whole_division(left, a, b)
    if whole is not None or a not in (ONES, ~left):
        return whole
    for t in b.atoms():  # the result for a divisor of 0 is all ones, which is part of what these atoms mean
        if t.kind in {"udiv", "sdiv"} and t.args[1] == left:
            over = t.args[0]
            assert isinstance(over, Poly)
            if b == of(t):
                return b
            if b == over - left * of(t):
                return leaf("urem" if t.kind == "udiv" else "srem", over, left)
    return None


def _whole_division(upper: Poly, short: Poly, b: Poly) -> Poly | None:
    """Return a word of a 64-bit quotient that is computed in 32 bits where both upper words are 0."""
    for a in b.atoms():
        inner = a.args[0] if a.kind in {"lo", "hi"} else None
        q = inner.single if isinstance(inner, Poly) else inner
        if not isinstance(q, Atom) or q.kind not in {"sdiv64", "udiv64", "srem64", "urem64"} or b != of(a):
            continue
        over, under = q.args
        assert isinstance(over, Poly) and isinstance(under, Poly)
        if _are_upper_words(upper, over, under) and (short == ZERO if a.kind == "hi" else short in _in_32_bits(q)):
            return b
    return None


def _are_upper_words(p: Poly, over: Poly, under: Poly) -> bool:
    """Say whether a word has the bits of the upper words of two values: of a product these are written in many ways."""
    if p == bit_or(hi(over), hi(under)):
        return True
    a = p.single
    words = [x for x in a.args if isinstance(x, Poly)] if a is not None and a.kind == "or" else []
    return len(words) == 2 and any(
        join(pair(lo(over), upper)) == join(norm(over)) and join(pair(lo(under), other)) == join(norm(under))
        for upper, other in (words, words[::-1])
    )


def _in_32_bits(q: Atom) -> list[Poly]:
    """Return what a 64-bit quotient or remainder is for operands whose upper words are 0."""
    over, under = (lo(x) for x in q.args if isinstance(x, Poly))
    quotient = leaf("udiv", over, under)
    return [quotient] if "div" in q.kind else [leaf("urem", over, under), over - under * quotient]


def remainder_folded(condition: Atom, short: Poly, whole: Poly) -> Poly | None:
    """Return x - d * (x / d) in 64 bits where `short` is the same in 32, chosen where both upper words are 0."""
    if condition.kind != "eq" or condition.args[1] != ZERO:
        return None
    for q in whole.atoms():
        if q.kind not in {"sdiv64", "udiv64", "srem64", "urem64"}:
            continue
        over, under = q.args
        assert isinstance(over, Poly) and isinstance(under, Poly)
        upper = condition.args[0]
        if not isinstance(upper, Poly) or not _are_upper_words(upper, over, under):
            continue
        quotient = leaf("udiv", lo(over), lo(under))
        if whole == of(q) and short in [zx(x) for x in _in_32_bits(q)]:
            return whole
        if whole == over - of(q) * under and short == zx(lo(over) - lo(under) * quotient):
            return whole
    return None


def _signed_division(s: Poly, q: Poly) -> Poly | None:
    """Return what is -q where s is negative, else q, as a signed quotient or remainder of absolute values."""
    for t in q.atoms():
        if t.kind != "udiv":
            continue
        over, under = t.args
        assert isinstance(over, Poly) and isinstance(under, Poly)
        x, d = _without_absolute(over), _without_absolute(under)
        if q == of(t) and s == bit_xor(x, d):
            return leaf("sdiv", x, d)
        if q == over - under * of(t) and s == x:
            return x - d * leaf("sdiv", x, d)
    return None


def _without_absolute(q: Poly) -> Poly:
    inner = q.single
    first = inner.args[0] if inner is not None and inner.kind == "abs" else None
    return first if isinstance(first, Poly) else q


def assuming(p: Poly, condition: Atom) -> Poly:
    """Return a value where a condition is known to hold."""
    a = p.single
    if a is not None and a.kind == "select":
        c, first, second = a.args
        assert isinstance(c, Atom) and isinstance(first, Poly) and isinstance(second, Poly)
        known = decided(c, {condition})
        return p if known is None else first if known else second
    return p


def assuming_all(p: Poly, condition: Atom) -> Poly:
    """Return a value where a condition is known to hold: of choices within choices too, if these are not too deep."""
    found: dict[Atom, Poly] = {}

    def look(q: Poly, depth: int = 0) -> Poly:
        a = q.single
        if a is None or a.kind != "select" or depth == _DEEPEST:
            return q
        if a not in found:
            c, first, second = a.args
            assert isinstance(c, Atom) and isinstance(first, Poly) and isinstance(second, Poly)
            c = assumed(c, condition)
            first = look(first, depth + 1) if c is not FALSE else ZERO
            second = look(second, depth + 1) if c is not TRUE else ZERO
            found[a] = select(c, first, second)
        return found[a]

    return look(p)


def assumed(c: Atom, condition: Atom) -> Atom:
    """Return a condition where another one is known to hold."""
    if c.kind == "choose":
        deciding, first, second = c.args
        assert isinstance(deciding, Atom) and isinstance(first, Atom) and isinstance(second, Atom)
        known = decided(deciding, {condition})
        return c if known is None else first if known else second
    known = decided(c, {condition})
    if known is not None:
        return TRUE if known else FALSE
    while c.kind == "all":
        left, right = c.args
        assert isinstance(left, Atom) and isinstance(right, Atom)
        if decided(left, {condition}):
            c = right
        elif decided(right, {condition}):
            c = left
        else:
            break
    return c


def decided(c: Atom, holding: Collection[Atom]) -> bool | None:
    """Return whether a condition is true where others hold; None where they do not decide it."""
    found: dict[Atom, bool | None] = {}  # conditions share parts: as a tree they may be too many
    holding, todo = set[Atom](), list(holding)
    while todo:
        one = todo.pop()
        holding.add(one)
        todo += [x for x in one.args if isinstance(x, Atom)] if one.kind == "all" else []

    def look(c: Atom) -> bool | None:
        if c not in found:
            found[c] = look_again(c)
        return found[c]

    def look_again(c: Atom) -> bool | None:
        if c in holding or negate(c) in holding:
            return c in holding
        if c.kind == "not" and isinstance(c.args[0], Atom):
            inner = look(c.args[0])
            return None if inner is None else not inner
        if c.kind != "all":
            return None
        sides = {look(x) for x in c.args if isinstance(x, Atom)}
        return False if False in sides else True if sides == {True} else None

    return look(c)


# A variable replaced.


def replaced(p: Poly, a: Atom, by: Poly) -> Poly:
    """Return a sum with a 32-bit value in place of an atom; raises TooLarge where that is not known."""
    out = constant(0, p.bits)
    for m, c in p.terms.items():
        term = constant(c, p.bits)
        for x in m:
            value = _replaced_in(x, a, by)
            term = term * (zx(value) if value.bits < p.bits else value)
        out = out + term
    return out


def _replaced_in(x: Atom, a: Atom, by: Poly) -> Poly:
    if x is a:
        return by
    if a not in inside(of(x)):
        return of(x)
    polys = [replaced(q, a, by) for q in x.args if isinstance(q, Poly)]
    rebuild = _REBUILT.get(x.kind)
    if rebuild is None or len(polys) != len(x.args):
        raise TooLarge
    return rebuild(*polys)


def _by_number(shift: Callable[[Poly, int], Poly]) -> Callable[[Poly, Poly], Poly]:
    def shifted(value: Poly, by: Poly) -> Poly:
        if by.constant is None:
            raise TooLarge
        return shift(value, by.constant)

    return shifted


_REBUILT: Final[dict[str, Callable[..., Poly]]] = {
    "zx": zx, "sx": sx, "sign": sign, "hi": hi, "named": lambda q: leaf("named", q), "and": bit_and, "or": bit_or,
    "xor": bit_xor, "shr": _by_number(shift_right), "sar": _by_number(shift_right_signed),
    "shl": shift_left, "sgxt": lambda q, bits: extend_field(q, bits, True),
}  # fmt: skip


# Quotients.


def _is_remainder(r: Poly, d: Poly) -> bool:
    for t in r.atoms():
        if t.kind == "udiv" and t.args[1] == d:
            over = t.args[0]
            assert isinstance(over, Poly)
            if r == over - d * of(t):
                return True
    return False


def estimate(a: Poly, b: Poly) -> Poly | None:
    """Return the quotient that x times the refined reciprocal of d comes to.

    It may be one too small where it is computed. The instructions that follow every such product correct it, and their
    comparisons are decided here as for the quotient.
    """
    for x, y in ((a, b), (b, a)):
        for t in y.atoms():
            under = t.args[0] if t.kind == "recip" else None
            if isinstance(under, Poly) and y == of(t) + high_product(of(t), -under * of(t), True):
                return leaf("udiv", x, under)
    return None


def high_product(a: Poly, b: Poly, unsigned: bool) -> Poly:
    """Return the upper word of a product of two 32-bit values."""
    if (a.constant is not None and b.constant is not None) or ZERO in (a, b):
        return hi(zx(a) * zx(b)) if unsigned else hi(sx(a) * sx(b))
    if (a.constant is None) != (b.constant is None):  # division by a number multiplies by its inverse
        x, k = (a, b) if b.constant is not None else (b, a)
        power = k.constant or 0
        if power & (power - 1) == 0 and (unsigned or power < 1 << 31):
            return (
                shift_right(x, 33 - power.bit_length()) if unsigned else shift_right_signed(x, 33 - power.bit_length())
            )
        return leaf("mulhi_u" if unsigned else "mulhi_s", x, k)
    return hi(zx(a) * zx(b)) if unsigned else hi(sx(a) * sx(b))


def _unsigned_quotient(high: Atom, shift: int) -> Poly | None:
    x, k = high.args
    assert isinstance(x, Poly) and isinstance(k, Poly) and k.constant
    reach = most(x)
    d = round((1 << (32 + shift)) / k.constant)
    excess = k.constant * d - (1 << (32 + shift))
    # x / d = x * k >> (32 + shift) for all x up to reach, where the error stays below one part in d.
    if d > 1 and excess >= 0 and excess * reach < (1 << (32 + shift)):
        return leaf("udiv", x, constant(d))
    return None


def quotient_folded(p: Poly) -> Poly:
    """Return a sum with the quotient by a number that `mulhi >> s` plus its own sign bit is."""
    for a in p.atoms():
        if a.kind != "shr":
            continue
        m, by = a.args
        assert isinstance(m, Poly) and isinstance(by, Poly)
        if by.constant != 31:
            continue
        for b in p.atoms():
            shift = _arithmetic_shift_of(b, m)
            if shift is None or p.terms.get((a,)) is None or p.terms.get((b,)) != p.terms.get((a,)):
                continue
            quotient = _signed_quotient(m, shift)
            if quotient is not None:
                terms = dict(p.terms)
                factor = terms.pop((a,))
                del terms[(b,)]
                return Poly(terms, 32) + quotient * factor
    return p


def _arithmetic_shift_of(b: Atom, m: Poly) -> int | None:
    if m.single is b:
        return 0
    if b.kind == "sar" and b.args[0] == m and isinstance(b.args[1], Poly):
        return b.args[1].constant
    return None


def _signed_quotient(m: Poly, shift: int) -> Poly | None:
    for a in m.atoms():
        if a.kind != "mulhi_s":
            continue
        x, k = a.args
        assert isinstance(x, Poly) and isinstance(k, Poly) and k.constant is not None
        rest = m - of(a)
        magic = k.constant  # with x added it counts as 2^32 larger than it is as a signed number
        if (rest != ZERO and rest != x) or (rest == ZERO and magic >> 31) or (rest == x and not magic >> 31):
            continue
        d = round((1 << (32 + shift)) / magic)
        excess = magic * d - (1 << (32 + shift))
        if d > 1 and 0 < excess <= 1 << (shift + 1):
            return leaf("sdiv", x, constant(d))
    return None


def select64(condition: Atom, a: Poly, b: Poly) -> tuple[Poly, Poly]:
    """Return both words of a where the condition holds, else of b."""
    return select(condition, lo(a), lo(b)), select(condition, hi(a), hi(b))


def split(p: Poly) -> tuple[Poly, Poly]:
    """Return both words of a 64-bit value."""
    return lo(p), hi(p)


FOLDS_OF_SELECT64.append(remainder_folded)
