"""The number that a polynomial means, what each kind of atom means, and what one number tells of the others.

Leaves are given by the caller: `bank`, `bindless`, `special`, `load`, `phi`, `turn`, `entry`, `result` and `opaque`
(also `opaque` and `phi` of one bit), and what other threads of the warp decide: `shfl(value, lane)` is the value that
this thread of the warp has, `any(c)` says whether a condition holds in any thread, `ballot(c)` has a bit for each in
which it does, `elected` says whether this is the thread that an ELECT chooses, `electedLane` which one that is. Every
other kind has its value here:

| kind | value |
| --- | --- |
| `zx(q)`, `named(q)` | that of q, extended with zeros |
| `sx(q)` | that of q, extended with its sign |
| `sign(q)` | all ones where q is negative, else 0 |
| `lo(atom)`, `hi(P)` | the lower word of an atom of 64 bits, the upper word of a 64-bit sum |
| `wide(low, high)` | two words, as one value |
| `carry(parts)` | how often the sum passes 2^32; a subtracted part counts as its complement plus one |
| `select(c, a, b)`, `select64` | a where c holds, else b |
| `and or xor lop3 prmt sgxt ugxt popc brev flo` | those of the hardware; `lop3` has its truth table last |
| `shr sar shl`, `shr64`, `sar64`, `shl64` | shifts; what is shifted by the width or more is 0 (`sar`: the sign) |
| `funnel(low, high, by)` | the lower word of {high:low} >> by |
| `abs smin smax umin umax`, `smin64` ... | of signed (s) or unsigned (u) numbers |
| `mulhi_u mulhi_s` | the upper word of a product |
| `udiv sdiv urem srem`, `udiv64` ... | quotient towards 0, its remainder; all ones where the divisor is 0 |
| `recip(d)` | the estimate of 2^32 / d that divisions start from; it has no value here |
| `eq lt_u lt_s not all different true false` | conditions; of `all` one that does not hold is enough |
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Final

from gpucore.explain.algebra import MASK32, MASK64, Atom, Poly, carry_parts, most, split_by
from gpucore.explain.operations import signed


class Unknown(Exception):
    """The value of a leaf is not known; `leaf` is that atom."""

    def __init__(self, leaf: Atom) -> None:
        super().__init__(leaf)
        self.leaf = leaf


class Values:
    """Values of polynomials where `leaf` gives those of the leaves, or raises Unknown."""

    def __init__(self, leaf: Callable[[Atom], int]) -> None:
        self._leaf = leaf
        self._known: dict[Atom, int] = {}

    def of(self, p: Poly) -> int:
        """Return the value, from 0; raises Unknown for a leaf without one that it depends on."""
        total = 0
        for m, c in p.terms.items():
            missing: Unknown | None = None
            for a in m:
                try:
                    c *= self.of_atom(a)
                except Unknown as error:
                    missing = error
            if missing is not None and c:  # a product with 0 is 0, whatever else is in it
                raise missing
            total += c
        return total & (MASK32 if p.bits == 32 else MASK64)

    def of_atom(self, a: Atom) -> int:
        """Return the value of an atom; conditions are 0 or 1."""
        value = self._known.get(a)
        if value is None:
            value = self._known[a] = self._compute(a)
        return value

    def _compute(self, a: Atom) -> int:
        kind = a.kind
        if kind in LEAVES:
            return self._leaf(a)
        if kind == "choose":
            chosen = a.args[1] if self.of_atom(a.args[0]) else a.args[2]  # type: ignore[arg-type]
            return self.of_atom(chosen)  # type: ignore[arg-type]
        if kind == "all":
            return self._both(a)
        if kind in {"select", "select64"}:
            condition, first, second = a.args
            assert isinstance(condition, Atom) and isinstance(first, Poly) and isinstance(second, Poly)
            return self.of(first if self.of_atom(condition) else second)
        if kind == "carry":
            parts = [(self.of(q), subtracted) for q, subtracted in carry_parts(a)]
            return sum((~v & MASK32) + 1 if subtracted else v for v, subtracted in parts) >> 32
        if kind == "recip":
            raise Unknown(a)
        values = [self.of(x) if isinstance(x, Poly) else self.of_atom(x) for x in a.args if isinstance(x, Poly | Atom)]
        width = next((x.bits for x in a.args if isinstance(x, Poly)), 32)
        return _OPERATIONS[kind.removesuffix("64")](values, width) & ((1 << a.bits) - 1)

    def _both(self, a: Atom) -> int:
        """Return whether both conditions hold; where one does not, the other need not have a value."""
        first, second = a.args
        assert isinstance(first, Atom) and isinstance(second, Atom)
        try:
            return self.of_atom(first) and self.of_atom(second)
        except Unknown:
            if self.of_atom(second):
                raise
            return 0


LEAVES: Final = frozenset(
    {"bank", "bank_at", "bindless", "carry_bit", "special", "load", "phi", "turn", "entry", "result", "opaque", "shfl"}
    | {"any", "ballot", "elected", "electedLane"}
)
"""The kinds of atoms whose values only the caller knows."""


def _lop3(v: list[int], width: int) -> int:
    a, b, c, table = v
    out = 0
    for row in range(8):
        if table >> row & 1:
            out |= (a if row & 4 else ~a) & (b if row & 2 else ~b) & (c if row & 1 else ~c)
    return out


def _prmt(v: list[int], width: int) -> int:
    a, selector, b = v
    data, out = b << 32 | a, 0
    for k in range(4):
        nibble = selector >> 4 * k & 15
        byte = data >> 8 * (nibble & 7) & 255
        out |= (255 * (byte >> 7) if nibble & 8 else byte) << 8 * k
    return out


def _quotient(v: list[int], width: int) -> int:
    a, b = signed(v[0], width), signed(v[1], width)
    if b == 0:
        return MASK64
    quotient = abs(a) // abs(b)
    return quotient if (a < 0) == (b < 0) else -quotient


def _remainder(v: list[int], width: int) -> int:
    return MASK64 if v[1] == 0 else signed(v[0], width) - signed(v[1], width) * _quotient(v, width)


def _extreme(which: Callable[..., int], negative: bool) -> Callable[[list[int], int], int]:
    def value(v: list[int], width: int) -> int:
        return which(signed(v[0], width), signed(v[1], width)) if negative else which(v[0], v[1])

    return value


_OPERATIONS: Final[dict[str, Callable[[list[int], int], int]]] = {
    "zx": lambda v, w: v[0],
    "named": lambda v, w: v[0],
    "sx": lambda v, w: signed(v[0]),
    "sign": lambda v, w: -(v[0] >> 31),
    "lo": lambda v, w: v[0],
    "hi": lambda v, w: v[0] >> 32,
    "wide": lambda v, w: v[0] | v[1] << 32,
    "and": lambda v, w: v[0] & v[1],
    "or": lambda v, w: v[0] | v[1],
    "xor": lambda v, w: v[0] ^ v[1],
    "lop3": _lop3,
    "prmt": _prmt,
    "sgxt": lambda v, w: signed(v[0], v[1]) if v[1] else 0,
    "ugxt": lambda v, w: v[0] & ((1 << min(v[1], 32)) - 1),
    "popc": lambda v, w: v[0].bit_count(),
    "brev": lambda v, w: int(f"{v[0]:032b}"[::-1], 2),
    "flo": lambda v, w: v[0].bit_length() - 1,
    "shr": lambda v, w: v[0] >> v[1],
    "sar": lambda v, w: signed(v[0], w) >> min(v[1], w),
    "shl": lambda v, w: v[0] << v[1] if v[1] < w else 0,
    "funnel": lambda v, w: (v[1] << 32 | v[0]) >> v[2],
    "abs": lambda v, w: abs(signed(v[0], w)),
    "smin": _extreme(min, True),
    "smax": _extreme(max, True),
    "umin": _extreme(min, False),
    "umax": _extreme(max, False),
    "mulhi_u": lambda v, w: v[0] * v[1] >> 32,
    "mulhi_s": lambda v, w: signed(v[0]) * signed(v[1]) >> 32,
    "udiv": lambda v, w: v[0] // v[1] if v[1] else MASK64,
    "urem": lambda v, w: v[0] % v[1] if v[1] else MASK64,
    "sdiv": _quotient,
    "srem": _remainder,
    "eq": lambda v, w: v[0] == v[1],
    "lt_u": lambda v, w: v[0] < v[1],
    "lt_s": lambda v, w: signed(v[0], w) < signed(v[1], w),
    "not": lambda v, w: not v[0],
    "different": lambda v, w: v[0] != v[1],
    "carries": lambda v, w: v[0],
    "true": lambda v, w: 1,
    "false": lambda v, w: 0,
}


# One equation: which value it has for what is not known yet.


class Known(Values):
    """Values that are known, and those that follow."""

    def __init__(self, known: dict[Atom, int]) -> None:
        super().__init__(_refuse)
        self._known.update(known)


class Traced(Values):
    """Values that note in `met` which leaves they come from; the `hidden` ones are taken as not known."""

    def __init__(self, known: Mapping[Atom, int], hidden: Collection[Atom] = ()) -> None:
        super().__init__(_refuse)
        self._given, self._hidden = known, hidden
        self._leaves: dict[Atom, set[Atom]] = {}
        self.met = set[Atom]()

    def of_atom(self, a: Atom) -> int:
        value = self._known.get(a)
        if value is None:
            outer, self.met = self.met, set()
            try:
                value = None if a in self._hidden else self._given.get(a)
                if value is None:
                    value = self._compute(a)
                else:
                    self.met.add(a)
                self._known[a], self._leaves[a] = value, self.met
            finally:
                self.met = outer | self.met
        self.met |= self._leaves[a]
        return value


def _refuse(a: Atom) -> int:
    raise Unknown(a)


def value_or_none(p: Poly, values: Values) -> int | None:
    """Return the value of a formula; None where it is not known."""
    try:
        return values.of(p)
    except Unknown:
        return None


def solve(p: Poly, value: int, values: Values, parts: Collection[Atom]) -> tuple[Atom, int] | None:
    """Return the one unknown atom of p = value, and its value, where only one value can be.

    That is a leaf, or one of `parts`: operations whose result may be known where what they were done to is not.
    """
    unknown = _unknown(p, values)
    if len(unknown) != 1:
        return None
    a = unknown[0]
    split = split_by(p, a)
    if split is None:
        return None
    try:
        factor, rest = values.of(split[0]), values.of(split[1])
    except Unknown:
        return None
    found = _divided(a, factor, value - rest, p.bits)
    if found is None:
        return None
    if a.kind == "wide":
        return _half_known(a, found, values)
    if a.kind in LEAVES:
        return (a, found) if a.kind != "entry" else None
    try:
        inner = _undone(a, found, values)
    except Unknown:
        return None
    if inner is None:
        return (a, found) if a in parts else None
    return solve(*inner, values, parts)


def _unknown(p: Poly, values: Values) -> list[Atom]:
    """Return the atoms of a sum whose values are not known."""
    found = []
    for a in p.atoms():
        try:
            values.of_atom(a)
        except Unknown:
            found.append(a)
    return found


def _half_known(a: Atom, found: int, values: Values) -> tuple[Atom, int] | None:
    low, high = a.args
    assert isinstance(low, Atom) and isinstance(high, Atom)
    for half, part in ((low, found & MASK32), (high, found >> 32)):
        try:
            if values.of_atom(half) != part:
                return None  # a contradiction shows in the evidence
        except Unknown:
            continue
    return (a, found) if low.kind in LEAVES and high.kind in LEAVES else None


def _undone(a: Atom, value: int, values: Values) -> tuple[Poly, int] | None:
    """Return the part of an operation that its value decides, and the value of that part; None where several can be."""
    kind, width = a.kind.removesuffix("64"), a.bits
    if kind in {"zx", "sx", "named"} and isinstance(a.args[0], Poly):
        return a.args[0], value & MASK32
    if kind == "select":
        condition, first, second = a.args
        assert isinstance(condition, Atom) and isinstance(first, Poly) and isinstance(second, Poly)
        return (first if values.of_atom(condition) else second), value
    if kind in {"sgxt", "ugxt"}:
        inner, bits = a.args
        assert isinstance(inner, Poly) and isinstance(bits, Poly)
        field = (1 << (bits.constant or 0)) - 1
        return (inner, value & field) if bits.constant and most(inner) <= field else None
    if kind not in {"smin", "smax", "umin", "umax", "xor"}:
        return None
    parts = [x for x in a.args if isinstance(x, Poly)]
    known = [value_or_none(x, values) for x in parts]
    if len(parts) != 2 or len(a.args) != 2 or known.count(None) != 1:
        return None
    unknown, other = parts[known.index(None)], next(x for x in known if x is not None)
    if kind == "xor":
        return unknown, value ^ other
    left, right = (signed(value, width), signed(other, width)) if kind[0] == "s" else (value, other)
    return (unknown, value) if (left > right if kind.endswith("max") else left < right) else None


def _divided(a: Atom, factor: int, product: int, bits: int) -> int | None:
    """Return the only value of an atom with factor * value = product modulo 2^bits; None where several can be."""
    modulus = 1 << bits
    product %= modulus
    if not factor:
        return None
    if bits == 32 or (a.bits == 64 and a.kind not in {"sx", "zx"} and factor % 2):
        if factor % 2:
            return product * pow(factor, -1, modulus) % modulus
        if a.most * factor >= modulus or product % factor:
            return None
        return product // factor if product // factor <= a.most else None
    divisor, whole = signed(factor, 64), signed(product, 64)
    if whole % divisor:
        return None
    found = whole // divisor
    if a.kind == "sx":
        return found % modulus if -(1 << 31) <= found < 1 << 31 else None
    if a.bits == 64 and a.kind != "zx":
        return found % modulus if abs(found) < 1 << 62 else None
    return found if 0 <= found <= a.most and found <= MASK32 else None
