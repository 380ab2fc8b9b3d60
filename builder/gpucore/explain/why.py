"""The answer: why an address was what it was, as text for people and as JSON for programs."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final

from gpucore.explain.address import Address, Base, element_of, explain_address
from gpucore.explain.algebra import Atom, Poly, inside, leaf, of, written_size
from gpucore.explain.evaluate import LEAVES
from gpucore.explain.judgement import Judgement, judge
from gpucore.explain.notation import (
    WEAK,
    Json,
    Legend,
    LoadedValue,
    LoopValue,
    Parts,
    Words,
    number,
    tree_of,
    tree_of_atom,
    uses_in,
)
from gpucore.explain.numbers import How, Numbers
from gpucore.explain.operations import signed
from gpucore.explain.program import Program

_VERBS: Final = {"read": ("reads", "read"), "write": ("writes", "wrote"), "update": ("updates", "updated")}
_MOST_GUARDS: Final = 4
_MOST_LOOP_LINES: Final = 24  # the JSON has more loops
_WIDEST: Final = 160
_MOST_NODES: Final = 2000
_MOST_SHARED: Final = 4000  # nodes of all such formulas, each written once
_NAMELESS: Final = frozenset({"opaque", "result", "entry"})
_FARTHEST: Final = 1 << 49  # bytes: the virtual addresses of today's GPUs


@dataclass(frozen=True)
class Why:
    """What the address of an instruction is made of, and what a core adds to it."""

    address: Address
    legend: Legend
    names: dict[int, str] = field(default_factory=dict)
    """What the source calls the loaded values, by their number."""
    numbers: Numbers | None = None
    """What a core adds; None for an answer from the code alone."""
    calls_hold: bool = True
    """Whether the calls that the thread is in are those of the access; after a store it may be in later ones."""
    launch: bytes | None = None
    """The arguments of the kernel's one launch in a core without the threads of the fault: likely it is theirs."""

    stack: Judgement | None = None
    """What an access to local memory that failed says about the thread's stack."""

    @property
    def has_index(self) -> bool:
        """Whether the formula has more than the stack pointer: something that has a name."""
        bank = {a for a in inside(self.address.formula) if a.kind == "bank" and self.legend.argument(a) is None}
        return any(a.kind in LEAVES - _NAMELESS and a not in bank for a in inside(self.address.formula))

    def value(self, p: Poly | None) -> int | None:
        """Return the value of a formula for the thread that is explained; None where it is not known."""
        return self.numbers.value(p) if self.numbers is not None and p is not None else None

    def how(self, p: Poly | None) -> How | None:
        """Return how that value is known; None where it is not."""
        return self.numbers.how(p) if self.numbers is not None and p is not None else None

    def ran(self, loaded: LoadedValue) -> bool:
        """Say whether the thread that is explained is known to have made a load; without numbers nothing is said."""
        return self.numbers is None or self.numbers.ran(loaded.instruction)

    @property
    def index(self) -> tuple[int, str] | None:
        """The index as a signed number, and how it is known: from its parts, or from the address and the base."""
        address = self.address
        value = self.value(address.index)
        if value is not None:
            return signed(value, 64), self.how(address.index) or "computed"
        if self.numbers is None or address.base is None or address.index is None:
            return None
        held, base = self.numbers.held_address(), self.value(of(address.base.value))
        if held is None or base is None:
            return None
        distance = signed(held - base, 64)
        # Of a product that wrapped more than one index leads to the address.
        if distance % address.scale or abs(distance) >= _FARTHEST:
            return None
        return distance // address.scale, "from the address"

    @property
    def index_as_fact(self) -> int | None:
        """The index where more than one register says so."""
        index = self.numbers.fact(self.address.index) if self.numbers and self.address.index is not None else None
        return None if index is None else signed(index, 64)

    @property
    def how_address(self) -> How | None:
        """How the address is known; None where it is not."""
        found = self.how(self.address.formula)
        return "one register" if found is None and self.value_of_address is not None else found

    @property
    def one_of_many(self) -> bool:
        """Whether the bad address may be another thread's of the warp."""
        return self.numbers is not None and not self.numbers.choice.certain

    @property
    def is_weak(self) -> bool:
        """Whether one register alone carries the address: the text says so once."""
        return self.how_address == "one register"

    @property
    def judgements(self) -> list[Judgement]:
        """What is certainly wrong, the most telling first."""
        words = Words(self.legend, self.names)
        return [*([self.stack] if self.stack else []), *judge(self.address, self.numbers, words, self.index_as_fact)]

    @property
    def value_of_address(self) -> int | None:
        """The address that the thread accessed, where it is known."""
        value = self.value(self.address.formula)
        return value if value is not None or self.numbers is None else self.numbers.held_address()


