"""What a warp waits for that stays in a loop: the comparison that ends the loop, and the memory that it polls."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from gpucore.explain.address import Address, address_at, place_of
from gpucore.explain.algebra import Atom, TooLarge, inside, leaf, polys_in, written_size
from gpucore.explain.legend import Legend
from gpucore.explain.numbers import Numbers, Snapshot
from gpucore.explain.operations import FALSE, TRUE, negate, signed
from gpucore.explain.program import Program
from gpucore.explain.slice import Slice
from gpucore.explain.text import Words
from gpucore.explain.tree import Json, tree_of, tree_of_atom

_MOST_NODES = 200
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
class Wait:
    """A loop that a warp is in. It ends when one of `ends` holds, each with the offset of its branch.

    `polled` is empty where the loop waits for nothing in memory that this package understands. `barriers` names what
    the loop asks instead.
    """

    program: Program
    offset: int
    ends: tuple[tuple[Atom, int], ...]
    polled: tuple[Polled, ...]
    barriers: tuple[str, ...]
    legend: Legend | None
    numbers: Numbers | None = field(default=None, compare=False)


def explain_wait(
    program: Program, offset: int, calls: Sequence[int] = (), snapshot: Snapshot | None = None
) -> Wait | None:
    """Return what the innermost loop around an instruction waits for; None where it is in no loop.

    `snapshot` is the warp that is there, with the registers that it has.
    """
    routine = program.routine_at(offset)
    if routine is None:
        return None
    root, n = place_of(program, routine, offset, calls)
    if n is None:
        return None
    values = program.slice_of(root)
    code = values.code
    bodies = [body for body in code.loops.values() if code.block_of(n) in body]
    if not bodies:
        return None
    body = min(bodies, key=len)
    ends = _ends(values, body)
    polled = _polled(program, values, body, ends)
    opcodes = {code.instructions[k].opcode for b in body for k in range(code.blocks[b][0], code.blocks[b][1] + 1)}
    barriers = tuple(words for opcode, words in _BARRIERS.items() if opcode in opcodes)
    legend = Legend(polled[0].address) if polled else None
    if legend is not None:
        legend.follow([p for c, _ in ends for p in polys_in(c) if written_size(c) <= _MOST_NODES])
    numbers = Numbers(polled[0].address, snapshot) if polled and snapshot is not None else None
    first = min(code.instructions[code.blocks[b][0]].offset for b in body)
    return Wait(program, first, ends, polled, barriers, legend, numbers)


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
    program = wait.program
    place = program.line(wait.offset) or f"+{wait.offset:#x}"
    if wait.legend is None:
        what = f" and asks {' and '.join(wait.barriers)}" if wait.barriers else ""
        return [f"in a loop at {place} that polls no memory by a load{what}"]
    words = Words(wait.legend)
    ends = [words.condition(c) for c, _ in wait.ends if written_size(c) <= _MOST_NODES]
    lines = [f"in a loop at {place} that ends when {' or '.join(ends)}"]
    for polled in wait.polled:
        name = words.atom(polled.word)
        at = program.line(polled.offset) or f"+{polled.offset:#x}"
        source = polled.address
        if source.base is not None and source.index is not None:
            what = f"{words.atom(source.base.value)}[{words.poly(source.index)}]"
        else:
            what = f"{source.space} memory at {words.formula(source.formula)}"
        value = wait.numbers.value(leaf("load", *polled.word.args)) if wait.numbers is not None else None
        held = f", which was {signed(value)}" if value is not None else ""
        lines.append(f"{name} is read in each turn at {at}: {what}{held}")
    for c, _ in wait.ends:
        lines += _known(wait, words, c)
    return lines


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
                "value": wait.numbers.value(leaf("load", *p.word.args)) if wait.numbers is not None else None,
            }
            for p in wait.polled
            if legend is not None
        ],
    }
