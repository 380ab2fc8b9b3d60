"""At which barrier of its block a warp is held, how many threads that takes, and how many of them are there."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from gpucore.core_layout import LaneRow, SectionType
from gpucore.explain.program import Program
from gpucore.sass import WORD, Immediate, Instruction, Register, RegisterOperand, definitions

if TYPE_CHECKING:  # an answer from code alone needs no reader of cores
    from gpucore.core_reader import CoreSections, Warp

_BEHIND: Final = 2  # instructions: where warps of the H100s seen are while they wait at a barrier of the block
_LEAVES: Final = frozenset({"BRA", "BRX", "JMP", "JMX", "EXIT", "RET", "CALL"})
_ARRIVES: Final = frozenset({"ARV", "ARRIVE"})
_WARP: Final = 32
_REGISTERS: Final = {"R": SectionType.REGISTERS, "P": SectionType.PREDICATES}

ReadRegister = Callable[[Register], int | None]
"""Gives the value of a register of a thread; None where the core has it not."""


@dataclass(frozen=True)
class BlockBarrier:
    """A barrier of a block that holds a warp up, at an offset of its program.

    `number` is one of the block's sixteen. `threads` is how many it takes, None where it takes the whole block, and 0
    where a register says it that is not known. `there` is how many threads of the block are at it, None where that is
    not known. `absent` is how many resident warps of the block are not there, where it takes the whole block. `arrives`
    is whether the code also arrives at it without waiting, which leaves no trace.
    """

    offset: int
    number: int | None
    threads: int | None
    there: int | None
    absent: int | None
    arrives: bool


@dataclass(frozen=True)
class Held:
    """The barrier instruction that holds a thread, and what the thread's registers say of it."""

    offset: int
    number: int | None
    threads: int | None


def held_at(program: Program, offset: int, read: ReadRegister) -> Held | None:
    """Return the barrier of the block that holds a thread at an offset, if it does not run on; None where none does.

    A held thread is at most two instructions behind, and not behind an access to memory: then it has passed. Where
    a guard is not known and would decide between barriers, none is named.
    """
    routine = program.routine_at(offset)
    between: list[Instruction] = []
    for n in range(1, _BEHIND + 1):
        instruction = _instruction(program, offset - WORD * n)
        if routine is None or instruction is None or instruction.offset < routine.start:
            return None
        if instruction.opcode == "BAR" and instruction.known != "all":
            return None
        if instruction.opcode == "BAR" and not _ARRIVES & {*instruction.modifiers}:
            runs = _value(instruction.guard, between, read) if instruction.guard else 1
            if runs is None:
                return None
            if runs:
                number, threads = _of(instruction, between, read)
                return Held(instruction.offset, number, threads)
        elif instruction.opcode in _LEAVES or instruction.memory is not None:
            return None
        between.append(instruction)
    return None


def _instruction(program: Program, offset: int) -> Instruction | None:
    code = program.instructions
    number = (offset - code[0].offset) // WORD if code else -1
    return code[number] if 0 <= number < len(code) and code[number].offset == offset else None


def _of(bar: Instruction, between: Sequence[Instruction], read: ReadRegister) -> tuple[int | None, int | None]:
    """Return the number of a barrier, and how many threads it takes: None for the whole block, 0 if not known."""
    operands = [s for s in bar.sources if not (isinstance(s, RegisterOperand) and s.register.predicate)]
    values = [s.value if isinstance(s, Immediate) else _value(s, between, read) for s in operands]  # type: ignore[arg-type]
    if not values:
        return None, 0
    number = values[0]
    if len(operands) == 2 and operands[0] == operands[1]:  # one register has both
        return (None, 0) if number is None else (number & 0xF, number >> 16 & 0xFFF or None)
    count = (values[1] or 0) if len(values) == 2 else None
    return number, count


def _value(operand: RegisterOperand, between: Sequence[Instruction], read: ReadRegister) -> int | None:
    """Return what an operand was at the barrier: what it is now, where nothing behind the barrier may write it."""
    register = operand.register
    if register.hardwired:
        value: int | None = int(register.predicate)
    elif any((made := definitions(i)) is None or register in made for i in between):
        return None
    else:
        value = read(register)
    return value if value is None or not operand.negated else int(not value)


def reader_of(sections: CoreSections, warp: Warp, index: int) -> ReadRegister:
    """Return what reads the registers and predicates of a thread, by its row in its warp."""

    def read(register: Register) -> int | None:
        kind = _REGISTERS.get(register.file)
        if kind is None or warp.lane_table is None:
            return None
        data = sections.bytes_of(kind, warp.lane_table, index)
        at = 4 * register.number
        return int.from_bytes(data[at : at + 4], "little") if data and at + 4 <= len(data) else None

    return read


def barrier_of_block(
    mine: Held, program: Program, warps: Sequence[Warp], held: Callable[[Warp, int, LaneRow], Held | None]
) -> BlockBarrier | None:
    """Return the barrier that holds a thread, with who is there; None where all that it waits for are.

    `warps` are those of its block, and `held` gives the barrier of a thread of one.
    """
    there = complete = absent = 0
    unsure = mine.number is None
    for warp in warps:
        at = [held(warp, k, row) for k, row in warp.threads() if warp.row.valid_lanes >> (row.lane & 31) & 1]
        unsure |= any(one is not None and one.number is None for one in at)
        here = sum(one is not None and one.number == mine.number for one in at)
        there += here
        complete += _WARP if here == len(at) and here else here  # the hardware counts whole warps
        absent += here < len(at)
    arrives = any(_may_arrive(i, mine.number) for i in program.instructions)
    if unsure:
        return BlockBarrier(mine.offset, mine.number, mine.threads, None, None, arrives)
    if mine.threads is None:
        return BlockBarrier(mine.offset, mine.number, None, there, absent, arrives) if absent else None
    if 0 < mine.threads <= complete:
        return None
    return BlockBarrier(mine.offset, mine.number, mine.threads, there, None, arrives)


def _may_arrive(i: Instruction, number: int | None) -> bool:
    first = i.sources[0] if i.sources else None
    known = first.value if isinstance(first, Immediate) else None
    return i.opcode == "BAR" and bool(_ARRIVES & {*i.modifiers}) and (known is None or number in (None, known))