def explain_place(program: Program, offset: int, calls: Sequence[int] = ()) -> Why | None:
    """Return what is known of the access at an offset of the section; None where it accesses no memory.

    `calls` are the offsets of the calls that lead to it, outermost first, as a backtrace has them.
    """
    address = explain_address(program, offset, calls)
    if address is None:
        return None
    legend = Legend(address)
    return Why(address, legend, _names_of_loads(legend))


def _names_of_loads(legend: Legend) -> dict[int, str]:
    """Return what the source calls loaded values: variables that it declares as nothing but `argument[...]`.

    A variable of a function is meant where the access is in that function, or is inlined into it and no function
    between them has that word. Where two different values are of one declaration, neither has its name.
    """
    found: dict[str, list[LoadedValue]] = {}
    program = legend.address.program
    taken = {a.name for a in program.arguments}
    others = any(a.kind == "shfl" for a in inside(legend.address.formula))
    for loaded in legend.loads.values():
        if loaded.opcode.startswith("ATOM") and others:
            continue  # one thread made it for all of its warp: each has another part of what it gave
        name = _name_of_load(program, loaded, legend.address.offset)
        if name is not None and name not in taken:
            found.setdefault(name, []).append(loaded)
    return {same[0].number: name for name, same in found.items() if len(same) == 1}


def _name_of_load(program: Program, loaded: LoadedValue, offset: int) -> str | None:
    source = loaded.address
    base, argument = (source.base, source.base.argument) if source is not None and source.base else (None, None)
    at, here = program.place(loaded.offset), program.chain(offset)
    if source is None or base is None or base.offset or argument is None or not argument.name or not argument.type:
        return None
    text = program.file(at.file) if at is not None and not at.headers else None
    body = text.body_around(at.line) if text is not None and at is not None else None
    if text is None or at is None or body is None or source.width != argument.element:
        return None
    outer = program.chain(loaded.offset)[-1] == at
    atomic = loaded.opcode.startswith("ATOM")
    own = program.parameters if outer else ()
    name = text.name_of_loaded(at.line, argument.name, argument.type.removesuffix("*").strip(), own, atomic)
    bodies = [program.body_around(frame) for frame in here]
    if (
        name is None
        or body not in bodies
        or any(o is None or re.search(rf"\b{name}\b", o) for o in bodies if o != body)
    ):
        return None
    used = here[bodies.index(body)].line
    return None if text.may_be_of_another_turn(at.line, name, used) else name


# Text.


def why_text(why: Why) -> list[str]:
    """Return the answer in lines for people, without a heading."""
    words = Words(why.legend, why.names)
    words.share(list(_shown(why).values()))
    lines = [_access_line(why)]
    lines += _doubt_lines(why)
    if why.stack is not None and not why.has_index:
        return [*lines, why.stack.text]
    if why.address.space == "descriptor":
        lines += _tile_lines(why, words)
    else:
        lines += [_formula_line(why, words), *_index_lines(why, words)]
    lines += _launch_lines(why, words)
    lines += [_opaque_line(why, words, a) for a in why.legend.made_from]
    lines += _load_lines(why, words)
    loops = [x for x in why.legend.loops.values() if x.loop is not None]
    lines += [_loop_line(words, x) for x in loops[:_MOST_LOOP_LINES]]
    if len(loops) > _MOST_LOOP_LINES:
        lines.append(f"{len(loops) - _MOST_LOOP_LINES} more variables of loops are in the JSON alone")
    lines += [j.text.removesuffix(WEAK) if why.is_weak else j.text for j in why.judgements]
    lines = words.with_parts(lines, _guard_lines(why, words))
    return lines + (_lines_of_numbers(why, words) if why.numbers is not None else [])


