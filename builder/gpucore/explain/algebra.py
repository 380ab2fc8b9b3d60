"""Polynomials over Z/2^32 (registers) and Z/2^64 (addresses), and the identities that put halves together again.

A register is a polynomial over 32-bit atoms. An address is one over the same atoms, zero-extended, and over atoms of 64
bits. What the compiler computes in halves comes together because

    2^32 * hi(P)           = P - zx(lo P)
    2^32 * carry(a, b, c)  = zx(a) + zx(b) + zx(c) - zx(a + b + c)      with 2^32 - zx(b) for a subtracted b
    sx(q)                  = zx(q) + 2^32 * sign(q)

and because a factor of 2^32 makes every extension of a 32-bit value equally good.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache
from typing import Final, Literal, TypeAlias
from weakref import WeakValueDictionary

try:
    from _blake2 import blake2b  # hashlib's own, without OpenSSL, which takes 4 ms of a start
except ImportError:  # another Python than CPython
    from hashlib import blake2b

MASK32: Final = (1 << 32) - 1
MASK64: Final = (1 << 64) - 1
TWO32: Final = 1 << 32

_MOST_TERMS: Final = 160
_MOST_PRODUCTS: Final = 400
_MOST_FACTORS: Final = 12  # of a rank in a cooperative grid six, of what it is multiplied with as many
_MOST_ROUNDS: Final = 40
_DEEPEST: Final = 100
KEPT: Final = 50_000  # results of the functions that are asked for the same polynomials again and again

# The largest values of what the hardware bounds. Every other 32-bit atom may have any value.
_SPECIAL_MOST: Final = {
    "threadIdx.x": 1023, "threadIdx.y": 1023, "threadIdx.z": 63, "blockIdx.x": 2**31 - 2, "blockIdx.y": 65534,
    "blockIdx.z": 65534, "blockDim.x": 1024, "blockDim.y": 1024, "blockDim.z": 64, "gridDim.x": 2**31 - 1,
    "gridDim.y": 65535, "gridDim.z": 65535, "laneId": 31,
}  # fmt: skip

Bits: TypeAlias = Literal[1, 32, 64]


class TooLarge(Exception):
    """A polynomial has grown beyond use; what it stood for is given up."""


class Atom:
    """What a polynomial does not look into: a parameter's word, a loaded word, a loop variable, a quotient.

    `kind` says what `args` are. `bits` is the width of its value; an atom of one bit is a condition. `most` is the
    largest value that it may have. Equal atoms are the same object. They are compared and hashed by identity.
    """

    __slots__ = ("__weakref__", "args", "bits", "depth", "kind", "most", "serial", "size")

    kind: str
    args: tuple[object, ...]
    bits: Bits
    most: int
    serial: int
    depth: int
    """How many atoms are nested in it, itself included."""
    size: int
    """How many nodes it has when it is written out."""

    def __repr__(self) -> str:
        return f"{self.kind}({', '.join(map(str, self.args))})"


Monomial: TypeAlias = tuple[Atom, ...]

_atoms: WeakValueDictionary[tuple[object, ...], Atom] = WeakValueDictionary()


def atom(kind: str, *args: object, bits: Bits = 32) -> Atom:
    """Return the atom of this kind and these arguments."""
    key = (kind, bits, *args)
    found = _atoms.get(key)
    if found is None:
        inner = list(_atoms_in(args))
        depth = 1 + max((a.depth for a in inner), default=0)
        if depth > _DEEPEST:
            raise TooLarge
        found = Atom()
        found.depth, found.size = depth, 1 + sum(a.size for a in inner)
        found.kind, found.args, found.bits, found.serial = kind, args, bits, _place_in_order(key)
        found.most = _most(kind, args, bits)
        _atoms[key] = found
    return found


def _atoms_in(x: object) -> Iterator[Atom]:
    """Yield the atoms that something directly holds, each as often as it does."""
    if isinstance(x, Atom):
        yield x
    elif isinstance(x, Poly):
        for m in x.terms:
            yield from m
    elif isinstance(x, tuple):
        for y in x:
            yield from _atoms_in(y)


def _place_in_order(x: object) -> int:
    """Return a number that is the same for equal things in every process: the order of atoms, and so of every text."""
    if isinstance(x, Atom):
        return x.serial
    if isinstance(x, Poly):
        return sum(_mixed((c, *(a.serial for a in m))) for m, c in x.terms.items()) & MASK64
    return _mixed(tuple(_place_in_order(y) for y in x)) if isinstance(x, tuple) else _mixed(x)


def _mixed(x: object) -> int:
    return int.from_bytes(blake2b(repr(x).encode(), digest_size=8).digest(), "little")


def _most(kind: str, args: tuple[object, ...], bits: Bits) -> int:
    if kind == "special":
        return _SPECIAL_MOST.get(str(args[0]), MASK32)
    if bits != 32:
        return (1 << bits) - 1
    polys = [q for q in args if isinstance(q, Poly)]
    if kind == "carry":
        return len(args)
    if kind == "select":
        return max(map(most, polys))
    if kind in {"and", "umin"}:
        return min(map(most, polys))
    if kind in {"or", "xor"}:
        return int((1 << max(most(q).bit_length() for q in polys)) - 1)
    if kind == "umax":
        return max(map(most, polys))
    if kind == "shr" and polys[1].constant is not None:
        return most(polys[0]) >> min(polys[1].constant, 32)
    if kind in {"udiv", "shr"}:
        return most(polys[0]) // (polys[1].constant or 1) if kind == "udiv" else most(polys[0])
    if kind == "urem":
        return min(most(polys[0]), max(most(polys[1]), 1) - 1) if polys[1].constant else most(polys[0])
    if kind == "popc":
        return 32
    if kind == "flo":
        return MASK32
    if kind == "load" and args[1] == 0:
        return {"U8": 0xFF, "U16": 0xFFFF}.get(str(args[2]), MASK32)
    return MASK32


class Poly:
    """A sum of products of atoms with integer factors, modulo 2^32 or 2^64."""

    __slots__ = ("_atoms", "_hash", "bits", "terms")

    def __init__(self, terms: dict[Monomial, int], bits: Bits) -> None:
        if len(terms) > _MOST_TERMS:
            raise TooLarge
        mask = MASK32 if bits == 32 else MASK64
        self.terms: dict[Monomial, int] = {m: c & mask for m, c in terms.items() if c & mask}
        self.bits: Bits = bits
        self._hash: int | None = None
        self._atoms: tuple[Atom, ...] | None = None

    def __hash__(self) -> int:
        if self._hash is None:
            self._hash = hash((self.bits, frozenset(self.terms.items())))
        return self._hash

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, Poly) and self.bits == other.bits and self.terms == other.terms)

    def __add__(self, other: Poly | int) -> Poly:
        if isinstance(other, int):
            other = constant(other, self.bits)
        terms = dict(self.terms)
        for m, c in other.terms.items():
            terms[m] = terms.get(m, 0) + c
        return Poly(terms, self.bits)

    def __neg__(self) -> Poly:
        return Poly({m: -c for m, c in self.terms.items()}, self.bits)

    def __sub__(self, other: Poly | int) -> Poly:
        return self + -other

    def __mul__(self, other: Poly | int) -> Poly:
        if isinstance(other, int):
            return Poly({m: c * other for m, c in self.terms.items()}, self.bits)
        if len(self.terms) * len(other.terms) > _MOST_PRODUCTS:
            raise TooLarge
        terms: dict[Monomial, int] = {}
        for m, c in self.terms.items():
            for n, d in other.terms.items():
                product = product_of((*m, *n))
                terms[product] = terms.get(product, 0) + c * d
        return Poly(terms, self.bits)

    def __invert__(self) -> Poly:
        return -self - 1

    def __repr__(self) -> str:
        return " + ".join(f"{c:#x}*{'*'.join(map(repr, m))}" for m, c in self.terms.items()) or "0"

    @property
    def constant(self) -> int | None:
        """Its value, where it is a number."""
        if not self.terms:
            return 0
        return self.terms.get(()) if len(self.terms) == 1 else None

    @property
    def single(self) -> Atom | None:
        """Its atom, where it is nothing else."""
        if len(self.terms) != 1:
            return None
        ((m, c),) = self.terms.items()
        return m[0] if len(m) == 1 and c == 1 else None

    def ordered(self) -> list[tuple[Monomial, int]]:
        """Return its terms in an order that is the same for equal polynomials, the number last."""
        return sorted(self.terms.items(), key=lambda term: (not term[0], [a.serial for a in term[0]]))

    def atoms(self) -> tuple[Atom, ...]:
        """Return its atoms, each once, in an order that is the same for equal polynomials."""
        if self._atoms is None:
            self._atoms = tuple(dict.fromkeys(a for m, _ in self.ordered() for a in m))
        return self._atoms

    def where(self, wanted: Callable[[int], bool]) -> Poly:
        """Return the terms whose factor is wanted."""
        return Poly({m: c for m, c in self.terms.items() if wanted(c)}, self.bits)


def product_of(atoms: Iterable[Atom]) -> Monomial:
    """Return the product of atoms; raises TooLarge beyond twelve."""
    product = tuple(sorted(atoms, key=_by_serial))
    if len(product) > _MOST_FACTORS:
        raise TooLarge
    return product


def _by_serial(a: Atom) -> int:
    return a.serial


def constant(value: int, bits: Bits = 32) -> Poly:
    """Return a number as a polynomial."""
    return Poly({(): value}, bits)


def of(a: Atom, bits: Bits | None = None) -> Poly:
    """Return an atom as a polynomial, of the width of its value unless another is given."""
    return Poly({(a,): 1}, a.bits if bits is None else bits)


def leaf(kind: str, *args: object) -> Poly:
    """Return a 32-bit atom as a polynomial."""
    return of(atom(kind, *args))


ZERO: Final = constant(0)
ONES: Final = constant(MASK32)
ZERO64: Final = constant(0, 64)


# Ranges.


def _largest_sum(p: Poly) -> int:
    """Return the largest sum without wrapping; more than 64 bits where a term may be negative."""
    total = 0
    half = 1 << (p.bits - 1)
    for m, c in p.terms.items():
        if c >= half:
            return 1 << 65
        for a in m:
            c *= a.most
        total += c
    return total


@lru_cache(KEPT)
def fits(p: Poly) -> bool:
    """Say whether a 32-bit sum cannot wrap: it is then the sum of its zero-extended atoms."""
    return _largest_sum(p) <= MASK32


@lru_cache(KEPT)
def most(p: Poly) -> int:
    """Return an upper bound of the value."""
    return min(_largest_sum(p), MASK32 if p.bits == 32 else MASK64)


def never_negative(p: Poly) -> bool:
    """Say whether a 32-bit value is certainly not negative when it is read as a signed number."""
    return most(p) < 1 << 31 and fits(p)


def trailing_zeros(p: Poly) -> int:
    """Return how many low bits of a value are certainly 0."""
    best = int(p.bits)
    for m, c in p.terms.items():
        zeros = (c & -c).bit_length() - 1
        for a in m:
            if a.kind == "and":
                masks = [q.constant for q in a.args if isinstance(q, Poly) and q.constant]
                zeros += max(((mask & -mask).bit_length() - 1 for mask in masks), default=0)
        best = min(best, zeros)
    return best


# Between 32 and 64 bits.


def _signed(c: int) -> int:
    return c - TWO32 if c >> 31 else c


@lru_cache(KEPT)
def extend(p: Poly) -> Poly:
    """Return the same sum over extended atoms: equal modulo 2^32."""
    return Poly({m: _signed(c) for m, c in p.terms.items()}, 64)


@lru_cache(KEPT)
def zx(p: Poly) -> Poly:
    """Zero-extend."""
    if p.constant is not None:
        return constant(p.constant, 64)
    if p.single is not None:
        return of(p.single, 64)
    if fits(p):
        return Poly(dict(p.terms), 64)
    return of(atom("zx", p, bits=64))


@lru_cache(KEPT)
def sign(p: Poly) -> Poly:
    """Return 0xffffffff for a negative 32-bit value, else 0."""
    if p.constant is not None:
        return constant(MASK32 if p.constant >> 31 else 0)
    if never_negative(p):
        return ZERO
    if p.single is not None and p.single.kind == "sign":
        return p
    return leaf("sign", p)


def sx(p: Poly) -> Poly:
    """Sign-extend."""
    return zx(p) + lift(sign(p))


@lru_cache(KEPT)
def lo(p: Poly) -> Poly:
    """Return the lower 32 bits."""
    plain: dict[Monomial, int] = {}
    out = ZERO
    for m, c in p.terms.items():
        wide = [a for a in m if a.bits == 64]
        if not wide:
            plain[m] = plain.get(m, 0) + c
            continue
        q = Poly({tuple(a for a in m if a.bits != 64): c}, 32)
        for a in wide:
            q = q * low_of(a)
        out = out + q
    return out + Poly(plain, 32)


def low_of(a: Atom) -> Poly:
    """Return the lower 32 bits of an atom of 64 bits."""
    first = a.args[0]
    if a.kind in {"zx", "sx"} and isinstance(first, Poly):
        return first
    if a.kind == "wide" and isinstance(first, Atom):
        return of(first)
    return leaf("lo", a)


def pair(low: Poly, high: Poly) -> Poly:
    """Return the 64-bit value of two registers."""
    return norm(zx(low) + lift(high))


@lru_cache(KEPT)
def lift(p: Poly) -> Poly:
    """Return 2^32 times a 32-bit value."""
    return norm(extend(p) * TWO32)


@lru_cache(KEPT)
def hi(p: Poly) -> Poly:
    """Return the upper 32 bits."""
    p = norm(p)
    above = lo(Poly({m: c >> 32 for m, c in p.terms.items() if not c & MASK32}, 64))
    rest = p.where(lambda c: c & MASK32 != 0)
    if rest.constant is not None:
        return above + (rest.constant >> 32)
    if _largest_sum(rest) <= MASK32:
        return above
    if rest.single is not None and rest.single.kind == "wide" and isinstance(rest.single.args[1], Atom):
        return above + of(rest.single.args[1])
    if rest.single is not None and rest.single.kind == "sx" and isinstance(rest.single.args[0], Poly):
        return above + sign(rest.single.args[0])
    return above + leaf("hi", rest)


def carry(parts: Iterable[tuple[Poly, bool]]) -> Poly:
    """Return how often a sum of 32-bit values passes 2^32; a part is a value and whether it is subtracted.

    The hardware subtracts by adding the complement plus one, which passes 2^32 for a subtracted 0.
    """
    kept = [(q, subtracted) for q, subtracted in parts if subtracted or q.constant != 0]
    numbers = [TWO32 - q.constant if s else q.constant for q, s in kept if q.constant is not None]
    if len(numbers) == len(kept):
        return constant(sum(numbers) >> 32)
    if not any(subtracted for _, subtracted in kept) and sum(most(q) for q, _ in kept) <= MASK32:
        return ZERO
    if len(kept) == 1 and not kept[0][1]:
        return ZERO
    kept.sort(key=lambda part: (part[1], [([a.serial for a in m], c) for m, c in part[0].ordered()]))
    return leaf("carry", *kept)


_HALVED: Final = {"hi", "carry"}


@lru_cache(KEPT)
def norm(p: Poly) -> Poly:
    """Apply the identities to what has a factor of 2^32 until nothing changes."""
    for _ in range(_MOST_ROUNDS):
        out = ZERO64
        keep: dict[Monomial, int] = {}
        changed = False
        for m, c in p.terms.items():
            low = _signed(c & MASK32)
            found = _to_rewrite(m) if (c - low) & MASK64 else None
            if found is None:
                keep[m] = keep.get(m, 0) + c
                continue
            changed = True
            out = out + _rewritten(found, m, c - low & MASK64)
            if low:
                keep[m] = keep.get(m, 0) + low
        if not changed:
            return p
        p = out + Poly(keep, 64)
    raise TooLarge


def _to_rewrite(m: Monomial) -> Atom | None:
    """Return what a product with 2^32 may hold otherwise: a half, else a value that its low word may replace."""
    return next((a for a in m if a.kind in _HALVED), None) or next(
        (a for a in m if a.kind == "named" or (a.bits == 64 and a.kind != "turn")), None
    )


def _rewritten(a: Atom, m: Monomial, c: int) -> Poly:
    rest = list(m)
    rest.remove(a)
    first = a.args[0]
    if a.kind not in _HALVED:
        low = first if a.kind == "named" and isinstance(first, Poly) else low_of(a)
        return extend(low) * Poly({tuple(rest): c}, 64)
    factor = Poly({product_of(_extended(x) for x in rest): c >> 32}, 64)
    if a.kind == "hi" and isinstance(first, Poly):
        return (first - zx(lo(first))) * factor
    total, out = ZERO, ZERO64
    for q, subtracted in carry_parts(a):
        total = total - q if subtracted else total + q
        out = out + constant(TWO32, 64) - zx(q) if subtracted else out + zx(q)
    return (out - zx(total)) * factor


def _extended(a: Atom) -> Atom:
    first = a.args[0] if a.args else None
    return atom("zx", first, bits=64) if a.kind == "named" else a


def carry_parts(a: Atom) -> Iterator[tuple[Poly, bool]]:
    """Return the parts of a carry."""
    for part in a.args:
        assert isinstance(part, tuple)
        yield part


# Terms apart and together.


def split_by(p: Poly, a: Atom) -> tuple[Poly, Poly] | None:
    """Return f and rest with p = a * f + rest; None where a higher power of the atom occurs."""
    factor: dict[Monomial, int] = {}
    rest: dict[Monomial, int] = {}
    for m, c in p.terms.items():
        times = m.count(a)
        if times == 0:
            rest[m] = c
        elif times == 1:
            other = list(m)
            other.remove(a)
            factor[tuple(other)] = c
        else:
            return None
    return Poly(factor, p.bits), Poly(rest, p.bits)


def join(p: Poly) -> Poly:
    """Put the halves of 64-bit values together: a low and a high atom with factors f and 2^32 * f are one value."""
    for _ in range(60):
        atoms = p.atoms()
        joined = next(filter(None, (_join_high(p, high, atoms) for high in atoms)), None)
        if joined is None:
            return p
        p = joined
    return p


def _join_high(p: Poly, high: Atom, atoms: Sequence[Atom]) -> Poly | None:
    if high.kind not in _MATES or any(high in m and c & MASK32 for m, c in p.terms.items()):
        return None
    for low, value in _MATES[high.kind](high, atoms):
        by_high = split_by(p, high)
        by_low = split_by(by_high[1], low) if by_high else None
        if by_high is None or by_low is None:
            continue
        factor, rest = by_low
        if not factor.terms or low in by_high[0].atoms() or norm(factor * TWO32) != norm(by_high[0]):
            continue
        return value() * factor + rest
    return None


_Mates: TypeAlias = Iterator[tuple[Atom, Callable[[], Poly]]]


def wide(low: Atom, high: Atom) -> Poly:
    """Return the 64-bit value of two atoms."""
    return of(atom("wide", low, high, bits=64))


def _mates_of_sign(high: Atom, atoms: Sequence[Atom]) -> _Mates:
    (q,) = high.args
    assert isinstance(q, Poly)
    low = q.single or atom("zx", q, bits=64)
    if low in atoms:
        yield low, lambda: of(atom("sx", q, bits=64))
    for double in atoms:  # the upper word of 2 * q: all but its sign is shifted out
        if double.kind == "zx" and double.args[0] == q * 2:
            yield double, lambda: of(atom("sx", q, bits=64)) * 2


def _mates_by(same: Callable[[Atom, Atom], bool]) -> Callable[[Atom, Sequence[Atom]], _Mates]:
    """Return a finder of atoms of the same kind whose arguments fit."""

    def find(high: Atom, atoms: Sequence[Atom]) -> _Mates:
        for low in atoms:
            if low.kind == high.kind and low is not high and same(low, high):
                yield low, lambda low=low: wide(low, high)  # type: ignore[misc]

    return find


def _mates_of_select(high: Atom, atoms: Sequence[Atom]) -> _Mates:
    for low in atoms:
        if low.kind == "select" and low is not high and low.args[0] is high.args[0]:
            yield low, lambda low=low: _select64(low, high)  # type: ignore[misc]


FOLDS_OF_SELECT64: Final[list[Callable[[Atom, Poly, Poly], Poly | None]]] = []
"""What knows selects of 64 bits that are no choice; `operations` fills it."""


def _select64(low: Atom, high: Atom) -> Poly:
    condition, a, b = low.args
    _, c, d = high.args
    assert (
        isinstance(condition, Atom)
        and isinstance(a, Poly)
        and isinstance(b, Poly)
        and isinstance(c, Poly)
        and isinstance(d, Poly)
    )
    first, second = join(pair(a, c)), join(pair(b, d))
    for fold in FOLDS_OF_SELECT64:
        folded = fold(condition, first, second)
        if folded is not None:
            return folded
    # What both sides have is no part of the choice: a pointer stays visible as the base of either.
    shared = Poly({m: f for m, f in first.terms.items() if second.terms.get(m) == f}, 64)
    first, second = first - shared, second - shared
    return shared if first == second else shared + of(atom("select64", condition, first, second, bits=64))


def _mates_of_shift(high: Atom, atoms: Sequence[Atom]) -> _Mates:
    value, by = high.args
    assert isinstance(value, Poly) and isinstance(by, Poly)
    for low in atoms:
        if low.kind == "funnel" and low.args[1] == value and low.args[2] == by and by.constant:
            yield low, lambda low=low: _shift64(low, high)  # type: ignore[misc]
        elif low.kind == "zx" and by.constant and low.args[0] == value * (TWO32 >> by.constant):
            yield low, lambda: _shifted_left(high.kind, value, 32 - by.constant)  # type: ignore[operator]


def _shifted_left(kind: str, value: Poly, by: int) -> Poly:
    """Return value << by in 64 bits, whose upper word is what a shift of that kind to the right leaves of the value."""
    signed = kind == "sar" and not never_negative(value)
    return (of(atom("sx", value, bits=64)) if signed else zx(value)) * (1 << by)


def _shift64(low: Atom, high: Atom) -> Poly:
    first, second, by = low.args
    assert isinstance(first, Poly) and isinstance(second, Poly) and isinstance(by, Poly) and by.constant is not None
    value = join(pair(first, second))
    if high.kind == "sar" and by.constant <= 32 and not any(c & MASK32 for c in value.terms.values()):
        inner = lo(Poly({m: c >> 32 for m, c in value.terms.items()}, 64))
        return of(atom("sx", inner, bits=64)) * (1 << (32 - by.constant))
    return of(atom(f"{high.kind}64", value, by, bits=64))


def _next_word(low: Atom, high: Atom) -> bool:
    (bank, first, size), (other, second, width) = low.args, high.args
    assert isinstance(first, int) and isinstance(second, int)
    return bank == other and first + 4 == second and size == width == 4


def _next_by_sum(low: Atom, high: Atom) -> bool:
    first, second = low.args[1], high.args[1]
    assert isinstance(first, Poly) and isinstance(second, Poly)
    return low.args[0] == high.args[0] and (second - first).constant == 4


def _next_number(low: Atom, high: Atom) -> bool:
    first, second = low.args[1], high.args[1]
    assert isinstance(first, int) and isinstance(second, int)
    return low.args[0] == high.args[0] and first + 1 == second


_any_low = _mates_by(lambda low, high: True)
_MATES: Final[dict[str, Callable[[Atom, Sequence[Atom]], _Mates]]] = {
    "sign": _mates_of_sign,
    "bank": _mates_by(_next_word),
    "bank_at": _mates_by(_next_by_sum),
    "bindless": _mates_by(_next_by_sum),
    "load": _mates_by(_next_number),
    "opaque": _mates_by(_next_number),
    "result": _mates_by(_next_number),
    "phi": _mates_by(lambda low, high: low.args[0] == high.args[0]),
    "entry": _any_low,
    "select": _mates_of_select,
    "shr": _mates_of_shift,
    "sar": _mates_of_shift,
}


# Walking.


def polys_in(condition: Atom) -> list[Poly]:
    """Return the values that a condition compares."""
    found: list[Poly] = []
    todo: list[object] = [condition]
    while todo:
        x = todo.pop(0)
        if isinstance(x, Poly):
            found.append(x)
        elif isinstance(x, Atom):
            todo += x.args
    return found


def written_size(x: Poly | Atom) -> int:
    """Return how many nodes a formula has when it is written out; what is shared counts each time."""
    return x.size if isinstance(x, Atom) else 1 + sum(a.size for m in x.terms for a in m)


def inside(p: Poly) -> list[Atom]:
    """Return every atom in a polynomial, also those inside others."""
    seen: dict[Atom, None] = {}
    todo: list[object] = [p]
    while todo:
        x = todo.pop()
        if isinstance(x, Poly):
            todo += reversed(x.atoms())
        elif isinstance(x, tuple):
            todo += reversed(x)
        elif isinstance(x, Atom) and x not in seen:
            seen[x] = None
            todo += reversed(x.args)
    return list(seen)
