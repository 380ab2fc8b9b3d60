"""The numbers behind a formula: solved from the registers that a warp still has, and checked by all the others.

What one equation alone decides is solved, the rest is evidence. With any disagreement no value is a fact, and none is
given.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Final, Literal, TypeAlias

from gpucore.explain.address import Address, addressed, based_at
from gpucore.explain.algebra import MASK32, MASK64, Atom, Poly, atom, inside, of
from gpucore.explain.code import Resource
from gpucore.explain.equations import Equations
from gpucore.explain.evaluate import LEAVES, Known, Traced, Unknown, Values, solve, value_or_none
from gpucore.sass import Register

How = Literal["read", "computed", "solved", "one register", "parameters"]
"""In a register or in the core; from values that were; from equations; by one register that nothing else confirms; by
the parameters that the core has, where no register still confirms them."""

Reason = Literal["alike", "bad", "alone", "farthest", "likeliest", "unknown"]
"""All threads were bad alike; its address cannot be one; all others are good; it must be the farthest from its pointer;
it is likely; nothing shows which."""

Carrier: TypeAlias = tuple[int | None, Resource]
"""A register of a thread, by the thread's number in its warp; None for a uniform register."""

_Key: TypeAlias = tuple[int | None, Atom | int]
"""A value of a thread, by its place in the warp, or of all threads; or that it is in the first turn, by the header."""

_Way: TypeAlias = tuple[list[_Key], int, list[_Key]]
"""What follows, the registers that it follows from as bits of a number, and the values that it follows from."""

_Where: TypeAlias = tuple[str, str, int]
"""From where a word was loaded: the opcode, the kind of a part of a word, the address."""

_Loaded: TypeAlias = tuple[int, int, list[_Key], _Key | None]
"""What was loaded, and what it needs: registers as bits of a number, and values; the value's own of this warp."""

_MOST_ROUNDS: Final = 6
_LEAST_AGREEMENT: Final = 30  # registers, before one is called wrong
_MOST_LENDERS: Final = 4
_LEAST_STATES: Final = 2  # threads whose registers are asked for what all threads share
SHARED_WINDOW: Final = (1 << 24) - 1
"""Of an address in shared memory the part that is the place in the block's own."""
_OF_CLUSTER: Final = atom("special", "CgaCtaId")
_PARTS: Final = frozenset(
    {"and", "or", "xor", "lop3", "prmt", "shr", "sar", "shl", "funnel", "abs", "smin", "smax", "umin", "umax"}
    | {"select", "sgxt", "ugxt"}
)
"""Operations whose result a register may still tell where it no longer tells what they were done to."""
_LARGEST_STEP: Final = 1 << 12  # a variable then has its first value again after a million turns


@dataclass(frozen=True)
class Choice:
    """Why a thread is explained: `certain` says that its address was bad, `possible` of how many that may be.

    `bad` is the number of threads whose address certainly was. `farthest_of` is the number of those that may be it and
    of which is known how far they are, where that is not of all and the farthest was taken.
    """

    certain: bool
    possible: int
    reason: Reason
    bad: int = 0
    farthest_of: int = 0


@dataclass(frozen=True)
class Lane:
    """What a core has of one thread.

    `at` is the number of the instruction where it stopped, None for elsewhere. `failed` says that the exception is
    marked in it, or in its whole warp. `local` is its local memory, with the address where that starts.
    """

    number: int
    thread: tuple[int, int, int]
    at: int | None
    general: Sequence[int]
    failed: bool = True
    local: tuple[int, bytes | memoryview] | None = None


@dataclass(frozen=True)
class Snapshot:
    """What a core has of the warp that failed, the thread to explain first.

    `special` are special registers that all threads share, `parameters` the bytes of all arguments, `word` gives what
    constant banks hold besides.
    """

    block: tuple[int, int, int]
    lanes: tuple[Lane, ...]
    uniform: Sequence[int]
    special: dict[str, int]
    parameters: bytes | None = None
    shared_size: int | None = None
    """Bytes of shared memory that the block has; None where the core does not say."""
    faulted: bool = True
    """Whether the access that is explained failed: what it loads has then not arrived."""
    shared: bytes | memoryview | None = None
    """The shared memory of the block; None where the core has it not."""
    others: tuple[Snapshot, ...] = ()
    """Other warps of the launch."""
    together: bool = False
    """Whether all threads that the warp ever had stand at one instruction."""
    others_left: bool = False
    """Whether threads of the warp are not here: they are elsewhere, or have exited."""


@dataclass(frozen=True)
class Suspect:
    """The one register of one thread that contradicts all others: what it has and what it should have."""

    register: str
    thread: tuple[int, int, int]
    held: int
    expected: int


@dataclass
class _State:
    """What is known of one thread so far."""

    lane: Lane
    known: dict[Atom, int] = field(default_factory=dict)
    how: dict[Atom, How] = field(default_factory=dict)
    used: set[Resource] = field(default_factory=set)
    came: bool = True
    """Whether it came past the access, so that its registers are of that way."""
    agree: int = 0
    first_turn: bool | None = None
    """Whether it is in the first turn of all loops around the access; None until that is asked."""
    wrong: list[tuple[tuple[Resource, ...], Poly]] = field(default_factory=list)
    """Registers that have another value than the formula gives them."""
    by: dict[Atom, tuple[tuple[Resource, ...], Poly]] = field(default_factory=dict)
    """The equation that each value was solved from here."""
    held: list[tuple[Resource, Poly, int]] = field(default_factory=list)
    """The equations of the registers that the thread has a value of, each with that value."""
    parts: dict[Atom, Resource] = field(default_factory=dict)
    """The operations of the address whose results were solved, though not what they are made of; by which register."""
    pointer: tuple[tuple[Resource, ...], int] | None = None
    """The registers of the address operand and the address, where they still hold it."""
    given: frozenset[Atom] = frozenset()
    """What the core itself says of the thread."""
    stuck: dict[tuple[Poly, int], int] = field(default_factory=dict)
    """How much had been learned when an equation, by its formula and its value, could not be solved."""


