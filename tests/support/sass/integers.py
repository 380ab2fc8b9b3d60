"""What the integer instructions do: sums with carries, products, shifts, logic, comparisons and selections."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from tests.support.sass.listing import Line
from tests.support.sass.machine import Operation, Thread, Unsupported, place
from tests.support.sass.operands import (
    M32,
    Get,
    Put,
    Test,
    carrying,
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

COMPARE: Final[dict[str, Callable[[int, int], bool]]] = {
    "LT": lambda a, b: a < b, "LE": lambda a, b: a <= b, "GT": lambda a, b: a > b, "GE": lambda a, b: a >= b,
    "EQ": lambda a, b: a == b, "NE": lambda a, b: a != b,
}  # fmt: skip
COMBINE: Final[dict[str, Callable[[bool, bool], bool]]] = {
    "AND": lambda a, b: a and b, "OR": lambda a, b: a or b, "XOR": lambda a, b: a != b,
}  # fmt: skip


def add3(line: Line) -> Operation:
    """IADD3, IADD3.X, UIADD3, IADD, VIADD"""
    if "64" in line.flags:
        return add64(line)
    if set(line.flags) - {"X", "32"}:
        raise Unsupported(place(line))
    destination, early, sources, late = shape(line)
    extended = "X" in line.flags
    getters = [word(one) if extended else carrying(one) for one in sources]
    carries = [test(one) for one in late] if extended else []
    if late and not extended:
        raise Unsupported(place(line))
    write, marks = put(destination), [put_test(one) for one in early]
    if not marks and not carries:
        if len(getters) == 2:
            a, b = getters
            return lambda t: write(t, a(t) + b(t))
        if len(getters) == 3:
            a, b, c = getters
            return lambda t: write(t, a(t) + b(t) + c(t))

    def run(t: Thread) -> None:
        value = sum(get(t) for get in getters) + sum(carry(t) for carry in carries)
        write(t, value)
        for n, mark in enumerate(marks):
            mark(t, value >> 32 > n)

    return run


def add64(line: Line) -> Operation:
    """IADD.64, IADD.64.X, UIADD3.64"""
    destination, early, sources, late = shape(line)
    signs = any(one.negative for one in sources)  # a carry out of the complement is another
    if bool(late) != ("X" in line.flags) or (signs and any(one.number != 7 for one in early)):
        raise Unsupported(place(line))
    getters, write = [double_word(one) for one in sources], put_pair(destination)
    carries, marks = [test(one) for one in late], [put_test(one) for one in early]

    def run(t: Thread) -> None:
        value = sum(get(t) for get in getters) + sum(carry(t) for carry in carries)
        write(t, value)
        for mark in marks:
            mark(t, value >> 64 > 0)

    return run


def multiply(line: Line) -> Operation:
    """IMAD and UIMAD in all their forms"""
    flags = set(line.flags)
    destination, early, (first, second, third), late = shape(line)
    carry = test(late[0]) if late else None
    if bool(late) != ("X" in flags) or len(late) > 1 or len(early) > 1:
        raise Unsupported(place(line))
    if not flags & {"WIDE", "HI"}:
        if flags - {"U32", "X", "MOV", "SHL", "IADD"} or early:
            raise Unsupported(place(line))
        a, b, c, write = word(first), word(second), word(third), put(destination)
        if carry:
            extra = carry
            return lambda t: write(t, a(t) * b(t) + c(t) + extra(t))
        return lambda t: write(t, a(t) * b(t) + c(t))
    if flags - {"U32", "X", "WIDE", "HI"} or first.negative or (second.negative and second.kind != "immediate"):
        raise Unsupported(place(line))
    x, y, z = plain(first), plain(second), double_word(third)
    mark, high = put_test(early[0]) if early else None, "HI" in flags
    result = put(destination) if high else put_pair(destination)
    sign = "U32" not in flags

    def run(t: Thread) -> None:
        left, right = x(t), y(t)
        if sign:
            left, right = signed(left), signed(right)
        value = left * right + z(t) + (carry(t) if carry else 0)
        result(t, value >> 32 if high else value)
        if mark:
            mark(t, value >> 64 & 1 == 1)

    return run


def load_effective(line: Line) -> Operation:
    """LEA, LEA.HI, LEA.HI.X, with SX32"""
    flags = set(line.flags)
    destination, early, sources, late = shape(line)
    if flags - {"HI", "X", "SX32"} or len(early) > 1 or bool(late) != ("X" in flags):
        raise Unsupported(place(line))
    write, mark = put(destination), put_test(early[0]) if early else None
    carry = test(late[0]) if late else None
    shift = sources[-1].number
    a = word(sources[0])
    b = carrying(sources[1]) if not late else word(sources[1])
    if "HI" in flags and "SX32" not in flags:
        c = word(sources[2])
        shifted: Get = lambda t: (c(t) << 32 | a(t)) << shift >> 32 & M32  # noqa: E731
    elif "HI" in flags:
        shifted = lambda t: signed(a(t)) << shift >> 32 & M32  # noqa: E731
    elif sources[0].negative:  # what is subtracted is the shifted word: 2^32 less it, also where it is 0
        positive = plain(sources[0])
        shifted = lambda t: (1 << 32) - (positive(t) << shift & M32)  # noqa: E731
    else:
        shifted = lambda t: a(t) << shift & M32  # noqa: E731

    def run(t: Thread) -> None:
        value = shifted(t) + b(t) + (carry(t) if carry else 0)
        write(t, value)
        if mark:
            mark(t, value >> 32 != 0)

    return run


def shift_funnel(line: Line) -> Operation:
    """SHF and USHF: a pair of words shifted, one word kept"""
    flags = set(line.flags)
    destination, early, (low, amount, high), late = shape(line)
    if flags - {"L", "R", "W", "HI", "U32", "S32", "U64", "S64"} or early or late:
        raise Unsupported(place(line))
    a, s, b, write = word(low), word(amount), word(high), put(destination)
    width = 64 if flags & {"U64", "S64"} else 32
    left, wrap, upper, sign = "L" in flags, "W" in flags, "HI" in flags, bool(flags & {"S32", "S64"})

    def run(t: Thread) -> None:
        by = s(t)
        by = by & width - 1 if wrap else min(by, width)
        pair = b(t) << 32 | a(t)
        value = pair << by if left else (signed(pair, 64) if sign else pair) >> by
        write(t, value >> 32 if upper else value)

    return run


def shift_plain(line: Line) -> Operation:
    """SHL, SHR, USHL"""
    destination, early, (value, amount), late = shape(line)
    if set(line.flags) - {"U32", "S32", "W"} or early or late:
        raise Unsupported(place(line))
    a, s, write = word(value), word(amount), put(destination)
    if line.name.endswith("SHL"):
        return lambda t: write(t, a(t) << min(s(t), 32))
    sign = "U32" not in line.flags
    return lambda t: write(t, (signed(a(t)) if sign else a(t)) >> min(s(t), 32))


def logic(line: Line) -> Operation:
    """LOP3.LUT and ULOP3.LUT"""
    destination, early, (first, second, third, table), late = shape(line)
    if set(line.flags) - {"LUT"} or len(early) > 1 or len(late) != 1:
        raise Unsupported(place(line))
    a, b, c, lut, write = word(first), word(second), word(third), table.number, put(destination)
    other, mark = test(late[0]), put_test(early[0]) if early else None
    rows = [n for n in range(8) if lut >> n & 1]

    def run(t: Thread) -> None:
        x, y, z = a(t), b(t), c(t)
        value = 0
        for n in rows:
            value |= (x if n & 4 else ~x) & (y if n & 2 else ~y) & (z if n & 1 else ~z)
        value &= M32
        write(t, value)
        if mark:
            mark(t, value != 0 or other(t))

    return run


def logic_of_predicates(line: Line) -> Operation:
    """PLOP3.LUT and UPLOP3.LUT"""
    if len(line.operands) != 7 or set(line.flags) != {"LUT"}:
        raise Unsupported(place(line))
    first, second, *inputs, one, two = line.operands
    marks, tests, tables = (put_test(first), put_test(second)), [test(p) for p in inputs], (one.number, two.number)

    def run(t: Thread) -> None:
        row = sum(bool(holds(t)) << 2 - n for n, holds in enumerate(tests))
        values = [bool(table >> row & 1) for table in tables]
        for mark, value in zip(marks, values, strict=True):
            mark(t, value)

    return run


def compare(line: Line) -> Operation:
    """ISETP and UISETP, also of 64 bits"""
    flags = list(line.flags)
    extended, wide = "EX" in flags, bool({"S64", "U64"} & set(flags))
    sign = not {"U32", "U64"} & set(flags)
    if set(flags[1:]) - {"EX", "U32", "S64", "U64", "AND", "OR", "XOR"} or len(line.operands) != 5 + extended:
        raise Unsupported(place(line))
    how, joined = COMPARE[flags[0]], COMBINE[next(f for f in flags if f in COMBINE)]
    p, q, first, second, other = line.operands[:5]
    mark, counter = put_test(p), put_test(q)
    read = double_word if wide else word
    a, b, given, bits = read(first), read(second), test(other), 64 if wide else 32
    lower = test(line.operands[5]) if extended else None
    kind = flags[0]

    def run(t: Thread) -> None:
        x, y = a(t), b(t)
        if sign:
            x, y = signed(x, bits), signed(y, bits)
        held = how(x, y)
        if lower is not None:
            before = lower(t)
            if kind == "EQ":
                held = held and before
            elif kind == "NE":
                held = held or before
            elif x == y:
                held = before
        value = given(t)
        mark(t, joined(held, value))
        counter(t, joined(not held, value))

    return run


def least(line: Line) -> Operation:
    """IMNMX, VIMNMX, UIMNMX, VIADDMNMX and those of three operands"""
    destination, early, sources, late = shape(line)
    flags = set(line.flags)
    if any(one.number != 7 for one in early) or not late or flags - {"U32", "S32", "S64", "U64", "U16x2", "S16x2"}:
        raise Unsupported(place(line))
    wide = bool(flags & {"S64", "U64"})
    getters = [double_word(one) if wide else word(one) for one in sources]
    small, write, sign = test(late[0]), put_pair(destination) if wide else put(destination), not flags & {"U32", "U64"}
    bits, added = 64 if wide else 32, "ADD" in line.name
    if flags & {"U16x2", "S16x2"}:
        return least_of_halves(line, getters, small, write)

    def run(t: Thread) -> None:
        values = [get(t) for get in getters]
        if added:
            values = [(values[0] + values[1]) & M32, *values[2:]]
        if sign:
            values = [signed(value, bits) for value in values]
        write(t, min(values) if small(t) else max(values))

    return run


def least_of_halves(line: Line, getters: Sequence[Get], small: Test, write: Put) -> Operation:
    """VIMNMX.U16x2 and .S16x2"""
    sign = "S16x2" in line.flags

    def run(t: Thread) -> None:
        values, result = [get(t) for get in getters], 0
        for at in (0, 16):
            halves = [value >> at & 0xFFFF for value in values]
            pick = min if small(t) else max
            result |= pick(halves, key=lambda h: signed(h, 16) if sign else h) << at
        write(t, result)

    return run


def select(line: Line) -> Operation:
    """SEL, USEL, SEL.64"""
    destination, early, (first, second), late = shape(line)
    if set(line.flags) - {"64"} or early or len(late) != 1:
        raise Unsupported(place(line))
    read, write = (double_word, put_pair(destination)) if "64" in line.flags else (word, put(destination))
    a, b, holds = read(first), read(second), test(late[0])
    return lambda t: write(t, a(t) if holds(t) else b(t))


def move(line: Line) -> Operation:
    """MOV, UMOV, R2UR and their wide forms"""
    destination, early, sources, late = shape(line)
    if set(line.flags) - {"64", "FILL", "BROADCAST"} or early or late:
        raise Unsupported(place(line))
    source = sources[0]
    if "64" in line.flags:
        wide, result = double_word(source), put_pair(destination)
        return lambda t: result(t, wide(t))
    get, write = word(source), put(destination)
    return lambda t: write(t, get(t))


def absolute(line: Line) -> Operation:
    """IABS"""
    destination, early, (source,), late = shape(line)
    if line.flags or early or late:
        raise Unsupported(place(line))
    get, write = word(source), put(destination)
    return lambda t: write(t, abs(signed(get(t))))


def permute(line: Line) -> Operation:
    """PRMT: four bytes of two words, each chosen by four bits"""
    destination, early, (first, chosen, second), late = shape(line)
    if line.flags or early or late:
        raise Unsupported(place(line))
    a, s, b, write = word(first), word(chosen), word(second), put(destination)

    def run(t: Thread) -> None:
        pool, how, value = a(t) | b(t) << 32, s(t), 0
        for n in range(4):
            code = how >> 4 * n & 15
            byte = pool >> 8 * (code & 7) & 255
            if code & 8:
                byte = 255 if byte & 128 else 0
            value |= byte << 8 * n
        write(t, value)

    return run


def bits_of(line: Line) -> Operation:
    """POPC, FLO, BREV, SGXT, BMSK"""
    destination, early, sources, late = shape(line)
    if any(one.number != 7 for one in early) or late:
        raise Unsupported(place(line))
    getters, write = [word(one) for one in sources], put(destination)
    name, flags = line.name.removeprefix("U"), set(line.flags)
    if name == "POPC" and not flags:
        return lambda t: write(t, getters[-1](t).bit_count())
    if name == "BREV" and not flags:
        return lambda t: write(t, int(f"{getters[0](t):032b}"[::-1], 2))
    if name == "FLO" and not flags - {"U32", "SH"}:

        def leading(t: Thread) -> None:
            value = getters[0](t)
            if "U32" not in flags and value >> 31:
                value ^= M32
            at = value.bit_length() - 1
            write(t, at if at < 0 or "SH" not in flags else 31 - at)

        return leading
    if name == "SGXT" and not flags - {"U32", "W"}:

        def extend(t: Thread) -> None:
            value, width = getters[0](t), min(getters[1](t), 32)
            if width == 0:
                write(t, 0)
                return
            value &= (1 << width) - 1
            write(t, value if "U32" in flags else signed(value, width))

        return extend
    if name == "BMSK" and not flags - {"W"}:

        def mask(t: Thread) -> None:
            at, width = getters[0](t), getters[1](t)
            if "W" in flags:
                at, width = at & 31, width & 31
            write(t, 0 if at >= 32 else ((1 << min(width, 32)) - 1) << at)

        return mask
    raise Unsupported(place(line))
