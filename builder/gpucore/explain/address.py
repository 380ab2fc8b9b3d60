"""The address of a memory instruction: the pointer it is based on, how it is indexed, and where each part is from."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final, Literal

from gpucore.explain.algebra import (
    MASK32,
    MASK64,
    ZERO64,
    Atom,
    Poly,
    TooLarge,
    atom,
    constant,
    inside,
    join,
    lo,
    norm,
    of,
    pair,
    split_by,
    zx,
)
from gpucore.explain.code import Routine
from gpucore.explain.operations import bit_and, decided, select, shift_right, signed
from gpucore.explain.program import Argument, Program
from gpucore.explain.slice import Loop, Slice
from gpucore.sass import Instruction, Memory, Register, definitions

Space = Literal["global", "generic", "shared", "local", "descriptor"]
Direction = Literal["read", "write", "update"]

_SPACES: Final[dict[str, Space]] = {
    **dict.fromkeys(("LDG", "STG", "ATOMG", "RED", "REDG", "LDGSTS"), "global"),
    **dict.fromkeys(("LD", "ST", "ATOM"), "generic"),
    **dict.fromkeys(("LDS", "STS", "ATOMS", "LDSM", "STSM", "REDS", "SYNCS"), "shared"),
    **dict.fromkeys(("LDL", "STL"), "local"),
    **dict.fromkeys(("UTMALDG", "UTMASTG", "UTMAREDG"), "descriptor"),
}  # fmt: skip
_BYTES: Final = {"U8": 1, "S8": 1, "U16": 2, "S16": 2, "64": 8, "128": 16, "256": 32, "S64": 8, "U64": 8}
_UNTYPED: Final = frozenset({"void*", "void const*"})
_MOST_NESTED: Final = 8
_TENSOR_MAP: Final = 128  # bytes
_FIRST_COORDINATE: Final = {"UTMALDG": 2, "UTMASTG": 1, "UTMAREDG": 1}
"""Which of the registers has the innermost coordinate: after the place in shared memory, and the mbarrier of a load."""


@dataclass(frozen=True)
class Base:
    """A pointer that an address is based on: an argument or a part of one, else a loaded or a computed pointer."""

    value: Atom
    argument: Argument | None
    offset: int = 0
    """Where the pointer is in the argument, in bytes."""


@dataclass(frozen=True)
class Element:
    """Which element of its pointer an address is in: its index, the size of one in bytes, and the byte in it."""

    index: Poly
    size: int
    byte: int


@dataclass(frozen=True)
class Guard:
    """A condition that holds where the access runs, and the offset of the branch or access that tests it."""

    condition: Atom
    offset: int


@dataclass(frozen=True)
class Address:
    """What the address of an instruction is made of.

    `formula` is the address. Where `base` is known, it is `base + scale * index`. `offset` is the instruction's, in
    bytes from the start of its section, `calls` are the offsets of the calls that it is inside of. `bases` has more
    than one pointer where a choice decides. Of a tile that is moved through a tensor map (space `descriptor`) `formula`
    is the address of the map, and `coordinates` say which tile, the innermost first.
    """

    program: Program
    slice: Slice
    instruction: int
    offset: int
    calls: tuple[int, ...]
    opcode: str
    space: Space
    direction: Direction
    width: int
    formula: Poly
    bases: tuple[Base, ...]
    scale: int
    index: Poly | None
    guards: tuple[Guard, ...]
    coordinates: tuple[Poly, ...] = ()

    @property
    def base(self) -> Base | None:
        """The pointer, where it is one."""
        return self.bases[0] if len(self.bases) == 1 else None

    @cached_property
    def element(self) -> Element | None:
        """The element that the source subscripts; None where its size is not known or does not divide the formula."""
        return _element(self.formula - of(self.base.value), self.base, self.width) if self.base is not None else None

    @property
    def stops(self) -> bool:
        """Whether a thread cannot do it again before it is done: a load that writes registers."""
        return self.direction == "read" and bool(definitions(self.slice.code.instructions[self.instruction]))


def access_of(i: Instruction) -> tuple[Space, Direction, int] | None:
    """Return where an instruction accesses memory, how, and how many bytes; None for one that does not."""
    space = _SPACES.get(i.opcode)
    if space is None:
        return None
    width = next((_BYTES[m] for m in reversed(i.modifiers) if m in _BYTES), 4)
    if i.opcode in {"LDSM", "STSM", "SYNCS"}:
        width = 8 if i.opcode == "SYNCS" else 16  # an mbarrier; of a matrix each thread gives the address of one row
    if i.opcode.startswith(("ATOM", "RED")):
        return space, "update", width
    if space == "descriptor":
        width = _TENSOR_MAP
    if i.opcode == "UTMAREDG":
        return space, "update", width
    if i.opcode in {"ST", "STG", "STS", "STL", "STSM", "UTMASTG"}:
        return space, "write", width
    return space, "read", width


def explain_address(program: Program, offset: int, calls: Sequence[int] = ()) -> Address | None:
    """Return what the address of the instruction at an offset of the section is made of; None where it has none.

    `calls` are the offsets of the calls that lead to it, outermost first. Without them a function that is called from
    one place is explained as called there, and any other by its registers at entry.
    """
    routine = program.routine_at(offset)
    if routine is None:
        return None
    root, place = place_of(program, routine, offset, calls)
    return address_at(program, program.slice_of(root), place) if place is not None else None


def place_of(program: Program, routine: Routine, offset: int, calls: Sequence[int]) -> tuple[Routine, int | None]:
    """Return the outermost function to look at, and the number of the instruction in it as these calls reach it."""
    kernel = program.kernel
    outer = next((r for r in program.routines if kernel and r.name == kernel.name), None)
    if not program.has(offset) or not program.has(routine.start):
        return routine, None
    if outer is not None and program.has(outer.start) and outer != routine:
        code = program.slice_of(outer).code
        wanted = [
            n
            for n in code.places(offset)
            if not calls or [code.instructions[c].offset for c in code.contexts[n]][-len(calls) :] == list(calls)
        ]
        if len(wanted) == 1:
            return outer, wanted[0]
    return routine, program.slice_of(routine).code.place(offset)


def unexplained(program: Program, offset: int) -> str:
    """Return why there is no formula for what is at an offset, in words."""
    i = next((one for one in program.instructions if one.offset == offset), None)
    if i is None or i.known == "nothing":
        return f"the instruction at +{offset:#x} is not known here"
    at = f"{i.name} at {program.line(offset) or f'+{offset:#x}'}"
    if access_of(i) is None:
        return f"{at} is no access to memory whose operands are known here"
    return f"the formula of {at} is too large, or not all code that leads to it is known"


def address_at(program: Program, values: Slice, n: int) -> Address | None:
    """Return the address of instruction number n of a slice; None where it has none or it could not be put together."""
    i = values.code.instructions[n]
    access, found = access_of(i), based_at(program, values, n)
    if access is None or found is None:
        return None
    (space, direction, width), (formula, bases) = access, found
    scale, index = _index(formula, bases[0], width) if len(bases) == 1 and space != "descriptor" else (1, None)
    code = values.code
    return Address(
        program, values, n, i.offset, tuple(code.instructions[c].offset for c in code.contexts[n]), i.opcode, space,
        direction, width, formula, tuple(bases), scale, index,
        tuple(Guard(c, code.instructions[at].offset) for c, at in holding(values, n)),
        _coordinates(values, i, n) if space == "descriptor" else (),
    )  # fmt: skip


def based_at(program: Program, values: Slice, n: int) -> tuple[Poly, list[Base]] | None:
    """Return the formula of an address and the pointers that it may be based on; None as `address_at` does."""
    i = values.code.instructions[n]
    access = access_of(i)
    memories = [s for s in i.sources if isinstance(s, Memory)]
    if access is None or not memories:
        return None
    memory = addressed(i)
    try:
        for _ in range(_MOST_NESTED):
            formula = join(values.run(lambda: _formula(values, memory, n, access[0])))
            if not values.settle(variables(values, formula)):
                break
        formula = _unrolled(values, _decided(values, formula, n))
        own = _own_map(program, formula) if access[0] == "descriptor" else None
        return formula, best_bases(program, values, formula) if own is None else [own]
    except TooLarge:
        return None


def addressed(i: Instruction) -> Memory:
    """Return the operand that has the address in question: the source of a copy, the tensor map of a tile."""
    memories = [s for s in i.sources if isinstance(s, Memory)]
    return memories[-1] if i.opcode == "LDGSTS" or i.opcode in _FIRST_COORDINATE else memories[0]


def _own_map(program: Program, formula: Poly) -> Base | None:
    """Return the argument that is itself a tensor map: its address is that of the arguments plus its place."""
    window = program.window_offset
    for a in formula.atoms():
        low = a.args[0] if a.kind == "wide" else None
        rest = (formula - of(a)).constant if isinstance(low, Atom) else None
        if isinstance(low, Atom) and low.kind == "bank" and low.args[:2] == (0, window) and rest is not None:
            at = program.argument_at(program.bank_offset + rest)
            return None if at is None else Base(a, *at)
    return None


def _coordinates(values: Slice, i: Instruction, n: int) -> tuple[Poly, ...]:
    """Return where a tile is in its tensor, the innermost first; nothing where that is too large."""
    first = next(s.uniform for s in i.sources if isinstance(s, Memory))
    count = 5 if "ROWS" in i.modifiers else int(i.modifiers[0][0])
    if first is None:
        return ()
    try:
        start = first.number + _FIRST_COORDINATE[i.opcode]
        registers = [Register(first.file, start + k) for k in range(count)]
        return tuple([values.run(lambda r=r: values.register(r, n)) for r in registers])  # type: ignore[misc]
    except TooLarge:
        return ()


def holding(values: Slice, n: int) -> list[tuple[Atom, int]]:
    """Return the conditions that hold at an instruction; none where they are too large."""
    try:
        found: list[list[tuple[Atom, int]]] = []

        def hold() -> Poly:
            found.append(values.holding(n))
            return ZERO64

        values.run(hold)
        return found[-1]
    except TooLarge:
        return []


def _formula(values: Slice, memory: Memory, n: int, space: Space) -> Poly:
    wide = space in {"global", "generic", "descriptor"}
    total = constant(memory.offset, 64)
    for register, count, scale in (
        (memory.base, memory.base_count, memory.scale),
        (memory.uniform, memory.uniform_count, 1),
    ):
        if register is None or register.hardwired:
            continue
        value = values.register(register, n)
        if count == 2:
            total = total + pair(value, values.register(Register(register.file, register.number + 1), n))
        else:
            total = total + zx(value) * scale
    return norm(total) if wide else zx(lo(norm(total)))


# Selects that the branches around the access decide.


def _decided(values: Slice, formula: Poly, n: int) -> Poly:
    if not any(a.kind in {"select", "select64"} for a in formula.atoms()):
        return formula
    known = {c for c, _ in holding(values, n)}
    for _ in range(_MOST_NESTED):
        chosen = _choose_one(formula, known)
        if chosen is None:
            return formula
        formula = join(norm(chosen))
    return formula


def _choose_one(formula: Poly, known: set[Atom]) -> Poly | None:
    for a in formula.atoms():
        if a.kind not in {"select", "select64"}:
            continue
        condition, first, second = a.args
        assert isinstance(condition, Atom) and isinstance(first, Poly) and isinstance(second, Poly)
        holds = decided(condition, known)
        side = None if holds is None else first if holds else second
        split = split_by(formula, a) if side is not None else None
        if side is not None and split is not None:
            return (side if side.bits == 64 else zx(side)) * split[0] + split[1]
    return None


# Pointers that a loop moves.


def _unrolled(values: Slice, formula: Poly) -> Poly:
    """Write a pointer that every turn of a loop moves by the same as its start plus a step for each turn."""
    for _ in range(_MOST_NESTED):
        for a in formula.atoms():
            low = a.args[0] if a.kind == "wide" else None
            if not isinstance(low, Atom) or low.kind != "phi" or not values.is_header(int(str(low.args[0]))):
                continue
            loop = values.loop(a)
            split = split_by(formula, a)
            if split is None or len(loop.starts) != 1 or len(loop.steps) > 1 or loop.others or not loop.fixed:
                continue
            turn = of(atom("turn", loop.header), 64)
            start = loop.starts[0] + (loop.steps[0] * turn if loop.steps else ZERO64)
            formula = join(norm(start * split[0] + split[1]))
            break
        else:
            return formula
    return formula


# Bases.


def bases(values: Slice, formula: Poly, nested: int = 0) -> list[Atom]:
    """Return the pointers that an address may be based on: 64-bit atoms with factor one."""
    if nested > _MOST_NESTED:
        return []
    found: list[Atom] = []
    for m, c in formula.ordered():
        if c == 1 and len(m) == 1:
            found += _based_on(values, m[0], nested)
    return list(dict.fromkeys(found))


def _based_on(values: Slice, a: Atom, nested: int) -> list[Atom]:
    if a.kind == "select64":
        sides = [bases(values, x, nested + 1) for x in a.args if isinstance(x, Poly)]
        return [b for side in sides for b in side] if all(sides) else []
    if a.kind != "wide":
        return []
    low = a.args[0]
    assert isinstance(low, Atom)
    if low.kind == "phi":
        loop = values.loop(a)
        starts = [bases(values, x, nested + 1) for x in loop.starts]
        others = [bases(values, x, nested + 1) for x in loop.others if a not in inside(x)]
        return [b for side in (*starts, *others) for b in side] if starts and all(starts) and all(others) else []
    return [a] if low.kind in {"bank", "bank_at", "bindless", "load", "result", "entry"} else []


def best_bases(program: Program, values: Slice, formula: Poly) -> list[Base]:
    """Return the likeliest pointers: arguments that are pointers before others, known types before unknown ones."""
    found = [base_of(program, a) for a in bases(values, formula)]
    ranks = [_rank(b) for b in found]
    return [b for b, rank in zip(found, ranks, strict=True) if rank == min(ranks) and rank < 9]


def base_of(program: Program, a: Atom) -> Base:
    """Return an atom of 64 bits as a pointer."""
    low = a.args[0]
    if isinstance(low, Atom) and low.kind == "bank" and low.args[0] == 0 and isinstance(low.args[1], int):
        at = program.argument_at(low.args[1])
        if at is not None:
            return Base(a, at[0], at[1])
    return Base(a, None)


def _rank(base: Base) -> int:
    low = base.value.args[0]
    assert isinstance(low, Atom)
    if base.argument is not None:
        return {True: 0, None: 2, False: 9}[base.argument.pointer]
    return {"bank": 3, "bindless": 3, "bank_at": 3, "load": 3, "result": 4, "entry": 4}.get(low.kind, 5)


def _index(formula: Poly, base: Base, width: int) -> tuple[int, Poly]:
    """Return scale and index: the scale is the size of an element where that divides everything, else what does."""
    rest = formula - of(base.value)
    whole = _element(rest, base, width) if rest.terms else None
    if whole is not None and not whole.byte:
        return whole.size, whole.index
    common = math.gcd(*(abs(signed(c, 64)) for c in rest.terms.values())) if rest.terms else 0
    element = (base.argument.element if base.argument and not base.offset else None) or width
    if not rest.terms:
        return element, rest
    scale = element if common % element == 0 else width if common % width == 0 else common
    return scale, Poly({m: signed(c, 64) // scale & MASK64 for m, c in rest.terms.items()}, 64)


def element_of(address: Address, index: int) -> tuple[str, int]:
    """Return what a value of an address's index counts, and its number: elements, else bytes."""
    offset, element = index * address.scale, address.element
    return ("byte offset", offset) if element is None else ("index", offset // element.size)


def _element(rest: Poly, base: Base, width: int) -> Element | None:
    known = base.argument.element if base.argument is not None and not base.offset else None
    if known is None or (base.argument is not None and base.argument.type in _UNTYPED):
        # Elements are as large as what one number more moves an address by.
        known = width if any(m and abs(signed(c, 64)) == width for m, c in rest.terms.items()) else None
    if known is None:
        return None
    index, byte = ZERO64, 0
    for m, c in rest.terms.items():
        value = signed(c, 64)
        part = _part_of(m[0], known) if len(m) == 1 and value % known else None
        if not m:
            count, byte = divmod(value, known)
            index = index + count
        elif value % known == 0:
            index = index + Poly({m: value // known & MASK64}, 64)
        elif part is not None:
            index = index + zx(part) * value
        else:
            return None
    return Element(index, known, byte)


def _part_of(a: Atom, size: int) -> Poly | None:
    """Return a value of 32 bits divided by a power of two that divides it always; None where that is not seen."""
    if a.kind == "select" and size & (size - 1) == 0:
        condition, first, second = a.args
        assert isinstance(condition, Atom) and isinstance(first, Poly) and isinstance(second, Poly)
        if first.constant is None or second.constant is None or first.constant % size or second.constant % size:
            return None
        return select(condition, constant(first.constant // size), constant(second.constant // size))
    if a.kind != "and" or size & (size - 1):
        return None
    value, mask = a.args
    assert isinstance(value, Poly) and isinstance(mask, Poly)
    if mask.constant is None or mask.constant % size:
        return None
    # The mask leaves out what a sum of multiples has above 2^32, and what is below the size.
    moved = shift_right(value, size.bit_length() - 1)
    if all(c % size == 0 for c in value.terms.values()):
        moved = Poly({m: signed(c) // size & MASK32 for m, c in value.terms.items()}, 32)
    return bit_and(moved, constant(mask.constant // size))


# Leaves.


def leaves(values: Slice, p: Poly) -> Iterator[Atom]:
    """Yield the leaves of a formula, those that loops start with and step by included, each once."""
    seen: dict[Atom, None] = {}
    todo = [p]
    while todo:
        for a in inside(todo.pop()):
            if a in seen:
                continue
            seen[a] = None
            if a.kind == "wide" and isinstance(a.args[0], Atom) and a.args[0].kind == "phi":
                todo += _parts(values.loop(a))
                seen.update(dict.fromkeys(x for x in a.args if isinstance(x, Atom)))
            elif a.kind == "phi" and a.bits == 32:
                todo += _parts(values.loop(a))
            yield a


def variables(values: Slice, p: Poly) -> list[Atom]:
    """Return the words of the loop variables that a formula depends on."""
    found = [w for a in leaves(values, p) for w in (a.args if a.kind == "wide" else (a,)) if isinstance(w, Atom)]
    return [a for a in found if a.kind == "phi" and a.bits == 32]


def _parts(loop: Loop) -> list[Poly]:
    return [*loop.starts, *loop.steps, *loop.others]