def _tile_lines(why: Why, words: Words) -> list[str]:
    """Return what names a tile: the tensor map, and where in the tensor it is. The map itself is not looked into."""
    address, base = why.address, why.address.base
    if base is not None and base.argument is not None and why.legend.argument(base.value) is None:
        lines = [f"the tensor map is {base.argument.words} ({_what(base, why)})"]
    else:
        lines = [f"the tensor map is at {words.cut(address.formula, _WIDEST)}"]
    found = []
    for p in address.coordinates:
        value = why.value(p)
        given = "" if value is None or p.constant is not None else f" = {signed(value, 32)}"
        found.append(words.cut(p, _WIDEST) + given + (WEAK if given and why.how(p) == "one register" else ""))
    where = f"the tile's coordinates, innermost first: {'; '.join(found)}" if found else "its coordinates are not known"
    return [*lines, where, "the address and the bounds are in the tensor map, which is not looked into"]


def _access_line(why: Why) -> str:
    address, numbers = why.address, why.numbers
    access = f"{address.width} bytes of {address.space} memory"
    if address.space == "descriptor":
        verb = _VERBS[address.direction]
        if numbers is None or numbers.lane is None:
            return f"{verb[0]} a tile through a tensor map"
        at = f"thread {_triple(numbers.lane.thread)} of block {_triple(numbers.snapshot.block)}"
        return f"{at} {verb[1]} a tile through a tensor map"
    if numbers is None or numbers.lane is None:
        return f"{_VERBS[address.direction][0]} {access}"
    thread, block = numbers.lane.thread, numbers.snapshot.block
    value = why.value_of_address
    at = f" at {value:#x}{WEAK if why.is_weak else ''}" if value is not None else ""
    ran = "" if numbers.sure else ", if it ran this,"
    return f"thread {_triple(thread)} of block {_triple(block)}{ran} {_VERBS[address.direction][1]} {access}{at}"


def _triple(at: tuple[int, int, int]) -> str:
    return f"({at[0]},{at[1]},{at[2]})"


def _parameter_lines(why: Why, words: Words) -> list[str]:
    """Return which values rest on parameters of the core that no register confirms."""
    base = why.address.base
    leaves = [*([base.value] if base is not None else []), *(a for a, _ in values_of_leaves(why))]
    names = [words.atom(a) for a in dict.fromkeys(leaves) if why.how(of(a)) == "parameters"]
    return [f"by the core's parameters alone: {', '.join(names)}"] if names else []


def _lines_of_numbers(why: Why, words: Words) -> list[str]:
    numbers = why.numbers
    assert numbers is not None
    lines = []
    if numbers.ran_on and not numbers.disagree:
        what = "copy" if why.address.direction == "read" else "store"
        lines.append(
            f"a {what} stops no loop: the thread may be some turns further, so what each turn changes is not known"
        )
    found = numbers.addresses()
    count = len(numbers.accessing())
    if len(found) > 1:
        steps = {b - a for (_, a), (_, b) in pairwise(found)}
        step = next(iter(steps)) if len(steps) == 1 else None
        apart = "" if step is None else f", {step} bytes apart" if step else ", all the same"
        first, last = min(a for _, a in found), max(a for _, a in found)
        ran = "ran" if numbers.sure else "may have run"
        lines.append(f"{len(found)} of {count} threads that {ran} it: {first:#x} to {last:#x}{apart}")
    lines += _choice_lines(why, count)
    lines += _parameter_lines(why, words)
    if numbers.disagree:
        lines.append(f"{numbers.agree:,} registers agree, {numbers.disagree:,} disagree; so no value is given")
    elif numbers.agree:
        lines.append(f"checked against {numbers.agree:,} register{'s' if numbers.agree > 1 else ''}")
    else:
        lines.append("no register was left to check it against")
    return lines


