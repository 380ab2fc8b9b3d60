"""What each SASS instruction does, as Python functions over the state of one thread.

Learned from what nvcc writes for C++ whose meaning is known; `tests/oracle/test_why_random.py` holds it to that.
Floating point is only as exact as the integer divisions that are built on it need. What is not known raises
`Unsupported`, or, where the compiler is not strict, leaves an arbitrary but repeatable value in the destination.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from tests.support.sass.accesses import ACCESSES, access, load_constant
from tests.support.sass.floating import (
    arithmetic,
    compare_floats,
    least_float,
    pack_halves,
    packed_constant,
    reciprocal,
    select_float,
    to_float,
    to_half,
    to_integer,
)
from tests.support.sass.integers import (
    absolute,
    add3,
    bits_of,
    compare,
    least,
    load_effective,
    logic,
    logic_of_predicates,
    move,
    multiply,
    permute,
    select,
    shift_funnel,
    shift_plain,
)
from tests.support.sass.listing import Code, Line, Operand
from tests.support.sass.machine import EXIT, Operation, Thread, Unsupported, place
from tests.support.sass.operands import M32, Put, put, put_pair, put_test, shape, test, word

_NOTHING: Final = frozenset(
    """NOP BSSY BSYNC BREAK BMOV B2R WARPSYNC YIELD NANOSLEEP DEPBAR LDGDEPBAR MEMBAR ERRBAR CCTL CCTLL BAR FENCE
    PREEXIT ACQBULK CGAERRBAR USETMAXREG ENDCOLLECTIVE UCGABAR_ARV UCGABAR_WAIT ARRIVES UTMACMDFLUSH UTMACCTL LDTRAM
    BARRIER UTMAPF UTMALDG UTMASTG UTMAREDG UBLKCP UBLKPF UBLKRED WARPGROUP R2B UVIRTCOUNT UTCBAR
    BGMMA""".split()  # noqa: SIM905
)
# Floating point and the like: data, seldom part of an address.
_DATA: Final = frozenset(
    """HADD2 HMUL2 HFMA2 HMNMX2 HSET2 HADD2_32I HMMA IMMA BMMA QGMMA HGMMA IGMMA DADD DMUL DFMA DMNMX F2F F2FP FRND FCHK
    FSWZADD MUFU FADD2 FMUL2 FFMA2 I2F F2I I2I I2IP F2IP FMNMX3 FHADD FHFMA UTCHMMA UTCQMMA LDT STT OMMA QMMA MOVM IDP
    IDP4A VABSDIFF VABSDIFF4 TEX TLD TLD4 TXQ SULD SUST SUATOM FMNMX FADD FMUL FFMA FSEL UFMUL UFADD UFFMA UFSEL UFMNMX
    UF2F UF2FP FSETP UFSETP DSETP HSETP2 FSET UI2F UF2I I2FP UI2FP FADD32I FMUL32I FFMA32I TTUCCTL
    GETLMEMBASE""".split()  # noqa: SIM905
)


class Compiler:
    """Turns instructions into Python functions."""

    def __init__(self, code: Code, labels: Mapping[str, int], *, strict: bool) -> None:
        self._labels: Final = labels
        self._strict: Final = strict
        self._base: Final = code.lines[0].offset if code.lines else 0
        self._count: Final = len(code.lines)

    def operation(self, line: Line) -> Operation:
        """Return what an instruction does, its guard included."""
        done = self._unguarded(line)
        if line.guard is None:
            return done
        holds = test(line.guard)
        return lambda t: done(t) if holds(t) else None

    def _unguarded(self, line: Line) -> Operation:
        if line.name in _NOTHING:
            return lambda t: None
        uniform = line.name[0] == "U" and line.name[1:] in _OPERATIONS
        make = _OPERATIONS.get(line.name) or (_OPERATIONS[line.name[1:]] if uniform else None)
        try:
            if line.name in FLOW:
                return self._flow(line)
            if line.name in ACCESSES:
                return access(line)
            if make is not None:
                return make(line)
        except Unsupported as error:
            if self._strict and line.name not in _DATA:
                raise Unsupported(place(line)) from error
        if self._strict and line.name not in _DATA:
            raise Unsupported(place(line))
        return guess(line)

    def _target(self, line: Line, text: Operand) -> int:
        if text.kind == "immediate":
            return text.number // 16
        for name, offset in self._labels.items():
            if text.text == name:
                return offset // 16
        if self._strict:
            raise Unsupported(place(line))
        return line.offset // 16 + 1

    def _flow(self, line: Line) -> Operation:
        name, operands = line.name, line.operands
        if name in ("EXIT", "KILL", "BPT"):
            return lambda t: EXIT
        if name == "RET":
            register = operands[0].number

            def back(t: Thread) -> int:
                t.calls = t.calls[:-1]
                return t.r[register] // 16

            return back
        if name == "BRA":
            if "DIV" in line.flags:
                return lambda t: None
            target, tests = self._target(line, operands[-1]), [test(one) for one in operands[:-1] if one.is_predicate]
            if not tests:
                return lambda t: target
            return lambda t: target if all(holds(t) for holds in tests) else None
        if name == "CALL":
            if operands[0].kind in ("immediate", "label") and "REL" in line.flags:
                target, here = self._target(line, operands[0]), line.offset
                if 16 * target not in self._labels.values():
                    return lambda t: target  # a way out of a loop: no function begins there, and nothing returns

                def call(t: Thread) -> int:
                    t.calls = (*t.calls, here)
                    return target

                return call
            if self._strict:
                raise Unsupported(place(line))
            return lambda t: None  # a system call, such as assert()
        raise Unsupported(place(line))


FLOW: Final = frozenset(("EXIT", "KILL", "BPT", "RET", "BRA", "CALL", "BRX", "BRXU", "JMP", "JMX", "BRX", "RPCMOV"))


def special(line: Line) -> Operation:
    """S2R, S2UR, CS2R"""
    destination, source = line.operands[0], line.operands[-1].text
    pair = line.name == "CS2R" and "32" not in line.flags
    write = put_pair(destination) if pair else put(destination)
    axes = {".X": 0, ".Y": 1, ".Z": 2}
    axis = axes.get(source[-2:], 0)
    if source.startswith("SR_TID."):
        return lambda t: write(t, t.thread[axis])
    if source.startswith("SR_CTAID."):
        return lambda t: write(t, t.block[axis])
    if source in ("SRZ", "SR_CgaCtaId", "SR_CGACTAID"):
        return lambda t: write(t, 0)
    lanes: dict[str, Callable[[int], int]] = {
        "SR_LANEID": lambda n: n, "SR_EQMASK": lambda n: 1 << n, "SR_LTMASK": lambda n: (1 << n) - 1,
        "SR_LEMASK": lambda n: (2 << n) - 1, "SR_GTMASK": lambda n: M32 ^ (2 << n) - 1,
        "SR_GEMASK": lambda n: M32 ^ (1 << n) - 1,
    }  # fmt: skip
    if source in lanes:
        how = lanes[source]
        return lambda t: write(t, how(t.lane))
    return lambda t: write(t, t.specials.get(source, 0))


def vote(line: Line) -> Operation:
    """VOTE and VOTEU, of one lane"""
    flags = set(line.flags)
    if not flags & {"ANY", "ALL", "EQ"} or not line.operands[-1].is_predicate:
        raise Unsupported(place(line))
    holds, always = test(line.operands[-1]), "EQ" in flags
    marks = [put_test(one) for one in line.operands[:-1] if one.is_predicate]
    words = [put(one) for one in line.operands[:-1] if not one.is_predicate]

    def run(t: Thread) -> None:
        value = holds(t)
        for write in words:
            write(t, 1 << t.lane if value else 0)
        for mark in marks:
            mark(t, value or always)

    return run


def shuffle(line: Line) -> Operation:
    """SHFL: a warp of one lane gives what the lane has itself"""
    mark, destination, source = line.operands[:3]
    get, write, valid = word(source), put(destination), put_test(mark)

    def run(t: Thread) -> None:
        write(t, get(t))
        valid(t, True)

    return run


def same(line: Line) -> Operation:
    """REDUX and its like: what one lane has"""
    destination, early, sources, late = shape(line)
    if early or late:
        raise Unsupported(place(line))
    get, write = word(sources[0]), put(destination)
    return lambda t: write(t, get(t))


def elect(line: Line) -> Operation:
    """ELECT: the one lane is elected"""
    marks = [put_test(one) for one in line.operands[:-1] if one.is_predicate]
    words = [put(one) for one in line.operands[:-1] if not one.is_predicate]

    def run(t: Thread) -> None:
        for mark in marks:
            mark(t, True)
        for write in words:
            write(t, t.lane)

    return run


def synchronise(line: Line) -> Operation:
    """SYNCS: every phase is complete"""
    marks = [put_test(one) for one in line.operands if one.is_predicate and one.number != 7 and not one.inverted]

    def run(t: Thread) -> None:
        for mark in marks[:1]:
            mark(t, True)

    return run


def match(line: Line) -> Operation:
    """MATCH: only the lane itself has its value"""
    words = [put(one) for one in line.operands[:-1] if one.kind in ("R", "UR")]
    marks = [put_test(one) for one in line.operands if one.is_predicate]

    def run(t: Thread) -> None:
        for write in words:
            write(t, 1 << t.lane)
        for mark in marks:
            mark(t, True)

    return run


def _without_file(line: Line, count: int) -> list[Operand]:
    """Return the operands without the name of the predicate file, which is printed on some architectures only."""
    operands = [one for one in line.operands if one.text not in ("PR", "UPR")]
    if len(operands) != count:
        raise Unsupported(place(line))
    return operands


def to_predicates(line: Line) -> Operation:
    """R2P: bits of a word into predicates"""
    source, chosen = _without_file(line, 2)
    mask = word(chosen)
    byte = {"": 0, ".B0": 0, ".B1": 8, ".B2": 16, ".B3": 24}.get(source.suffix)
    if byte is None or source.kind != "R":
        raise Unsupported(place(line))
    number = source.number

    def run(t: Thread) -> None:
        value, wanted = t.r[number] >> byte, mask(t)
        for n in range(7):
            if wanted >> n & 1:
                t.p[n] = bool(value >> n & 1)

    return run


def from_predicates(line: Line) -> Operation:
    """P2R, UP2UR: predicates into bits of a word, the rest from another"""
    uniform = line.name == "UP2UR"
    if line.flags:
        raise Unsupported(place(line))
    destination, base, mask = _without_file(line, 3)
    write, rest, wanted = put(destination), word(base), word(mask)

    def run(t: Thread) -> None:
        held, chosen = sum((t.q if uniform else t.p)[n] << n for n in range(7)), wanted(t)
        write(t, (held & chosen) | (rest(t) & ~chosen))

    return run


def guess(line: Line) -> Operation:
    """Return an operation that leaves an arbitrary value in the first destination, and says so."""
    marks = [put_test(one) for one in line.operands[:2] if one.is_predicate and not one.inverted and one.number != 7]
    first = next((one for one in line.operands if not one.is_predicate), None)
    word_: Put | None = None
    if first and first.kind in ("R", "UR") and not (first.negative or first.absolute or "SETP" in line.name):
        wide = line.name[0] == "D" or line.opcode.startswith("F2F.F64") or bool({"64", "F64"} & set(line.flags[:1]))
        bare = Operand(first.kind, first.text, first.number)
        word_ = put_pair(bare) if wide else put(bare)
    name, seed = line.opcode, line.offset

    def run(t: Thread) -> None:
        t.guessed[name] = t.guessed.get(name, 0) + 1
        value = (seed * 0x9E3779B1 + t.guessed[name] * 0x85EBCA6B) >> 7 & 0x3F
        for mark in marks:
            mark(t, value & 1 == 1)
        if word_:
            word_(t, value)

    return run


_OPERATIONS: Final[dict[str, Callable[[Line], Operation]]] = {
    "IADD3": add3, "IADD": add3, "VIADD": add3, "IADD3_32I": add3, "IMAD": multiply, "LEA": load_effective,
    "SHF": shift_funnel, "SHL": shift_plain, "SHR": shift_plain, "LOP3": logic, "PLOP3": logic_of_predicates,
    "ISETP": compare, "IMNMX": least, "VIMNMX": least, "VIADDMNMX": least,
    "VIMNMX3": least, "SEL": select, "MOV": move, "R2UR": move, "IABS": absolute, "PRMT": permute, "POPC": bits_of,
    "FLO": bits_of, "BREV": bits_of, "SGXT": bits_of, "BMSK": bits_of, "S2R": special, "S2UR": special,
    "CS2R": special, "CS2UR": special, "VOTE": vote, "VOTEU": vote, "SHFL": shuffle, "REDUX": same, "CREDUX": same,
    "ELECT": elect, "SYNCS": synchronise, "MATCH": match, "R2P": to_predicates, "P2R": from_predicates,
    "UP2UR": from_predicates,
    "LDC": load_constant, "ULDC": load_constant, "LDCU": load_constant, "FADD": arithmetic, "FMUL": arithmetic,
    "FFMA": arithmetic, "MUFU": reciprocal, "FSETP": compare_floats, "FSEL": select_float, "I2F": to_float,
    "I2FP": to_float, "F2I": to_integer, "HFMA2": packed_constant, "FMNMX": least_float, "F2FP": pack_halves,
    "F2F": to_half,
}  # fmt: skip
