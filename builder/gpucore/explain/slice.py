"""The values before an instruction: what each register and predicate holds, as formulas over leaves.

Values are followed through moves, spills, guards, branches that meet again and calls. A loop's variable is a leaf, with
its start and its steps in `Slice.loop`. What several ways give is a select by the branch that decides,
where one branch does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final, TypeAlias, TypeVar

from gpucore.explain import operations as op
from gpucore.explain.algebra import (
    ZERO,
    Atom,
    Poly,
    TooLarge,
    atom,
    constant,
    hi,
    inside,
    join,
    leaf,
    lo,
    of,
    pair,
    split_by,
    zx,
)
from gpucore.explain.code import ENTRY, Code, Resource, Routine, Site
from gpucore.explain.semantics import compute
from gpucore.sass import Immediate, Instruction, Register, RegisterOperand, uses

_DEEPEST: Final = 40
_MOST_BETWEEN: Final = 16
_MOST_FAR: Final = 96
_MOST_CHOICES: Final = 64  # sums that are looked at for what one turn adds
Bank: TypeAlias = Callable[[int, int, int], Poly]
"""What is in a constant bank: its number, an offset and a size in bytes."""


@dataclass(frozen=True)
class Loop:
    """A variable of a loop, or a value that several ways give without one branch that decides.

    `starts` are what it may have at first, `steps` what each turn may add; `others` are values of turns that are no
    such steps. `header` is the block where it is decided; `fixed` says that every step is the same in all turns.
    A condition has 1 where it holds, else 0.
    """

    header: int
    starts: tuple[Poly, ...]
    steps: tuple[Poly, ...] = ()
    others: tuple[Poly, ...] = ()
    fixed: bool = False


@dataclass
class _Known:
    values: dict[Resource, Poly] = field(default_factory=dict)
    conditions: dict[Resource, Atom] = field(default_factory=dict)


class _Deeper(Exception):
    """What is asked for needs another instruction or block first."""

    def __init__(self, wanted: Callable[[], object]) -> None:
        super().__init__()
        self.wanted = wanted


_T = TypeVar("_T", Poly, Atom)


class Slice:
    """The values of one piece of code; `kernel` says that nothing was in its registers when it began."""

    def __init__(self, code: Code, bank: Bank, kernel: bool) -> None:
        self.code, self.kernel, self._bank = code, kernel, bank
        self._results: dict[int, _Known] = {}
        self._merged: dict[tuple[int, Resource], Poly] = {}
        self._settled: dict[Atom, Poly] = {}
        self._merged_conditions: dict[tuple[int, Resource], Atom] = {}
        self._loops: dict[Atom, Loop] = {}
        self._roles: dict[Routine, Roles | None] = {}
        self._depth = 0

    # What is asked for from outside.

    def run(self, wanted: Callable[[], _T]) -> _T:
        """Return what a function gives that asks this slice for values, however far they reach."""
        stack: list[Callable[[], object]] = [wanted]
        while True:
            self._depth = 0
            try:
                found = stack[-1]()
            except _Deeper as deeper:
                stack.append(deeper.wanted)
                continue
            except RecursionError as error:
                raise TooLarge from error
            stack.pop()
            if not stack:
                return found  # type: ignore[return-value]

    def register(self, register: Resource, n: int) -> Poly:
        """Return a register or a spilled word before instruction n."""
        return self.value_of(self.code.definition(register, n), register)

    def predicate(self, register: Register, n: int) -> Atom:
        """Return a predicate before instruction n."""
        return self._condition_of(self.code.definition(register, n), register)

    def bank_word(self, bank: int, offset: int, size: int = 4) -> Poly:
        """Return what is in a constant bank."""
        return self._bank(bank, offset, size)

    def source(self, register: Register, n: int) -> tuple[Instruction, int] | None:
        """Return the unguarded instruction that gives a register its value, and its number."""
        site = self.code.definition(register, n)
        if site.kind != "instruction" or site.at in self.code.called:
            return None
        i = self.code.instructions[site.at]
        return (i, site.at) if i.guard is None and i.known == "all" else None

    # Sites.

    def value_of(self, site: Site, r: Resource) -> Poly:
        """Return what a resource has from a site on."""
        if site.kind == "entry":
            return leaf("entry", *r)
        if site.kind == "phi":
            return self._meeting(site.at, r)
        known = self._result(site.at)
        found = known.values.get(r)
        return found if found is not None else self._unknown(site.at, r)

    def _condition_of(self, site: Site, r: Resource) -> Atom:
        if site.kind == "entry":
            return atom("entry", *r, bits=1)
        if site.kind == "phi":
            return self._meeting_condition(site.at, r)
        known = self._result(site.at)
        found = known.conditions.get(r)
        return found if found is not None else atom("opaque", (site.at, r[0]), r[1], bits=1)

    def _unknown(self, n: int, r: Resource) -> Poly:
        return leaf("result" if n in self.code.called else "opaque", (n, r[0]), r[1])

    def _enter(self, again: Callable[[], object]) -> None:
        if self._depth >= _DEEPEST:
            raise _Deeper(again)
        self._depth += 1

    # Instructions.

    def _result(self, n: int) -> _Known:
        known = self._results.get(n)
        if known is None:
            self._enter(lambda: self._result(n))
            try:
                known = self._of_call(n) if n in self.code.called else self._of_instruction(n)
            except TooLarge:
                known = _Known()
            finally:
                self._depth -= 1
            self._results[n] = known
        return known

    def _of_instruction(self, n: int) -> _Known:
        i = self.code.instructions[n]
        known = _Known()
        if i.opcode in {"LDL", "STL"} and n in self.code.stack:
            self._of_stack(n, i, known)
        elif i.opcode in LOADS and i.known == "all":
            self._of_load(n, i, known)
        else:
            self._of_computation(n, i, known)
        if i.guard is not None and not (i.guard.register.hardwired and not i.guard.negated):
            self._guard(n, i.guard, known)
        return known

    def _of_stack(self, n: int, i: Instruction, known: _Known) -> None:
        slots = self.code.stack[n]
        if i.opcode == "LDL":
            for r, slot in zip(i.destinations[0].registers, slots, strict=False):
                known.values[r] = self.register(slot, n)
            return
        data = i.sources[-1]
        if isinstance(data, RegisterOperand):
            for slot in slots if data.register.hardwired else ():
                known.values[slot] = ZERO
            for r, slot in zip(data.registers, slots, strict=False):
                known.values[slot] = self.register(r, n)

    def _of_load(self, n: int, i: Instruction, known: _Known) -> None:
        kind = next((m for m in i.modifiers if m in {"U8", "S8", "U16", "S16"}), "")
        word = 0
        for d in i.destinations:
            for r in d.registers if not d.register.predicate else ():
                known.values[r] = leaf("load", n, word, kind)
                word += 1

    def _of_computation(self, n: int, i: Instruction, known: _Known) -> None:
        try:
            results = compute(self, i, n)
        except TooLarge:
            results = None
        for d, result in zip(i.destinations, results or (), strict=False):
            registers = d.registers
            if isinstance(result, Atom):
                result = (result,)
            if result is None or not registers:
                continue
            if registers[0].predicate:
                known.conditions.update(zip(registers, result, strict=False))  # type: ignore[arg-type]
                continue
            words: Sequence[Poly | Atom]
            try:
                words = result if isinstance(result, tuple) else op.split(result) if result.bits == 64 else (result,)
            except TooLarge:
                continue
            known.values.update(zip(registers, words, strict=False))  # type: ignore[arg-type]

    def _guard(self, n: int, guard: RegisterOperand, known: _Known) -> None:
        """Make everything an instruction writes a choice between that and what was there before."""
        c = self.predicate(guard.register, n) if not guard.register.hardwired else op.TRUE
        c = op.negate(c) if guard.negated else c
        for r in self.code.defined_by(n) or ():
            before = self.code.definition(r, n)
            if isinstance(r, Register) and r.predicate:
                new = known.conditions.get(r) or atom("opaque", (n, r[0]), r[1], bits=1)
                if not (self.kernel and before.kind == "entry"):
                    old = self._condition_of(before, r)
                    new = _choose(c, new, old)
                known.conditions[r] = new
            else:
                value = known.values.get(r) or self._unknown(n, r)
                known.values[r] = self.choice(c, value, self.value_of(before, r))

    def choice(self, c: Atom, a: Poly, b: Poly) -> Poly:
        """Return a where c holds, else b; what was never written in a kernel is not meant."""
        if self.kernel:
            if _never_written(b):
                return a
            if _never_written(a):
                return b
        return op.select(c, a, b)

    # Calls that are not followed.

    def _of_call(self, n: int) -> _Known:
        known = _Known()
        callee = self.code.called[n]
        division = callee.division if callee else None
        roles = self._roles_of(callee) if callee and division else None
        if roles is not None and division is not None:
            try:
                over, under = (self._argument(p, n) for p in (roles.over, roles.under))
                remainder, unsigned = division
                kind = ("u" if unsigned else "s") + ("rem64" if remainder else "div64")
                result = of(atom(kind, join(over), join(under), bits=64))
                words = op.split(result)[: len(roles.result)]
                known.values.update(zip(roles.result, words, strict=True))
            except TooLarge:
                pass
        i = self.code.instructions[n]
        if i.guard is not None:
            self._guard(n, i.guard, known)
        return known

    def _roles_of(self, callee: Routine) -> Roles | None:
        if callee not in self._roles:
            division = callee.division
            inner = Slice(self.code.of(callee), self._bank, False)
            self._roles[callee] = find_roles(inner, bool(division and division[1]))
        return self._roles[callee]

    def _argument(self, p: Poly, n: int) -> Poly:
        """Return a value of a callee's own registers at its entry with those of the call."""
        low, high = lo(p), hi(p)
        words = []
        for q in (low, high):
            a = q.single
            is_register = a is not None and a.kind == "entry"
            words.append(self.register(Register(*a.args), n) if a is not None and is_register else q)  # type: ignore[arg-type]
        return pair(*words)

    # Where ways meet.

    def _meeting(self, b: int, r: Resource) -> Poly:
        found = self._merged.get((b, r))
        if found is None:
            if self.is_header(b):
                variable = atom("phi", b, *r)
                found = self._settled.get(variable) or of(variable)
            else:
                self._enter(lambda: self._meeting(b, r))
                try:
                    found = self._merge(
                        b, list(self.code.before[b]), lambda p: self.value_of(self.code.at_end(r, p), r), self.choice
                    )
                finally:
                    self._depth -= 1
                if found is None:
                    found = leaf("phi", b, *r)
            self._merged[b, r] = found
        return found

    def _meeting_condition(self, b: int, r: Resource) -> Atom:
        found = self._merged_conditions.get((b, r))
        if found is None:
            if not self.is_header(b):
                self._enter(lambda: self._meeting_condition(b, r))
                try:
                    found = self._merge(
                        b, list(self.code.before[b]), lambda p: self._condition_of(self.code.at_end(r, p), r), _choose
                    )
                finally:
                    self._depth -= 1
            if found is None:
                found = atom("phi", b, *r, bits=1)
            self._merged_conditions[b, r] = found
        return found

    def is_header(self, b: int) -> bool:
        """Say whether a way leads back to a block."""
        return bool(self._turns_of(b))

    def _turns_of(self, b: int) -> set[int]:
        """Return the blocks from which ways lead back to a block."""
        rank = self.code.rank
        return {p for p in self.code.before[b] if rank[p] >= rank[b]}

    def _merge(
        self,
        b: int,
        ways: list[int],
        value: Callable[[int], _T],
        choose: Callable[[Atom, _T, _T], _T],
        far: bool = False,
    ) -> _T | None:
        """Return what these ways into a block give, as choices by the branches that decide between them.

        Not `far`, no loop is on these ways and they are short: a value that a choice over more would replace is easier
        to find in registers.
        """
        try:
            return self._merged_from(b, ways, value, choose, far)
        except TooLarge:
            return None

    def _merged_from(
        self, b: int, ways: list[int], value: Callable[[int], _T], choose: Callable[[Atom, _T, _T], _T], far: bool
    ) -> _T | None:
        values = [value(p) for p in ways]
        if all(v == values[0] for v in values):
            return values[0]
        if self.kernel:
            written = [(p, v) for p, v in zip(ways, values, strict=True) if not _never_written(v)]
            if len(written) < len(ways):
                return self._merge(b, [p for p, _ in written], value, choose, far) if written else values[0]
        top = ways[0]
        for p in ways[1:]:
            top = self.code._common(p, top)
        sides = self._sides(b, top, ways)
        if sides is None:
            return self._chosen_by_way(b, top, ways, values, choose, far)
        condition, taken, not_taken = sides
        first, second = (self._merge(b, side, value, choose, far) for side in (taken, not_taken))
        return None if first is None or second is None else choose(condition, first, second)

    def _chosen_by_way(
        self, b: int, top: int, ways: list[int], values: Sequence[_T], choose: Callable[[Atom, _T, _T], _T], far: bool
    ) -> _T | None:
        """Return what these ways from a block give, as choices by the conditions under which each is taken."""
        taken = self._conditions_of_ways(b, top, ways, far)
        if taken is None:
            return None
        under: dict[_T, Atom] = {}
        for p, value in zip(ways, values, strict=True):
            under[value] = op.either(under[value], taken[p]) if value in under else taken[p]
        different: list[_T] = list(under)
        found = different.pop()
        while different:
            value = different.pop()
            found = choose(under[value], value, found)
        return found

    def _conditions_of_ways(self, b: int, top: int, ways: list[int], far: bool) -> dict[int, Atom] | None:
        """Return when each way into a block is taken from a block before; None where it is far or not understood.

        Of a loop on the way the last turn counts: it is left by the way that its conditions give with the values of
        that turn, which are what its variables mean behind it.
        """
        code, between, todo = self.code, set[int](), list(ways)
        while todo:
            p = todo.pop()
            if p == top or p in between:
                continue
            between.add(p)
            if len(between) > (_MOST_FAR if far else _MOST_BETWEEN) or not code.dominates(top, p):
                return None
            if not self._turns_of(p) <= (code.loops.get(p, frozenset()) if far else frozenset()):
                return None
            todo += code.before[p]
        edges: dict[tuple[int, int], Atom] = {}
        for p in sorted({top, *between}, key=code.rank.__getitem__):
            here = op.TRUE
            if p != top:
                here = op.FALSE
                for q in code.before[p]:
                    here = here if q in self._turns_of(p) else op.either(here, edges[q, p])
            body = code.loops.get(p, frozenset()) if p != top else frozenset()
            exits = [(x, y) for x in body for y in code.after[x] if y not in body]
            if len(exits) == 1:
                edges[exits[0]] = here
            if len(code.after[p]) == 1:
                edges.setdefault((p, code.after[p][0]), here)
                continue
            branch = self.branch(p)
            if branch is None or branch[1] == branch[2]:
                return None
            condition, to, other = branch
            edges.setdefault((p, to), op.both(here, condition))
            edges.setdefault((p, other), op.both(here, op.negate(condition)))
        return {p: edges[p, b] for p in ways}

    def _sides(self, b: int, top: int, ways: list[int]) -> tuple[Atom, list[int], list[int]] | None:
        """Return the condition of the branch at the end of a block, and the ways that follow it and that do not."""
        code = self.code
        found = self.branch(top)
        if found is None:
            return None
        condition, to, other = found
        sides: tuple[list[int], list[int]] = ([], [])
        for p in ways:
            if p == top:
                side = 0 if to == b else 1 if other == b else None
            else:
                side = next(
                    (
                        k
                        for k, s in enumerate((to, other))
                        if s not in (b, -1) and code.before[s] == [top] and code.dominates(s, p)
                    ),
                    None,
                )
            if side is None:
                return None
            sides[side].append(p)
        return (condition, *sides) if sides[0] and sides[1] else None

    def branch(self, b: int) -> tuple[Atom, int, int] | None:
        """Return the condition at the end of a block, where it leads if that holds, and where else."""
        code = self.code
        last = code.blocks[b][1]
        i = code.instructions[last]
        if i.opcode not in {"BRA", "EXIT", "RET", "CALL"} or len(code.after[b]) > 2:
            return None
        condition = op.TRUE
        if i.guard is not None:
            condition = self._operand(i.guard, last)
        for s in i.sources:
            if isinstance(s, RegisterOperand) and s.register.predicate:
                condition = op.both(condition, self._operand(s, last))
            elif isinstance(s, RegisterOperand) and not s.register.hardwired and i.opcode == "BRA":
                return None
        if {"DIV", "CONV"} & set(i.modifiers):
            return None
        if len(code.after[b]) != 2:
            return (
                (op.negate(condition), code.after[b][0], -1) if i.opcode in {"EXIT", "RET"} and code.after[b] else None
            )
        to, other = code.after[b]
        return condition, to, other

    def condition_behind(self, b: int) -> Atom | None:
        """Return the condition at the end of a block; None where it is not understood."""
        found: list[Atom | None] = []

        def look() -> Atom:
            branch = self.branch(b)
            found.append(branch[0] if branch else None)
            return op.TRUE

        try:
            self.run(look)
        except TooLarge:
            return None
        return found[-1]

    def _operand(self, operand: RegisterOperand, n: int) -> Atom:
        plain = op.TRUE if operand.register.hardwired else self.predicate(operand.register, n)
        return op.negate(plain) if operand.negated else plain

    def holding(self, n: int) -> list[tuple[Atom, int]]:
        """Return the conditions that hold where instruction n runs, each with the branch or guard that tests it."""
        code = self.code
        found: list[tuple[Atom, int]] = []
        guard = code.instructions[n].guard
        if guard is not None and not guard.register.hardwired:
            found.append((self._operand(guard, n), n))
        for b in code.dominators(code.block_of(n)):
            if len(code.before[b]) != 1:
                continue
            top = code.before[b][0]
            branch = self.branch(top)
            if branch is None or branch[1] == branch[2]:
                continue
            condition = branch[0] if branch[1] == b else op.negate(branch[0])
            if condition not in (op.TRUE, op.FALSE):
                found.append((condition, code.blocks[top][1]))
        return found

    # Loops.

    def loop(self, a: Atom) -> Loop:
        """Return what is known of a leaf of kind `phi`, or of `wide` made of two of them."""
        found = self._loops.get(a)
        if found is None:
            try:
                found = self._look_at_loop(a)
            except TooLarge:
                halves = [x for x in a.args if isinstance(x, Atom)] if a.kind == "wide" else [a]
                found = Loop(int(str(halves[0].args[0])), ())
            self._loops[a] = found
        return found

    def _look_at_loop(self, a: Atom) -> Loop:
        halves = [x for x in a.args if isinstance(x, Atom)] if a.kind == "wide" else [a]
        block = halves[0].args[0]
        assert isinstance(block, int)
        resources = [_resource(x) for x in halves]
        me = op.select(a, constant(1), ZERO) if a.bits == 1 else of(a, 64 if a.kind == "wide" else 32)
        starts: list[Poly] = []
        turns: list[Poly] = []
        entered: list[int] = []
        for p in self.code.before[block]:
            words = [self._at_end(r, p) for r in resources]
            if self.kernel and any(_never_written(w) for w in words):
                continue
            try:
                value = join(pair(*words)) if len(words) == 2 else words[0]
            except TooLarge:
                value = of(atom("opaque", (self.code.blocks[p][1], "loop"), 0, bits=64), me.bits)
            if self.code.rank[p] >= self.code.rank[block]:
                turns.append(value)
            else:
                starts.append(value)
                entered.append(p)
        if len(set(starts)) > 1:
            starts = self._start_by_way(block, entered, resources) or starts
        steps: list[Poly] = []
        others: list[Poly] = []
        for value in dict.fromkeys(turns):
            step = _step(value, me, {a, *halves})
            if step is None:
                others.append(value)
            else:
                steps.append(step)
        steps = list(dict.fromkeys(steps))
        if not others and not any(step.terms for step in steps):  # it never changes
            steps.clear()
        body = self.code.loops.get(block, frozenset())
        fixed = not others and all(self.is_fixed(x, body) for s in steps for x in inside(s))
        return Loop(block, tuple(dict.fromkeys(starts)), tuple(dict.fromkeys(steps)), tuple(others), fixed)

    def _at_end(self, r: Resource, p: int) -> Poly:
        site = self.code.at_end(r, p)
        if not _is_predicate(r):
            return self.run(lambda: self.value_of(site, r))
        condition = self.run(lambda: self._condition_of(site, r))
        return leaf("entry", *r) if _never_written(condition) else op.select(condition, constant(1), ZERO)

    def _start_by_way(self, block: int, ways: list[int], resources: Sequence[Resource]) -> list[Poly] | None:
        """Return what a variable has at first as one choice by the branches that lead to the loop."""

        def word(r: Resource) -> Poly:
            found = self._merge(block, ways, lambda p: self.value_of(self.code.at_end(r, p), r), self.choice, True)
            if found is None:
                raise TooLarge
            return found

        if any(map(_is_predicate, resources)):
            return None
        try:
            words = [self.run(lambda r=r: word(r)) for r in resources]  # type: ignore[misc]
            return [join(pair(*words)) if len(words) == 2 else words[0]]
        except TooLarge:
            return None

    def settle(self, variables: Iterable[Atom]) -> bool:
        """Write loop variables by another one where they are that in every turn; say whether any is written so now.

        What was asked before stays true, but is told in other words from then on.
        """
        found = {}
        for a in dict.fromkeys(variables):
            value = self._as_another(a) if a not in self._settled else None
            if value is not None:
                found[a] = value
        if found:
            self._settled.update(found)
            for told in (self._results, self._merged, self._merged_conditions, self._loops):
                told.clear()
        return bool(found)

    def settle_as(self, other: Slice) -> None:
        """Settle what another slice of the same code settles, where it holds here too."""
        while self.settle(other._settled):
            pass

    def _as_another(self, a: Atom) -> Poly | None:
        """Return a loop variable as its constant start, or as a function of a counter of the same loop."""
        block = a.args[0]
        body = self.code.loops.get(block) if isinstance(block, int) and a.bits == 32 else None
        if body is None or not isinstance(block, int):
            return None
        rank = self.code.rank
        if not all(p in body for p in self.code.before[block] if rank[p] >= rank[block]):
            return None
        loop = self.loop(a)
        if len(loop.starts) != 1 or any(step.terms for step in loop.steps):
            return None
        (start,) = loop.starts
        if self.varying(start, body):
            return None
        if all(_stays(turn, of(a), start) for turn in loop.others):
            return start
        if len(loop.others) > 1 or loop.steps:
            return None
        (turn,) = loop.others
        counters = self.varying(turn, body)
        counter = counters[0] if counters else a
        if (
            len(counters) != 1
            or counter.kind != "phi"
            or counter is a
            or counter.bits != 32
            or counter.args[0] != block
        ):
            return None
        of_counter = self.loop(counter)
        if len(of_counter.starts) != 1 or len(of_counter.steps) != 1 or of_counter.others or not of_counter.fixed:
            return None
        try:
            found = op.replaced(turn, counter, of(counter) - of_counter.steps[0])
            return found if op.replaced(found, counter, of_counter.starts[0]) == start else None
        except TooLarge:
            return None

    def varying(self, p: Poly, body: frozenset[int]) -> list[Atom]:
        """Return what need not be the same in all turns of a loop of these blocks."""
        return [x for x in inside(p) if x.kind in {"shfl", "any", "ballot"} or not self.is_fixed(x, body)]

    def is_fixed(self, a: Atom, body: frozenset[int]) -> bool:
        """Say whether an atom has one value in all turns of a loop of these blocks."""
        if a.kind in {"phi", "turn"}:
            return a.args[0] not in body
        if a.kind == "load":
            return isinstance(a.args[0], int) and self.code.block_of(a.args[0]) not in body
        if a.kind in {"opaque", "result", "elected", "electedLane"}:
            site = a.args[0]
            return isinstance(site, tuple) and self.code.block_of(site[0]) not in body
        return True


