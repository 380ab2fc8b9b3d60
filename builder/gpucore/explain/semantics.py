"""What each instruction computes: one function an opcode, in one table at the end.

A function takes the instruction and returns one result for each destination in printed order: a
polynomial of 32 or 64 bits, several words, a condition for a predicate, or None for what is not known. An instruction
that has no function here, or a variant that its function does not know, gives opaque values. Nothing is guessed.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final, Protocol, TypeAlias

from gpucore.explain import operations as op
from gpucore.explain.algebra import (
    ONES,
    ZERO,
    ZERO64,
    Atom,
    Poly,
    carry,
    constant,
    hi,
    join,
    leaf,
    lo,
    of,
    pair,
    sign,
    sx,
    zx,
)
from gpucore.explain.algebra import atom as make_atom
from gpucore.sass import (
    Constant,
    Immediate,
    Instruction,
    Operand,
    Register,
    RegisterOperand,
    SpecialRegister,
)

Result: TypeAlias = Poly | Atom | tuple[Poly, ...] | tuple[Atom, ...] | None
Results: TypeAlias = Sequence[Result] | None


class Unsupported(Exception):
    """A variant of an instruction that is not known well enough."""


class Machine(Protocol):
    """What gives the values before an instruction: `gpucore.explain.slice`."""

    kernel: bool
    """Whether nothing was in its registers when it began."""

    def register(self, register: Register, n: int) -> Poly:
        """Return a register before instruction n."""

    def predicate(self, register: Register, n: int) -> Atom:
        """Return a predicate before instruction n."""

    def bank_word(self, bank: int, offset: int, size: int = 4) -> Poly:
        """Return what is in a constant bank."""

    def source(self, register: Register, n: int) -> tuple[Instruction, int] | None:
        """Return the unguarded instruction that gives a register its value, and its number."""


class At:
    """An instruction with the values of its operands."""

    def __init__(self, machine: Machine, i: Instruction, n: int) -> None:
        self.machine, self.i, self.n = machine, i, n
        self.modifiers = frozenset(i.modifiers)
        self.operands: list[Operand] = []
        self.conditions: list[RegisterOperand] = []
        for s in i.sources:
            if isinstance(s, RegisterOperand) and s.register.predicate:
                self.conditions.append(s)
            else:
                self.operands.append(s)

    @property
    def wide(self) -> bool:
        """Whether it is the 64-bit form."""
        return bool({"64", "S64", "U64"} & self.modifiers)

    @property
    def unsigned(self) -> bool:
        """Whether it takes its operands as unsigned."""
        return bool({"U32", "U64"} & self.modifiers)

    def word(self, number: int) -> Poly:
        """Return a 32-bit operand; predicates are not counted."""
        return self.value(self.operands[number], 1)

    def bits(self, number: int) -> Poly:
        """Return a 32-bit operand of which only some bits may be meant: those that were never written count as 0."""
        value = self.word(number)
        unwritten = self.machine.kernel and value.single is not None and value.single.kind == "entry"
        return ZERO if unwritten else value

    def double(self, number: int) -> Poly:
        """Return a 64-bit operand."""
        return self.value(self.operands[number], 2)

    def value(self, operand: Operand, words: int) -> Poly:
        """Return an operand with its signs applied."""
        if isinstance(operand, Immediate):
            return constant(operand.value, 32 if words == 1 else 64)
        if not isinstance(operand, RegisterOperand | Constant) or operand.parts not in ((), ("U32",)):
            raise Unsupported(operand)
        plain = self.plain(operand, words)
        if operand.absolute:
            plain = op.absolute(plain) if words == 1 else _unsupported(operand)
        return ~plain if operand.inverted else -plain if operand.negated else plain

    def plain(self, operand: RegisterOperand | Constant, words: int) -> Poly:
        """Return an operand without its signs."""
        if isinstance(operand, Constant):
            low = self.constant(operand, 0)
            return low if words == 1 else pair(low, self.constant(operand, 4))
        register = operand.register
        if register.hardwired:
            return ZERO if words == 1 else ZERO64
        low = self.register(register)
        if words == 1:
            return low
        if operand.count == 1 and operand.parts == ("U32",):
            return zx(low)
        return pair(low, self.register(Register(register.file, register.number + 1)))

    def register(self, register: Register) -> Poly:
        """Return a register as the instruction finds it when it runs: where its guard holds."""
        value = self.machine.register(register, self.n)
        return value if self.i.guard is None else op.assuming_all(value, self.guard)

    def constant(self, operand: Constant, more: int, size: int = 4) -> Poly:
        """Return a word of a constant bank."""
        offset = constant(operand.offset + more)
        if operand.index is not None and not operand.index.hardwired:
            offset = offset + self.machine.register(operand.index, self.n)
        if operand.bank is None:
            if operand.handle is None or size != 4:
                raise Unsupported(operand)
            high = Register("UR", operand.handle.number + 1)
            handle = pair(self.machine.register(operand.handle, self.n), self.machine.register(high, self.n))
            return leaf("bindless", handle, offset)
        if offset.constant is not None:
            return self.machine.bank_word(operand.bank, offset.constant, size)
        return self._one_of_two(operand.bank, offset, size) or leaf("bank_at", operand.bank, offset, size)

    def _one_of_two(self, bank: int, offset: Poly, size: int) -> Poly | None:
        """Return one of two words of a bank, where a condition chooses between them; None for any other place."""
        start = constant(offset.terms.get((), 0))
        a = (offset - start).single
        if a is None or a.kind != "select":
            return None
        condition, first, second = a.args
        assert isinstance(condition, Atom) and isinstance(first, Poly) and isinstance(second, Poly)
        places = [(start + side).constant for side in (first, second)]
        words = [self.machine.bank_word(bank, at, size) for at in places if at is not None]
        return op.select(condition, *words) if len(words) == 2 else None

    def condition(self, operand: RegisterOperand) -> Atom:
        """Return a predicate operand."""
        register = operand.register
        plain = op.TRUE if register.hardwired else self.machine.predicate(register, self.n)
        if operand is not self.i.guard and self.i.guard is not None:
            plain = op.assumed(plain, self.guard)
        return op.negate(plain) if operand.negated else plain

    def carry_in(self, operands: Sequence[RegisterOperand]) -> Poly:
        """Return how many of these predicates are set, where they are the carries of one sum as one value."""
        total = ZERO
        bits: dict[Poly, set[int]] = {}
        for operand in operands:
            c = self.condition(operand)
            if c.kind == "carries":
                (poly,) = c.args
                assert isinstance(poly, Poly)
                total = total + poly
            elif c.kind == "carry_bit":
                poly, number = c.args
                assert isinstance(poly, Poly) and isinstance(number, int)
                bits.setdefault(poly, set()).add(number)
            else:
                total = total + op.select(c, constant(1), ZERO)
        for poly, numbers in bits.items():
            if len(numbers) != 2:
                raise Unsupported("one of two carries")
            total = total + poly
        return total

    @property
    def guard(self) -> Atom:
        """The condition under which it runs."""
        return op.TRUE if self.i.guard is None else self.condition(self.i.guard)

    def carries(self, parts: Sequence[tuple[Poly, bool]], carried: Poly = ZERO) -> tuple[Atom, ...]:
        """Return the predicates that follow the first destination: what the sum of these parts carries out."""
        outputs = [d for d in self.i.destinations if d.register.predicate]
        real = [d for d in outputs if not d.register.hardwired]
        if not real:
            return tuple(op.FALSE for _ in outputs)
        kept = [p for p in parts if p[1] or p[0] != ZERO]
        total = carry([*parts, (carried, False)])
        if len(real) == 1:
            if len(kept) > 2 or sum(subtracted for _, subtracted in kept) > 1:
                return tuple(_nothing(self.n, d) for d in outputs)
            one = total.constant
            single = make_atom("carries", total, bits=1) if one is None else op.TRUE if one else op.FALSE
            return tuple(single for _ in outputs)
        return tuple(make_atom("carry_bit", total, k, bits=1) for k in range(len(outputs)))


def _nothing(n: int, destination: RegisterOperand) -> Atom:
    register = destination.register
    return make_atom("opaque", (n, register.file), register.number, bits=1)


def _unsupported(operand: object) -> Poly:
    raise Unsupported(operand)


# Moves.


def _move(at: At) -> Results:
    registers = [d for d in at.i.destinations if not d.register.predicate]
    if len(at.i.destinations) != 1 and any(not d.register.hardwired for d in at.i.destinations if d.register.predicate):
        return None
    value = at.word(0) if registers[0].count == 1 else at.double(0)
    return [op.TRUE if d.register.predicate else value for d in at.i.destinations]


SPECIAL: Final = {
    "TID.X": "threadIdx.x", "TID.Y": "threadIdx.y", "TID.Z": "threadIdx.z", "CTAID.X": "blockIdx.x",
    "CTAID.Y": "blockIdx.y", "CTAID.Z": "blockIdx.z", "NTID.X": "blockDim.x", "NTID.Y": "blockDim.y",
    "NTID.Z": "blockDim.z", "NCTAID.X": "gridDim.x", "NCTAID.Y": "gridDim.y", "NCTAID.Z": "gridDim.z",
    "LANEID": "laneId",
}  # fmt: skip
"""The names that programs know special registers by."""

_CONSTANT_SPECIALS: Final = re.compile(r"(EQ|L[TE]|G[TE])MASK|Cga\w+|CTAID\w*|CLUSTER\w*|SWINHI|SWINLO|WARPID|SMID")


def _special(at: At) -> Results:
    (source,) = at.operands
    if not isinstance(source, SpecialRegister):
        return None
    if source.name == "SRZ":
        return [ZERO if at.i.destinations[0].count == 1 else ZERO64]
    if at.i.destinations[0].count != 1:
        return None
    name = SPECIAL.get(source.name)
    if name is None and not _CONSTANT_SPECIALS.fullmatch(source.name):
        return None  # clocks and the like have another value each time
    return [leaf("special", name or source.name)]


def _load_constant(at: At) -> Results:
    (source,) = at.operands
    if not isinstance(source, Constant):
        return None
    narrow = {"U8": 1, "S8": 1, "U16": 2, "S16": 2}
    kind = next((m for m in at.i.modifiers if m in narrow), None)
    if {"IL", "IS", "ISL"} & at.modifiers:
        return None
    if kind is not None:
        value = at.constant(source, 0, narrow[kind])
        return [op.extend_field(value, constant(8 * narrow[kind]), True) if kind[0] == "S" else value]
    return [tuple(at.constant(source, 4 * k) for k in range(at.i.destinations[0].count))]


def _packed_move(at: At) -> Results:
    """HFMA2 and HADD2 of zeros and a number are how the compiler loads a number."""
    zeros = [s for s in at.operands if isinstance(s, RegisterOperand) and s.register.hardwired]
    numbers = [s for s in at.operands if isinstance(s, Immediate)]
    wanted = 2 if at.i.opcode == "HFMA2" else 1
    if len(zeros) != wanted or len(numbers) != 1 or len(at.operands) != wanted + 1:
        return None
    if at.operands[-1] is not numbers[0] or {"RELU", "SAT", "F32"} & at.modifiers:
        return None
    return [constant(numbers[0].value)]


# Sums and products.


def _part(at: At, operand: Operand) -> tuple[Poly, bool]:
    """Return an operand of a sum, and whether the hardware adds its complement plus one."""
    if isinstance(operand, RegisterOperand | Constant) and operand.negated:
        return -at.value(operand, 1), True
    return at.value(operand, 1), False


def _sum(at: At) -> Results:
    if at.wide:
        if at.conditions:
            return None
        total = ZERO64
        for k in range(len(at.operands)):
            total = total + at.double(k)
        return [total, *_no_carries(at)]
    parts = [_part(at, s) for s in at.operands]
    carried = at.carry_in(at.conditions) if "X" in at.modifiers else ZERO
    total = carried
    for value, subtracted in parts:
        total = total - value if subtracted else total + value
    return [op.quotient_folded(total), *at.carries(parts, carried)]


def _product(at: At) -> Results:
    if "WIDE" in at.modifiers:
        return _wide_product(at)
    if "HI" in at.modifiers:
        return _high_product(at)
    x, y, addend = at.word(0), at.word(1), at.word(2)
    if any(a.kind in {"hi", "carry"} for q in (x, y) for a in q.atoms()):
        x, y = _named(x), _named(y)
    total = x * y + addend
    if "X" in at.modifiers:
        carried = at.carry_in(at.conditions)
        factor = x if y == constant(1) else y if x == constant(1) else None
        parts = [(q, False) for q in (factor or ZERO, addend)]
        known = factor is not None or ZERO in (x, y)
        outputs = at.carries(parts, carried) if known else _no_carries(at)
        return [op.quotient_folded(total + carried), *outputs]
    return [op.quotient_folded(total), *_no_carries(at)]


def _no_carries(at: At) -> list[Atom]:
    return [_nothing(at.n, d) if not d.register.hardwired else op.FALSE for d in at.i.destinations[1:]]


def _named(q: Poly) -> Poly:
    """Return a composite factor as one atom: products stay short."""
    composite = q.single is None and q.constant is None
    return leaf("named", q) if composite and not any(a.kind in {"hi", "carry"} for a in q.atoms()) else q


def _wide_product(at: At) -> Results:
    x, y, addend = at.word(0), at.word(1), at.double(2)
    extend = zx if at.unsigned else sx
    carried = at.carry_in(at.conditions) if "X" in at.modifiers else ZERO
    total = extend(x) * extend(y) + addend + zx(carried)
    quotient = op.estimate(x, y) if at.unsigned and addend == ZERO64 and carried == ZERO else None
    if quotient is not None:
        return [(lo(total), quotient), *_no_carries(at)]
    if not at.unsigned or not any(not d.register.hardwired for d in at.i.destinations[1:]):
        return [total, *_no_carries(at)]
    # The product and the carry that comes in fit 64 bits: the sum passes them where it is less than what was added.
    return [total, *(_comparison("LT", total, addend, True) for _ in at.i.destinations[1:])]


def _high_product(at: At) -> Results:
    if "X" in at.modifiers:
        return None
    x, y, addend = at.word(0), at.word(1), at.double(2)
    if at.unsigned and addend == ZERO64:
        quotient = op.estimate(x, y)
        if quotient is not None:
            return [quotient, *_no_carries(at)]
    if lo(addend) == ZERO:
        return [op.high_product(x, y, at.unsigned) + hi(addend), *_no_carries(at)]
    extend = zx if at.unsigned else sx
    return [hi(extend(x) * extend(y) + addend), *_no_carries(at)]


def _shift_and_add(at: At) -> Results:
    """LEA: a << k, or its upper word, plus b."""
    carried = at.carry_in(at.conditions) if "X" in at.modifiers else ZERO
    if "HI" not in at.modifiers:
        by = _number(at.word(2))
        if at.wide:
            return [at.double(0) * (1 << by) + at.double(1), *_no_carries(at)]
        first, second = at.operands[:2]
        value, subtracted = _part(at, first)
        parts = [(value * (1 << by), subtracted), _part(at, second)]
        outputs = at.carries(parts, carried)
    elif "SX32" in at.modifiers:
        by = _number(at.word(2))
        parts = [(op.shift_right_signed(at.word(0), 32 - by), False), _part(at, at.operands[1])]
        outputs = at.carries(parts, carried)
    else:
        by = _number(at.word(3))
        low, high = at.word(0), at.word(2)
        shifted = op.shift_right(low, 32 - by) if high == ZERO else hi(pair(low, high) * (1 << by))
        parts = [(shifted, False), _part(at, at.operands[1])]
        outputs = at.carries(parts, carried)
    total = carried
    for value, subtracted in parts:
        total = total - value if subtracted else total + value
    return [op.quotient_folded(total), *outputs]


def _number(value: Poly) -> int:
    if value.constant is None:
        raise Unsupported("a variable shift")
    return value.constant & 31


# Shifts and bits.


def _funnel(at: At) -> Results:
    """SHF: a word of {c:a} shifted by b."""
    low, by, high = at.word(0), at.word(1), at.word(2)
    modifiers = at.modifiers
    if at.i.destinations[0].count != 1:
        return None
    of_64 = bool({"U64", "S64"} & modifiers)
    negative = bool({"S32", "S64"} & modifiers)
    upper = "HI" in modifiers
    wraps = "W" in modifiers
    if by.constant is None:
        if "L" in modifiers and not upper and high == ZERO:
            return [op.shift_left(low, by, wraps)]
        if "R" in modifiers and upper and (low == ZERO or not of_64):
            amount = op.bit_and(by, constant(31)) if wraps else by
            return [leaf("sar" if negative else "shr", high, amount)]
        if "R" in modifiers and not upper and (wraps or of_64) and not (of_64 and negative):
            return [leaf("funnel", low, high, op.bit_and(by, constant(63 if of_64 else 31)) if wraps else by)]
        if "L" in modifiers and upper and of_64:
            amount = op.bit_and(by, constant(63)) if wraps else by
            return [hi(of(make_atom("shl64", join(pair(low, high)), amount, bits=64)))]
        return None
    k = by.constant & (63 if of_64 else 31) if wraps else min(by.constant, 64 if of_64 else 32)
    if "L" in modifiers:
        if k >= 32:
            return [low * (1 << (k - 32)) if k < 64 else ZERO] if upper else [ZERO]
        return [hi(pair(low, high) * (1 << k)) if upper else low * (1 << k)]
    if upper:
        return [op.shift_right_signed(high, k) if negative else op.shift_right(high, k)]
    if k >= 32 and negative:
        return [op.shift_right_signed(high, k - 32)]
    if k < 32 and k and high == sign(low) and negative:
        return [op.shift_right_signed(low, k)]
    return [op.funnel_right(low, high, k)]


def _shift(at: At) -> Results:
    by = at.word(1)
    wraps = "W" in at.modifiers
    if at.i.opcode.endswith("SHL"):
        return [op.shift_left(at.word(0), by, wraps)]
    if by.constant is None:
        amount = op.bit_and(by, constant(31)) if wraps else by
        return [leaf("shr" if at.unsigned else "sar", at.word(0), amount)]
    k = by.constant & 31 if wraps else min(by.constant, 32)
    return [op.shift_right(at.word(0), k) if at.unsigned else op.shift_right_signed(at.word(0), k)]


def _logic(at: At) -> Results:
    table = at.word(3).constant
    if table is None:
        return None
    value = op.lop3(at.bits(0), at.bits(1), at.bits(2), table)
    outputs: list[Result] = []
    neutral = at.conditions and at.condition(at.conditions[-1]) is (op.TRUE if "PAND" in at.modifiers else op.FALSE)
    for d in at.i.destinations:
        if not d.register.predicate:
            outputs.append(value)
        elif neutral or d.register.hardwired:
            outputs.append(op.negate(_comparison("EQ", value, ZERO, True)))
        else:
            outputs.append(None)
    return outputs


def _permute(at: At) -> Results:
    if at.modifiers:
        return None
    return [op.permute(at.bits(0), at.word(1), at.bits(2))]


def _count(kind: str) -> Callable[[At], Results]:
    def compute(at: At) -> Results:
        return [leaf(kind, at.word(0))] if not at.modifiers else None

    return compute


def _find_leading(at: At) -> Results:
    value = at.word(0)
    if at.modifiers == {"U32"}:
        return [leaf("flo", value), *_no_carries(at)]
    if at.modifiers != {"U32", "SH"}:
        return None
    none = _comparison("EQ", value, ZERO, True)
    return [op.select(none, ONES, constant(31) - leaf("flo", value)), *_no_carries(at)]


def _sign_extend(at: At) -> Results:
    return [op.extend_field(at.word(0), at.word(1), "U32" not in at.modifiers)] if "W" not in at.modifiers else None


def _bit_mask(at: At) -> Results:
    return [op.mask_of_bits(at.word(0), at.word(1), "W" in at.modifiers)]


def _absolute(at: At) -> Results:
    return [op.absolute(at.word(0))] if not at.wide else None


# Choices and comparisons.


def _choose(at: At) -> Results:
    condition = at.condition(at.conditions[-1])
    if at.i.destinations[0].count == 2:
        return [op.select64(condition, at.double(0), at.double(1))]
    return [op.select(condition, at.word(0), at.word(1))]


def _minimum(at: At) -> Results:
    if any(not d.register.hardwired for d in at.i.destinations if d.register.predicate):
        return None
    registers = [d for d in at.i.destinations if not d.register.predicate]
    adds = at.i.opcode.endswith("VIADDMNMX")
    three = at.i.opcode.endswith("3")
    if not at.modifiers <= {"U32", "S32", "U64", "S64"} or len(at.operands) != (3 if adds or three else 2):
        return None
    wanted = at.condition(at.conditions[0])
    if at.wide:
        if adds or len(at.conditions) != 2 or at.condition(at.conditions[1]) is not op.FALSE or wanted.args:
            return None
        x, y = at.double(0), at.double(1)
        less = _comparison("LT", x, y, at.unsigned)
        first, second = (x, y) if wanted is op.TRUE else (y, x)
        return [op.TRUE if d.register.predicate else op.select64(less, first, second) for d in at.i.destinations]
    a, b = (at.word(0) + at.word(1), at.word(2)) if adds else (at.word(0), at.word(1))
    letter = "u" if at.unsigned else "s"
    low, high = op.smallest(a, b, f"{letter}min"), op.smallest(a, b, f"{letter}max")
    if three:
        c = at.word(2)
        low, high = op.smallest(low, c, f"{letter}min"), op.smallest(high, c, f"{letter}max")
    value = op.select(wanted, low, high)
    return [op.TRUE if d.register.predicate else value for d in at.i.destinations] if registers else None


def _comparison(relation: str, a: Poly, b: Poly, unsigned: bool) -> Atom:
    found = op.compare(relation, a, b, unsigned)
    if found is None:
        raise Unsupported(relation)
    return found


def _compare(at: At) -> Results:
    """ISETP: a comparison, combined with a predicate; with EX the upper half of a 64-bit one."""
    relation = at.i.modifiers[0]
    combine = next((m for m in ("AND", "OR", "XOR") if m in at.modifiers), None)
    if combine is None:
        return None
    unsigned = at.unsigned
    if "EX" in at.modifiers:
        *others, below = at.conditions
        found = _upper_comparison(at, relation, unsigned, at.condition(below))
    else:
        others = at.conditions
        operands = (at.double(0), at.double(1)) if at.wide else (at.word(0), at.word(1))
        if combine != "XOR" and len(others) == 1:  # it decides only where the other condition does not
            other = at.condition(others[0])
            matters = other if combine == "AND" else op.negate(other)
            operands = (op.assuming(operands[0], matters), op.assuming(operands[1], matters))
        found = _comparison(relation, *operands, unsigned)
    if found is None or len(others) != 1:
        return None
    other = at.condition(others[0])
    join = {"AND": op.both, "OR": op.either, "XOR": op.different}[combine]
    return [join(found, other), join(op.negate(found), other)][: len(at.i.destinations)]


def _upper_comparison(at: At, relation: str, unsigned: bool, below: Atom) -> Atom | None:
    """Return the comparison of two pairs, where `below` is the same comparison of their lower words."""
    negated = below.kind == "not"
    inner = below.args[0] if negated else below
    if not isinstance(inner, Atom):
        return None
    if inner is op.TRUE or inner is op.FALSE:
        return _upper_by_constant(at, relation, unsigned, below is op.TRUE)
    if inner.kind not in {"eq", "lt_u"}:
        return None
    a, b = inner.args
    assert isinstance(a, Poly) and isinstance(b, Poly)
    if a.bits != 32:
        return None
    x, y = at.word(0), at.word(1)
    if inner.kind == "eq":
        if relation not in {"EQ", "NE"} or negated != (relation == "NE"):
            return None
        # Which operand is which is lost where the comparison was put into order; equality does not mind if both fit.
        first, second = pair(a, x), pair(b, y)
        other = pair(b, x), pair(a, y)
        if a == ZERO or b == ZERO:
            low = b if a == ZERO else a
            if y == ZERO:
                return _comparison(relation, pair(low, x), ZERO64, True)
            if x == ZERO:
                return _comparison(relation, pair(low, y), ZERO64, True)
        return _comparison(relation, *_likelier(first, second, other), True)
    # The order of lt_u is as it was: a < b, or not (b < a) and so on.
    swapped = relation in {"GT", "LE"}
    if negated != (relation in {"GE", "LE"}):
        return None
    low_x, low_y = (b, a) if swapped else (a, b)
    return _comparison(relation, pair(low_x, x), pair(low_y, y), unsigned)


def _likelier(first: Poly, second: Poly, other: tuple[Poly, Poly]) -> tuple[Poly, Poly]:
    """Return the operands of an equality: a - b is the same up to its sign only if the halves belong together.

    (a, x) = (b, y) and (b, x) = (a, y) both say a = b and x = y, so either is right.
    """
    return min((first, second), other, key=lambda p: len(p[0].terms) + len(p[1].terms))


def _upper_by_constant(at: At, relation: str, unsigned: bool, below: bool) -> Atom | None:
    """Return the comparison of two pairs where that of the lower words is decided: x < y, or equal and it holds."""
    x, y = at.word(0), at.word(1)
    if relation in {"EQ", "NE"}:
        plain = _comparison(relation, x, y, unsigned)
        return op.both(plain, op.TRUE if below else op.FALSE) if relation == "EQ" else (op.TRUE if below else plain)
    if relation in {"LT", "LE"}:
        return _comparison("LE" if below else "LT", x, y, unsigned)
    return _comparison("GE" if below else "GT", x, y, unsigned) if relation in {"GT", "GE"} else None


def _predicate_logic(at: At) -> Results:
    """PLOP3.LUT P0, PT, P1, P2, P3, lut, lut."""
    tables = [s.value for s in at.operands if isinstance(s, Immediate)]
    if len(at.conditions) != 3 or len(tables) != 2:
        return None
    a, b, c = map(at.condition, at.conditions)
    return [op.by_table(a, b, c, t) for t in tables][: len(at.i.destinations)]


# Predicates as words, and what other threads of the warp have.


def _pack(at: At) -> Results:
    """P2R: the predicates of a mask as bits of a word."""
    file, value, mask = at.i.sources[0], at.word(0), at.word(1).constant
    if not isinstance(file, RegisterOperand) or at.modifiers or mask is None or mask > 0x7F:
        return None
    total = op.bit_and(value, constant(~mask & 0xFFFFFFFF))
    for k in range(7):
        if mask >> k & 1:
            c = at.condition(RegisterOperand(Register(file.register.file, k)))
            total = total + op.select(c, constant(1), ZERO) * (1 << k)
    return [total]


_BYTES: Final = ((), ("B1",), ("B2",), ("B3",))


def _unpack(at: At) -> Results:
    """R2P: predicates from the bits of one byte of a word; those that are not in the mask stay."""
    source, mask = at.operands[0], at.word(1).constant
    if not isinstance(source, RegisterOperand) or source.parts not in _BYTES:
        return None
    first, value = 8 * _BYTES.index(source.parts), at.value(replace(source, parts=()), 1)
    if at.modifiers or mask is None or len(at.i.destinations) != 1 or at.i.destinations[0].count != 7:
        return None
    file = at.i.destinations[0].register.file
    return [tuple(
        op.negate(_comparison("EQ", op.bit_and(value, constant(1 << first + k)), ZERO, True)) if mask >> k & 1
        else at.machine.predicate(Register(file, k), at.n)
        for k in range(7)
    )]  # fmt: skip


def _vote(at: At) -> Results:
    """VOTE: whether any or all threads that run it have a predicate, and which ones."""
    c = at.condition(at.conditions[-1])
    if at.i.modifiers not in (("ANY",), ("ALL",)):
        return None
    whole = at.i.modifiers == ("ALL",)
    constant_of_warp = c in (op.TRUE, op.FALSE)
    found = c if constant_of_warp else op.negate(_any(op.negate(c))) if whole else _any(c)
    return [found if d.register.predicate else leaf("ballot", c) for d in at.i.destinations]


def _any(c: Atom) -> Atom:
    return make_atom("any", c, bits=1)


def _elect(at: At) -> Results:
    """ELECT: whether this is the one thread that is chosen of those that run it, and the number of that thread."""
    if at.condition(at.conditions[-1]) is not op.TRUE:
        return None
    chosen, lane = at.i.destinations
    return [
        make_atom("elected", (at.n, chosen.register.file), chosen.register.number, bits=1),
        leaf("electedLane", (at.n, lane.register.file), lane.register.number),
    ]


def _shuffle(at: At) -> Results:
    """SHFL over the whole warp: the value of another thread."""
    value, by, bounds = at.word(0), at.word(1), at.word(2).constant
    lane = leaf("special", "laneId")
    mode = at.i.modifiers[0]
    if bounds != (0 if mode == "UP" else 0x1F):
        return None
    if mode == "IDX":
        source = op.bit_and(by, constant(31))
    elif mode == "BFLY":
        source = op.bit_xor(lane, by)
    else:
        outside = _comparison("LT", lane if mode == "UP" else constant(31) - lane, by, True)
        source = op.select(outside, lane, lane - by if mode == "UP" else lane + by)
    return [None if d.register.predicate else leaf("shfl", value, source) for d in at.i.destinations]


# Quotients.


def _to_integer(at: At) -> Results:
    """F2I(MUFU.RCP(I2F d) + 0xffffffe): the estimate of 2^32 / d that every 32-bit division starts from."""
    if "TRUNC" not in at.modifiers or len(at.i.destinations) != 1 or at.i.destinations[0].count != 1:
        return None
    added = _origin(at, at.operands[0])
    if added is None or added.i.opcode not in {"IADD3", "VIADD", "IADD", "UIADD3", "UVIADD", "UIADD"}:
        return None
    numbers = [s.value for s in added.operands if isinstance(s, Immediate)]
    registers = [s for s in added.operands if isinstance(s, RegisterOperand) and not s.register.hardwired]
    if [v for v in numbers if v] != [0xFFFFFFE] or len(registers) != 1:
        return None
    inverse = _origin(added, registers[0])
    if inverse is None or inverse.i.opcode not in {"MUFU", "UMUFU"} or "RCP" not in inverse.modifiers:
        return None
    number = _origin(inverse, inverse.operands[0])
    if number is None or number.i.opcode not in {"I2F", "UI2F", "I2FP", "UI2FP"}:
        return None
    if "RP" not in number.modifiers or not number.modifiers <= {"RP", "U32", "S32", "F32", "FTZ"}:
        return None
    return [leaf("recip", number.word(0))]


def _origin(at: At, operand: Operand) -> At | None:
    """Return the instruction that an operand comes from, looking through moves."""
    for _ in range(8):
        if (
            not isinstance(operand, RegisterOperand)
            or operand.negated
            or operand.absolute
            or operand.register.hardwired
        ):
            return None
        found = None if operand.register.hardwired else at.machine.source(operand.register, at.n)
        if found is None:
            return None
        at = At(at.machine, *found)
        if at.i.opcode not in {"MOV", "UMOV", "R2UR", "UR2R"} or not at.operands:
            return at
        operand = at.operands[0]
    return None


SEMANTICS: Final[dict[str, Callable[[At], Results]]] = {
    "MOV": _move, "UMOV": _move, "MOV32I": _move, "R2UR": _move, "UR2R": _move,
    "S2R": _special, "S2UR": _special, "CS2R": _special, "CS2UR": _special,
    "LDC": _load_constant, "ULDC": _load_constant, "LDCU": _load_constant,
    "HFMA2": _packed_move, "HADD2": _packed_move,
    "IADD3": _sum, "UIADD3": _sum, "IADD": _sum, "UIADD": _sum, "VIADD": _sum, "UVIADD": _sum,
    "IMAD": _product, "UIMAD": _product,
    "LEA": _shift_and_add, "ULEA": _shift_and_add,
    "SHF": _funnel, "USHF": _funnel, "SHL": _shift, "SHR": _shift, "USHL": _shift, "USHR": _shift,
    "LOP3": _logic, "ULOP3": _logic, "PRMT": _permute, "UPRMT": _permute,
    "POPC": _count("popc"), "UPOPC": _count("popc"), "BREV": _count("brev"), "UBREV": _count("brev"),
    "FLO": _find_leading, "UFLO": _find_leading, "SGXT": _sign_extend, "USGXT": _sign_extend,
    "BMSK": _bit_mask, "UBMSK": _bit_mask, "IABS": _absolute, "UIABS": _absolute,
    "SEL": _choose, "USEL": _choose,
    "IMNMX": _minimum, "UIMNMX": _minimum, "VIMNMX": _minimum, "UVIMNMX": _minimum,
    "VIMNMX3": _minimum, "VIADDMNMX": _minimum, "UVIADDMNMX": _minimum,
    "ISETP": _compare, "UISETP": _compare, "PLOP3": _predicate_logic, "UPLOP3": _predicate_logic,
    "F2I": _to_integer, "UF2I": _to_integer,
    "P2R": _pack, "UP2UR": _pack, "R2P": _unpack, "VOTE": _vote, "VOTEU": _vote, "ELECT": _elect,
    "SHFL": _shuffle,
}  # fmt: skip


def compute(machine: Machine, i: Instruction, n: int) -> Results:
    """Return what an instruction writes, a result for each destination; None where nothing is known of it."""
    function = SEMANTICS.get(i.opcode) if i.known == "all" else None
    if function is None:
        return None
    try:
        return function(At(machine, i, n))
    except (Unsupported, IndexError, ValueError):
        return None
