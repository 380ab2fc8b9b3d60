"""What the instructions do that touch memory: loads, stores, atomics, constant banks."""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import Final

from tests.support.sass.floating import sum_of
from tests.support.sass.listing import Line
from tests.support.sass.machine import Operation, Thread, Unsupported, place
from tests.support.sass.memory import Memory
from tests.support.sass.operands import (
    M32,
    M64,
    Get,
    constant,
    double_word,
    plain,
    put,
    put_pair,
    put_test,
    put_words,
    signed,
    total,
)

_WIDTHS: Final = {
    "U8": (1, False), "S8": (1, True), "U16": (2, False), "S16": (2, True), "64": (8, False), "128": (16, False),
    "256": (32, False),
}  # fmt: skip
ACCESSES: Final = {
    "LDG": ("load", "global"), "LD": ("load", "generic"), "LDS": ("load", "shared"), "LDL": ("load", "local"),
    "STG": ("store", "global"), "ST": ("store", "generic"), "STS": ("store", "shared"), "STL": ("store", "local"),
    "ATOMG": ("atomic", "global"), "ATOM": ("atomic", "generic"), "ATOMS": ("atomic", "shared"),
    "RED": ("atomic", "global"), "REDG": ("atomic", "global"), "REDS": ("atomic", "shared"),
    "LDSM": ("load", "shared"), "LDGSTS": ("copy", "global"), "STSM": ("store", "shared"), "LDGMC": ("load", "global"),
}  # fmt: skip


def load_constant(line: Line) -> Operation:
    """LDC, ULDC, LDCU"""
    destination, source = line.operands[0], line.operands[-1]
    flags = set(line.flags)
    if source.kind != "constant" or flags - {"64", "128", "U8", "S8", "U16", "S16", "32"} or source.negative:
        raise Unsupported(place(line))
    size, sign = next((_WIDTHS[f] for f in line.flags if f in _WIDTHS), (4, False))
    if size <= 4:
        get, write = constant(source, size, sign), put(destination)
        return lambda t: write(t, get(t))
    count = size // 4
    wide, words = constant(source, size), put_words(destination, count)
    return lambda t: words(t, [wide(t) >> 32 * n & M32 for n in range(count)])


def access(line: Line) -> Operation:
    """Loads, stores and atomics"""
    kind, space = ACCESSES[line.name]
    flags = set(line.flags)
    size, sign = next((_WIDTHS[f] for f in line.flags if f in _WIDTHS), (4, False))
    places = [one for one in line.operands if one.kind == "memory"]
    if not places:
        raise Unsupported(place(line))
    bits = 64 if space in ("global", "generic") and "E" in flags else 32
    mask, offset = (M64 if bits == 64 else M32), line.offset
    if kind == "copy":
        return copy(line, total(places[1].parts, 64), total(places[0].parts, 32), size)
    where = total(places[0].parts, bits)
    if kind == "load":
        destinations = [one for one in line.operands if one.kind in ("R", "UR")]
        if line.name == "LDSM":
            count = int(line.flags[-1]) if line.flags[-1].isdigit() and int(line.flags[-1]) <= 4 else 1
            size = 4 * count
        words = put_words(destinations[0], max(size // 4, 1))
        if size == 32:  # two ranges of four registers, the later words first
            later, first = (put_words(one, 4) for one in destinations)

            def words(t: Thread, values: Sequence[int]) -> None:
                first(t, values[:4])
                later(t, values[4:])

        def load(t: Thread) -> None:
            address = where(t) & mask
            t.touch(offset, "load", space, address, size)
            data = _memory(t, space).read(address, size)
            if size >= 4:
                words(t, struct.unpack(f"<{size // 4}I", data))
            else:
                words(t, (int.from_bytes(data, "little", signed=sign) & M32,))

        return load
    if kind == "store":
        sources, count = line.operands[-2 if size == 32 else -1 :], min(max(size // 4, 1), 4)

        def store(t: Thread) -> None:
            address = where(t) & mask
            t.touch(offset, "store", space, address, size)
            held: list[int] = []
            for one in sources:
                file = t.u if one.kind == "UR" else t.r
                held += [0] * count if one.number == 255 else file[one.number : one.number + count]
            data = b"".join(value.to_bytes(4, "little") for value in held)[:size]
            _memory(t, space).write(address, data)

        return store
    return atomic(line, where, mask, space, flags)


def copy(line: Line, source: Get, target: Get, size: int) -> Operation:
    """LDGSTS: global memory into shared memory"""
    offset = line.offset

    def run(t: Thread) -> None:
        address = source(t) & M64
        t.touch(offset, "load", "global", address, size)
        t.shared.write(target(t) & M32, t.memory.read(address, size))

    return run


def _memory(t: Thread, space: str) -> Memory:
    return {"shared": t.shared, "local": t.local}.get(space, t.memory)


def atomic(line: Line, where: Get, mask: int, space: str, flags: set[str]) -> Operation:
    """ATOM, ATOMG, ATOMS, RED"""
    size, offset = 8 if flags & {"64", "F64"} else 4, line.offset
    at = next(n for n, one in enumerate(line.operands) if one.kind == "memory")
    results = [one for one in line.operands[:at] if one.kind in ("R", "UR")]
    values = list(line.operands[at + 1 :])
    read, write = (double_word, put_pair) if size == 8 else (plain, put)
    keep = write(results[0]) if results else None
    marks = [put_test(one) for one in line.operands[:at] if one.is_predicate]
    getters = [read(one) for one in values if one.kind in ("R", "UR", "immediate")]
    limit, bits = (1 << 8 * size) - 1, 8 * size
    sign = "S32" in flags or "S64" in flags
    operations: dict[str, Callable[[int, int], int]] = {
        "ADD": lambda old, x: old + x, "EXCH": lambda old, x: x, "AND": lambda old, x: old & x,
        "OR": lambda old, x: old | x, "XOR": lambda old, x: old ^ x,
        "MIN": lambda old, x: min(old, x, key=lambda v: signed(v, bits) if sign else v),
        "MAX": lambda old, x: max(old, x, key=lambda v: signed(v, bits) if sign else v),
        "INC": lambda old, x: 0 if old >= x else old + 1,
        "DEC": lambda old, x: x if old == 0 or old > x else old - 1,
        "POPC": lambda old, x: old + 1,
    }  # fmt: skip
    name = next((f for f in line.flags if f in operations or f in ("CAS", "CAST")), None)
    if name is None:
        raise Unsupported(place(line))
    if name == "ADD":
        operations["ADD"] = sum_of(flags) or operations["ADD"]

    def run(t: Thread) -> None:
        address = where(t) & mask
        t.touch(offset, "atomic", space, address, size)
        memory = _memory(t, space)
        old = int.from_bytes(memory.read(address, size), "little")
        given = [get(t) for get in getters]
        exchanged = True
        if name in ("CAS", "CAST"):
            exchanged = len(given) > 1 and given[0] == old
            new = given[1] if exchanged else old
        else:
            new = operations[name](old, given[0] if given else 0)
        memory.write(address, (new & limit).to_bytes(size, "little"))
        if keep:
            keep(t, int(exchanged) if name == "CAST" else old)
        for mark in marks:
            mark(t, exchanged)

    return run
