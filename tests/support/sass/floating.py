"""Floating point, as far as the integer divisions need it that compilers build on it."""

from __future__ import annotations

import math
import struct
from collections.abc import Callable
from collections.abc import Set as AbstractSet
from fractions import Fraction
from typing import Final

from tests.support.sass.integers import COMBINE, COMPARE
from tests.support.sass.listing import Line, Operand, float_bits, half_bits
from tests.support.sass.machine import Operation, Thread, Unsupported, place
from tests.support.sass.operands import (
    M32,
    Get,
    double_word,
    plain,
    put,
    put_pair,
    put_test,
    shape,
    signed,
    test,
    word,
)

_NAN: Final = 0x7FFFFFFF  # what an H100 stores


def as_float(bits: int) -> float:
    """Return the float of 32 bits."""
    return float(struct.unpack("<f", struct.pack("<I", bits & M32))[0])


def rounded(value: Fraction, mode: str) -> int:
    """Return the bits of a value as a float: RN, RZ, RP or RM."""
    if value == 0:
        return 0
    negative, size = value < 0, abs(value)
    exponent = size.numerator.bit_length() - size.denominator.bit_length()
    if Fraction(2) ** exponent > size:
        exponent -= 1
    if exponent > 127:
        return float_bits(math.inf) | negative << 31
    unit = Fraction(2) ** max(exponent - 23, -149)
    whole, rest = divmod(size, unit)
    up = {
        "RN": rest * 2 > unit or (rest * 2 == unit and whole % 2 == 1),
        "RZ": False, "RP": rest > 0 and not negative, "RM": rest > 0 and negative,
    }[mode]  # fmt: skip
    return float_bits(float((whole + up) * unit)) | negative << 31


def rounding(line: Line) -> str:
    """Return the rounding mode of an instruction."""
    return next((f for f in line.flags if f in ("RZ", "RP", "RM")), "RN")


def real(one: Operand) -> Get:
    """Return how the bits of a float are read."""
    get = plain(one)
    off = M32 >> 1 if one.absolute else M32
    flip = 1 << 31 if one.negative and one.kind != "immediate" else 0
    return lambda t: get(t) & off ^ flip


def arithmetic(line: Line) -> Operation:
    """FADD, FMUL, FFMA"""
    destination, early, sources, late = shape(line)
    if early or late or set(line.flags) - {"RZ", "RP", "RM", "FTZ"}:
        raise Unsupported(place(line))
    getters, write, mode, name = [real(one) for one in sources], put(destination), rounding(line), line.name[-3:]

    def run(t: Thread) -> None:
        values = [as_float(get(t)) for get in getters]
        if not all(map(math.isfinite, values)):
            result = (
                values[0] + values[1] if name == "ADD" else values[0] * values[1] + (values[2] if name == "FMA" else 0)
            )
            write(t, _NAN if math.isnan(result) else float_bits(result))
            return
        exact = [Fraction(value) for value in values]
        value = exact[0] + exact[1] if name == "ADD" else exact[0] * exact[1] + (exact[2] if name == "FMA" else 0)
        write(t, rounded(value, mode))

    return run


def reciprocal(line: Line) -> Operation:
    """MUFU.RCP"""
    destination, source = line.operands
    if line.flags != ("RCP",):
        raise Unsupported(place(line))
    get, write = real(source), put(destination)

    def run(t: Thread) -> None:
        value = as_float(get(t))
        if value == 0 or math.isnan(value):
            write(t, float_bits(math.copysign(math.inf, value)))
        elif math.isinf(value):
            write(t, 0)
        else:
            write(t, rounded(1 / Fraction(value), "RN"))

    return run


def compare_floats(line: Line) -> Operation:
    """FSETP"""
    if len(line.operands) != 5:
        raise Unsupported(place(line))
    p, q, first, second, other = line.operands
    unordered = line.flags[0].endswith("U") and line.flags[0] != "U"
    name = line.flags[0].removesuffix("U")
    if name not in COMPARE or set(line.flags[1:]) - {"AND", "OR", "XOR", "FTZ"}:
        raise Unsupported(place(line))
    how, joined = COMPARE[name], COMBINE[next(f for f in line.flags[1:] if f in COMBINE)]
    a, b, given, mark, counter = real(first), real(second), test(other), put_test(p), put_test(q)

    def run(t: Thread) -> None:
        x, y = as_float(a(t)), as_float(b(t))
        held = unordered if math.isnan(x) or math.isnan(y) else how(x, y)  # type: ignore[arg-type]
        value = given(t)
        mark(t, joined(held, value))
        counter(t, joined(not held, value))

    return run


def select_float(line: Line) -> Operation:
    """FSEL"""
    destination, early, (first, second), late = shape(line)
    if set(line.flags) - {"FTZ"} or early or len(late) != 1:
        raise Unsupported(place(line))
    a, b, holds, write = real(first), real(second), test(late[0]), put(destination)
    return lambda t: write(t, a(t) if holds(t) else b(t))


