"""What a warp waits for that stays in a loop: the comparison that ends the loop, and the memory that it polls."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from gpucore.explain.address import Address, address_at, place_of
from gpucore.explain.algebra import Atom, Poly, TooLarge, constant, inside, leaf, lo, polys_in, written_size
from gpucore.explain.barrier import BlockBarrier
from gpucore.explain.notation import WEAK, Json, Legend, Words, tree_of, tree_of_atom
from gpucore.explain.numbers import SHARED_WINDOW, Numbers
from gpucore.explain.operations import FALSE, TRUE, bit_and, negate, shift_right, signed
from gpucore.explain.program import Program
from gpucore.explain.slice import Slice
from gpucore.explain.why import loop_json
from gpucore.sass import RegisterOperand

_MOST_NODES = 200
_LONGEST_NAME = 40
_COUNT = 20  # bits of a count of arrivals
_BARRIERS = {
    "SYNCS": "an mbarrier in shared memory",
    "BAR": "a barrier of the block",
    "UCGABAR_WAIT": "a cluster barrier",
}


@dataclass(frozen=True)
class Polled:
    """A load that the loop repeats and whose result decides whether it ends."""

    instruction: int
    offset: int
    word: Atom
    address: Address


@dataclass(frozen=True)
class Phase:
    """A question whether a phase of an mbarrier in shared memory is over; `parity` is 0 or 1, that of the phase."""

    instruction: int
    offset: int
    address: Address
    parity: Poly


@dataclass(frozen=True)
class Mbarrier:
    """The state of an mbarrier: the parity of the phase that it is in, and what that phase still lacks.

    `pending` of `expected` arrivals are missing, and `bytes` that copies have announced. Below 0 are bytes that came
    before they were announced.
    """

    parity: int
    expected: int
    pending: int
    bytes: int


def read_mbarrier(word: int) -> Mbarrier | None:
    """Return what the 64-bit word of an mbarrier says; None where nothing has initialised it.

    PTX leaves the layout open. That of the arrivals and the phase is the one by which nvcc 13.0 compiles
    `mbarrier.init`, `.pending_count` and `.test_wait` for sm_90, sm_100 and sm_120; that of the bytes is from an H100,
    which also sets bit 42 where an arrival was not valid. All counts are negated.
    """
    expected, pending = (-(word >> at) % (1 << _COUNT) for at in (1, 43))
    missing = -(word >> 21) % (1 << _COUNT + 1)
    if not expected or pending > expected:
        return None
    return Mbarrier(word >> 63, expected, pending, missing - (missing >> _COUNT << _COUNT + 1))


@dataclass(frozen=True)
class Wait:
    """A loop that a warp is in, which ends when one of `ends` holds, each with the offset of its branch; or a barrier.

    At a barrier, `absent` is how many other warps of the block or cluster are not there; it is None in a loop, and at a
    barrier that takes a number of threads. `barrier` is that of a block.

    `polled` is empty where the loop waits for nothing in memory that this package understands. `barriers` names what
    the loop asks instead, and `phases` are those of them that are known.
    """

    program: Program
    offset: int
    ends: tuple[tuple[Atom, int], ...]
    polled: tuple[Polled, ...]
    barriers: tuple[str, ...]
    phases: tuple[Phase, ...]
    legend: Legend | None
    numbers: Numbers | None = field(default=None, compare=False)
    absent: int | None = None
    barrier: BlockBarrier | None = None

    @property
    def asked(self) -> Address | None:
        """The address that the loop asks first: what to take the registers of a warp for."""
        return _asked_first(self.polled, self.phases)

    def word_of(self, phase: Phase) -> tuple[int, int] | None:
        """Return where the mbarrier of a phase is in shared memory, and its word; None where the core has it not."""
        numbers, formula = self.numbers, lo(phase.address.formula)
        own = Poly({term: c for term, c in formula.terms.items() if c & SHARED_WINDOW}, formula.bits)
        value = numbers.value(own) if numbers is not None else None
        if value is None or numbers is None or not (held := numbers.snapshot.shared):
            return None
        at = value & SHARED_WINDOW
        word = bytes(held[at : at + 8])
        return (at, int.from_bytes(word, "little")) if len(word) == 8 else None


def explain_wait(program: Program, offset: int, calls: Sequence[int] = ()) -> Wait | None:
    """Return what the innermost loop around an instruction waits for; None where it is in no loop."""
    routine = program.routine_at(offset)
    if routine is None:
        return None
    root, n = place_of(program, routine, offset, calls)
    if n is None:
        return None
    values = program.slice_of(root)
    code = values.code
    own = frozenset({code.block_of(n)})
    bodies = [body for body in code.loops.values() if own <= body]
    body = min(bodies, key=len, default=own)
    ends = _ends(values, body) if bodies else ()
    polled = _polled(program, values, body, ends)
    phases = _phases(program, values, body)
    if not bodies and not phases:  # the first question to an mbarrier is asked before the loop
        return None
    opcodes = {code.instructions[k].opcode for b in body for k in range(code.blocks[b][0], code.blocks[b][1] + 1)}
    barriers = tuple(words for opcode, words in _BARRIERS.items() if opcode in opcodes)
    asked = _asked_first(polled, phases)
    legend = Legend(asked) if asked is not None else None
    if legend is not None:
        legend.follow([p for c, _ in ends for p in polys_in(c) if written_size(c) <= _MOST_NODES])
        legend.follow([q for one in phases for q in (one.address.formula, one.parity)])
    first = min(code.instructions[code.blocks[b][0]].offset for b in body)
    return Wait(program, first, ends, polled, barriers, phases, legend)


def _asked_first(polled: Sequence[Polled], phases: Sequence[Phase]) -> Address | None:
    return next(iter([*(one.address for one in polled), *(one.address for one in phases)]), None)


def _phases(program: Program, values: Slice, body: frozenset[int]) -> tuple[Phase, ...]:
    code = values.code
    found = []
    for n in (n for b in sorted(body) for n in range(code.blocks[b][0], code.blocks[b][1] + 1)):
        i = code.instructions[n]
        parity = i.sources[-1] if i.opcode == "SYNCS" and i.sources else None
        address = address_at(program, values, n) if isinstance(parity, RegisterOperand) else None
        if address is None or not isinstance(parity, RegisterOperand):
            continue
        try:
            value = values.run(lambda r=parity.register, n=n: values.register(r, n))  # type: ignore[misc]
        except TooLarge:
            continue
        found.append(Phase(n, i.offset, address, _upper_bit(value)))
    return tuple(found)


def _upper_bit(value: Poly) -> Poly:
    """Return bit 31, where the instruction takes the parity from."""
    if all(c == 1 << 31 for c in value.terms.values()):
        return bit_and(Poly(dict.fromkeys(value.terms, 1), 32), constant(1))
    return shift_right(value, 31)


def _ends(values: Slice, body: frozenset[int]) -> tuple[tuple[Atom, int], ...]:
    code = values.code
    found: list[tuple[Atom, int]] = []
    for b in sorted(body):
        if all(a in body for a in code.after[b]):
            continue
        condition = values.condition_behind(b)
        if condition is None or len(code.after[b]) != 2:
            continue
        leaves = condition if code.after[b][0] not in body else negate(condition)
        if leaves not in (TRUE, FALSE):
            found.append((leaves, code.instructions[code.blocks[b][1]].offset))
    return tuple(found)


def _polled(
    program: Program, values: Slice, body: frozenset[int], ends: tuple[tuple[Atom, int], ...]
) -> tuple[Polled, ...]:
    code = values.code
    found: dict[int, Polled] = {}
    for condition, _ in ends:
        for a in (x for p in polys_in(condition) for x in inside(p)):
            n = a.args[0] if a.kind == "load" else None
            if not isinstance(n, int) or n in found or code.block_of(n) not in body:
                continue
            try:
                address = address_at(program, values, n)
            except TooLarge:
                continue
            if address is not None:
                found[n] = Polled(n, code.instructions[n].offset, a, address)
    return tuple(found.values())


def wait_text(wait: Wait) -> list[str]:
    """Return what a warp waits for in lines for people."""
    place = _place(wait, wait.offset)
    if wait.barrier is not None and (wait.absent is None or wait.barrier.number):
        return [_barrier_line(wait.barrier, place)]
    if wait.absent is not None:
        whose = "cluster" if "cluster" in wait.barriers[0] else "block"
        count = (
            f"another warp of its {whose} is" if wait.absent == 1 else f"{wait.absent} other warps of its {whose} are"
        )
        return [f"waits at the barrier at {place}: {count} not there"]
    if wait.legend is None:
        what = f" and asks {' and '.join(wait.barriers)}" if wait.barriers else ""
        return [f"in a loop at {place} that polls no memory by a load{what}"]
    words = Words(wait.legend, _names(wait))
    lines = []
    if wait.polled:
        ends = [words.condition(c) for c, _ in wait.ends if written_size(c) <= _MOST_NODES]
        lines.append(f"in a loop at {place} that ends when {' or '.join(ends)}")
    lines += [_polled_line(wait, words, one) for one in wait.polled]
    for one in wait.phases:
        parity, at = words.poly(one.parity), _held(wait, one.address.formula, " at ", "#x")
        lines.append(
            f"waits at {_place(wait, one.offset)} for the end of the phase of parity {parity}"
            f"{_held(wait, one.parity, ', here ', '')} of the mbarrier{at} in shared memory: "
            f"{words.formula(one.address.formula)}"
        )
    lines += dict.fromkeys(line for one in wait.phases for line in _state(wait, one))
    for c, _ in wait.ends if wait.polled else ():
        lines += _known(wait, words, c)
    return lines


def _barrier_line(barrier: BlockBarrier, place: str) -> str:
    """Return which barrier of a block it is, how many it takes, and how many are there: what is known of that."""
    which = "a barrier whose number the core has not" if barrier.number is None else f"barrier {barrier.number}"
    takes = f"it takes {barrier.threads:,} threads" if barrier.threads else "all threads of its block must come"
    takes = "how many threads it takes is not known" if barrier.threads == 0 else takes
    there = f"{barrier.there:,} {'is' if barrier.there == 1 else 'are'} there" if barrier.there is not None else ""
    unseen = "; which threads have arrived at it by bar.arrive is not known" if barrier.arrives else ""
    return f"waits at {which} at {place}: {', '.join(part for part in (takes, there) if part)}{unseen}"


def _names(wait: Wait) -> dict[int, str]:
    """Return what the source would call each value that is polled, by its number: `flag[0]`, where that is short."""
    if wait.legend is None:
        return {}
    plain = Words(wait.legend)
    found: dict[int, str] = {}
    for one in wait.polled:
        loaded, (base, index) = wait.legend.loads.get(one.instruction), (one.address.base, one.address.index)
        if loaded is None or base is None or index is None or any(a.kind == "load" for a in inside(index)):
            continue
        name = f"{plain.atom(base.value)}[{plain.poly(index)}]"
        if len(name) <= _LONGEST_NAME and name not in found.values():
            found[loaded.number] = name
    return found


def _place(wait: Wait, offset: int) -> str:
    return wait.program.line(offset) or f"+{offset:#x}"


def _polled_line(wait: Wait, words: Words, polled: Polled) -> str:
    source = polled.address
    name, place = words.atom(polled.word), _place(wait, polled.offset)
    was = leaf("load", *polled.word.args)
    what = f"{source.space} memory at {words.formula(source.formula)}"
    if source.base is not None and source.index is not None:
        what = f"{words.atom(source.base.value)}[{words.poly(source.index)}]"
    if what == name:
        told = _held(wait, source.formula, ", from ", "#x") + _held(wait, was, "; it was ", "")
    else:
        told = f": {what}{_held(wait, source.formula, ' at ', '#x')}{_held(wait, was, ', which was ', '')}"
    return f"{name} is read in each turn at {place}{told}"


def _state(wait: Wait, phase: Phase) -> list[str]:
    """Return what the mbarrier of a phase lacks, where the core has its word."""
    found = wait.word_of(phase)
    if found is None or wait.numbers is None:
        return []
    state, wanted = read_mbarrier(found[1]), wait.numbers.value(phase.parity)
    if state is None:
        return [f"nothing has initialised an mbarrier there: it holds {found[1]:#x}"]
    if wanted not in (None, state.parity):
        return [f"that phase is over: the mbarrier is in one of parity {state.parity}"]
    lacks = []
    if state.pending:
        lacks.append(
            f"{state.pending:,} of {state.expected:,} arrivals {'is' if state.pending == 1 else 'are'} missing"
        )
    if state.bytes > 0:
        lacks.append(f"{state.bytes:,} bytes of copies have not come")
    if state.bytes < 0:
        lacks.append(f"{-state.bytes:,} bytes have come that were not announced")
    begin = "that phase is not over" if wanted is not None else f"the mbarrier is in a phase of parity {state.parity}"
    return [f"{begin}: {' and '.join(lacks) or 'nothing is missing'}"]


def _held(wait: Wait, p: Poly, before: str, form: str) -> str:
    """Return the value of a formula in words, where the registers have it; it is a fact as far as the core is."""
    value = wait.numbers.value(p) if wait.numbers is not None and p.constant is None else None
    if value is None or wait.numbers is None:
        return ""
    alone = WEAK if wait.numbers.how(p) == "one register" else ""
    return f"{before}{value if form else signed(value):{form}}{alone}"


def _known(wait: Wait, words: Words, condition: Atom) -> list[str]:
    """Return the values of what a comparison compares with."""
    if wait.numbers is None:
        return []
    lines = []
    for p in polys_in(condition):
        value = wait.numbers.value(p)
        if value is not None and p.constant is None and not any(a.kind == "load" for a in inside(p)):
            lines.append(f"{words.poly(p)} is {signed(value, p.bits)}")
    return lines


def wait_json(wait: Wait) -> Json:
    """Return what a warp waits for as a document."""
    legend = wait.legend
    return {
        "offset": wait.offset,
        "line": wait.program.line(wait.offset),
        "barriers": list(wait.barriers),
        "absent": wait.absent,
        "barrier": None if wait.barrier is None else _barrier_json(wait.barrier),
        "ends": [
            {"offset": at, "condition": tree_of_atom(c, legend.leaf)}
            for c, at in wait.ends
            if legend is not None and written_size(c) <= _MOST_NODES
        ],
        "polled": [
            {
                "offset": p.offset,
                "line": wait.program.line(p.offset),
                "space": p.address.space,
                "width": p.address.width,
                "formula": tree_of(p.address.formula, legend.leaf),
                "address": wait.numbers.value(p.address.formula) if wait.numbers is not None else None,
                "value": wait.numbers.value(leaf("load", *p.word.args)) if wait.numbers is not None else None,
            }
            for p in wait.polled
            if legend is not None
        ],
        "phases": [
            {
                "offset": p.offset,
                "line": wait.program.line(p.offset),
                "formula": tree_of(p.address.formula, legend.leaf),
                "value": wait.numbers.value(p.address.formula) if wait.numbers is not None else None,
                "parity": tree_of(p.parity, legend.leaf),
                "parity_value": wait.numbers.value(p.parity) if wait.numbers is not None else None,
                "mbarrier": _mbarrier_json(wait.word_of(p)),
            }
            for p in wait.phases
            if legend is not None
        ],
        "loads": [
            {"offset": x.offset, "line": wait.program.line(x.offset), "opcode": x.opcode}
            for x in (legend.loads.values() if legend is not None else ())
        ],
        "loops": [loop_json(x, legend) for x in legend.loops.values()] if legend is not None else [],
    }


def _barrier_json(barrier: BlockBarrier) -> Json:
    return {
        "number": barrier.number,
        "threads": barrier.threads or None,
        "whole_block": barrier.threads is None,
        "there": barrier.there,
        "may_have_arrived": barrier.arrives,
    }


def _mbarrier_json(found: tuple[int, int] | None) -> Json | None:
    if found is None:
        return None
    at, word = found
    state = read_mbarrier(word)
    return {"at": at, "word": word, "state": None if state is None else vars(state)}