def _stays(turn: Poly, me: Poly, start: Poly) -> bool:
    """Say whether a turn leaves what a variable starts with, whichever way it goes."""
    choice = turn.single
    if choice is None or choice.kind != "select":
        return turn in (me, start)
    return all(_stays(side, me, start) for side in choice.args if isinstance(side, Poly))


def _step(value: Poly, me: Poly, words: set[Atom], tries: Iterator[int] | None = None) -> Poly | None:
    """Return what a turn adds to a loop's variable, whose atoms are `words`; None where that depends on the variable.

    A choice of two sums that both have the variable is a choice of what is added. Choices within choices double what
    there is to look at, so it is given up after some.
    """
    tries = iter(range(_MOST_CHOICES)) if tries is None else tries
    if next(tries, None) is None:
        return None
    step = value - me
    if words.isdisjoint(inside(step)):
        return step
    for x in value.atoms() if value.bits == 32 else ():
        split = split_by(value, x) if x.kind == "select" else None
        if split is None or split[0].constant != 1:
            continue
        condition, first, second = x.args
        assert isinstance(condition, Atom) and isinstance(first, Poly) and isinstance(second, Poly)
        if words.isdisjoint(inside(of(condition, 32))):
            a, b = (_step(side + split[1], me, words, tries) for side in (first, second))
            if a is not None and b is not None:
                return op.select(condition, a, b)
    return None