def _choice_lines(why: Why, count: int) -> list[str]:
    """Return how it is known that the thread is the one, where the warp has several and it is certain."""
    assert why.numbers is not None
    choice, space = why.numbers.choice, why.address.space
    if not choice.certain or count < 2:
        return []
    if choice.reason == "bad":
        return [f"{choice.bad} of {count} threads of the warp had such an address"] if choice.bad > 1 else []
    if choice.reason == "alike":
        return [f"the addresses of all {count} threads of the warp are bad alike"]
    if choice.reason == "alone":
        return [f"the other {count - 1} threads of the warp accessed memory that is there"]
    pointer = {"local": "stack pointer", "shared": "start of shared memory"}.get(space, "pointer")
    return [f"of {count} threads of the warp this one is the farthest from the {pointer}, so it is out of bounds"]


def _doubt_lines(why: Why) -> list[str]:
    """Return that another thread may have had the bad address, where that is so."""
    if not why.one_of_many or why.numbers is None:
        return []
    choice = why.numbers.choice
    likeliest = "; this one is the likeliest" if choice.reason != "unknown" else ", and nothing shows which"
    if choice.farthest_of:
        likeliest = f"; this one is the farthest of the {choice.farthest_of} whose distance is known"
    which = f"any of {choice.possible} threads of the warp" if choice.possible > 1 else "another thread"
    return [f"not confirmed: {which} may have had the bad address{likeliest}"]


def values_of_leaves(why: Why) -> list[tuple[Atom, int | None]]:
    """Return the leaves of the formula that an address depends on, with their values; dimensions are left out."""
    found: dict[Atom, int | None] = {}
    numbers = why.numbers
    if numbers is None:
        return []
    for x in _named_leaves(why.address.formula):
        if x is not (why.address.base.value if why.address.base else None):
            found[x] = why.value(of(x)) if numbers.met(x) else None
    return list(found.items())


def _launch_lines(why: Why, words: Words) -> list[str]:
    """Return what arguments the launch had that the core lists, where no thread of the fault is known."""
    found = []
    for a in _named_leaves(why.address.formula):
        low = a.args[0] if a.kind == "wide" else a
        if isinstance(low, Atom) and low.kind == "bank" and why.legend.argument(low) is not None:
            _, offset, size = low.args
            assert isinstance(offset, int) and isinstance(size, int)
            at = offset - why.address.program.bank_offset
            held = (why.launch or b"")[at:][: 8 if a.kind == "wide" else size]
            if held:
                value = int.from_bytes(held, "little")
                pointer = why.address.base is not None and a is why.address.base.value
                shown = f"{value:#x}" if pointer else _number(why, a, value, 8 * len(held))
                found.append(f"{words.atom(a)} = {shown}")
    known = ", ".join(found)
    return [f"its threads are not known; the launch of this kernel that the core lists has {known}"] if found else []


def _named_leaves(p: Poly) -> list[Atom]:
    """Return the leaves that text names, each once; a large formula repeats the same parts many times."""
    found: dict[Atom, None] = {}
    seen: set[Atom] = set()
    todo = [*reversed(p.atoms())]
    while todo:
        a = todo.pop()
        if a in seen:
            continue
        seen.add(a)
        if a.kind in {"wide", "bank", "load", "phi", "turn", "result", "opaque"}:
            found[a] = None
        else:
            todo += reversed([x for q in a.args if isinstance(q, Poly) for x in q.atoms()])
    return list(found)


