"""Control flow: the basic blocks that can be reached from an entry, where they lead, and what dominates what.

A section holds a kernel and the functions it calls that were not inlined, without gaps. So a graph starts at one entry
and has what its branches reach; a call is followed by its next instruction, and its callee has another graph.
BSSY, BSYNC and BREAK need no edges: on every BSYNC of the stock vLLM wheel that was looked at, the instruction behind
it is the target of its BSSY.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final, Literal

from gpucore.sass.model import WORD, Instruction, RegisterOperand

End = Literal["falls", "branch", "exit", "return", "unknown"]
"""How a block ends: into its only successor; by a branch; with EXIT; with RET; where the next place is not known."""

_RETURNS: Final = frozenset({"RET"})
_EXITS: Final = frozenset({"EXIT", "KILL"})
_INDIRECT: Final = frozenset({"BRX", "BRXU", "JMX", "JMXU", "JMP"})
_ENDS_BLOCK: Final = _INDIRECT | _EXITS | _RETURNS | {"BRA"}
_BY_THREADS: Final = frozenset({"DIV", "CONV"})  # BRA.DIV: taken where threads are apart


@dataclass(frozen=True, slots=True)
class Block:
    """Instructions that run one after another: entered at the first, left after the last."""

    number: int
    """The place in `ControlFlow.blocks`; blocks are in the order of their offsets."""
    start: int
    """Offset of the first instruction, in bytes."""
    end: int
    """Offset behind the last."""
    ends: End
    successors: tuple[int, ...]
    """Numbers of blocks; the one that a branch is taken to first."""
    predecessors: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Call:
    """A call, and the offset in the same section that it leads to; None where it leads out or through a register."""

    offset: int
    callee: int | None


@dataclass(frozen=True)
class ControlFlow:
    """The blocks of one function; made by `control_flow`."""

    entry: int
    blocks: tuple[Block, ...]
    calls: tuple[Call, ...]
    unresolved: tuple[int, ...]
    """Offsets of branches through a register whose targets are not known, and of paths that leave the code."""

    def block_at(self, offset: int) -> Block | None:
        """Return the block of the instruction at an offset; None where it cannot be reached from the entry."""
        place = bisect_right(self._starts, offset) - 1
        found = self.blocks[place] if place >= 0 else None
        return found if found and offset < found.end else None

    @cached_property
    def _starts(self) -> list[int]:
        return [block.start for block in self.blocks]

    @cached_property
    def entry_block(self) -> int:
        """The number of the block at the entry."""
        return self._starts.index(self.entry)

    @cached_property
    def order(self) -> tuple[int, ...]:
        """Numbers of blocks in reverse postorder from the entry: each before what it leads to, but for loops."""
        return _reverse_postorder([self.entry_block], [block.successors for block in self.blocks])

    @cached_property
    def dominators(self) -> tuple[int | None, ...]:
        """Of each block the nearest other one that every path to it goes through; None for the entry."""
        before = [block.predecessors for block in self.blocks]
        return tuple(_immediate(self.order, before))

    @cached_property
    def postdominators(self) -> tuple[int | None, ...]:
        """Of each block the nearest other one that every path from it to an end goes through.

        None where there is none: paths end apart, or none ends at all.
        """
        count = len(self.blocks)
        last = [block.number for block in self.blocks if block.ends in ("exit", "return", "unknown")]
        before = [block.predecessors for block in self.blocks] + [tuple(last)]
        after: list[tuple[int, ...]] = [block.successors for block in self.blocks] + [()]
        for number in last:
            after[number] = (*after[number], count)
        found = _immediate(_reverse_postorder([count], before), after)
        return tuple([None if number in (None, count) else number for number in found[:count]])

    def dominates(self, upper: int, lower: int) -> bool:
        """Return whether every path from the entry to block `lower` goes through block `upper`; each does itself."""
        return _leads_up(self.dominators, upper, lower)

    def postdominates(self, later: int, earlier: int) -> bool:
        """Return whether every path from block `earlier` to an end goes through block `later`; each does itself."""
        return _leads_up(self.postdominators, later, earlier)


def control_flow(
    instructions: Sequence[Instruction], entry: int = 0, tables: Mapping[int, Sequence[int]] | None = None
) -> ControlFlow:
    """Return the blocks that can be reached from `entry` within the instructions of one section.

    `tables` says where each branch through a register may lead, by its offset, as `read_branch_targets` of the cubin
    returns it. Raises ValueError when there is no instruction at `entry`.
    """
    place = {instruction.offset: number for number, instruction in enumerate(instructions)}
    if entry not in place:
        raise ValueError(f"no instruction at offset {entry:#x}")
    tables = tables or {}
    leads: dict[int, tuple[int, ...]] = {}  # of each reached instruction that is not just followed by the next
    unresolved: list[int] = []
    calls: list[Call] = []
    seen: set[int] = set()
    starts = {entry}
    todo = [entry]
    while todo:
        offset = todo.pop()
        while offset not in seen:
            seen.add(offset)
            instruction = instructions[place[offset]]
            if instruction.opcode == "CALL":
                target = instruction.target
                calls.append(Call(offset, target.offset if target and target.offset in place else None))
            targets = _next(instruction, tables)
            inside = tuple([target for target in targets or () if target in place])
            if targets is None or len(inside) < len(targets):
                unresolved.append(offset)
            if inside == (offset + WORD,) and instruction.opcode not in _ENDS_BLOCK:
                offset += WORD
                continue
            leads[offset] = inside
            starts.update(inside)
            todo += inside
    return _assembled(entry, instructions, place, seen, starts, leads, calls, sorted(unresolved))


def _next(instruction: Instruction, tables: Mapping[int, Sequence[int]]) -> tuple[int, ...] | None:
    """Return the offsets that may run next; None when that is not known."""
    opcode, behind = instruction.opcode, instruction.offset + WORD
    if opcode == "BRA":
        target = instruction.target
        if target is None or target.offset is None:
            return None
        return (target.offset, behind) if _conditional(instruction) else (target.offset,)
    if opcode in _INDIRECT:
        known = tables.get(instruction.offset)
        if known is None:
            return None
        return (*dict.fromkeys(known), *((behind,) if _conditional(instruction) else ()))
    if opcode in _EXITS or opcode in _RETURNS:
        return (behind,) if _conditional(instruction) else ()
    return (behind,)


def _conditional(instruction: Instruction) -> bool:
    """Return whether a branch may not be taken: by its guard, a predicate, or where the threads are."""
    operands = (o for o in instruction.sources if isinstance(o, RegisterOperand))
    asked = any(o.register.predicate and not (o.register.hardwired and not o.negated) for o in operands)
    return instruction.guard is not None or asked or not _BY_THREADS.isdisjoint(instruction.modifiers)


def _assembled(
    entry: int,
    instructions: Sequence[Instruction],
    place: Mapping[int, int],
    seen: set[int],
    starts: set[int],
    leads: Mapping[int, tuple[int, ...]],
    calls: Iterable[Call],
    unresolved: Sequence[int],
) -> ControlFlow:
    """Cut what was reached into blocks."""
    bounds: list[tuple[int, int]] = []
    for offset in sorted(starts):
        last = offset
        while last not in leads and last + WORD not in starts and last + WORD in seen:
            last += WORD
        bounds.append((offset, last))
    number_of = {start: number for number, (start, _last) in enumerate(bounds)}
    after: list[tuple[int, ...]] = []
    for _start, last in bounds:
        behind = (last + WORD,) if last + WORD in number_of else ()
        after.append(tuple(number_of[offset] for offset in dict.fromkeys(leads.get(last, behind))))
    before: list[list[int]] = [[] for _ in bounds]
    for number, successors in enumerate(after):
        for successor in successors:
            before[successor].append(number)
    blocks = []
    for number, (start, last) in enumerate(bounds):
        ends = _ends(instructions[place[last]], last in leads, last in unresolved)
        blocks.append(Block(number, start, last + WORD, ends, after[number], tuple(before[number])))
    found = tuple(sorted(calls, key=lambda call: call.offset))
    return ControlFlow(entry=entry, blocks=tuple(blocks), calls=found, unresolved=tuple(unresolved))


def _ends(last: Instruction, leads: bool, unresolved: bool) -> End:
    if unresolved:
        return "unknown"
    if not leads:
        return "falls"
    return "exit" if last.opcode in _EXITS else "return" if last.opcode in _RETURNS else "branch"


def _reverse_postorder(roots: Sequence[int], leads: Sequence[Sequence[int]]) -> tuple[int, ...]:
    seen = set(roots)
    found: list[int] = []
    stack = [(root, iter(leads[root])) for root in reversed(roots)]
    while stack:
        node, rest = stack[-1]
        for following in rest:
            if following not in seen:
                seen.add(following)
                stack.append((following, iter(leads[following])))
                break
        else:
            found.append(node)
            stack.pop()
    return tuple(reversed(found))


def _immediate(order: Sequence[int], before: Sequence[Sequence[int]]) -> list[int | None]:
    """Return the immediate dominator of each node (Cooper, Harvey, Kennedy: A Simple, Fast Dominance Algorithm)."""
    rank = {node: number for number, node in enumerate(order)}
    root = order[0]
    parents = {root: root}
    changed = True
    while changed:
        changed = False
        for node in order[1:]:
            new: int | None = None
            for other in before[node]:
                if other in parents:
                    new = other if new is None else _common(parents, rank, other, new)
            if new is not None and parents.get(node) != new:
                parents[node] = new
                changed = True
    return [parents[node] if node in parents and node != root else None for node in range(len(before))]


def _common(parents: Mapping[int, int], rank: Mapping[int, int], left: int, right: int) -> int:
    while left != right:
        if rank[left] > rank[right]:
            left = parents[left]
        else:
            right = parents[right]
    return left


def _leads_up(parents: Sequence[int | None], upper: int, lower: int) -> bool:
    place: int | None = lower
    while place is not None and place != upper:
        place = parents[place]
    return place == upper