def _is_predicate(r: Resource) -> bool:
    return isinstance(r, Register) and r.predicate


def _resource(a: Atom) -> Resource:
    _, file, number = a.args
    return Register(file, number) if file != "stack" else (file, number)  # type: ignore[arg-type, return-value]


def _choose(c: Atom, a: Atom, b: Atom) -> Atom:
    if c is op.TRUE or a is b:
        return a
    if c is op.FALSE:
        return b
    if c.kind == "not" and isinstance(c.args[0], Atom):
        return _choose(c.args[0], b, a)
    if a in (op.TRUE, op.FALSE):
        return op.either(c, b) if a is op.TRUE else op.both(op.negate(c), b)
    if b in (op.TRUE, op.FALSE):
        return op.either(op.negate(c), a) if b is op.TRUE else op.both(c, a)
    return atom("choose", c, a, b, bits=1)


def _never_written(value: Poly | Atom) -> bool:
    a = value if isinstance(value, Atom) else value.single
    return a is not None and a.kind == "entry" and a.args[0] != "stack"


LOADS: Final = frozenset({"LDG", "LD", "LDS", "LDL", "ATOM", "ATOMG", "ATOMS"})
"""The opcodes whose results are named after the memory that they come from."""


# 64-bit division.
#
# ptxas calls `__cuda_sm20_div_s64` and its like with registers of its choice, and drops arguments that are the same
# constant in every call. Their code has one shape: the absolute divisor is converted to floating point, the dividend is
# what else they read, and both words of the result are replaced by -1 where the divisor is 0.


