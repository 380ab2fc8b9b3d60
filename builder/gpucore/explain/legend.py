"""The leaves of an address: its loads, loop variables and what it does not look into, numbered as they are met."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from gpucore.explain.address import Address, address_at
from gpucore.explain.algebra import Atom, Poly, inside, polys_in, written_size
from gpucore.explain.program import Argument
from gpucore.explain.slice import Loop
from gpucore.explain.tree import Json
from gpucore.sass import definitions

_MOST_LOADS: Final = 24
_MOST_LOOPS: Final = 24
_MOST_GUARDS: Final = 4
_MOST_GUARDED: Final = 100


@dataclass(frozen=True)
class LoadedValue:
    """A load that an address depends on; `address` is where it loads from, None where that is not known."""

    number: int
    instruction: int
    offset: int
    calls: tuple[int, ...]
    opcode: str
    address: Address | None


@dataclass(frozen=True)
class LoopValue:
    """A variable of a loop, or how often it has turned; `offset` is where the loop's body starts.

    `registers` hold it when the body starts. Without any it is the number of turns.
    """

    number: int
    leaf: Atom
    offset: int
    calls: tuple[int, ...]
    registers: tuple[str, ...]
    loop: Loop | None


class Legend:
    """What the leaves of an address are called; made once, in the order in which the text names them."""

    def __init__(self, address: Address) -> None:
        self.address = address
        self.loads: dict[int, LoadedValue] = {}
        self.loops: dict[Atom, LoopValue] = {}
        self.opaque: dict[Atom, str] = {}
        self._seen: set[Atom] = set()
        todo: list[Poly] = [self.address.formula, *self.address.coordinates]
        for guard in self.address.guards[:_MOST_GUARDS]:
            if written_size(guard.condition) <= _MOST_GUARDED:
                todo += polys_in(guard.condition)
        self.follow(todo)

    def follow(self, todo: list[Poly]) -> None:
        """Number the leaves of formulas, and those of the addresses and loops that these lead to."""
        seen = self._seen
        while todo:
            for a in inside(todo.pop(0)):
                if a in seen:
                    continue
                seen.add(a)
                if a.kind == "load" and isinstance(a.args[0], int) and a.args[0] not in self.loads:
                    loaded = self._load(a.args[0])
                    if loaded is not None and loaded.address is not None:
                        todo.append(loaded.address.formula)
                elif a.kind in {"phi", "wide", "turn"} and len(self.loops) < _MOST_LOOPS:
                    if a.kind == "wide" and not (isinstance(a.args[0], Atom) and a.args[0].kind == "phi"):
                        continue
                    found = self._loop(a)
                    seen.update(x for x in a.args if isinstance(x, Atom))
                    if found.loop is not None:
                        todo += [*found.loop.starts, *found.loop.steps, *found.loop.others]
                elif a.kind in {"opaque", "result", "entry", "recip", "bindless", "carry_bit"}:
                    self.opaque[a] = self.opcode_of(a)

    def _load(self, n: int) -> LoadedValue | None:
        if len(self.loads) >= _MOST_LOADS:
            return None
        values = self.address.slice
        code = values.code
        i = code.instructions[n]
        calls = tuple(code.instructions[c].offset for c in code.contexts[n])
        address = address_at(self.address.program, values, n)
        found = LoadedValue(len(self.loads), n, i.offset, calls, i.opcode, address)
        self.loads[n] = found
        return found

    def _loop(self, a: Atom) -> LoopValue:
        values = self.address.slice
        code = values.code
        halves = [x for x in a.args if isinstance(x, Atom)] if a.kind == "wide" else [a]
        header = halves[0].args[0]
        assert isinstance(header, int)
        first = code.blocks[header][0]
        calls = tuple(code.instructions[c].offset for c in code.contexts[first])
        registers = () if a.kind == "turn" else tuple(f"{x.args[1]}{x.args[2]}" for x in halves)
        loop = None if a.kind == "turn" or a.bits == 1 else values.loop(a)
        offset = code.instructions[first].offset
        found = self.loops[a] = LoopValue(len(self.loops), a, offset, calls, registers, loop)
        return found

    def opcode_of(self, a: Atom) -> str:
        """Return the opcode whose result is not looked into."""
        site = a.args[0]
        if a.kind in {"opaque", "result"} and isinstance(site, tuple):
            return self.address.slice.code.instructions[site[0]].opcode
        return {"recip": "MUFU", "bindless": "LDC", "carry_bit": "IADD3"}.get(a.kind, a.kind)

    def argument(self, a: Atom) -> tuple[Argument, int] | None:
        """Return the argument that a word or pair of constant bank 0 is of, and the byte where it starts."""
        low = a.args[0] if a.kind == "wide" else a
        if isinstance(low, Atom) and low.kind == "bank" and low.args[0] == 0 and isinstance(low.args[1], int):
            return self.address.program.argument_at(low.args[1])
        return None

    def leaf(self, a: Atom, words: int) -> Json:
        """Return a leaf of the published tree."""
        bits = 32 * words if a.bits != 1 else 1
        low = a.args[0] if a.kind == "wide" else a
        assert isinstance(low, Atom)
        if a in self.loops:
            return {"loop": self.loops[a].number, "bits": 64 if a.kind == "turn" else bits}
        if low.kind == "special":
            return {"special": low.args[0], "bits": 32}
        if low.kind == "bank":
            bank, offset, size = low.args
            size = 8 if words == 2 else size
            found = self.argument(low)
            if found is not None and isinstance(size, int):
                return {"parameter": found[0].number, "bytes": [found[1], found[1] + size], "bits": bits}
            return {"constant_bank": bank, "offset": offset, "bytes": size, "bits": bits}
        if low.kind == "load" and low.args[0] in self.loads:
            n, word, _ = low.args
            assert isinstance(n, int) and isinstance(word, int)
            return {"loaded": self.loads[n].number, "bytes": [4 * word, 4 * (word + words)], "bits": bits}
        if low.kind == "entry":
            return {"entry": f"{low.args[0]}{low.args[1]}", "bits": bits}
        return self._opaque(low, bits)

    def _opaque(self, a: Atom, bits: int) -> Json:
        tree: Json = {"opaque": self.opcode_of(a), "bits": bits}
        site = a.args[0]
        if isinstance(site, tuple) and len(site) == 2 and isinstance(site[0], int):
            code = self.address.slice.code
            tree["at"] = code.instructions[site[0]].offset
            tree["register"] = f"{site[1]}{a.args[1]}"
        elif a.kind == "phi":
            code, block, file, number = self.address.slice.code, *a.args
            assert isinstance(block, int)
            tree["at"] = code.instructions[code.blocks[block][0]].offset
            tree["register"] = f"{file}{number}"
        elif a.kind == "load":
            n, word, _ = a.args
            assert isinstance(n, int) and isinstance(word, int)
            instruction = self.address.slice.code.instructions[n]
            written = [r for r in definitions(instruction) or () if not r.predicate]
            tree["at"] = instruction.offset
            tree["register"] = "".join(f"{r.file}{r.number}" for r in written[word : word + 1])
        return tree
