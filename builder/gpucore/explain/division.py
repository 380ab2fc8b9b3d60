"""Which registers the compiler's subroutine for 64-bit division takes and returns.

ptxas calls `__cuda_sm20_div_s64` and its like with registers of its choice, and drops arguments that are the same
constant in every call. Their code has one shape: the absolute divisor is converted to floating point, the dividend is
what else they read, and both words of the result are replaced by -1 where the divisor is 0.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpucore.explain.algebra import Atom, Poly, TooLarge, inside, join, leaf, pair
from gpucore.explain.code import ENTRY
from gpucore.sass import Immediate, Instruction, Register, RegisterOperand, uses

if TYPE_CHECKING:
    from gpucore.explain.slice import Slice


@dataclass(frozen=True)
class Roles:
    """Dividend and divisor by the callee's registers at its entry, and the two registers of the result."""

    over: Poly
    under: Poly
    result: tuple[Register, Register]


def find_roles(values: Slice, unsigned: bool) -> Roles | None:
    """Return what a division subroutine takes and returns; None where its code has another shape."""
    code = values.code
    conversions = [n for n, i in enumerate(code.instructions) if i.opcode in {"I2F", "UI2F"} and "U64" in i.modifiers]
    returns = [n for n, i in enumerate(code.instructions) if i.opcode == "RET"]
    if len(conversions) != 1 or len(returns) != 1:
        return None
    try:
        under = values.run(lambda: _divisor(values, conversions[0]))
    except TooLarge:
        return None
    if not unsigned:
        under = _without_absolute(under)
    result = _result(values, returns[0])
    over = _dividend(values, under, returns[0])
    return Roles(over, under, result) if over is not None and result is not None else None


def _divisor(values: Slice, n: int) -> Poly:
    return _pair(values, values.code.instructions[n].sources[0], n)


def _pair(values: Slice, operand: object, n: int) -> Poly:
    if not isinstance(operand, RegisterOperand) or len(operand.registers) != 2:
        raise TooLarge
    low, high = (values.register(r, n) for r in operand.registers)
    return join(pair(low, high))


def _without_absolute(p: Poly) -> Poly:
    """Return d for (d < 0 ? -d : d)."""
    a = p.single
    if a is not None and a.kind == "select64":
        condition, first, second = a.args
        assert isinstance(condition, Atom) and isinstance(first, Poly) and isinstance(second, Poly)
        if condition.kind == "lt_s" and first == -second:
            return second
    return p


def _dividend(values: Slice, under: Poly, ret: int) -> Poly | None:
    """Return what a subroutine reads besides its divisor and the return address: one pair of registers."""
    code = values.code
    read: set[Register] = set()
    for n, i in enumerate(code.instructions):
        if code.block_of(n) in code.rank:
            read.update(r for r in uses(i) or () if not r.predicate and code.definition(r, n) == ENTRY)
    for a in (*inside(under), *_entries_of(values, code.instructions[ret], ret)):
        if a.kind == "entry":
            read.discard(Register(*a.args))  # type: ignore[arg-type]
    if len(read) != 2:
        return None
    upper = [r for r in read if _is_upper(values, r)]
    if len(upper) != 1:
        return None
    (high,), (low,) = upper, read - set(upper)
    return join(pair(leaf("entry", *low), leaf("entry", *high)))


def _is_upper(values: Slice, r: Register) -> bool:
    """Say whether what a register had at the entry is the upper word: part of a sum with a carry, or of a wide operand.

    Its number tells nothing. The lower word may be passed in the register behind the upper one.
    """
    code = values.code
    for n, i in enumerate(code.instructions):
        for s in i.sources:
            if not isinstance(s, RegisterOperand) or r not in s.registers or code.definition(r, n) != ENTRY:
                continue
            if len(s.registers) == 2 and s.registers[1] == r:
                return True
            if len(s.registers) == 1 and "X" in i.modifiers and not s.register.predicate:
                return True
    return False


def _entries_of(values: Slice, ret: Instruction, n: int) -> list[Atom]:
    found: list[Atom] = []
    for r in uses(ret) or ():
        found += inside(values.run(lambda r=r: values.register(r, n)))  # type: ignore[misc]
    return found


def _result(values: Slice, ret: int) -> tuple[Register, Register] | None:
    """Return the registers that become -1 where the divisor is 0."""
    code = values.code
    found: list[Register] = []
    for n, i in enumerate(code.instructions):
        if i.opcode in {"SEL", "USEL"} and any(isinstance(s, Immediate) and s.value in _ALL_ONES for s in i.sources):
            found += [r for r in i.destinations[0].registers if code.definition(r, ret).at == n]
    found.sort(key=lambda r: r.number)
    return (found[0], found[1]) if len(found) == 2 and found[0].number + 1 == found[1].number else None


_ALL_ONES = (-1, 0xFFFFFFFF, 0xFFFFFFFFFFFFFFFF)
