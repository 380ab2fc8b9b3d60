"""The published form of a formula: a tree that another program can evaluate.

An inner node is `{"op": NAME, "bits": N, "args": [...]}`; its value has N bits and wraps. Arguments have the same
width, but for the ones named here:

| op | value |
| --- | --- |
| `add`, `mul` | of two or more arguments |
| `and`, `or`, `xor` | of bits; with `bits` 1 of conditions |
| `not` | the opposite condition |
| `eq`, `lt_u`, `lt_s` | a condition: 1 or 0; the arguments have 32 or 64 bits, `lt_s` reads them as signed |
| `select` | [condition, a, b]: a where the condition is 1, else b; only that one need have a value |
| `shl`, `shr`, `sar` | [value, count]; `sar` repeats the sign; a count of `bits` or more leaves nothing but the sign |
| `zero_extend`, `sign_extend` | 32 to 64 bits |
| `low`, `high` | the halves of 64 bits |
| `pair` | [low, high] to 64 bits |
| `min_s`, `max_s`, `min_u`, `max_u`, `abs` | of signed or unsigned numbers |
| `div_u`, `div_s`, `rem_u`, `rem_s` | towards 0; all ones for a divisor of 0 in 32 bits, no value in 64 |
| `mulhi_u`, `mulhi_s` | the upper 32 bits of the product of two values of 32 bits |
| `lop3` | [a, b, c, table]: for each bit, bit 4a+2b+c of the table |
| `prmt` | [a, selector, b]: four bytes of {b:a}, by the nibbles of the selector; 8 in a nibble repeats the sign |
| `sgxt`, `ugxt` | [value, n]: the lowest n bits, extended with their sign or with zeros |
| `popc`, `brev`, `flo` | number of ones; bits reversed; number of the highest one, else all ones |
| `constant_at` | [offset]: a word of constant bank `bank` |
| `in_lane` | [value, lane]: the value in another thread of the warp |
| `any`, `ballot` | [condition]: 1 where it holds in any thread that runs it; a bit for each thread in which it does |

A leaf has `bits` too: `{"constant": n}`; `{"parameter": k, "bytes": [from, to]}` of argument k, counted from 1;
`{"special": NAME}`; `{"constant_bank": b, "offset": o, "bytes": n}`; `{"loaded": k, "bytes": [from, to]}`, bytes of the
registers that the load `loads[k]` wrote; `{"loop": k}`, the variable `loops[k]`; `{"opaque": OPCODE, "at": offset,
"register": R}`, what that instruction wrote; `{"entry": R}`, what a register had when the function was entered.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeAlias

from gpucore.explain.algebra import TWO32, Atom, Poly, carry_parts

Json: TypeAlias = dict[str, object]
LeafTree: TypeAlias = Callable[[Atom, int], Json]
"""Gives the leaf for an atom; the number is how many 32-bit words it has."""

_SAME: Final = {
    "and": "and", "or": "or", "xor": "xor", "shr": "shr", "sar": "sar", "shl": "shl", "abs": "abs", "smin": "min_s",
    "smax": "max_s", "umin": "min_u", "umax": "max_u", "mulhi_u": "mulhi_u", "mulhi_s": "mulhi_s", "udiv": "div_u",
    "sdiv": "div_s", "urem": "rem_u", "srem": "rem_s", "lop3": "lop3", "prmt": "prmt", "sgxt": "sgxt", "ugxt": "ugxt",
    "popc": "popc", "brev": "brev", "flo": "flo", "eq": "eq", "lt_u": "lt_u", "lt_s": "lt_s", "not": "not",
    "all": "and", "different": "xor", "select": "select", "choose": "select", "shfl": "in_lane", "any": "any",
    "ballot": "ballot",
}  # fmt: skip


def tree_of(p: Poly, leaf: LeafTree) -> Json:
    """Return a polynomial as a tree."""
    terms = [_term(m, c, p.bits, leaf) for m, c in p.ordered()]
    if not terms:
        return {"constant": 0, "bits": p.bits}
    return terms[0] if len(terms) == 1 else {"op": "add", "bits": p.bits, "args": terms}


def _term(m: tuple[Atom, ...], c: int, bits: int, leaf: LeafTree) -> Json:
    factors = [_factor(a, bits, leaf) for a in m]
    if c != 1 or not factors:
        factors.insert(0, {"constant": c, "bits": bits})
    return factors[0] if len(factors) == 1 else {"op": "mul", "bits": bits, "args": factors}


def _factor(a: Atom, bits: int, leaf: LeafTree) -> Json:
    tree = tree_of_atom(a, leaf)
    return (
        {"op": "zero_extend", "bits": 64, "args": [tree]} if bits == 64 and a.bits == 32 and a.kind != "turn" else tree
    )


def tree_of_atom(a: Atom, leaf: LeafTree) -> Json:
    """Return an atom as a tree of the width of its value."""
    kind = a.kind
    first = a.args[0] if a.args else None
    if kind in {"true", "false"}:
        return {"constant": int(kind == "true"), "bits": 1}
    if kind in {"zx", "sx"} and isinstance(first, Poly):
        op = "zero_extend" if kind == "zx" else "sign_extend"
        return {"op": op, "bits": 64, "args": [tree_of(first, leaf)]}
    if kind == "named" and isinstance(first, Poly):
        return tree_of(first, leaf)
    if kind == "sign" and isinstance(first, Poly):
        return {"op": "sar", "bits": 32, "args": [tree_of(first, leaf), {"constant": 31, "bits": 32}]}
    if kind == "hi" and isinstance(first, Poly):
        return {"op": "high", "bits": 32, "args": [tree_of(first, leaf)]}
    if kind == "lo" and isinstance(first, Atom):
        return {"op": "low", "bits": 32, "args": [tree_of_atom(first, leaf)]}
    if kind == "wide":
        return _wide(a, leaf)
    if kind == "carry":
        return {"op": "high", "bits": 32, "args": [_sum_of(a, leaf)]}
    if kind == "carries" and isinstance(first, Poly):
        return {"op": "not", "bits": 1, "args": [{"op": "eq", "bits": 1, "args": [tree_of(first, leaf), _zero()]}]}
    if kind == "funnel":
        return _funnel(a, leaf)
    if kind == "bank_at":
        bank, offset, size = a.args
        assert isinstance(offset, Poly)
        return {"op": "constant_at", "bits": 32, "bank": bank, "bytes": size, "args": [tree_of(offset, leaf)]}
    name = _SAME.get(kind.removesuffix("64"))
    if name is None:
        return leaf(a, 2 if a.bits == 64 else 1)
    args = [
        tree_of(x, leaf) if isinstance(x, Poly) else tree_of_atom(x, leaf) for x in a.args if isinstance(x, Poly | Atom)
    ]
    return {"op": name, "bits": a.bits, "args": args}


def _zero() -> Json:
    return {"constant": 0, "bits": 32}


def _wide(a: Atom, leaf: LeafTree) -> Json:
    low, high = a.args
    assert isinstance(low, Atom) and isinstance(high, Atom)
    consecutive = low.kind in {"bank", "load"} or (low.kind == "phi" and high.kind == "phi")
    if consecutive:
        return leaf(a, 2)
    return {"op": "pair", "bits": 64, "args": [tree_of_atom(low, leaf), tree_of_atom(high, leaf)]}


def _sum_of(a: Atom, leaf: LeafTree) -> Json:
    args: list[Json] = []
    for q, subtracted in carry_parts(a):
        extended: Json = {"op": "zero_extend", "bits": 64, "args": [tree_of(q, leaf)]}
        if subtracted:
            args.append({"constant": TWO32, "bits": 64})
            extended = {"op": "mul", "bits": 64, "args": [{"constant": (1 << 64) - 1, "bits": 64}, extended]}
        args.append(extended)
    return {"op": "add", "bits": 64, "args": args}


def _funnel(a: Atom, leaf: LeafTree) -> Json:
    low, high, by = (x for x in a.args if isinstance(x, Poly))
    value: Json = {"op": "pair", "bits": 64, "args": [tree_of(low, leaf), tree_of(high, leaf)]}
    count: Json = {"op": "zero_extend", "bits": 64, "args": [tree_of(by, leaf)]}
    return {"op": "low", "bits": 32, "args": [{"op": "shr", "bits": 64, "args": [value, count]}]}