def _formula_line(why: Why, words: Words) -> str:
    address = why.address
    if address.base is None or address.index is None or _is_moved(address):
        text = f"= {words.formula(address.formula)}"
        if address.base is not None:
            text += f"; based on {words.atom(address.base.value)}, {_what(address.base, why)}"
        if len(address.bases) > 1:
            text += f"; based on one of {', '.join(words.atom(b.value) for b in address.bases)}"
        return text
    pointer = why.value(of(address.base.value))
    what = _what(address.base, why) + (f", {pointer:#x}" if pointer is not None else "")
    base = f"{words.atom(address.base.value)} ({what})"
    element = address.element
    if not address.index.terms or (element is not None and not element.index.terms and not element.byte):
        return f"= {base}"
    if element is None:
        return f"= {base} + {words.cut(address.index * address.scale, 4 * _WIDEST)}".replace("+ -", "- ")
    if not element.index.terms:
        return f"= {base} + {element.byte}"
    index = words.cut(element.index, 4 * _WIDEST, bracketed=element.size != 1)
    scaled = f"{element.size} * " if element.size != 1 else ""
    return f"= {base} + {scaled}{index}{f' + {element.byte}' if element.byte else ''}"


def _index_lines(why: Why, words: Words) -> list[str]:
    lines = []
    index = why.address.index
    if why.index is not None and index is not None and index.terms and (index.constant is None or why.address.element):
        value, how = why.index
        mark = {"from the address": ", from the address", "one register": "" if why.is_weak else WEAK}.get(how, "")
        lines.append(f"the {_index_words(why.address, value)}{mark}")
    leaves = [(a, value) for a, value in values_of_leaves(why) if value is not None]
    said = WEAK if why.is_weak and len(leaves) == 1 else ""  # of the address, which rests on this value
    known = [
        f"{words.atom(a)} = {_number(why, a, value, 32 if a.bits == 32 else 64)}{_mark(why, a).removesuffix(said)}"
        for a, value in leaves
    ]
    lines += [f"with {', '.join(known)}"] if known else []
    unknown = _unknown(why, words)
    return [*lines, f"not known: {', '.join(unknown)}"] if unknown and known else lines


def _index_words(address: Address, value: int) -> str:
    """Return an index in words: the element that the source subscripts, else how far from the pointer it is."""
    name, element = element_of(address, value)
    return f"{name} is {element}"


def _number(why: Why, a: Atom, value: int, bits: int) -> str:
    """Return the value of a leaf, with a sign where its type has one or is not known."""
    return number(value if why.legend.is_unsigned(a) else signed(value, bits))


def _mark(why: Why, a: Atom) -> str:
    """Return how a value is known, where it was neither in a register nor follows from values that were."""
    return {"solved": " (computed from registers)", "one register": WEAK}.get(why.how(of(a)) or "", "")


def _unknown(why: Why, words: Words) -> list[str]:
    """Return the leaves of the formula that have no value, where values are given at all."""
    if why.numbers is None or why.numbers.disagree:
        return []
    return [words.atom(a) for a, value in values_of_leaves(why) if value is None]


def _what(base: Base, why: Why) -> str:
    """Return what a pointer is: an argument, a part of one, one that was loaded, or the caller's."""
    argument = base.argument
    if argument is None:
        low = base.value.args[0] if base.value.kind == "wide" else base.value
        indexed = why.legend.indexed_argument(base.value)
        if isinstance(low, Atom) and low.kind == "entry":
            return "the caller's pointer"
        if isinstance(low, Atom) and low.kind == "bank_at" and low.args[0] == 0 and indexed is None:
            return "a pointer among the arguments"
        copied = why.legend.copied_argument(base.value)
        if copied is not None:
            return f"a pointer from the thread's copy of argument {copied.number}"
        if indexed is None:
            return "a loaded pointer"
        argument = indexed[0]
    kind = f", {argument.type}" if argument.type else ""
    return f"argument {argument.number}{kind}"


def _load_line(why: Why, words: Words, loaded: LoadedValue) -> str:
    program = why.address.program
    name = why.names.get(loaded.number, f"loaded{loaded.number + 1}")
    place = program.line(loaded.offset) or f"+{loaded.offset:#x}"
    ran = why.ran(loaded)
    verb = ("was " if ran else "is ") + ("returned by the atomic" if loaded.opcode.startswith("ATOM") else "loaded")
    source = loaded.address
    if source is None:
        return f"{name} {verb} at {place}"
    if source.base is not None and source.index is not None and not _is_moved(source):
        return f"{name} {verb} at {place}: {_element_words(why, words, source, ran)}"
    return f"{name} {verb} at {place} from {source.space} memory at {words.cut(source.formula, _WIDEST)}"


