"""The number that a polynomial means, and what each kind of atom means.

Leaves are given by the caller: `bank`, `bindless`, `special`, `load`, `phi`, `turn`, `entry`, `result` and `opaque`
(also `opaque` and `phi` of one bit), and what other threads of the warp decide: `shfl(value, lane)` is the value that
this thread of the warp has, `any(c)` says whether a condition holds in any thread, `ballot(c)` has a bit for each in
which it does. Every other kind has its value here:

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

from collections.abc import Callable
from typing import Final

from gpucore.explain.algebra import MASK32, MASK64, Atom, Poly, carry_parts
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
    | {"any", "ballot"}
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