@dataclass(frozen=True)
class Roles:
    """Dividend and divisor by the callee's registers at its entry, and the registers of the result, the lower first.

    The upper word of the result is left out where no caller needs it.
    """

    over: Poly
    under: Poly
    result: tuple[Register, ...]


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
    """Return what a subroutine reads besides its divisor and the return address: two registers or a lower word."""
    code = values.code
    read: set[Register] = set()
    for n, i in enumerate(code.instructions):
        if code.block_of(n) in code.rank:
            read.update(r for r in uses(i) or () if not r.predicate and code.definition(r, n) == ENTRY)
    for a in (*inside(under), *_entries_of(values, code.instructions[ret], ret)):
        if a.kind == "entry":
            read.discard(Register(*a.args))  # type: ignore[arg-type]
    if len(read) == 1:
        (word,) = read
        alone = _words(values, word) == {"low"} and _is_zero_extended(values, word)
        return zx(leaf("entry", *word)) if alone else None
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


def _is_zero_extended(values: Slice, r: Register) -> bool:
    """Say whether 0 is the upper word wherever a register's value at the entry is the lower one."""
    code = values.code
    found: list[bool] = []
    for n, i in enumerate(code.instructions):
        for s in i.sources:
            if not isinstance(s, RegisterOperand) or s.register.predicate or not _is_entry(values, s.register, n, r):
                continue
            if len(s.registers) == 2:
                found.append(_is_zero(values, s.registers[1], n))
            elif i.opcode.removeprefix("U") in {"IADD3", "IADD"} and len(i.destinations) > 1:
                found.append(_adds_nothing_above(values, n))
    return bool(found) and all(found)