class Numbers:
    """The values of one address, thread by thread."""

    def __init__(
        self, address: Address, snapshot: Snapshot, whole: Numbers | None = None, but: Carrier | None = None,
        likely: bool = False,
    ) -> None:  # fmt: skip
        """Solve for what a snapshot has; with `whole`, again without the register `but` and with its equations.

        `likely` counts too what is likely and not certain, which may confirm a number and never gives one: threads that
        load from one address get one value, in other warps too, those that stand together are in the same turn of a
        loop, and local and shared memory still have what was loaded.
        """
        self.address, self.snapshot, self._but, self._likely = address, snapshot, but, likely
        self._whole = whole
        self._code = address.slice.code
        self._equations: Equations = (
            whole._equations if whole else Equations(address, len(snapshot.uniform), snapshot.faulted)
        )
        self._shared: dict[Atom, int] = {}
        self._shared_how: dict[Atom, How] = {}
        self._addresses: list[tuple[Lane, int]] | None = None
        self._loads: dict[int, set[int]] = {}
        self._states = [_State(lane) for lane in snapshot.lanes]
        self._accessing: list[int] | None = None
        self.sure = True
        """Whether the thread that is explained is known to have run the access."""
        self._parts: frozenset[Atom] = frozenset()
        self._bits: dict[Carrier, int] = whole._bits if whole else {}
        self._carriers: dict[tuple[Poly, int], int] = {}
        self._learned: list[Atom] = []
        self._read_core()
        self._given = frozenset(self._shared)
        self._torn = 0 if snapshot.parameters is not None else self._lend_arguments()
        self._is_lent = len(self._shared) > len(self._given)
        for state in self._states:
            state.came = not snapshot.faulted or self._ran(state) is True
            state.first_turn = None  # asked before anything was solved
            held = ((r, p, self._value_of(r, state.lane)) for r, p in self._equations.at(state.lane.at, state.came))
            state.held = [(r, p, value) for r, p, value in held if value is not None and self._is_whose(r, p)]
            state.pointer = self._held_pair(state) if self._is_own else None
        self._solve()
        self._judge()
        self.chosen = next(iter(self.accessing()), 0)
        """The thread that is explained, as its place in the warp."""
        self.choice = Choice(True, 1, "alike")
        """Why it is that one."""

    # Answers.

    @property
    def agree(self) -> int:
        """How many registers have the value that the formula gives them, without having served to solve it."""
        return sum(s.agree for s in self._states)

    @property
    def disagree(self) -> int:
        """How many have another."""
        return sum(len(s.wrong) for s in self._states) + self._torn

    @cached_property
    def suspect(self) -> Suspect | None:
        """The one register of one thread without which everything agrees: 30 registers, and the same one elsewhere.

        None where there is another without which it does too: either may be the wrong one.
        """
        wrong = [state for state in self._states if state.wrong]
        if len(wrong) != 1 or self.agree < _LEAST_AGREEMENT:
            return None
        alone = replace(self.snapshot, others=())
        if self._is_lent and not Numbers(self.address, alone, self).disagree:
            return None
        (state,) = wrong
        found: list[Suspect | None] = []
        for r in self._behind_all(state):
            again = Numbers(self.address, self.snapshot, self, self._carrier(r, state.lane))
            if not again.disagree:
                found.append(self._confirmed(r, state, again))
        return found[0] if len(found) == 1 else None

    def _behind_all(self, state: _State) -> list[Resource]:
        """Return the registers of a thread that everything wrong in it has or was computed from."""
        found: list[list[Resource]] = []
        for registers, p in state.wrong:
            behind, todo, seen = dict.fromkeys(registers), [p], set[Atom]()
            while todo:
                for a in inside(todo.pop()):
                    if a in state.by and a not in seen:
                        seen.add(a)
                        behind.update(dict.fromkeys(state.by[a][0]))
                        todo.append(state.by[a][1])
            found.append(list(behind))
        return [r for r in found[0] if all(r in other for other in found[1:])]

    def _confirmed(self, r: Resource, state: _State, again: Numbers) -> Suspect | None:
        """Return a register without which nothing disagrees as the suspect, where other threads confirm its value."""
        p = dict(self._equations.at(state.lane.at, state.came)).get(r)
        held = self._value_of(r, state.lane)
        if r[0] != "R" or p is None or held is None or again.agree < _LEAST_AGREEMENT:
            return None
        place = self._states.index(state)
        own = sum(1 << bit for (lane, _), bit in again._bits.items() if lane == state.lane.number)
        if again._certain(p, place) is None or again._needed_for(p, place) & own:
            return None  # where one other register of the thread says what it should have, either may be wrong
        expected, others = None, 0
        for one in again._states:
            try:
                value = again._evaluate(one).of(p)
            except Unknown:
                continue
            if one.lane is state.lane:
                expected = value
            else:
                others += one.lane.at == state.lane.at and again._value_of(r, one.lane) == value
        if expected is None or expected == held or others < 2:
            return None
        return Suspect(f"{r[0]}{r[1]}", state.lane.thread, held, expected)

    @property
    def lane(self) -> Lane | None:
        """The thread that is explained."""
        return self._states[self.chosen].lane if self._states else None

    def accessing(self) -> list[int]:
        """Return the places in the warp of the threads that failed: those that ran the access, else those that may."""
        if self._accessing is None:
            ran = {k: self._ran(state) for k, state in enumerate(self._states) if state.lane.failed}
            self.sure = True in ran.values() or len(ran) == 1
            wanted = (True,) if True in ran.values() else (True, None)
            self._accessing = [k for k, did in ran.items() if did in wanted or self.disagree]
        return self._accessing

    @cached_property
    def is_whole(self) -> bool:
        """Whether no other thread than those of `accessing` may have been with them at the access.

        Threads that are behind it, and no branch between, are still together.
        """
        code, n, places = self._code, self.address.instruction, self.accessing()
        others = [state for k, state in enumerate(self._states) if k not in places and state.lane.failed]
        if any(self._ran(state) is not False for state in others):
            return False
        straight, b = [code.block_of(n)], code.block_of(n)
        while len(code.after[b]) == 1 and code.after[b][0] not in straight:
            b = code.after[b][0]
            straight.append(b)
        behind = [self._states[k].lane.at for k in places]
        return not self.snapshot.others_left or all(
            at is not None and code.block_of(at) in straight and (at >= n or code.block_of(at) != straight[0])
            for at in behind
        )

    def address_of(self, place: int) -> int | None:
        """Return the address that a thread accessed, by its place in the warp, however it is known."""
        found, state = self._certain(self.address.formula, place), self._states[place]
        if found is not None or state.pointer is None or self.disagree:
            return found
        return None if any(self._may_be_later(state, a) for a in self.address.formula.atoms()) else state.pointer[1]

    def base_of(self, place: int) -> Atom | None:
        """Return the pointer that the address of a thread is based on; None where it is not known which of several."""
        bases = [base.value for base in self.address.bases]
        if len(bases) < 2:
            return bases[0] if bases else None
        values = Traced(self._known_of(self._states[place]))
        if value_or_none(self.address.formula, values) is None:
            return None
        taken = [a for a in bases if not {a, *a.args}.isdisjoint(values.met)]
        return taken[0] if len(taken) == 1 else None

    def thread_of(self, place: int) -> tuple[int, int, int]:
        """Return which thread of the block is at a place."""
        return self._states[place].lane.thread

    def registers_of(self, place: int) -> Sequence[int]:
        """Return the general registers of a thread."""
        return self._states[place].lane.general

    def local_of(self, place: int) -> tuple[int, bytes | memoryview] | None:
        """Return where the local memory of a thread starts, and what is in it; None where the core has it not."""
        return self._states[place].lane.local

    def _ran(self, state: _State) -> bool | None:
        """Say whether a thread ran the access; None where it is not known.

        GPUs mark the threads of a warp that are together again when the error arrives. Some may have come another way.
        """
        code, n, at = self._code, self.address.instruction, state.lane.at
        held, values = set[int](), self._evaluate(state)
        for guard in self.address.guards:
            if self._may_be_later(state, guard.condition):
                continue
            try:
                if not values.of_atom(guard.condition):
                    return False
                held.add(guard.offset)
            except Unknown:
                pass
        guarded = any(guard.offset == self.address.offset for guard in self.address.guards)
        if at is None or (guarded and self.address.offset not in held):
            return None
        if code.block_of(at) == code.block_of(n):
            return True if at >= n else None
        return None if self._equations.may_pass(at, held) else True

    def value(self, p: Poly, lane: int | None = None) -> int | None:
        """Return the value of a formula for a thread; None where it is not known, or anything disagrees.

        For the thread that is explained it may be one that is likely alone, which `by_one_register` says.
        """
        found = self._certain(p, lane)
        wanted = found is None and lane is None and self.snapshot.faulted
        likely = self._with_what_is_likely if wanted else None
        return found if likely is None else likely._certain(p, self.chosen)

    @cached_property
    def _with_what_is_likely(self) -> Numbers | None:
        """The same with what is likely and not certain; None where that is of no use."""
        useful = self._whole is None and self._states and not self.disagree
        return Numbers(self.address, self.snapshot, self, likely=True) if useful else None

    def _certain(self, p: Poly, lane: int | None = None) -> int | None:
        if self.disagree or not self._states:
            return None
        state = self._states[self.chosen if lane is None else lane]
        if any(self._may_be_later(state, a) for a in p.atoms()):
            return None
        try:
            return self._evaluate(state).of(p)
        except Unknown:
            return None

    def how(self, p: Poly, lane: int | None = None) -> How | None:
        """Return how a value is known."""
        if self.value(p, lane) is None:
            return None
        lane = self.chosen if lane is None else lane
        state = self._states[lane]
        if lane == self.chosen and self.by_one_register(p):
            return "one register"
        if self.rests_on_parameters(p, lane):
            return "parameters"
        a = p.single
        known = state.how.get(a) or self._shared_how.get(a) if a is not None else None
        if known is not None:
            return known
        ways = {state.how.get(x) or self._shared_how.get(x) for x in inside(p)}
        return "solved" if "solved" in ways else "computed"

    def fact(self, p: Poly) -> int | None:
        """Return the value of a formula for the thread that is explained; None where one register alone carries it."""
        return None if self.by_one_register(p) else self.value(p)

    def by_one_register(self, p: Poly) -> bool:
        """Say whether the value of a formula depends on a register that nothing confirms.

        A value is confirmed if it follows too without any one of the registers that it was solved from: if one
        register of the core is wrong, whichever it is, a confirmed value is right, or the registers disagree.
        """
        if self._certain(p) is None:
            return self.value(p) is not None
        return not self._is_confirmed(p, self.chosen)

    def rests_on_parameters(self, p: Poly, lane: int) -> bool:
        """Say whether a value depends on parameters that no register confirms: a core has them once."""
        return self._certain(p, lane) is not None and bool(self._carriers_of(p, lane) & self._of_parameters)

    def _is_confirmed(self, p: Poly, lane: int) -> bool:
        return not self._carriers_of(p, lane) & ~self._of_parameters

    def _carriers_of(self, p: Poly, lane: int) -> int:
        """Return the registers and parameters, as bits, without any one of which a value does not follow."""
        needed = self._carriers.get((p, lane))
        if needed is None:
            needed = self._needed_for(p, lane)
            likely = self._with_what_is_likely if needed & ~self._of_parameters else None
            if likely is not None and likely._certain(p, lane) == self._certain(p, lane):
                needed &= likely._needed_for(p, lane)
            self._carriers[p, lane] = needed
        return needed

    def _carrier(self, r: Resource, lane: Lane) -> Carrier:
        return (None if r[0] in {"UR", "shared"} else lane.number, r)

    def addresses(self) -> list[tuple[Lane, int]]:
        """Return the address that each thread accessed, but for those that one register alone carries."""
        if self._addresses is None:
            found = [(k, self._certain(self.address.formula, k)) for k in self.accessing()]
            self._addresses = [
                (self._states[k].lane, value)
                for k, value in found
                if value is not None and self._is_confirmed(self.address.formula, k)
            ]
        return self._addresses

    @property
    def how_addresses(self) -> How:
        """How the addresses of the threads are known."""
        formula = self.address.formula
        alone = any(self.rests_on_parameters(formula, place) for place in self.accessing())
        return "parameters" if alone else "computed"

    def held_address(self) -> int | None:
        """Return the address in the registers of the thread that is explained, where they still hold it."""
        if not self._states or self.disagree or self.ran_on:
            return None
        pointer = self._states[self.chosen].pointer
        return pointer[1] if pointer is not None else None

    @property
    def ran_on(self) -> bool:
        """Whether the thread that is explained may be in a later turn of its loop than the one whose access failed."""
        atoms = self.address.formula.atoms() if self._states else ()
        return any(self._may_be_later(self._states[self.chosen], a) for a in atoms)

    # Loads that the address depends on.

    def ran(self, n: int) -> bool:
        """Say whether the thread that is explained is known to have made a load, by its instruction, for the access.

        It has where every way to the access leads past the load, and where the address is made of what was loaded. Of
        a choice that is the side whose condition is a fact. A later turn of a loop may never have come.
        """
        code, own = self._code, self.address.instruction
        there, here = code.block_of(n), code.block_of(own)
        always = n < own if there == here else code.dominates(there, here)
        return (always and code.instructions[n].guard is None) or n in self._loads_of_address()

    def met(self, a: Atom) -> bool:
        """Say whether a leaf is a value of what the thread ran: a load on a side that was not taken is none."""
        low = a.args[0] if a.kind == "wide" else a
        n = low.args[0] if isinstance(low, Atom) and low.kind == "load" else None
        return not isinstance(n, int) or self.ran(n)

    def _loads_of_address(self) -> set[int]:
        found = self._loads.get(self.chosen)
        if found is not None:
            return found
        found = self._loads[self.chosen] = set()
        todo: list[object] = [self.address.formula, *self.address.coordinates]
        seen = set[Atom]()
        while todo:
            x = todo.pop()
            if isinstance(x, Poly):
                todo += x.atoms()
            if not isinstance(x, Atom) or x.bits == 1 or x in seen:
                continue
            seen.add(x)
            n = x.args[0] if x.args else None
            if x.kind in {"select", "select64"} and isinstance(n, Atom):
                holds = self.fact(of(n))
                todo += () if holds is None else (x.args[1 if holds else 2],)
            elif x.kind == "load" and isinstance(n, int):
                found.add(n)
                source = based_at(self.address.program, self.address.slice, n)
                todo += (source[0],) if source is not None else ()
            else:
                todo += x.args
        return found

    # What the core says.

    def _read_core(self) -> None:
        snapshot, program = self.snapshot, self.address.program
        special = {
            **snapshot.special,
            **dict(zip(("blockIdx.x", "blockIdx.y", "blockIdx.z"), snapshot.block, strict=True)),
        }
        for name, value in special.items():
            self._share(atom("special", name), value, "read")
        data = snapshot.parameters or b""
        for size in (4, 2, 1):
            for offset in range(0, len(data) - size + 1, size):
                part = int.from_bytes(data[offset : offset + size], "little")
                self._share(atom("bank", 0, program.bank_offset + offset, size), part, "read")
        for state in self._states:
            for name, value in zip(("threadIdx.x", "threadIdx.y", "threadIdx.z"), state.lane.thread, strict=True):
                state.known[atom("special", name)] = value
                state.how[atom("special", name)] = "read"
            state.known[atom("special", "laneId")] = state.lane.number
            state.how[atom("special", "laneId")] = "read"
            state.given = frozenset(state.known)

    @property
    def _is_own(self) -> bool:
        """Whether this is the warp that is explained, and no other one that may confirm what it has."""
        return self._whole is None or self.snapshot is self._whole.snapshot

    def _is_whose(self, r: Resource, p: Poly) -> bool:
        """Say whether a register of another warp certainly has what a thread there should have.

        Uniform registers are the warp's, and threads on another way may have written them. Two warps would then agree
        on a wrong value.
        """
        if r[0] != "UR" or self._is_own:
            return True
        once = self.snapshot.together or len(self._code.definitions_of(r)) == 1
        return once and all(
            self._equations.is_uniform(x, self._likely) for x in self._equations.contents_of(p) if x.kind in LEAVES
        )

    @cached_property
    def _others(self) -> list[Numbers]:
        """The numbers of other warps of the launch, but for those in which anything disagrees."""
        if self._whole is not None:
            return self._whole._others if self._is_own else []
        others = [Numbers(self.address, one, self) for one in self.snapshot.others]
        return [one for one in others if not one.disagree]

    def _lend_arguments(self) -> int:
        """Take the arguments from other warps, which have the same; says of how many they have several values."""
        found: dict[Atom, set[int]] = {}
        for other in self._others:
            for a, value in other._shared.items():
                if a.kind == "bank" and a not in self._given:
                    found.setdefault(a, set()).add(value)
        for a, values in found.items():
            if len(values) == 1:
                self._share(a, min(values), "solved")
        return sum(len(values) > 1 for values in found.values())

    def _share(self, a: Atom, value: int, how: How) -> None:
        self._shared[a] = value
        self._shared_how[a] = how

    # Stores that did not stop their loop.

    def _may_be_later(self, state: _State, a: Atom) -> bool:
        """Say whether a value may be that of a later turn of a loop than the one whose access failed.

        A store stops nothing, so its thread may have run on for more turns, until it stands at the same store again.
        What registers then hold is of the turn where it stands: that is the one that failed if it is the first, and
        for what is the same in all turns.
        """
        return self._equations.varies(a) and not self._is_first_turn(state)

    def _is_first_turn(self, state: _State) -> bool:
        """Say whether a thread is in the first turn of every loop around the access."""
        if state.first_turn is None:
            state.first_turn = self._shows_first_turn(state)
        return state.first_turn

    def _shows_first_turn(self, state: _State) -> bool:
        return not self._equations.returns_past_headers and all(
            any(self._start(a, state) == state.known[a] for a in self._variables(header, state))
            for header in self._equations.headers
        )

    def _variables(self, header: int, state: _State) -> list[Atom]:
        return [a for a in state.known if a.kind == "phi" and a.args[0] == header]

    def _turns_to_lend(self) -> Iterator[tuple[int, int, Atom]]:
        """Yield threads in the first turn, each with those that stand where it does and a variable that says so."""
        for first, state in enumerate(self._states) if not self.address.stops else ():
            if not self._shows_first_turn(state):
                continue
            for header in self._equations.headers:
                for a in self._variables(header, state):
                    for k, other in enumerate(self._states):
                        if other.lane.at == state.lane.at and self._start(a, other) is not None:
                            yield first, k, a

    def _lend_turn(self) -> bool:
        """Put threads in the first turn that stand where another one is in it; says whether that told anything new."""
        wanted = [(k, a) for _, k, a in self._turns_to_lend() if not self._variables(_header_of(a), self._states[k])]
        for k, a in dict.fromkeys(wanted):
            start = self._start(a, self._states[k])
            if start is not None:
                self._states[k].known[a], self._states[k].how[a] = start, "solved"
        return bool(wanted)

    def _start(self, a: Atom, state: _State) -> int | None:
        """Return what a variable that each turn of a loop moves has in the first turn alone; None where not known."""
        if a.bits != 32:
            return None
        loop = self._equations.loop(a)
        if len(loop.starts) != 1 or len(loop.steps) != 1 or loop.others or not loop.fixed:
            return None
        values = self._evaluate(state)
        start, step = (value_or_none(p, values) for p in (loop.starts[0], loop.steps[0]))
        return start if step and step & -step <= _LARGEST_STEP else None

    def _value_of(self, r: Resource, lane: Lane) -> int | None:
        if self._but == self._carrier(r, lane):
            return None
        held = self.snapshot.uniform if r[0] == "UR" else lane.general
        return held[r[1]] if r[1] < len(held) else None

    # Solving.

    def _known_of(self, state: _State) -> dict[Atom, int]:
        return {**self._shared, **state.known}

    def _evaluate(self, state: _State) -> Known:
        return Known(self._known_of(state))

    def _solve(self) -> None:
        for _ in range(_MOST_ROUNDS):
            progress = False
            for state in self._states:
                state.stuck.clear()
                while self._solve_once(state):
                    progress = True
            if progress or self._learn_stored() or (self._likely and self._lend()):
                continue
            if self._parts:
                return
            self._parts = frozenset(a for a in inside(self.address.formula) if a.kind.removesuffix("64") in _PARTS)
            if not self._parts:
                return

    def _lend(self) -> bool:
        """Give each thread what another one loaded from the same address; says whether that told anything new."""
        new = self._lend_turn()
        for k, a, value, _, _ in list(self._in_memory()):
            if a not in self._known_of(self._states[k]):
                self._learn(a, value, "solved", self._states[k])
                new = True
        loaded = {where: held for where, held in self._loaded().items() if len({one[0] for one in held}) == 1}
        for state in self._states:
            values = self._evaluate(state)
            for a in self._equations.loads_behind:
                where = self._place(a, values) if a not in self._known_of(state) else None
                if where in loaded:
                    self._learn(a, loaded[where][0][0], "solved", state)
                    new = True
        return new

    def _place(self, a: Atom, values: Values) -> _Where | None:
        """Return where a word was loaded from; None where it is not known, or no plain load."""
        n, word, kind = a.args
        assert isinstance(n, int) and isinstance(word, int) and isinstance(kind, str)
        at = self._loaded_at(a, values)
        space = self._code.instructions[n].opcode
        return None if at is None else (space, kind, at + 4 * word)

    def _loaded(self) -> dict[_Where, list[_Loaded]]:
        """Return what this warp and others have loaded, by where from."""
        found: dict[_Where, list[_Loaded]] = {}
        for k, state in enumerate(self._states):
            known = self._known_of(state)
            values = Traced(known)
            for a in self._equations.loads_behind:
                values.met = set()
                where = self._place(a, values) if a in known else None
                if where is not None:
                    mine = self._key(k, a)
                    found.setdefault(where, []).append(
                        (known[a], 0, [mine, *(self._key(k, x) for x in values.met)], mine)
                    )
        for bit, where, value in self._loaded_elsewhere:
            found.setdefault(where, []).append((value, bit, [], None))
        return found

    @cached_property
    def _loaded_elsewhere(self) -> list[tuple[int, _Where, int]]:
        """What other warps have loaded, of shared memory only those of the block; each warp with a bit of its own."""
        found = []
        for w, other in enumerate(self._others):
            bit = self._bit_of((None, ("warp", w)))
            for state in other._states:
                known, values = other._known_of(state), other._evaluate(state)
                for a in self._equations.loads_behind:
                    where = self._place(a, values) if a in known else None
                    if where is not None and (where[0] == "LDG" or other.snapshot.block == self.snapshot.block):
                        found.append((bit, where, known[a]))
        return list(dict.fromkeys(found))

    # What a thread stored in its own memory.

    def _learn_stored(self) -> bool:
        """Take what local memory has where the thread itself stored just that; says whether that told anything new."""
        new = False
        for k, a, held, _, stored, _ in list(self._stored()):
            if held == stored and a not in self._states[k].known:
                self._learn(a, held, "computed", self._states[k])
                new = True
        return new

    def _stored(self) -> Iterator[tuple[int, Atom, int, Resource, int, list[_Key]]]:
        """Yield what threads loaded from their own memory and had stored there: by place, what it holds, its word, what
        was stored, and what this needs.
        """
        for a, space, where in self._equations.kept_loads if self._is_own else ():
            stores = self._equations.stores_before(a) if space == "local" else None
            for k, state in enumerate(self._states) if stores else ():
                values = Traced(self._known_of(state))
                at = value_or_none(where, values) if state.came else None
                word = None if at is None else self._word_at(a, space, at, state.lane)
                found = None if word is None else _last_stored(stores or [], word[0], values)
                if word is not None and found is not None:
                    yield k, a, word[1], (space, word[0]), found, [self._key(k, x) for x in values.met]

    # Memory that the core has.

    def _in_memory(self) -> Iterator[tuple[int, Atom, int, Resource, list[_Key]]]:
        """Yield what threads loaded from memory that still has it: by place, the value, its word and what it needs."""
        for a, space, where in self._equations.kept_loads:
            for k, state in enumerate(self._states):
                # A block addresses its own shared memory by its number in the cluster, which the core need not have.
                values = Traced({_OF_CLUSTER: 0, **self._known_of(state)})
                at = value_or_none(where, values)
                word = None if at is None else self._word_at(a, space, at, state.lane)
                if word is not None:
                    at, value = word
                    yield k, a, value, (space, at), [self._key(k, x) for x in values.met if x is not _OF_CLUSTER]

    def _word_at(self, a: Atom, space: str, at: int, lane: Lane) -> tuple[int, int] | None:
        """Return where the word that a load gives a register is in the memory of a thread or block, and its value."""
        _, number, kind = a.args
        assert isinstance(number, int) and isinstance(kind, str)
        start, held = (lane.local or (0, b"")) if space == "local" else (0, self.snapshot.shared or b"")
        size = int(kind[1:]) // 8 if kind else 4
        at = (at & (MASK32 if space == "local" else SHARED_WINDOW)) + 4 * number
        data = bytes(held[at - start : at - start + size]) if at >= start else b""
        value = int.from_bytes(data, "little", signed=kind.startswith("S")) & MASK32
        return (at, value) if len(data) == size else None

    def _loaded_at(self, a: Atom, values: Values) -> int | None:
        """Return the address that a value was loaded from; None where it is not known, or no plain load."""
        n = a.args[0]
        assert isinstance(n, int)
        source = self._equations.source(n)
        return None if source is None else value_or_none(source[0], values)

    def _solve_once(self, state: _State) -> bool:
        values = self._evaluate(state)
        for registers, p, value in self._held(state):
            fresh = not state.used.issuperset(registers) or p is self.address.formula
            if fresh and self._learn_from(p, value, state, values, registers):
                return True
        return False

    def _held(self, state: _State) -> Iterator[tuple[tuple[Resource, ...], Poly, int]]:
        """Yield the equations of a thread: registers, the formula of what they hold, and what that is."""
        if state.pointer is not None:
            yield state.pointer[0], self.address.formula, state.pointer[1]
        for r, p, value in state.held:
            yield (r,), p, value
        values = {r: value for r, _, value in state.held}
        for low, high, p in self._equations.pairs(state.lane.at, state.came):
            first, second = values.get(low), values.get(high)
            if first is not None and second is not None:
                yield (low, high), p, first | second << 32

    def _learn_from(self, p: Poly, value: int, state: _State, values: Values, registers: tuple[Resource, ...]) -> bool:
        if self._is_stuck(p, value, state):
            return False
        solved = solve(p, value, values, self._parts)
        if solved is None:
            state.stuck[p, value] = len(self._learned)
            return False
        how: How = "read" if p.single is solved[0] else "solved"
        a, found = solved
        state.used.update(registers)
        for x in (a, *(a.args if a.kind == "wide" else ())):
            if isinstance(x, Atom):
                state.by[x] = registers, p
        self._learn(a, found, how, state)
        if a in self._parts:
            state.parts[a] = registers[0]
        return True

    def _is_stuck(self, p: Poly, value: int, state: _State) -> bool:
        """Say whether an equation could not be solved before, and nothing in it has been learned since."""
        since = state.stuck.get((p, value))
        if since is None:
            return False
        state.stuck[p, value] = len(self._learned)
        return self._equations.contents_of(p).isdisjoint(self._learned[since:])

    def _learn(self, a: Atom, value: int, how: How, state: _State) -> None:
        self._learned.append(a)
        if a.kind == "wide":
            for half, part in zip(a.args, (value & MASK32, value >> 32), strict=True):
                assert isinstance(half, Atom)
                self._learn(half, part, how, state)
            return
        if self._equations.is_uniform(a, self._likely):
            self._share(a, value, how)
        else:
            state.known[a] = value
            state.how[a] = how

    # Confirmation.

    def _key(self, lane: int, a: Atom) -> _Key:
        return (None if a in self._shared else lane, a)

    def _bits_of(self, registers: Collection[Resource], state: _State) -> int:
        found = 0
        for r in registers:
            found |= self._bit_of(self._carrier(r, state.lane))
            if self._equations.is_written_after(r, state.lane.at):
                found |= self._bit_of((None, ("pc", 0)))  # what tells that it was written is one word for all threads
        return found

    def _bit_of(self, carrier: Carrier) -> int:
        return 1 << self._bits.setdefault(carrier, len(self._bits))

    def _needed_for(self, p: Poly, lane: int) -> int:
        """Return the registers, as bits of a number, without any one of which a value that is known does not follow."""
        values = Traced(self._known_of(self._states[lane]))
        values.of(p)
        keys = [self._key(lane, a) for a in values.met]
        if any(self._equations.varies(a) for a in p.atoms()):
            keys += [(lane, header) for header in self._equations.headers]
        return _together(self._needed, keys)

    @cached_property
    def _needed(self) -> dict[_Key, int]:
        """For each known value the registers without any one of which it does not follow.

        Each way to solve a value needs its own registers and what the other values in its equation need. Of all ways
        together only what each of them needs is left. A parameter that the core has counts as a register.
        """
        found: dict[_Key, int] = {(None, a): 0 for a in self._given}
        found |= {(None, a): self._bit_of(_carrier_of(a)) for a in self._parameters}
        found |= {(k, a): 0 for k, state in enumerate(self._states) for a in state.given}
        ways, changed = self._ways(), True
        while changed:
            changed = False
            for wanted, registers, others in ways:
                needed = registers | _together(found, others)
                for key in wanted:
                    before = found.get(key, -1)
                    if before & needed != before:
                        found[key], changed = before & needed, True
        return found

    @cached_property
    def _parameters(self) -> frozenset[Atom]:
        """The parameters that the core has and that bear on the address, or on what registers hold."""
        if self.snapshot.parameters is None:
            return frozenset()
        polys = [
            self.address.formula,
            *self.address.coordinates,
            *(p for state in self._states[:_LEAST_STATES] for _, p, _ in state.held),
        ]
        for a in self._equations.loads_behind:
            source = self._equations.source(int(str(a.args[0])))
            polys += [source[0]] if source is not None else []
        atoms = {a for p in polys for a in self._equations.contents_of(p)}
        return frozenset(a for a in atoms if a.kind == "bank" and a in self._given)

    @cached_property
    def _of_parameters(self) -> int:
        found = 0
        for a in self._parameters:
            found |= self._bit_of(_carrier_of(a))
        return found

    def _ways(self) -> list[_Way]:
        """Return the ways in which values follow from registers and from other values."""
        found: list[_Way] = []
        for k, state in enumerate(self._states):
            known = self._known_of(state)
            equations: dict[tuple[Atom, ...], list[tuple[tuple[Resource, ...], Poly, int]]] = {}
            parameters = self._parameters if k < _LEAST_STATES else frozenset()
            for held in self._held(state):
                for wanted in self._to_solve(held[1], known, state, parameters):
                    equations.setdefault(wanted, []).append(held)
            for wanted, several in equations.items():
                values = Traced(known, wanted)
                for registers, p, value in several:
                    values.met = set()
                    solved = solve(p, value, values, self._parts)
                    if solved is None or not set(wanted) <= {solved[0], *solved[0].args}:
                        continue
                    if value_or_none(of(solved[0]), Known(known)) == solved[1]:
                        bits = self._bits_of(registers, state)
                        found.append(([self._key(k, a) for a in wanted], bits, [self._key(k, a) for a in values.met]))
            for a in state.parts:
                values = Traced(known, (a,))
                if value_or_none(of(a), values) is not None:
                    found.append(([(k, a)], 0, [self._key(k, x) for x in values.met]))
            if not self.address.stops:
                found += self._ways_to_first_turn(k, state)
        for k, a, kept, word, stored, keys in self._stored():
            if kept == stored == self._states[k].known.get(a):
                mine = [self._key(k, a)]
                at = [key for key in keys if key != mine[0]]
                found += [(mine, self._bits_of((word,), self._states[k]), at), (mine, 0, at)]
        for w, other in enumerate(self._others):
            bit = self._bit_of((None, ("warp", w)))
            found += [([(None, a)], bit, []) for a in other._shared if a.kind == "bank" and a not in self._given]
        return found + (self._ways_of_lent() if self._likely else [])

    def _to_solve(
        self, p: Poly, known: Mapping[Atom, int], state: _State, parameters: Collection[Atom]
    ) -> list[tuple[Atom, ...]]:
        """Return the values that an equation may tell and the core itself does not: words, and both words of a pair.

        Those of `parameters` the core has, and they are wanted from an equation too.
        """
        found: list[tuple[Atom, ...]] = []
        for a in self._equations.contents_of(p):
            words = tuple(x for x in a.args if isinstance(x, Atom)) if a.kind == "wide" else (a,)
            if all(x in known for x in words) and not all(
                (x in self._given and x not in parameters) or x in state.given for x in words
            ):
                found.append(words)
        return found

    def _ways_to_first_turn(self, k: int, state: _State) -> list[_Way]:
        found: list[_Way] = []
        for header in self._equations.headers:
            for a in self._variables(header, state):
                start = self._start(a, state)
                if start is not None and start == state.known[a]:
                    found.append(([(k, header)], 0, [(k, a), *self._start_keys(a, k)]))
        return found

    def _start_keys(self, a: Atom, k: int) -> list[_Key]:
        values, loop = Traced(self._known_of(self._states[k])), self._equations.loop(a)
        for part in (loop.starts[0], loop.steps[0]):
            values.of(part)
        return [self._key(k, x) for x in values.met]

    def _ways_of_lent(self) -> list[_Way]:
        """Return the ways in which a thread has a value from others: what they loaded, and the turn they are in."""
        found: list[_Way] = []
        for held in self._loaded().values():
            if len({value for value, *_ in held}) > 1:
                continue
            for _, _, keys, mine in held:
                if mine is not None:
                    lenders = [one for one in held if one[3] != mine]
                    nearest_and_farthest = (*lenders[:_MOST_LENDERS], *lenders[-_MOST_LENDERS:])
                    found += [([mine], bits, [*keys[1:], *theirs]) for _, bits, theirs, _ in nearest_and_farthest]
        for k, a, value, word, keys in self._in_memory():
            if self._known_of(self._states[k]).get(a) == value:
                found.append(([self._key(k, a)], self._bits_of((word,), self._states[k]), keys))
        for first, k, a in self._turns_to_lend():
            if self._states[k].known.get(a) != self._start(a, self._states[k]):
                continue
            headers: list[_Key] = [(first, header) for header in self._equations.headers]
            found.append(([(k, a)], 0, [*headers, *self._start_keys(a, k)]))
        return found

    # Evidence.

    def _judge(self) -> None:
        for state in self._states:
            values = self._evaluate(state)
            for r, p, held in state.held:
                if r in state.used:
                    continue
                try:
                    expected = values.of(p)
                except Unknown:
                    continue
                if held == expected:
                    state.agree += bool(inside(p))  # a register that holds a number of the code proves little
                elif not self._is_estimate(p, held, state):
                    state.wrong.append(((r,), p))
            for a, r in state.parts.items():
                again = value_or_none(of(a), Traced(self._known_of(state), (a,)))
                if again is not None and again != state.known[a]:
                    state.wrong.append(((r,), of(a)))
            pointer = state.pointer
            if pointer is not None and not set(pointer[0]) & state.used:
                try:
                    if values.of(self.address.formula) != pointer[1]:
                        state.wrong.append((pointer[0], self.address.formula))
                except Unknown:
                    continue

        for k, a, kept, word, stored, _ in self._stored():
            if kept != stored:
                self._states[k].wrong.append(((word,), of(a)))

    def _is_estimate(self, p: Poly, held: int, state: _State) -> bool:
        """Say whether a register holds what it should before a quotient that is one too small was corrected."""
        quotients = [a for a in inside(p) if a.kind == "udiv"]
        for a in quotients:
            values = self._evaluate(state)
            try:
                exact = values.of_atom(a)
                again = Known({**self._shared, **state.known, a: exact - 1 & MASK32})
                if again.of(p) == held:
                    return True
            except Unknown:
                continue
        return False

    # The address in registers.

    def _held_pair(self, state: _State) -> tuple[tuple[Resource, ...], int] | None:
        """Return the registers of the address operand and the address, where they still hold it."""
        n, code = self.address.instruction, self._code
        at = state.lane.at
        if at is None or code.block_of(at) != code.block_of(n) or at < n:
            return None
        memory = addressed(code.instructions[n])
        total, registers = memory.offset, []
        for register, count, scale in (
            (memory.base, memory.base_count, memory.scale),
            (memory.uniform, memory.uniform_count, 1),
        ):
            if register is None or register.hardwired:
                continue
            words = [Register(register.file, register.number + k) for k in range(count)]
            held = [self._value_of(w, state.lane) for w in words]
            same = all(code.definition(w, at) == code.definition(w, n) for w in words)
            arrived = all(code.definition(w, n).at != n for w in words)
            if not same or not arrived or any(v is None for v in held):
                return None
            total += sum((v or 0) << 32 * k for k, v in enumerate(held)) * scale
            registers += words
        wide = self.address.space in {"global", "generic", "descriptor"}
        return tuple(registers), total & (MASK64 if wide else MASK32)


def _together(needed: Mapping[_Key, int], keys: Collection[_Key]) -> int:
    """Return what several values need; all there is for one that follows from nothing known yet."""
    found = 0
    for key in keys:
        found |= needed.get(key, -1)
    return found


def _last_stored(stores: list[tuple[Poly, list[Poly]]], word: int, values: Values) -> int | None:
    """Return what the last of these stores put into a word; None where that is not known."""
    found: Poly | None = None
    for where, words in stores:
        at = value_or_none(where, values)
        if at is None:
            return None
        distance = word - (at & MASK32)
        if -4 < distance < 4 * len(words):
            if distance % 4:
                return None
            found = words[distance // 4]
    return None if found is None else value_or_none(found, values)


def _carrier_of(a: Atom) -> Carrier:
    """Return the word of the parameters that holds a leaf."""
    at = a.args[1]
    assert isinstance(at, int)
    return None, ("parameter", at // 4)


def _header_of(a: Atom) -> int:
    header = a.args[0]
    assert isinstance(header, int)
    return header
