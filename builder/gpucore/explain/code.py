"""The code that one thread runs: a kernel with the functions it calls put in their place, and its control flow.

A function inside the kernel's section is copied for each call of it: a value flows into it and out of it by
registers like through any other code, whatever convention the compiler chose for that call. What is not copied
(recursion, too much code, functions elsewhere) counts as an instruction that writes what the function may write.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from types import MappingProxyType
from typing import Final, TypeAlias

from gpucore.sass import Instruction, Memory, Register, RegisterOperand, definitions, uses

MOST_INSTRUCTIONS: Final = 60_000
_DEEPEST: Final = 6

Slot: TypeAlias = tuple[str, int]
Resource: TypeAlias = Register | Slot
"""A register, or a word of the thread's stack that only spills use: ("stack", bytes from where the stack began)."""

_DIVISION: Final = re.compile(r"__cuda_sm\d+_(div|rem)_([su])64")
_ENDS: Final = frozenset({"EXIT", "KILL"})
_INDIRECT: Final = frozenset({"BRX", "BRXU", "JMX", "JMXU", "JMP"})
_NEVER_RETURN: Final = frozenset({"__assertfail", "__assert_fail"})
STACK: Final = Register("R", 1)


@dataclass(frozen=True)
class Routine:
    """A function in a section: its name, and its first byte and the one behind its last."""

    name: str
    start: int
    end: int

    @property
    def division(self) -> tuple[bool, bool] | None:
        """Whether it is a 64-bit remainder, and whether it is unsigned; None for every other function."""
        found = _DIVISION.search(self.name)
        return (found[1] == "rem", found[2] == "u") if found else None


@dataclass(frozen=True)
class Site:
    """Where a resource gets its value: an instruction, the start of a block where several meet, or the entry."""

    kind: str  # "instruction", "phi", "entry"
    at: int = 0


ENTRY: Final = Site("entry")