def _is_zero(values: Slice, r: Register, n: int) -> bool:
    return r.hardwired or values.run(lambda: values.register(r, n)) == ZERO


def _adds_nothing_above(values: Slice, n: int) -> bool:
    """Say whether the sum that takes the carry of another one only subtracts: what that one adds has 0 above it."""
    code = values.code
    found: list[bool] = []
    for m, i in enumerate(code.instructions):
        registers = [s for s in i.sources if isinstance(s, RegisterOperand)]
        sites = [code.definition(s.register, m) for s in registers if s.register.predicate]
        if "X" in i.modifiers and any(site.kind == "instruction" and site.at == n for site in sites):
            added = [s.register for s in registers if not s.register.predicate and not s.inverted]
            nothing = len(registers) == len(i.sources) and all(_is_zero(values, r, m) for r in added)
            found.append(nothing)
    return bool(found) and all(found)


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


def _result(values: Slice, ret: int) -> tuple[Register, ...] | None:
    """Return the registers that become -1 where the divisor is 0, the lower word first, maybe that one alone."""
    code = values.code
    found: list[Register] = []
    words: list[str | None] = []
    for n, i in enumerate(code.instructions):
        if i.opcode in {"SEL", "USEL"} and any(isinstance(s, Immediate) and s.value in _ALL_ONES for s in i.sources):
            registers = [r for r in i.destinations[0].registers if code.definition(r, ret).at == n]
            found += registers
            words += ["low", "high"] if len(registers) == 2 else [_word_of_sum(values, n)] * len(registers)
    if words == ["low"]:
        return (found[0],)
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
