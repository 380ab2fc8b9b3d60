"""What the instructions do that threads of a warp execute together: shuffles, votes, matches and reductions.

`Machine` executes them as in a warp of one lane. Here they get the threads that execute them, in the order of lanes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from typing import Final

from tests.support.sass.listing import Line, Operand
from tests.support.sass.machine import Thread, Unsupported, place
from tests.support.sass.operands import M32, double_word, put, put_test, shape, signed, test, word

Together = Callable[[Sequence[Thread], Mapping[int, Thread]], None]
"""An instruction: the threads that execute it, and all threads of the warp by lane."""
LANES: Final = 32


def together(line: Line) -> Together | None:
    """Return what an instruction does to the threads that execute it, None where each executes it for itself."""
    make = _OPERATIONS.get(line.name)
    return make(line) if make else None


def _destinations(line: Line, count: int = -1) -> tuple[list[Operand], list[Operand]]:
    """Return the predicates and the registers that are written; the last `count` operands are sources."""
    written = line.operands[:count]
    return [one for one in written if one.is_predicate], [one for one in written if not one.is_predicate]


def source_lane(how: str, lane: int, by: int, limits: int) -> tuple[int, bool]:
    """Return the lane that a shuffle reads, and whether it is in range; `limits` is the instruction's last operand."""
    segment, clamp, by = limits >> 8 & 31, limits & 31, by & 31
    first = lane & segment
    last = first | (clamp & ~segment)
    if how == "UP":
        other = lane - by
        inside = other >= last
    else:
        other = {"DOWN": lane + by, "BFLY": lane ^ by, "IDX": first | (by & ~segment & 31)}[how]
        inside = other <= last
    return (other, True) if inside else (lane, False)


def shuffle(line: Line) -> Together:
    """SHFL"""
    mark, destination, source, by, limits = line.operands
    (how,) = line.flags
    get, lane, limit, write, valid = word(source), word(by), word(limits), put(destination), put_test(mark)

    def run(threads: Sequence[Thread], warp: Mapping[int, Thread]) -> None:
        held = {n: get(t) for n, t in warp.items()}
        read = [source_lane(how, t.lane, lane(t), limit(t)) for t in threads]
        for t, (other, inside) in zip(threads, read, strict=True):
            write(t, held.get(other, held[t.lane]))
            valid(t, inside)

    return run


def vote(line: Line) -> Together:
    """VOTE and VOTEU: a mask of the lanes where a predicate holds, and whether it does in any, in all, or alike"""
    flags = set(line.flags)
    how = next((f for f in ("ANY", "ALL", "EQ") if f in flags), None)
    if how is None or not line.operands[-1].is_predicate:
        raise Unsupported(place(line))
    holds, (predicates, registers) = test(line.operands[-1]), _destinations(line)
    marks, words = [put_test(one) for one in predicates], [put(one) for one in registers]

    def run(threads: Sequence[Thread], warp: Mapping[int, Thread]) -> None:
        values = [holds(t) for t in threads]
        ballot = sum(1 << t.lane for t, value in zip(threads, values, strict=True) if value)
        decided = {"ANY": any(values), "ALL": all(values), "EQ": len(set(values)) == 1}[how]
        for t in threads:
            for write in words:
                write(t, ballot)
            for mark in marks:
                mark(t, decided)

    return run


def match(line: Line) -> Together:
    """MATCH.ANY and MATCH.ALL: the lanes that hold the same value"""
    predicates, registers = _destinations(line)
    get = double_word(line.operands[-1]) if "U64" in line.flags else word(line.operands[-1])
    marks, words, every = [put_test(one) for one in predicates], [put(one) for one in registers], "ALL" in line.flags

    def run(threads: Sequence[Thread], warp: Mapping[int, Thread]) -> None:
        values = [get(t) for t in threads]
        alike = len(set(values)) == 1
        for t, value in zip(threads, values, strict=True):
            same = sum(1 << other.lane for other, held in zip(threads, values, strict=True) if held == value)
            for write in words:
                write(t, same if alike or not every else 0)
            for mark in marks:
                mark(t, alike)

    return run


def reduction(line: Line) -> Together:
    """REDUX and CREDUX, of whole numbers"""
    destination, early, (source,), late = shape(line)
    names = set(line.flags) - {"S32", "U32"}
    if early or late or len(names) > 1 or not names <= {"SUM", "MIN", "MAX", "OR", "XOR", "AND"}:
        raise Unsupported(place(line))
    get, write, name, sign = word(source), put(destination), next(iter(names), "AND"), "S32" in line.flags
    operations: dict[str, Callable[[int, int], int]] = {
        "SUM": lambda a, b: a + b, "MIN": min, "MAX": max, "OR": lambda a, b: a | b, "XOR": lambda a, b: a ^ b,
        "AND": lambda a, b: a & b,
    }  # fmt: skip

    def run(threads: Sequence[Thread], warp: Mapping[int, Thread]) -> None:
        value = reduce(operations[name], (signed(get(t)) if sign else get(t) for t in threads)) & M32
        for t in threads:
            write(t, value)

    return run


def election(line: Line) -> Together:
    """ELECT: the lowest lane of those that execute it"""
    predicates, registers = _destinations(line)
    marks, words = [put_test(one) for one in predicates], [put(one) for one in registers]

    def run(threads: Sequence[Thread], warp: Mapping[int, Thread]) -> None:
        for t in threads:
            for mark in marks:
                mark(t, t is threads[0])
            for write in words:
                write(t, threads[0].lane)

    return run


_OPERATIONS: Final[dict[str, Callable[[Line], Together]]] = {
    "SHFL": shuffle, "VOTE": vote, "VOTEU": vote, "MATCH": match, "REDUX": reduction, "CREDUX": reduction,
    "ELECT": election,
}  # fmt: skip