def to_float(line: Line) -> Operation:
    """I2F and I2FP, to 32 bits"""
    flags = [f for f in line.flags if f != "F32"]
    destination, early, (source,), late = shape(line)
    if set(flags) - {"U32", "S32", "U64", "S64", "U16", "S16", "U8", "S8", "RP", "RZ", "RM"} or early or late:
        raise Unsupported(place(line))
    kind = next((f for f in flags if f[0] in "US"), "S32")
    bits = int(kind[1:])
    part = {".B0": 0, ".B1": 8, ".B2": 16, ".B3": 24, ".H0": 0, ".H1": 16, "": 0}.get(source.suffix)
    if part is None:
        raise Unsupported(place(line))
    if source.suffix:
        source = Operand(source.kind, source.text, source.number, source.negative)
    get, write, mode = (double_word if bits == 64 else word)(source), put(destination), rounding(line)

    def run(t: Thread) -> None:
        value = get(t) >> part & (1 << bits) - 1
        write(t, rounded(Fraction(signed(value, bits) if kind[0] == "S" else value), mode))

    return run


def to_integer(line: Line) -> Operation:
    """F2I, from 32 bits"""
    flags = set(line.flags)
    destination, early, (source,), late = shape(line)
    if flags - {"FTZ", "NTZ", "U32", "S32", "U64", "S64", "TRUNC", "FLOOR", "CEIL"} or early or late:
        raise Unsupported(place(line))
    kind = next((f for f in line.flags if f in ("U32", "S32", "U64", "S64")), "S32")
    bits = int(kind[1:])
    get, write = real(source), put_pair(destination) if bits == 64 else put(destination)
    least_, most = (0, (1 << bits) - 1) if kind[0] == "U" else (-(1 << bits - 1), (1 << bits - 1) - 1)
    how = (
        math.floor if "FLOOR" in flags else math.ceil if "CEIL" in flags else math.trunc if "TRUNC" in flags else round
    )

    def run(t: Thread) -> None:
        value = as_float(get(t))
        if math.isnan(value):
            write(t, 0)
        else:
            limited = most if value == math.inf else least_ if value == -math.inf else how(value)
            write(t, max(least_, min(most, limited)))

    return run


def packed_constant(line: Line) -> Operation:
    """HFMA2 where it stands for a constant: two halves, the upper one first"""
    destination, early, sources, late = shape(line)
    if early or late or len(sources) != 4 or [one.number for one in sources[:2]] != [255, 255]:
        raise Unsupported(place(line))
    if not all(one.kind == "immediate" for one in sources[2:]):
        raise Unsupported(place(line))
    halves = [half_bits(one.floating if one.floating is not None else one.number) for one in sources[2:]]
    write, value = put(destination), halves[0] << 16 | halves[1]
    return lambda t: write(t, value)


def least_float(line: Line) -> Operation:
    """FMNMX: the smaller where the predicate holds; a number before one that is not"""
    destination, early, (first, second), late = shape(line)
    if set(line.flags) - {"FTZ"} or early or len(late) != 1:
        raise Unsupported(place(line))
    a, b, small, write = real(first), real(second), test(late[0]), put(destination)

    def run(t: Thread) -> None:
        pair = [bits for bits in (a(t), b(t)) if not math.isnan(as_float(bits))]
        if pair:
            pick = min if small(t) else max
            write(t, pick(pair, key=lambda bits: (as_float(bits), not bits >> 31)))
        else:
            write(t, _NAN)

    return run


def pack_halves(line: Line) -> Operation:
    """F2FP.F16.F32.PACK_AB: two floats as halves, the second one below"""
    destination, early, (upper, lower), late = shape(line)
    if set(line.flags) - {"F16", "F32", "PACK_AB"} or "PACK_AB" not in line.flags or early or late:
        raise Unsupported(place(line))
    a, b, write = real(upper), real(lower), put(destination)
    return lambda t: write(t, half_bits(as_float(a(t))) << 16 | half_bits(as_float(b(t))))


def to_half(line: Line) -> Operation:
    """F2F.F16.F32: a float as a half, below"""
    destination, early, (source,), late = shape(line)
    if [f for f in line.flags if f != "FTZ"] != ["F16", "F32"] or early or late:
        raise Unsupported(place(line))
    get, write = real(source), put(destination)
    return lambda t: write(t, half_bits(as_float(get(t))))


def sum_of(flags: AbstractSet[str]) -> Callable[[int, int], int] | None:
    """Return how an atomic adds floats, by the bits of its operands; None where its flags name no such format."""
    if "F32" in flags:
        return lambda a, b: float_bits(as_float(a) + as_float(b))
    if "F64" in flags:
        return lambda a, b: _double_bits(_as_double(a) + _as_double(b))
    if "F16x2" in flags:
        return lambda a, b: sum(half_bits(_as_half(a >> at) + _as_half(b >> at)) << at for at in (0, 16))
    if flags & {"BF16_V2", "BF16x2"}:
        return lambda a, b: sum(_brain_bits(_as_brain(a >> at) + _as_brain(b >> at)) << at for at in (0, 16))
    return None


def _as_double(bits: int) -> float:
    return float(struct.unpack("<d", struct.pack("<Q", bits))[0])


def _double_bits(value: float) -> int:
    return int(struct.unpack("<Q", struct.pack("<d", value))[0])


def _as_half(bits: int) -> float:
    return float(struct.unpack("<e", struct.pack("<H", bits & 0xFFFF))[0])


def _as_brain(bits: int) -> float:
    """Return the bfloat of 16 bits."""
    return as_float((bits & 0xFFFF) << 16)


def _brain_bits(value: float) -> int:
    bits = float_bits(value)
    return bits >> 16 if math.isnan(value) else bits + 0x7FFF + (bits >> 16 & 1) >> 16