def _is_moved(address: Address) -> bool:
    """Say whether a pointer is its start or where a loop moved it to: what is added to the start is no index then."""
    return address.base is not None and address.index is not None and address.base.value in inside(address.index)


def _load_lines(why: Why, words: Words) -> list[str]:
    """Return a line for each load; a chain of loads alike, each from what the next one gave, is a line for all."""
    loads = list(why.legend.loads.values())
    lines: list[str] = []
    at = 0
    while at < len(loads):
        last = at
        while last + 1 < len(loads) and _follows(why, loads[last], loads[last + 1]):
            last += 1
        lines.append(_load_line(why, words, loads[at]))
        if last - at > 3:
            first, final = (f"loaded{x.number + 1}" for x in (loads[at + 1], loads[last - 1]))
            lines.append(f"{first} to {final} are loaded alike, each through the pointer that the next one is")
            lines.append(_load_line(why, words, loads[last]))
        else:
            lines += [_load_line(why, words, x) for x in loads[at + 1 : last + 1]]
        at = last + 1
    return lines


def _follows(why: Why, loaded: LoadedValue, before: LoadedValue) -> bool:
    """Say whether a load reads from the pointer that the next one gave, and is at the same line and offset."""
    ours, theirs = loaded.address, before.address
    if ours is None or theirs is None or ours.base is None or ours.index is None or theirs.index is None:
        return False
    program, low = why.address.program, ours.base.value.args[0]
    same = (ours.index * ours.scale, ours.width, program.line(loaded.offset)) == (
        theirs.index * theirs.scale, theirs.width, program.line(before.offset)
    )  # fmt: skip
    unnamed = not {loaded.number, before.number} & set(why.names)
    return same and unnamed and isinstance(low, Atom) and low.kind == "load" and low.args[0] == before.instruction


def _opaque_line(why: Why, words: Words, a: Atom) -> str:
    """Return what a value is made from that is not looked into."""
    parts, whole = why.legend.made_from[a]
    more = "" if whole else " and more"
    return f"{words.atom(a)} is made from {', '.join(map(words.atom, parts))}{more}"


def _element_words(why: Why, words: Words, source: Address, ran: bool) -> str:
    """Return what a load loads: an element of its pointer, with the index where it is known, else a place in bytes."""
    assert source.base is not None and source.index is not None
    pointer, value = words.atom(source.base.value), why.value(source.index) if ran else None
    found = source.element
    if found is None:
        offset = f"{pointer}, byte offset {words.cut(source.index * source.scale, _WIDEST)}"
    else:
        byte = f" from byte {found.byte} on" if found.byte else ""
        offset = f"{pointer}[{words.cut(found.index, _WIDEST)}]{byte}"
    if value is None or source.index.constant is not None:
        return offset
    name, number = element_of(source, signed(value, 64))
    return f"{offset}, index {number}" if name == "index" else f"{offset} = {number}"


def _loop_line(words: Words, found: LoopValue) -> str:
    loop = found.loop
    assert loop is not None
    name = words.atom(found.leaf)
    starts = " or ".join(words.cut(p, _WIDEST) for p in loop.starts)
    if not loop.starts:
        return f"{name} is a value of a loop that is too large to follow"
    if not loop.steps and not loop.others:
        return f"{name} is {starts}"
    grows = " or ".join(words.cut(p, _WIDEST) for p in loop.steps)
    if not loop.others:
        return f"{name} starts as {starts} and grows by {grows}"
    others = " or ".join(words.cut(p, _WIDEST) for p in loop.others)
    if len(loop.starts) == 1 and len(loop.others) == 1 and not grows:
        return f"{name} starts as {starts}; each turn sets it to {others}"
    return f"{name} starts as {starts}; a later turn has {others}" + (f", or {grows} more" if grows else "")


def _guard_lines(why: Why, words: Words) -> list[str]:
    program = why.address.program
    lines = []
    for guard in why.address.guards[:_MOST_GUARDS]:
        text = words.condition(guard.condition)
        if len(text) <= _WIDEST:
            lines.append(f"it runs where {text}, tested at {program.line(guard.offset) or f'+{guard.offset:#x}'}")
    return lines