class Code:
    """The instructions of a routine with those of the routines it calls, in blocks; numbered from 0.

    `tables` says where each branch through a register may lead, by its offset, as `read_branch_targets` of the cubin.
    """

    def __init__(
        self,
        instructions: Sequence[Instruction],
        routines: Iterable[Routine],
        root: Routine,
        tables: Mapping[int, Sequence[int]] = MappingProxyType({}),
    ) -> None:
        self._section, self._tables = instructions, tables
        self._by_offset = {i.offset: n for n, i in enumerate(instructions)}
        self._routines = {r.start: r for r in routines}
        self._by_name = {r.name: r for r in routines}
        self.root = root
        self.instructions: list[Instruction] = []
        self.contexts: list[tuple[int, ...]] = []
        """For each instruction the calls that it is inside of, outermost first, as instruction numbers."""
        self.called: dict[int, Routine | None] = {}
        """The calls that are not followed, with their routine where it is in this section."""
        self._places: dict[tuple[tuple[int, ...], int], int] = {}
        self._after: dict[int, list[int]] = {}
        self.indirect = False
        self._lay(root, ())
        self._connect()
        self._dominate()
        self._register_definitions()

    # Layout.

    def _lay(self, routine: Routine, context: tuple[int, ...]) -> None:
        first = self._by_offset.get(routine.start, 0)
        last = first
        while last < len(self._section) and self._section[last].offset < routine.end:
            last += 1
        start = len(self.instructions)
        for i in self._section[first:last]:
            self._places[context, i.offset] = len(self.instructions)
            self.instructions.append(i)
            self.contexts.append(context)
        for n in range(start, start + last - first):
            if self.instructions[n].opcode == "CALL":
                self._follow(n, context)

    def _follow(self, n: int, context: tuple[int, ...]) -> None:
        callee = self.callee(self.instructions[n])
        if callee is None and self._is_jump(n, context):
            return
        inner = (*context, n)
        recursive = callee is not None and callee in (self.root, *(self.callee(self.instructions[c]) for c in context))
        if (
            callee is None
            or callee.division
            or recursive
            or len(inner) > _DEEPEST
            or len(self.instructions) + (callee.end - callee.start) // 16 > MOST_INSTRUCTIONS
        ):
            self.called[n] = callee
        else:
            self._lay(callee, inner)

    def _is_jump(self, n: int, context: tuple[int, ...]) -> bool:
        """Say whether a call leads into the middle of its function, which is how ptxas leaves some loops."""
        target = self.instructions[n].target
        inside = target is not None and target.offset is not None and (context, target.offset) in self._places
        return inside and not context

    def callee(self, call: Instruction) -> Routine | None:
        """Return the routine of this section that a call leads to; None for one elsewhere."""
        target = call.target
        if target is None:
            return None
        if target.offset is None:
            return self._by_name.get(target.symbol)
        return self._routines.get(target.offset)

    def of(self, routine: Routine) -> Code:
        """Return the code of another routine of the section."""
        return Code(self._section, self._routines.values(), routine, self._tables)

    def place(self, offset: int, context: tuple[int, ...] = ()) -> int | None:
        """Return the number of the instruction at an offset of the section, within these calls."""
        return self._places.get((context, offset))

    def places(self, offset: int) -> list[int]:
        """Return the numbers of an instruction, one for each way to call it."""
        return [n for (_, at), n in self._places.items() if at == offset]

    # Flow.

    def _connect(self) -> None:
        leaders = {0}
        for n, i in enumerate(self.instructions):
            after = self._successors(n, i)
            if after is not None:
                self._after[n] = after
                leaders.update(after)
                if n + 1 < len(self.instructions):
                    leaders.add(n + 1)
        order = sorted(leaders)
        self.blocks: list[tuple[int, int]] = [
            (first, behind - 1)
            for first, behind in zip(order, [*order[1:], len(self.instructions)], strict=True)
            if behind > first
        ]
        self._starts = [first for first, _ in self.blocks]
        self.after: list[list[int]] = []
        for _, last in self.blocks:
            following = self._after.get(last)
            if following is None:
                following = [last + 1] if self._runs_on(last) else []
            self.after.append(list(dict.fromkeys(self.block_of(n) for n in following)))
        self.before: list[list[int]] = [[] for _ in self.blocks]
        for b in sorted(walk((0,), self.after.__getitem__)):
            for a in self.after[b]:
                self.before[a].append(b)

    def _runs_on(self, n: int) -> bool:
        return n + 1 < len(self.instructions) and self.contexts[n] == self.contexts[n + 1]

    def _successors(self, n: int, i: Instruction) -> list[int] | None:
        """Return where control goes from an instruction that ends a block; None for one that does not."""
        context = self.contexts[n]
        following = [n + 1] if self._runs_on(n) else []
        always = i.guard is None or (i.guard.register.hardwired and not i.guard.negated)
        if i.opcode in _ENDS:
            return [] if always else following
        if i.opcode == "RET":
            back = [context[-1] + 1] if context else []
            return back if always else [*back, *following]
        callee = self.callee(i) if i.opcode == "CALL" and n not in self.called else None
        if i.opcode == "BRA" or (i.opcode == "CALL" and n not in self.called and callee is None):
            target = i.target
            to = self._places.get((context, target.offset)) if target and target.offset is not None else None
            by_threads = {"DIV", "CONV"} & set(i.modifiers)  # taken where threads are apart: no operand on sm_75
            conditional = not always or by_threads or any(isinstance(s, RegisterOperand) for s in i.sources)
            return [*([to] if to is not None else []), *(following if conditional else [])]
        if i.opcode in _INDIRECT:
            places = [self._places.get((context, to)) for to in self._tables.get(i.offset, ())]
            self.indirect |= not places
            return [place for place in places if place is not None] or following
        if i.opcode != "CALL":
            return None
        if n in self.called:
            # A trap follows a call that never returns, such as that of a failed assertion.
            name = i.target.symbol if i.target else ""
            never = name in _NEVER_RETURN or (following and self.instructions[n + 1].opcode == "BPT")
            return [] if never and always else None
        entry = self._places[(*context, n), callee.start] if callee else n + 1
        return [entry] if always else [entry, *following]

    def reachable_from(self, n: int) -> set[int]:
        """Return the blocks that control may be in after the block of an instruction."""
        return walk(self.after[self.block_of(n)], self.after.__getitem__)

    def block_of(self, n: int) -> int:
        """Return the block of an instruction."""
        return bisect_right(self._starts, n) - 1

    # Dominators (Cooper, Harvey, Kennedy) and their frontiers.

    def _dominate(self) -> None:
        order: list[int] = []
        seen = {0}
        stack = [(0, iter(self.after[0]))]
        while stack:
            b, following = stack[-1]
            for a in following:
                if a not in seen:
                    seen.add(a)
                    stack.append((a, iter(self.after[a])))
                    break
            else:
                order.append(b)
                stack.pop()
        self.order = order[::-1]
        self.rank = {b: k for k, b in enumerate(self.order)}
        self.dominator = {0: 0}
        changed = True
        while changed:
            changed = False
            for b in self.order[1:]:
                known = [p for p in self.before[b] if p in self.dominator]
                new = known[0]
                for p in known[1:]:
                    new = self._common(p, new)
                if self.dominator.get(b) != new:
                    self.dominator[b] = new
                    changed = True
        self._frontier: dict[int, list[int]] = {}
        for b in self.order:
            for p in self.before[b] if len(self.before[b]) > 1 or b == 0 else ():
                at = p
                while at != self.dominator[b] or (b == 0 and at == 0):
                    self._frontier.setdefault(at, []).append(b)
                    if at == self.dominator[at]:
                        break
                    at = self.dominator[at]

    def _common(self, a: int, b: int) -> int:
        while a != b:
            while self.rank[a] > self.rank[b]:
                a = self.dominator[a]
            while self.rank[b] > self.rank[a]:
                b = self.dominator[b]
        return a

    def dominates(self, a: int, b: int) -> bool:
        """Say whether every way to block b leads through block a."""
        while self.rank.get(b, -1) > self.rank.get(a, 1 << 60):
            b = self.dominator[b]
        return a == b

    def dominators(self, b: int) -> Iterator[int]:
        """Yield a block, the one that dominates it, and so on up to the entry."""
        while True:
            yield b
            if b == self.dominator.get(b, b):
                return
            b = self.dominator[b]

    @cached_property
    def loops(self) -> dict[int, frozenset[int]]:
        """The blocks of each natural loop by its header."""
        found: dict[int, set[int]] = {}
        for b in self.order:
            for a in self.after[b]:
                if self.dominates(a, b):
                    body = found.setdefault(a, {a})
                    body |= walk((b,), self.before.__getitem__, body)
        return {header: frozenset(body) for header, body in found.items()}

    # Definitions.

    def _register_definitions(self) -> None:
        self._sites: dict[Resource, list[int]] = {}
        self._wild: list[int] = []  # may write any register
        self.stack = self._stack_slots()
        self._phis: dict[Resource, frozenset[int]] = {}
        for n in range(len(self.instructions)):
            written = self.defined_by(n)
            if written is None:
                self._wild.append(n)
            else:
                for r in written:
                    self._sites.setdefault(r, []).append(n)
        for r in self._sites:
            if self._wild:
                self._sites[r] = sorted({*self._sites[r], *self._wild})

    def defined_by(self, n: int) -> tuple[Resource, ...] | None:
        """Return what an instruction may write; None for one that may write any register."""
        if n in self.called:
            callee = self.called[n]
            return None if callee is None else self._written_by(callee)
        i = self.instructions[n]
        written: tuple[Resource, ...] | None = definitions(i)
        if n in self.stack and i.opcode == "STL":
            return (*(written or ()), *self.stack[n])
        return written

    def _written_by(self, routine: Routine) -> tuple[Resource, ...] | None:
        found: dict[Resource, None] = {}
        seen: set[Routine] = set()
        todo = [routine]
        while todo:
            r = todo.pop()
            if r in seen:
                continue
            seen.add(r)
            for i in self._section:
                if not r.start <= i.offset < r.end:
                    continue
                written = definitions(i)
                callee = self.callee(i) if i.opcode == "CALL" else None
                if written is None or (i.opcode == "CALL" and callee is None):
                    return None
                found.update(dict.fromkeys(written))
                if callee:
                    todo.append(callee)
        return tuple(found)

    def definitions_of(self, r: Resource) -> Sequence[int]:
        """Return every instruction that may write a resource."""
        return self._sites.get(r, self._wild)

    def definition(self, r: Resource, n: int) -> Site:
        """Return what gives a resource the value that it has before an instruction."""
        return self._before(r, self.block_of(n), n)

    def at_end(self, r: Resource, b: int) -> Site:
        """Return what gives a resource the value that it has behind a block."""
        return self._before(r, b, self.blocks[b][1] + 1)

    def _before(self, r: Resource, b: int, n: int) -> Site:
        sites = self._sites.get(r, self._wild)
        phis = self._phis_of(r)
        while True:
            at = bisect_right(sites, n - 1) - 1
            if at >= 0 and sites[at] >= self.blocks[b][0]:
                return Site("instruction", sites[at])
            if b in phis:
                return Site("phi", b)
            if b == 0 or b not in self.dominator:
                return ENTRY
            b = self.dominator[b]
            n = self.blocks[b][1] + 1

    def _phis_of(self, r: Resource) -> frozenset[int]:
        found = self._phis.get(r)
        if found is None:
            placed: set[int] = set()
            todo = list(dict.fromkeys(self.block_of(n) for n in self._sites.get(r, self._wild)))
            while todo:
                for b in self._frontier.get(todo.pop(), ()):
                    if b not in placed:
                        placed.add(b)
                        todo.append(b)
            found = self._phis[r] = frozenset(placed)
        return found

    # The stack.

    def _stack_slots(self) -> dict[int, tuple[Slot, ...]]:
        """Return the words that each LDL and STL means, where no other access can reach the stack; else nothing."""
        local = [n for n, i in enumerate(self.instructions) if i.opcode in {"LDL", "STL"}]
        heights = self._stack_heights() if local else None
        if heights is None:
            return {}
        found: dict[int, tuple[Slot, ...]] = {}
        for n in local:
            i = self.instructions[n]
            at = i.memory
            if at is None or at.base != STACK or at.scale != 1 or at.uniform is not None:
                return {}
            width = {"64": 2, "128": 4}.get(i.modifiers[-1] if i.modifiers else "", 1)
            if {"U8", "S8", "U16", "S16"} & set(i.modifiers) or n not in heights:
                return {}
            found[n] = tuple(("stack", heights[n] + at.offset + 4 * k) for k in range(width))
        return found

    def _stack_heights(self) -> dict[int, int] | None:
        """Return R1 at each instruction in bytes from its first value; None where it is used for anything else."""
        at_entry: dict[int, int] = {0: 0}
        found: dict[int, int] = {}
        for b in self.order:
            height = at_entry.get(b, 0)
            for n in range(self.blocks[b][0], self.blocks[b][1] + 1):
                i = self.instructions[n]
                found[n] = height
                if n in self.called and self.called[n] is None:
                    if n in self._after:  # it does not return
                        break
                    return None
                written = definitions(i)
                if written is None or (STACK in written and i.guard is not None):
                    return None
                if STACK in written:
                    change = self._change_of_stack(i)
                    if change is None:
                        return None
                    height += change
                elif STACK in (uses(i) or ()) and not (i.memory and i.memory.base == STACK and _only_base(i)):
                    return None
            for a in self.after[b]:
                if at_entry.setdefault(a, height) != height:
                    return None
        return found

    def _change_of_stack(self, i: Instruction) -> int | None:
        if STACK not in (uses(i) or ()):
            return 0 if i.opcode in {"LDC", "MOV", "IMAD", "LDCU"} else None
        if i.opcode not in {"IADD3", "VIADD", "IADD"}:
            return None
        change = 0
        for s in i.sources:
            if isinstance(s, RegisterOperand):
                if s.register != STACK and not s.register.hardwired:
                    return None
            elif hasattr(s, "value"):
                change += s.value - (1 << 32) if s.value >> 31 else s.value
            else:
                return None
        return change


def walk(starts: Iterable[int], following: Callable[[int], Iterable[int]], but: Collection[int] = ()) -> set[int]:
    """Return the blocks that ways from some blocks lead to, these included, where no way enters one of `but`."""
    seen: set[int] = set()
    todo = [b for b in starts if b not in but]
    while todo:
        b = todo.pop()
        if b not in seen:
            seen.add(b)
            todo += [a for a in following(b) if a not in but]
    return seen


def _only_base(i: Instruction) -> bool:
    others = [s for s in i.sources if not isinstance(s, Memory)]
    return not any(isinstance(s, RegisterOperand) and STACK in s.registers for s in others)
