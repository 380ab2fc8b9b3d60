"""What registers and memory of a warp should hold, by its code alone: the equations behind the numbers of an address.

Every register whose definition is still the one that the formula speaks about gives an equation. Nothing here knows a
value, so one reading of the code serves every way to solve them.
"""

from __future__ import annotations

from collections.abc import Collection
from functools import cached_property
from typing import Final, Literal, TypeAlias

from gpucore.explain.address import Address, Base, access_of, based_at
from gpucore.explain.algebra import ZERO, Atom, Poly, TooLarge, inside, join, of, pair
from gpucore.explain.code import Code, Resource, Site, walk
from gpucore.explain.evaluate import LEAVES
from gpucore.explain.slice import LOADS, Loop, Slice
from gpucore.sass import Instruction, Register, RegisterOperand, uses

_Place: TypeAlias = tuple[int, bool]
"""The instruction where a thread stopped, and whether it came past the access."""

_MOST_ATOMS: Final = 200
_MOST_WRITES: Final = 64
_COPIES: Final = frozenset({"UBLKCP", "UBLKRED", "UREDGR"})
"""They write to shared or to global memory; how they name their addresses is not read."""


class Equations:
    """The equations of one address, by where a thread stopped."""

    def __init__(self, address: Address, uniform: int, faulted: bool) -> None:
        """Read the code around an address for a core that has so many uniform registers.

        `faulted` says that the access failed: what it loads has then not arrived.
        """
        self._address, self._registers, self._faulted = address, uniform, faulted
        self._code: Code = address.slice.code
        # A register may never have been written on the way that a warp took: here, unlike in a formula, that counts.
        self._values = Slice(self._code, address.program.bank, False)
        self._values.settle_as(address.slice)
        self._found: dict[_Place, list[tuple[Resource, Poly]]] = {}
        self._pairs: dict[_Place, list[tuple[Resource, Resource, Poly]]] = {}
        self._ways_past: dict[tuple[int, frozenset[int]], bool] = {}
        self._uniform: dict[tuple[Atom, bool], bool] = {}
        self._sources: dict[int, tuple[Poly, list[Base]] | None] = {}
        self._contents: dict[Poly, frozenset[Atom]] = {}
        self._stores: dict[int, list[tuple[Poly, list[Poly]]] | None] = {}

    # Registers.

    def at(self, at: int | None, came: bool) -> list[tuple[Resource, Poly]]:
        """Return what registers hold, for a thread that stopped at an instruction and `came` past the access or not."""
        if at is None:
            return []
        if (at, came) not in self._found:
            self._found[at, came] = self._collect(at, came)
        return self._found[at, came]

    def pairs(self, at: int | None, came: bool) -> list[tuple[Resource, Resource, Poly]]:
        """Return what pairs of registers hold as one value."""
        if at is None:
            return []
        if (at, came) not in self._pairs:
            by_register = dict(self.at(at, came))
            pairs = self._pairs[at, came] = []
            for r, low in by_register.items():
                above = Register(r[0], r[1] + 1)  # type: ignore[arg-type]
                high = by_register.get(above) if r[1] % 2 == 0 else None
                if high is not None:
                    try:
                        pairs.append((r, above, join(pair(low, high))))
                    except TooLarge:
                        continue
        return self._pairs[at, came]

    def _collect(self, at: int, came: bool) -> list[tuple[Resource, Poly]]:
        n, code = self._address.instruction, self._code
        straight = code.block_of(at) == code.block_of(n) and at >= n
        later = None if straight else self._code.reachable_from(n)
        registers: list[Resource] = [Register("R", k) for k in range(255)]
        registers += [Register("UR", k) for k in range(self._registers)]
        found: list[tuple[Resource, Poly]] = []
        for r in registers:
            site = code.definition(r, at if straight else n)
            if later is not None and self._defined_in(r, n, later):
                continue
            if not came and site != code.definition(r, at):
                continue
            if site.kind == "instruction" and not self._arrived(site, r, at if straight or not came else n):
                continue
            try:
                p = self._values.run(lambda site=site, r=r: self._values.value_of(site, r))  # type: ignore[misc]
            except TooLarge:
                continue
            if r[0] == "UR" and self._is_of_one_way(p):
                continue
            if len(inside(p)) <= _MOST_ATOMS and (_says_when_written(p) or not self._may_be_unwritten(site, r)):
                found.append((r, p))
        return found

    def _is_of_one_way(self, p: Poly) -> bool:
        """Say whether a register of the whole warp may be another one's: its threads took ways that write it anew."""
        conditions = [x.args[0] for x in inside(p) if x.kind in {"select", "select64", "choose"}]
        leaves = [x for c in conditions if isinstance(c, Atom) for x in inside(of(c)) if x.kind in LEAVES]
        return not all(x.kind == "phi" or self.is_uniform(x, False) for x in leaves)

    def _may_be_unwritten(self, site: Site, r: Resource) -> bool:
        """Say whether a register may hold what was there before the function; a formula of it is then no equation.

        A value that the access depends on was written on its way. A register that only happens to be there need not
        have been: its definition may lie in a branch that this warp did not take.
        """
        code, todo, seen = self._code, [site], {site}
        while todo:
            here = todo.pop()
            if here.kind == "entry":
                return True
            before: list[Site] = []
            if here.kind == "phi":
                before = [code.at_end(r, b) for b in code.before[here.at]]
            elif code.instructions[here.at].guard is not None:
                before = [code.definition(r, here.at)]
            todo += [one for one in before if one not in seen]
            seen.update(before)
        return False

    def _defined_in(self, r: Resource, n: int, blocks: set[int]) -> bool:
        """Say whether a register may have been written again after instruction n."""
        code = self._code
        own = code.block_of(n)
        return any(code.block_of(m) in blocks or (code.block_of(m) == own and m >= n) for m in code.definitions_of(r))

    def _arrived(self, site: Site, r: Resource, at: int) -> bool:
        """Say whether what an instruction writes is certainly in the register: a load may still be under way."""
        n, code = self._address.instruction, self._code
        if site.at == n and self._faulted:
            return False
        if code.instructions[site.at].opcode not in LOADS:
            return True
        own, there = code.block_of(site.at), code.block_of(at)
        passed = [*range(site.at + 1, at)]
        if own != there:
            passed = [*range(site.at + 1, code.blocks[own][1] + 1), *range(code.blocks[there][0], at)]
        return any(r in (uses(code.instructions[m]) or ()) for m in passed)

    def is_written_after(self, r: Resource, at: int | None) -> bool:
        """Say whether a register was written between the access and the instruction where a thread stopped."""
        if at is None or r[0] not in {"R", "UR"}:
            return False
        return self._code.definition(r, at) != self._code.definition(r, self._address.instruction)

    def contents_of(self, p: Poly) -> frozenset[Atom]:
        """Return every atom in a formula."""
        if p not in self._contents:
            self._contents[p] = frozenset(inside(p))
        return self._contents[p]

    # Ways and loops.

    def may_pass(self, at: int, held: Collection[int]) -> bool:
        """Say whether a way leads past the access to an instruction; the branches at these offsets are decided."""
        key = at, frozenset(held)
        if key not in self._ways_past:
            self._ways_past[key] = self._may_pass(at, held)
        return self._ways_past[key]

    def _may_pass(self, at: int, held: Collection[int]) -> bool:
        code = self._code
        own, end = code.block_of(self._address.instruction), code.block_of(at)
        only = {}
        for b in code.dominators(own):
            for top in code.before[b] if len(code.before[b]) == 1 else ():
                if code.instructions[code.blocks[top][1]].offset in held:
                    only[top] = [b]
        return end in walk((0,), lambda b: only.get(b, code.after[b]), (own,))

    def varies(self, a: Atom) -> bool:
        """Say whether the turns of a loop that an access did not stop may have different values."""
        return not self._address.stops and bool(self._cycle) and bool(self._values.varying(of(a), self._cycle))

    @cached_property
    def _cycle(self) -> frozenset[int]:
        """The blocks on a way from the access back to it; none outside of loops."""
        code, own = self._code, self._code.block_of(self._address.instruction)
        after = code.reachable_from(self._address.instruction)
        back = walk((own,), lambda b: after.intersection(code.before[b]))
        return frozenset(back if own in after else ())

    @cached_property
    def headers(self) -> tuple[int, ...]:
        """The headers of the loops around the access."""
        own = self._code.block_of(self._address.instruction)
        return tuple(header for header, body in self._code.loops.items() if own in body)

    @cached_property
    def returns_past_headers(self) -> bool:
        """Whether some way back to the access enters no loop by its header, so that no variable counts its turns."""
        own = self._code.block_of(self._address.instruction)
        return own in walk(self._code.after[own], self._code.after.__getitem__, self.headers)

    def loop(self, a: Atom) -> Loop:
        """Return what is known of a value that changes from turn to turn."""
        return self._values.loop(a)

    # Memory.

    def is_uniform(self, a: Atom, likely: bool) -> bool:
        """Say whether a leaf is the same in all threads of the warp: a parameter, or loaded from one address by all.

        With `likely` also where the function may have written there between two threads' loads.
        """
        if a.kind in {"bank", "special"}:
            return a.kind == "bank" or str(a.args[0]).startswith(("block", "grid"))
        n = a.args[0]
        if a.kind != "load" or not isinstance(n, int):
            return False
        found = self._uniform.get((a, likely))
        if found is None:
            source = self.source(n)
            leaves = [x for x in inside(source[0]) if x.kind in LEAVES] if source is not None else [a]
            same = a not in leaves and all(self.is_uniform(x, likely) for x in leaves)
            found = self._uniform[a, likely] = same and (likely or not self._changes(n))
        return found

    def source(self, n: int) -> tuple[Poly, list[Base]] | None:
        """Return what a plain load of memory that all threads share loads from."""
        if n not in self._sources:
            plain = self._code.instructions[n].opcode in {"LDG", "LD", "LDS"}
            self._sources[n] = based_at(self._address.program, self._values, n) if plain else None
        return self._sources[n]

    def _changes(self, n: int) -> bool:
        """Say whether what a load reads may be another value for another thread: the function writes there itself."""
        load, source = self._code.instructions[n], self.source(n)
        if "CONSTANT" in load.modifiers:
            return False
        written = self._written
        return source is None or not source[1] or written is None or any(b.value in written for b in source[1])

    @cached_property
    def _written(self) -> frozenset[Atom] | None:
        """The pointers through which the function writes; None where they are not known or too many."""
        code, found = self._code, set[Atom]()
        accesses = ((n, access_of(i)) for n, i in enumerate(code.instructions))
        writes = [n for n, a in accesses if a is not None and a[0] not in {"shared", "local"} and a[1] != "read"]
        unread = any(i.known == "nothing" or i.opcode in _COPIES for i in code.instructions)
        if code.indirect or unread or len(writes) > _MOST_WRITES:
            return None
        for n in writes:
            based = based_at(self._address.program, self._values, n)
            if based is None or not based[1]:
                return None
            found.update(b.value for b in based[1])
        return frozenset(found)

    @cached_property
    def loads_behind(self) -> list[Atom]:
        """The plain loads of memory that several threads share that the address depends on."""
        found: dict[Atom, None] = {}
        todo = [self._address.formula]
        while todo:
            for a in self.contents_of(todo.pop()):
                source = self.source(a.args[0]) if a.kind == "load" and isinstance(a.args[0], int) else None
                if source is not None and a not in found:
                    found[a] = None
                    todo.append(source[0])
        return list(found)

    @cached_property
    def kept_loads(self) -> list[tuple[Atom, Literal["local", "shared"], Poly]]:
        """The loads of local and shared memory behind the address, and from where, if that was not written since."""
        found: list[tuple[Atom, Literal["local", "shared"], Poly]] = []
        todo, seen = [self._address.formula], set[Atom]()
        while todo:
            for a in inside(todo.pop()):
                n = a.args[0] if a.args else None
                if a in seen or a.kind != "load" or not isinstance(n, int):
                    continue
                seen.add(a)
                based = based_at(self._address.program, self._values, n)
                opcode = self._code.instructions[n].opcode
                if based is None:
                    continue
                todo.append(based[0])
                if opcode == "LDL" and self._is_kept(n, "local"):
                    found.append((a, "local", based[0]))
                elif opcode == "LDS" and self._is_kept(n, "shared"):
                    found.append((a, "shared", based[0]))
        return found

    def _is_kept(self, n: int, space: str) -> bool:
        """Say whether nothing that may run after a load may write to a space of memory."""
        code, later = self._code, self._code.reachable_from(n)
        if code.indirect or any(callee is None or not callee.division for callee in code.called.values()):
            return False
        for m, i in enumerate(code.instructions):
            if (code.block_of(m) in later or (code.block_of(m) == code.block_of(n) and m > n)) and _writes(i, space):
                return False
        return True

    def stores_before(self, a: Atom) -> list[tuple[Poly, list[Poly]]] | None:
        """Return where the thread stored what in its own memory before a load, each surely and once, in this order.

        None where anything else may write there, or the load need not be on the way to the access.
        """
        n, _, kind = a.args
        assert isinstance(n, int)
        if n not in self._stores:
            self._stores[n] = self._look_for_stores(n) if self._is_sure(n, self._address.instruction) else None
        return None if kind else self._stores[n]

    def _look_for_stores(self, n: int) -> list[tuple[Poly, list[Poly]]] | None:
        code, values, found = self._code, self._values, list[tuple[Poly, list[Poly]]]()
        sites = [m for m, i in enumerate(code.instructions) if _writes(i, "local")]
        for m in sorted(sites, key=lambda m: (code.rank.get(code.block_of(m), -1), m)):
            i, own, later = code.instructions[m], code.block_of(m), code.reachable_from(m)
            if code.block_of(n) not in later and not (own == code.block_of(n) and m < n):
                continue
            data, based = i.sources[-1], based_at(self._address.program, values, m)
            part = {"U8", "S8", "U16", "S16"} & set(i.modifiers)
            if i.opcode != "STL" or part or own in later or not self._is_sure(m, n) or based is None:
                return None
            if not isinstance(data, RegisterOperand):
                return None
            access = access_of(i)
            words = (access[2] if access else 4) // 4
            try:
                held = [ZERO] * words if data.register.hardwired else [self._register(r, m) for r in data.registers]
            except TooLarge:
                return None
            if len(held) != words:
                return None
            found.append((based[0], held))
        return found

    def _register(self, r: Register, m: int) -> Poly:
        return self._values.run(lambda: self._values.register(r, m))

    def _is_sure(self, m: int, n: int) -> bool:
        """Say whether whoever comes to an instruction has run another one."""
        code = self._code
        here, there = code.block_of(m), code.block_of(n)
        return code.instructions[m].guard is None and (m < n if here == there else code.dominates(here, there))


def _says_when_written(p: Poly) -> bool:
    """Say whether a value is a choice between values that are known, or else what was there before the function."""
    return p.single is not None and p.single.kind == "select" and not any(a.kind == "phi" for a in inside(p))


def _writes(i: Instruction, space: str) -> bool:
    """Say whether an instruction may write to local or shared memory."""
    access = access_of(i)
    if i.known == "nothing":
        return True
    if access is None or i.opcode in {"LDGSTS", "UTMALDG"}:
        return space == "shared" and i.opcode.startswith(("LDGSTS", "UTMALDG", "UBLKCP", "UBLKRED", "STAS"))
    return access[0] in {space, "generic"} and access[1] != "read"