def _shown(why: Why) -> dict[str, Poly | Atom]:
    """Return the formulas of an answer, by their JSON pointers."""
    address = why.address
    found: dict[str, Poly | Atom] = {"/formula": address.formula}
    if address.index is not None:
        found["/index/formula"] = address.index
    for n, p in enumerate(address.coordinates):
        found[f"/coordinates/{n}/formula"] = p
    for n, loaded in enumerate(why.legend.loads.values()):
        if loaded.address is not None:
            found[f"/loads/{n}/formula"] = loaded.address.formula
            if loaded.address.index is not None:
                found[f"/loads/{n}/index/formula"] = loaded.address.index
    for n, one in enumerate(why.legend.loops.values()):
        for name in ("starts", "steps", "others") if one.loop is not None else ():
            found |= {f"/loops/{n}/{name}/{k}": p for k, p in enumerate(getattr(one.loop, name))}
    return found


# JSON.


def why_json(why: Why) -> Json:
    """Return the answer for programs, as the published schema has it."""
    address, legend = why.address, why.legend
    program = address.program
    return {
        "space": address.space,
        "direction": address.direction,
        "width": address.width,
        "value": why.value_of_address,
        "value_how_known": why.how_address,
        "offset": address.offset,
        "calls": list(address.calls),
        "base": _base_json(address.base, why),
        "bases": [_base_json(b, why) for b in address.bases] if len(address.bases) > 1 else [],
        "formula": _tree(address.formula, legend),
        "index": _index_json(address, why, why.index[0] if why.index else None),
        "coordinates": [
            {"formula": _tree(p, legend), "value": _value_of_word(why, p), "how_known": why.how(p)}
            for p in address.coordinates
        ],
        "loads": [_load_json(why, x) for x in legend.loads.values()],
        "loops": [loop_json(x, legend) for x in legend.loops.values()],
        "lanes": _lanes_json(why),
        "guards": [
            {"line": program.line(g.offset), "offset": g.offset, "condition": tree_of_atom(g.condition, legend.leaf)}
            for g in address.guards
            if written_size(g.condition) <= _MOST_NODES
        ],
        "evidence": _evidence_json(why),
        "in_parts": _in_parts(why),
        "not_known": sorted(set(legend.opaque.values())),
        "judgement": [{"kind": j.kind, "text": j.text} for j in why.judgements],
        "how_known": _how_known(why),
    }


def _tree(p: Poly, legend: Legend) -> Json | None:
    """Return a formula as a tree; None where it is too large to be of use."""
    return tree_of(p, legend.leaf) if written_size(p) <= _MOST_NODES else None


def _in_parts(why: Why) -> Json | None:
    """Return the formulas that are too large for one tree as trees that share parts; None if there are none."""
    large = {at: p for at, p in _shown(why).items() if written_size(p) > _MOST_NODES}
    if not large or len(uses_in(large.values())) > _MOST_SHARED:
        return None
    parts = Parts(list(large.values()), why.legend.leaf)
    trees = {at: tree_of(p, parts) for at, p in large.items() if isinstance(p, Poly)}
    return {"parts": parts.trees, "formulas": trees}


def _how_known(why: Why) -> str:
    if why.numbers is None:
        return "the code"
    if why.numbers.disagree:
        return "the code; the registers disagree"
    return "the code and the registers" if why.numbers.agree else "the code; no register was left to check it"


def _lanes_json(why: Why) -> Json | None:
    if why.numbers is None:
        return None
    found = why.numbers.addresses()
    steps = {b - a for (_, a), (_, b) in pairwise(found)}
    values = [value for _, value in found]
    return {
        "count": len(why.numbers.accessing()),
        "thread": list(why.numbers.lane.thread) if why.numbers.lane else None,
        "certain": why.numbers.lane is not None and why.numbers.choice.certain,
        "possible": why.numbers.choice.possible,
        "reason": why.numbers.choice.reason,
        "first": min(values, default=None),
        "last": max(values, default=None),
        "stride": next(iter(steps)) if len(steps) == 1 else None,
        "addresses": [{"lane": lane.number, "thread": list(lane.thread), "value": value} for lane, value in found],
        "how_known": why.numbers.how_addresses if found else None,
    }


