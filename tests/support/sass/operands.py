"""How an instruction's operands are read and written: closures over the state of one thread."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from tests.support.sass.listing import Line, Operand, float_bits
from tests.support.sass.machine import Thread, Unsupported, place

M32: Final = (1 << 32) - 1
M64: Final = (1 << 64) - 1
LOST: Final = 256
Get = Callable[[Thread], int]
Put = Callable[[Thread, int], None]
Test = Callable[[Thread], bool]


def signed(value: int, bits: int = 32) -> int:
    """Return a value of so many bits as a signed number."""
    return value - (1 << bits) if value >> (bits - 1) & 1 else value


def test(one: Operand) -> Test:
    """Return how a predicate is read."""
    number, inverted, uniform = one.number, one.inverted, one.kind == "UP"
    if not one.is_predicate:
        raise Unsupported(one.text)
    if uniform:
        return (lambda t: not t.q[number]) if inverted else (lambda t: t.q[number])
    return (lambda t: not t.p[number]) if inverted else (lambda t: t.p[number])


def plain(one: Operand) -> Get:
    """Return how 32 bits are read, without a sign."""
    number = one.number
    if one.suffix:
        raise Unsupported(one.text)
    if one.kind == "R":
        return lambda t: t.r[number]
    if one.kind == "UR":
        return lambda t: t.u[number]
    if one.kind == "immediate":
        value = number & M32 if one.floating is None else float_bits(one.floating)
        return lambda t: value
    if one.kind == "constant":
        return constant(one, 4)
    raise Unsupported(one.text)


def constant(one: Operand, size: int, sign: bool = False) -> Get:
    """Return how a word of a constant bank is read."""
    where, bank = total(one.parts, 1), one.bank
    if bank < 0:
        raise Unsupported(one.text)

    def get(t: Thread) -> int:
        at = where(t)
        return int.from_bytes(t.banks.get(bank, b"")[at : at + size].ljust(size, b"\0"), "little", signed=sign)

    return get


def word(one: Operand) -> Get:
    """Return how 32 bits are read, with sign, absolute value and inversion."""
    get = plain(one)
    if one.absolute:
        raise Unsupported(one.text)
    if one.inverted:
        return lambda t: get(t) ^ M32
    if one.negative:
        return lambda t: -get(t) & M32
    return get


def carrying(one: Operand) -> Get:
    """Return how 32 bits enter a sum with carry: minus x is 2^32 - x, also of 0."""
    if one.negative and one.kind != "immediate":
        get = plain(one)
        return lambda t: (1 << 32) - get(t)
    return word(one)


def double_word(one: Operand) -> Get:
    """Return how 64 bits are read: a pair of registers, two words of a bank, or an immediate with its sign."""
    number = one.number
    if one.suffix and one.suffix != ".64":
        raise Unsupported(one.text)
    if one.kind == "R":
        get: Get = (lambda t: 0) if number == 255 else (lambda t: t.r[number] | t.r[number + 1] << 32)
    elif one.kind == "UR":
        get = (lambda t: 0) if number == 255 else (lambda t: t.u[number] | t.u[number + 1] << 32)
    elif one.kind == "immediate" and one.floating is None:
        value = number & M64
        get = lambda t: value  # noqa: E731
    elif one.kind == "constant":
        get = constant(one, 8)
    else:
        raise Unsupported(one.text)
    if one.inverted:
        return lambda t: get(t) ^ M64
    if one.negative and one.kind != "immediate":
        return lambda t: -get(t) & M64
    return get


def total(parts: Sequence[Operand], bits: int) -> Get:
    """Return the sum of an address's parts; `bits` 64 reads registers without a suffix as pairs."""
    getters: list[Get] = []
    offset = 0
    for one in parts:
        if one.kind == "immediate":
            offset += one.number
        elif one.kind in ("R", "UR"):
            getters.append(_part(one, bits))
        else:
            raise Unsupported(one.text)
    if not getters:
        return lambda t: offset
    if len(getters) == 1:
        (only,) = getters
        return lambda t: only(t) + offset
    return lambda t: sum(get(t) for get in getters) + offset


def _part(one: Operand, bits: int) -> Get:
    number, uniform = one.number, one.kind == "UR"
    if one.suffix == ".U32" or (one.suffix == "" and bits != 64):
        return (lambda t: t.u[number]) if uniform else (lambda t: t.r[number])
    if one.suffix in (".64", ""):
        return double_word(Operand(one.kind, one.text, number))
    if one.suffix in (".X4", ".X8", ".X16"):
        factor = int(one.suffix[2:])
        return lambda t: (t.u if uniform else t.r)[number] * factor
    raise Unsupported(one.text)


def put(one: Operand) -> Put:
    """Return how 32 bits are written."""
    number = LOST if one.number == 255 else one.number
    if one.kind == "R":
        return lambda t, value: t.r.__setitem__(number, value & M32)
    if one.kind == "UR":
        return lambda t, value: t.u.__setitem__(number, value & M32)
    raise Unsupported(one.text)


def put_pair(one: Operand) -> Put:
    """Return how 64 bits are written."""
    number = LOST if one.number == 255 else one.number
    uniform = one.kind == "UR"
    if one.kind not in ("R", "UR"):
        raise Unsupported(one.text)

    def write(t: Thread, value: int) -> None:
        file = t.u if uniform else t.r
        file[number] = value & M32
        file[number + 1] = value >> 32 & M32

    return write


def put_words(one: Operand, count: int) -> Callable[[Thread, Sequence[int]], None]:
    """Return how several registers are written."""
    number, uniform = one.number, one.kind == "UR"

    def write(t: Thread, values: Sequence[int]) -> None:
        if number == 255:
            return
        file = t.u if uniform else t.r
        file[number : number + count] = values

    return write


def put_test(one: Operand) -> Callable[[Thread, bool], None]:
    """Return how a predicate is written."""
    number = 8 if one.number == 7 else one.number
    if not one.is_predicate or one.inverted:
        raise Unsupported(one.text)
    if one.kind == "UP":
        return lambda t, value: t.q.__setitem__(number, bool(value))
    return lambda t, value: t.p.__setitem__(number, bool(value))


def shape(line: Line) -> tuple[Operand, list[Operand], list[Operand], list[Operand]]:
    """Return the destination, the predicates after it, the sources and the predicates after these."""
    rest = list(line.operands)
    early: list[Operand] = []
    while rest and rest[0].is_predicate:
        early.append(rest.pop(0))
    if not rest:
        raise Unsupported(place(line))
    destination = rest.pop(0)
    while rest and rest[0].is_predicate:
        early.append(rest.pop(0))
    late: list[Operand] = []
    while rest and rest[-1].is_predicate:
        late.insert(0, rest.pop())
    return destination, early, rest, late
