"""What is wrong with an address, in one line each: what code and registers prove.

A product is said to wrap because its exact value does not fit, however its numbers are read, and a comparison is said
to be missing because no branch on the way has it. A placeholder alone is likely and not certain, and is worded so.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from math import prod
from typing import Final

from gpucore.explain.address import Address, access_of, based_at, element_of, leaves
from gpucore.explain.algebra import Atom, Poly, inside, of
from gpucore.explain.notation import WEAK, Legend, Words
from gpucore.explain.numbers import Numbers
from gpucore.explain.operations import signed
from gpucore.explain.thread import ADDRESSES, alignment

_PLACEHOLDERS: Final = {
    0xFFFFFFFF: "-1",
    0x7FFFFFFF: "the largest int",
    0x80000000: "the smallest int",
    0xDEADBEEF: "the pattern 0xdeadbeef",
    0xCDCDCDCD: "the pattern 0xcdcdcdcd",
    0x7FFF7FFF: "the pattern 0x7fff7fff",
}
_PLACEHOLDERS_64: Final = {
    (1 << 64) - 1: "-1",
    (1 << 63) - 1: "the largest 64-bit integer",
    1 << 63: "the smallest 64-bit integer",
}
_WIDEST: Final = 100
_MOST_READINGS: Final = 6
_MOST_BLOCKS: Final = 400
_CLAMPS: Final = frozenset(
    {"smin", "smax", "umin", "umax", "select", "select64", "and", "urem", "srem", "urem64", "srem64"}
)


@dataclass(frozen=True)
class Judgement:
    """One certain statement; `kind` names it for programs."""

    kind: str
    text: str


def judge(address: Address, numbers: Numbers | None, words: Words, index: int | None) -> list[Judgement]:
    """Return what is certainly wrong, the most telling first; `index` is its value where that is known."""
    found: list[Judgement] = []
    if numbers is not None:
        suspect = numbers.suspect
        if suspect is not None:
            bits = suspect.held ^ suspect.expected
            single = bits.bit_count() == 1
            which = f"bit {bits.bit_length() - 1} differs" if single else f"{bits.bit_count()} bits differ"
            at = ",".join(map(str, suspect.thread))
            found.append(
                Judgement(
                    "contradicted register",
                    f"{suspect.register} of thread ({at}) contradicts every other register: it has "
                    f"{suspect.held:#x} and should have {suspect.expected:#x} ({which})",
                )
            )
        found += judge_numbers(address, numbers, words, index)
    found += _of_guards(address, words)
    return found


def judge_numbers(address: Address, numbers: Numbers, words: Words, index: int | None) -> list[Judgement]:
    """Return what is certainly wrong by the values of one thread."""
    found = [*_of_loads(address, numbers, words), *_of_products(address, numbers, words)]
    found += _of_pointer(address, numbers, words)
    if index is not None and index < 0:
        name, value = element_of(address, index)
        found.append(Judgement("negative index", f"the {name} is negative: {value}"))
    return [*found, *_of_address(address, numbers)]


def _loaded(address: Address) -> Iterator[Atom]:
    """Yield the loaded values that the index depends on, a pair of words as one."""
    formula = address.index if address.index is not None else address.formula
    atoms = inside(formula)
    halves = {half for a in atoms if a.kind == "wide" for half in a.args}
    for a in atoms:
        low = a.args[0] if a.kind == "wide" else a
        if isinstance(low, Atom) and low.kind == "load" and a not in halves:
            yield a


def _of_loads(address: Address, numbers: Numbers, words: Words) -> Iterator[Judgement]:
    """Yield the loaded value that is all of an index, where it is a number that often means none: it is likely that."""
    if address.index is None or not numbers.choice.certain:
        return
    for a in _loaded(address):
        value = numbers.fact(of(a)) if numbers.met(a) else None
        known = (_PLACEHOLDERS_64 if a.bits == 64 else _PLACEHOLDERS).get(value) if value is not None else None
        if known is not None and _is_multiple(address.index, a):
            yield Judgement("placeholder", f"{words.atom(a)} is {known}, which often means no index")


def _is_multiple(p: Poly, a: Atom) -> bool:
    """Say whether a sum is a value times what does not depend on it."""
    return bool(p.terms) and all(any(_is_factor(x, a) for x in m) for m in p.terms)


def _is_factor(x: Atom, a: Atom) -> bool:
    inner = x.args[0] if x.kind in {"sx", "zx", "named"} else None
    return x is a or (isinstance(inner, Poly) and _is_multiple(inner, a))


def _of_products(address: Address, numbers: Numbers, words: Words) -> Iterator[Judgement]:
    """Yield the sums of products whose exact value does not fit the 32 bits that they were computed in.

    A register does not say whether its number has a sign: it must not fit whichever way each of them is read.
    """
    for a in inside(address.formula):
        inner = a.args[0] if a.kind in {"sx", "zx"} else None
        if not isinstance(inner, Poly) or not any(
            len(m) > 1 or (m and abs(signed(c)) > 1) for m, c in inner.terms.items()
        ):
            continue
        exact = _exact(inner, numbers, words.legend)
        least, most = (-(1 << 31), (1 << 31) - 1) if a.kind == "sx" else (-(1 << 31), (1 << 32) - 1)
        if exact and not any(least <= one <= most for one in exact):
            text = words.poly(inner)
            kind = "an int" if a.kind == "sx" else "32 bits"
            shown = f"{text[:_WIDEST]} is {exact[0]}, which does not fit {kind}: it wrapped"
            yield Judgement("wrapped product", shown)


def _exact(p: Poly, numbers: Numbers, legend: Legend) -> list[int]:
    """Return a 32-bit sum without wrapping, for each way to read its numbers, by their types first.

    Nothing where a number is not known, or too many can be read in two ways.
    """
    words: dict[Atom, int] = {}
    for m in p.terms:
        for a in m:
            value = numbers.fact(of(a, 32))
            if value is None:
                return []
            words[a] = value
    ways = [
        (value,) if value < 1 << 31 else (value, signed(value)) if legend.is_unsigned(a) else (signed(value), value)
        for a, value in words.items()
    ]
    factors = [(c,) if c < 1 << 31 else (signed(c), c) for c in p.terms.values()]
    if sum(len(way) > 1 for way in (*ways, *factors)) > _MOST_READINGS:
        return []
    found = []
    for read in product(*ways):
        by_atom = dict(zip(words, read, strict=True))
        terms = [prod(by_atom[a] for a in m) for m in p.terms]
        found += [sum(c * term for c, term in zip(chosen, terms, strict=True)) for chosen in product(*factors)]
    return found


def _of_pointer(address: Address, numbers: Numbers, words: Words) -> Iterator[Judgement]:
    base = address.base
    value = numbers.fact(of(base.value)) if base is not None else None
    if base is None or value is None:
        return
    name = words.atom(base.value)
    if value == 0:
        yield Judgement("null pointer", f"{name} is a null pointer")
    elif value >= ADDRESSES:
        yield Judgement(
            "no device address", f"{name} is {value:#x}, which no device address is: its upper word is wrong"
        )


def _of_address(address: Address, numbers: Numbers) -> Iterator[Judgement]:
    value = numbers.fact(address.formula)
    weak = "" if value is not None else WEAK
    if value is None and address.space == "shared":
        value = numbers.value(address.formula)
        value = numbers.held_address() if value is None else value
    if value is None:
        return
    width = address.width
    if not weak and value % alignment(width):
        yield Judgement("misaligned", f"{value:#x} is not a multiple of {alignment(width)}, which {width} bytes need")
    size = numbers.snapshot.shared_size
    if address.space == "shared" and size is not None and value + width > size and value < 1 << 24:
        reserved = " (the first 1,024 are the system's)" if address.program.architecture >= 90 else ""
        yield Judgement(
            "beyond shared memory",
            f"the block has {size:,} bytes of shared memory{reserved}, and the access ends {value + width - size:,} "
            f"bytes beyond{weak}",
        )


def _of_guards(address: Address, words: Words) -> Iterator[Judgement]:
    """Yield the loaded values in the index that no branch of the function tests and nothing clamps.

    What is loaded twice from one address is one value to the source: a test of either is a test of both.
    """
    loaded = {a: {a, *(x for x in a.args if isinstance(x, Atom))} for a in _loaded(address)}
    clamped = {x for a in inside(address.formula) if a.kind in _CLAMPS for x in _within(a)}
    free = {a: parts for a, parts in loaded.items() if not parts & clamped}
    tested = _tested(address) if free else None
    if tested is None:
        return
    sources = {_source(address, x) for x in (*tested, *clamped) if x.kind == "load"} - {None}
    for name in dict.fromkeys(
        words.atom(a)
        for a, parts in free.items()
        if not parts & tested and not any(_source(address, x) in sources for x in parts if x.kind == "load")
    ):
        yield Judgement("not compared", f"{name} is never bounds-checked here")


def _is_global(address: Address, a: Atom) -> bool:
    n = a.args[0]
    assert isinstance(n, int)
    access = access_of(address.slice.code.instructions[n])
    return access is not None and access[0] == "global"


def _source(address: Address, a: Atom) -> tuple[Poly, object] | None:
    """Return where a loaded word is loaded from, and how it is extended; None where that is not known."""
    n, word, kind = a.args
    assert isinstance(n, int) and isinstance(word, int)
    found = based_at(address.program, address.slice, n)
    return (found[0] + 4 * word, kind) if found is not None else None


def _tested(address: Address) -> set[Atom] | None:
    """Return what the branches and guards of the function compare; None where one of them is not understood."""
    values = address.slice
    code = values.code
    if len(code.blocks) > _MOST_BLOCKS or code.indirect:
        return None
    conditions = [g.condition for g in address.guards]
    for b in code.order:
        if len(code.after[b]) > 1:
            branch = values.condition_behind(b)
            if branch is None:
                return None
            conditions.append(branch)
    found: set[Atom] = set()
    for condition in conditions:
        within = _within(condition)
        if any(a.bits == 1 and a.kind in {"opaque", "result", "phi", "entry", "carry_bit", "elected"} for a in within):
            return None
        # A word of unknown origin may be made from the value that is asked for, and one of the block's memory a copy.
        if any(a.kind in {"opaque", "result"} or (a.kind == "load" and not _is_global(address, a)) for a in within):
            return None
        for a in list(within):
            if a.kind in {"phi", "wide", "turn"}:
                found.update(leaves(values, of(a)))
        found |= within
    return found


def _within(a: Atom) -> set[Atom]:
    """Return every atom in an atom, itself included."""
    found: set[Atom] = set()
    todo: list[object] = [a]
    while todo:
        x = todo.pop()
        if isinstance(x, Poly):
            todo += x.atoms()
        elif isinstance(x, Atom) and x not in found:
            found.add(x)
            todo += x.args
    return found