def _evidence_json(why: Why) -> Json | None:
    numbers = why.numbers
    if numbers is None:
        return None
    suspect = numbers.suspect
    return {
        "agree": numbers.agree,
        "disagree": numbers.disagree,
        "suspect": None if suspect is None else {
            "register": suspect.register, "thread": list(suspect.thread), "held": suspect.held,
            "expected": suspect.expected,
        },
    }  # fmt: skip


def _base_json(base: Base | None, why: Why) -> Json | None:
    if base is None:
        return None
    argument, pointer = base.argument, of(base.value)
    indexed = why.legend.indexed_argument(base.value) if argument is None else None
    if indexed is not None:
        argument = indexed[0]
    return {
        "argument": argument.number if argument else None,
        "name": argument.name if argument else None,
        "type": argument.type if argument else None,
        "bytes": [base.offset, base.offset + 8] if base.argument else None,
        "formula": tree_of(pointer, why.legend.leaf),
        "value": why.value(pointer),
        "how_known": why.how(pointer),
    }


def _index_json(address: Address, why: Why, value: int | None) -> Json | None:
    if address.index is None:
        return None
    # A value that the parts of the index do not give is the address in one pair of registers, less the base.
    how = None if value is None else why.how(address.index) or "one register"
    return {"scale": address.scale, "formula": _tree(address.index, why.legend), "value": value, "how_known": how}


def _index_value(why: Why, address: Address) -> int | None:
    value = why.value(address.index)
    return None if value is None else signed(value, 64)


def _value_of_word(why: Why, p: Poly) -> int | None:
    value = why.value(p)
    return None if value is None else signed(value, 32)


def _load_json(why: Why, loaded: LoadedValue) -> Json:
    source, program = loaded.address, why.address.program
    ran = why.ran(loaded)
    found = _loaded(why, loaded) if ran else None
    return {
        "name": why.names.get(loaded.number),
        "line": program.line(loaded.offset),
        "offset": loaded.offset,
        "calls": list(loaded.calls),
        "opcode": loaded.opcode,
        "space": source.space if source else None,
        "width": source.width if source else None,
        "base": _base_json(source.base, why) if source else None,
        "formula": _tree(source.formula, why.legend) if source else None,
        "index": _index_json(source, why, _index_value(why, source) if ran else None) if source else None,
        "value": why.value(found),
        "how_known": why.how(found),
    }


def _loaded(why: Why, loaded: LoadedValue) -> Poly | None:
    """Return the loaded number as a formula, of 64 bits where the address reads it as one."""
    for a in inside(why.address.formula):
        low = a.args[0] if a.kind == "wide" else None
        if isinstance(low, Atom) and low.kind == "load" and low.args[0] == loaded.instruction:
            return of(a)
    width = loaded.address.width if loaded.address else 4
    return leaf("load", loaded.instruction, 0, _kind_of(why, loaded)) if width <= 4 else None


def _kind_of(why: Why, loaded: LoadedValue) -> str:
    """Return how a load extends what is narrower than a register."""
    modifiers = why.address.slice.code.instructions[loaded.instruction].modifiers
    return next((m for m in modifiers if m in {"U8", "S8", "U16", "S16"}), "")


def loop_json(found: LoopValue, legend: Legend) -> Json:
    """Return a variable of a loop as a document."""

    def trees(polys: Sequence[Poly]) -> list[Json | None]:
        return [_tree(p, legend) for p in polys]

    loop = found.loop
    return {
        "kind": "turn" if found.leaf.kind == "turn" else "value",
        "offset": found.offset,
        "calls": list(found.calls),
        "registers": list(found.registers),
        "starts": trees(loop.starts) if loop else [],
        "steps": trees(loop.steps) if loop else [],
        "others": trees(loop.others) if loop else [],
    }
