"""Evaluates the formulas that gpucore publishes as JSON, from the table in its documentation alone.

    value = Evaluator(tree_owner, leaves).value(answer["formula"])

That another program can do this is a promise of the format. Where the leaves come from is the caller's: `Leaves` takes
them from the interpreter at the moment of an access.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from tests.support.sass.machine import Snapshot, Thread, Where
from tests.support.sass.operands import signed

Tree = Mapping[str, Any]


class NotKnown(Exception):
    """A leaf has no value at this moment, or says nothing about where it would be found."""


def _quotient(bits: int, sign: bool, rest: bool) -> Callable[[int, int], int]:
    def run(a: int, b: int) -> int:
        if b == 0:
            if bits == 64:
                raise NotKnown("divided by 0")
            return a if rest else -1
        x, y = (signed(a, bits), signed(b, bits)) if sign else (a, b)
        quotient = abs(x) // abs(y) * (1 if (x < 0) == (y < 0) else -1)
        return x - quotient * y if rest else quotient

    return run


def _bytes(a: int, how: int, b: int) -> int:
    pool, value = a | b << 32, 0
    for n in range(4):
        code = how >> 4 * n & 15
        byte = pool >> 8 * (code & 7) & 255
        value |= (255 * (byte >> 7) if code & 8 else byte) << 8 * n
    return value


def _extended(sign: bool) -> Callable[[int, int], int]:
    def run(value: int, width: int) -> int:
        width = min(width, 32)
        value &= (1 << width) - 1
        return signed(value, width) if sign and width else value

    return run


def _any_logic(a: int, b: int, c: int, table: int) -> int:
    value = 0
    for n in range(32):
        row = (a >> n & 1) << 2 | (b >> n & 1) << 1 | (c >> n & 1)
        value |= (table >> row & 1) << n
    return value


@dataclass(frozen=True)
class Evaluator:
    """Computes trees; `leaf` gives the value of a leaf or raises `NotKnown`, `parts` are the trees of `{"part": k}`."""

    leaf: Callable[[Tree], int]
    parts: Sequence[Tree] = ()
    _known: dict[int, int] = field(default_factory=dict)

    def value(self, tree: Tree) -> int:
        """Return the value of a tree, as an unsigned number of its width."""
        bits: int = tree["bits"]
        mask = (1 << bits) - 1
        if "part" in tree:
            number: int = tree["part"]
            if number not in self._known:
                self._known[number] = self.value(self.parts[number])
            return self._known[number]
        if "op" not in tree:
            value: int = tree["constant"] if "constant" in tree else self.leaf(tree)
            return value & mask
        op, args = tree["op"], tree["args"]
        if op == "select":
            return self.value(args[1] if self.value(args[0]) else args[2]) & mask
        if op == "and" and bits == 1:
            return self._all(args)
        if op in ("in_lane", "any"):  # a warp of one thread
            return self.value(args[0]) & mask
        if op == "ballot":
            return self.value(args[0]) << self.leaf({"special": "laneId", "bits": 32})
        if op == "constant_at":
            return self.leaf({**tree, "offset": self.value(args[0])}) & mask
        return self._operation(op, bits, args, [self.value(one) for one in args]) & mask

    def _all(self, args: Sequence[Tree]) -> int:
        missing: NotKnown | None = None
        for one in args:
            try:
                if not self.value(one):
                    return 0
            except NotKnown as error:
                missing = error
        if missing is not None:
            raise missing
        return 1

    def _operation(self, op: str, bits: int, args: Sequence[Tree], values: list[int]) -> int:
        if op == "add":
            return sum(values)
        if op == "mul":
            product = 1
            for one in values:
                product *= one
            return product
        if op in _FOLDED:
            result = values[0]
            for one in values[1:]:
                result = _FOLDED[op](result, one)
            return result
        width = args[0]["bits"]
        if op in ("eq", "lt_u", "lt_s"):
            a, b = (signed(one, width) for one in values) if op == "lt_s" else values
            return int(a == b if op == "eq" else a < b)
        if op in _BY_WIDTH:
            return _BY_WIDTH[op](bits if op not in ("low", "high", "pair") else 32, *values)
        if op in _EXTENDED:
            return signed(values[0], 32) if op == "sign_extend" else values[0]
        return _PLAIN[op](*values)


_FOLDED: Final[dict[str, Callable[[int, int], int]]] = {
    "and": lambda a, b: a & b, "or": lambda a, b: a | b, "xor": lambda a, b: a ^ b,
}  # fmt: skip
_EXTENDED: Final = frozenset(("zero_extend", "sign_extend"))
_BY_WIDTH: Final[dict[str, Callable[..., int]]] = {
    "not": lambda bits, a: ~a,
    "shl": lambda bits, a, n: a << n if n < bits else 0,
    "shr": lambda bits, a, n: a >> n if n < bits else 0,
    "sar": lambda bits, a, n: signed(a, bits) >> min(n, bits),
    "low": lambda bits, a: a & 0xFFFFFFFF,
    "high": lambda bits, a: a >> 32,
    "pair": lambda bits, low, high: low | high << 32,
    "abs": lambda bits, a: abs(signed(a, bits)),
    "min_s": lambda bits, a, b: min(signed(a, bits), signed(b, bits)),
    "max_s": lambda bits, a, b: max(signed(a, bits), signed(b, bits)),
    "div_s": lambda bits, a, b: _quotient(bits, True, False)(a, b),
    "div_u": lambda bits, a, b: _quotient(bits, False, False)(a, b),
    "rem_s": lambda bits, a, b: _quotient(bits, True, True)(a, b),
    "rem_u": lambda bits, a, b: _quotient(bits, False, True)(a, b),
}  # fmt: skip
_PLAIN: Final[dict[str, Callable[..., int]]] = {
    "min_u": min, "max_u": max, "mulhi_u": lambda a, b: a * b >> 32,
    "mulhi_s": lambda a, b: signed(a) * signed(b) >> 32, "lop3": _any_logic, "prmt": _bytes, "sgxt": _extended(True),
    "ugxt": _extended(False), "popc": lambda a: int(a).bit_count(), "brev": lambda a: int(f"{a:032b}"[::-1], 2),
    "flo": lambda a: a.bit_length() - 1,
}  # fmt: skip


def published(answer: Tree, pointer: str) -> Tree | None:
    """Return the formula at a JSON pointer of an answer, large ones from their parts; None where there is none."""
    found: Any = answer
    for step in pointer[1:].split("/"):
        found = found[int(step) if isinstance(found, list) else step]
        if found is None:
            break
    in_parts = answer["in_parts"]
    tree: Tree | None = in_parts["formulas"].get(pointer) if found is None and in_parts is not None else found
    return tree


def evaluator(answer: Tree, leaf: Callable[[Tree], int]) -> Evaluator:
    """Return what computes the formulas of an answer."""
    return Evaluator(leaf, (answer["in_parts"] or {"parts": ()})["parts"])


@dataclass(frozen=True)
class Leaves:
    """The leaves of an answer at the moment of an access, from the interpreter.

    `outer` are the calls around the function that the answer is about, which begins at `entry`. `places` give of each
    argument where it lies in `parameters` and how long it is, `destination` the first register that a load writes.
    """

    answer: Tree
    thread: Thread
    outer: tuple[int, ...]
    parameters: bytes
    places: Sequence[tuple[int, int]]
    specials: Mapping[str, int]
    entry: int
    destination: Callable[[int], str]

    def __call__(self, leaf: Tree) -> int:
        """Return the value of a leaf."""
        if "parameter" in leaf:
            start, _ = self.places[leaf["parameter"] - 1]
            first, last = leaf["bytes"]
            return int.from_bytes(self.parameters[start + first : start + last], "little")
        if "special" in leaf:
            if leaf["special"] not in self.specials:
                raise NotKnown(f"special {leaf['special']}")
            return self.specials[leaf["special"]]
        if "loaded" in leaf:
            load = self.answer["loads"][leaf["loaded"]]
            number = self.destination(load["offset"])
            first, last = leaf["bytes"]
            held = self._at(self.thread.after, load["offset"], load["calls"])
            return _word(held, number, first // 4, (last - first) // 4)
        if "loop" in leaf:
            return self._loop(self.answer["loops"][leaf["loop"]])
        if "entry" in leaf:
            held = self._at(self.thread.before, self.entry, self.answer["calls"])
            return _register(held, leaf["entry"], leaf["bits"])
        if "at" in leaf:
            held = self._at(self.thread.after, leaf["at"], leaf.get("calls", self.answer["calls"]))
            return _register(held, leaf["register"], leaf["bits"])
        if leaf.get("op") == "constant_at" or "constant_bank" in leaf:
            bank = self.thread.banks.get(leaf.get("bank", leaf.get("constant_bank")), b"")
            at, size = leaf["offset"], leaf["bytes"]
            return int.from_bytes(bank[at : at + size].ljust(size, b"\0"), "little")
        raise NotKnown(str(leaf))

    def _loop(self, loop: Tree) -> int:
        if not loop["registers"]:
            turns = self.thread.turns.get(self._where(loop["offset"], loop["calls"]))
            if turns is None:
                raise NotKnown("a loop that was not entered")
            return turns
        held = self._at(self.thread.before, loop["offset"], loop["calls"])
        return word_of(held, loop["registers"])

    def _where(self, offset: int, calls: Sequence[int]) -> Where:
        return offset, (*self.outer, *calls)

    def _at(self, moments: Mapping[Where, Snapshot], offset: int, calls: Sequence[int]) -> Snapshot:
        held = moments.get(self._where(offset, calls))
        if held is None:
            raise NotKnown(f"{offset:#x} was not executed")
        return held


def watched(answer: Tree) -> tuple[set[int], set[int]]:
    """Return the offsets whose registers the leaves of an answer need, and the first offsets of the loops."""
    offsets = {one["offset"] for one in answer["loads"]} | {one["offset"] for one in answer["loops"]}
    loops = {one["offset"] for one in answer["loops"] if not one["registers"]}

    def walk(node: object) -> None:
        if isinstance(node, dict):
            if "opaque" in node and "at" in node:
                offsets.add(node["at"])
            for one in node.values():
                walk(one)
        elif isinstance(node, list):
            for one in node:
                walk(one)

    walk(answer)
    return offsets, loops


def word_of(held: Snapshot, registers: Sequence[str]) -> int:
    """Return what registers hold together, the lowest word first."""
    return sum(_register(held, name, 32) << 32 * n for n, name in enumerate(registers))


def _word(held: Snapshot, register: str, first: int, count: int) -> int:
    file, number = (held.uniform, register[2:]) if register.startswith("U") else (held.general, register[1:])
    words = file[int(number) + first : int(number) + first + count]
    return sum(word << 32 * n for n, word in enumerate(words))


def _register(held: Snapshot, name: str, bits: int) -> int:
    if name[:2] == "UP" and name[2:].isdigit():
        return int(held.uniform_predicates[int(name[2:])])
    if name[0] == "P" and name[1:].isdigit():
        return int(held.predicates[int(name[1:])])
    if name.lstrip("UR").isdigit():
        return _word(held, name, 0, max(bits // 32, 1))
    raise NotKnown(f"register {name}")
