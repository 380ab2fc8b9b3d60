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
    first, second = sorted(read, key=lambda r: r.number)
    lower, upper = _words(values, first), _words(values, second)
    if lower == {"low"} and upper == {"high"}:
        return join(pair(leaf("entry", *first), leaf("entry", *second)))
    if lower == {"high"} and upper == {"low"}:
        return join(pair(leaf("entry", *second), leaf("entry", *first)))
    return None


def _words(values: Slice, r: Register) -> set[str]:
    """Return which word of a 64-bit value a register has at the entry, by the sums with a carry that it is in."""
    code = values.code
    found: set[str] = set()
    for n, i in enumerate(code.instructions):
        opcode = i.opcode.removeprefix("U")
        operands = [s for s in i.sources if isinstance(s, RegisterOperand) and not s.register.predicate]
        if opcode in {"IADD", "IADD3", "ISETP"} and {"64", "S64", "U64"} & set(i.modifiers):
            for s in operands:
                for word, held in zip(("low", "high"), s.registers, strict=False):
                    if _is_entry(values, held, n, r):
                        found.add(word)
        for s in operands:
            if len(s.registers) == 2 and r in s.registers and _both_at_entry(values, s, n):
                found.add("low" if s.registers[0] == r else "high")
        single = any(len(s.registers) == 1 and _is_entry(values, s.register, n, r) for s in operands)
        carries = any(d.register.predicate and not d.register.hardwired for d in i.destinations)
        zero = any(s.register.hardwired for s in operands)
        if single and opcode in {"IADD3", "IADD", "IMAD"} and "X" in i.modifiers:
            found.add("high")
        elif single and opcode in {"IADD3", "IADD"} and carries:
            found.add("low")
        elif single and opcode == "ISETP" and zero and not {"U32", "EX"} & set(i.modifiers):
            found.add("high")
    return found


def _is_entry(values: Slice, held: Register, n: int, r: Register) -> bool:
    """Say whether a register holds, maybe as a copy, what another one had at the entry."""
    return not held.hardwired and values.run(lambda: values.register(held, n)) == leaf("entry", *r)


def _both_at_entry(values: Slice, operand: RegisterOperand, n: int) -> bool:
    return all(values.code.definition(r, n) == ENTRY for r in operand.registers)


def _entries_of(values: Slice, ret: Instruction, n: int) -> list[Atom]:
    found: list[Atom] = []
    for r in uses(ret) or ():
        found += inside(values.run(lambda r=r: values.register(r, n)))  # type: ignore[misc]
    return found


def _result(values: Slice, ret: int) -> tuple[Register, Register] | None:
    """Return the registers that become -1 where the divisor is 0, the lower word first."""
    code = values.code
    found: list[Register] = []
    words: list[str | None] = []
    for n, i in enumerate(code.instructions):
        if i.opcode in {"SEL", "USEL"} and any(isinstance(s, Immediate) and s.value in _ALL_ONES for s in i.sources):
            registers = [r for r in i.destinations[0].registers if code.definition(r, ret).at == n]
            found += registers
            words += ["low", "high"] if len(registers) == 2 else [_word_of_sum(values, n)] * len(registers)
    if sorted(map(str, words)) != ["high", "low"]:
        return None
    return (found[0], found[1]) if words[0] == "low" else (found[1], found[0])


def _word_of_sum(values: Slice, n: int) -> str | None:
    """Return which word a select chooses from, by the sums that it comes from: the upper one takes a carry."""
    code = values.code
    seen, todo, words = {n}, [n], set()
    while todo:
        at = todo.pop()
        for s in code.instructions[at].sources:
            if not isinstance(s, RegisterOperand) or s.register.predicate or s.register.hardwired:
                continue
            site = code.definition(s.register, at)
            if site.kind != "instruction" or site.at in seen:
                continue
            seen.add(site.at)
            i = code.instructions[site.at]
            opcode = i.opcode.removeprefix("U")
            if opcode in {"SEL", "MOV"}:
                todo.append(site.at)
            elif opcode in {"IADD3", "IADD", "IMAD"} and "X" in i.modifiers:
                words.add("high")
            elif opcode in {"IADD3", "IADD"} and any(
                d.register.predicate and not d.register.hardwired for d in i.destinations
            ):
                words.add("low")
    return words.pop() if len(words) == 1 else None


_ALL_ONES = (-1, 0xFFFFFFFF, 0xFFFFFFFFFFFFFFFF)
