"""How an address is written: the names of its leaves, its formula as text for people and as a tree for programs.

In text it has the words of the program: `key_cache + 2 * (block_stride * (slot / block_size) + threadIdx.x)`. The tree
is one that another program can evaluate.

An inner node is `{"op": NAME, "bits": N, "args": [...]}`; its value has N bits and wraps. Arguments have the same
width, but for the ones named here:

| op | value |
| --- | --- |
| `add`, `mul` | of two or more arguments |
| `and`, `or`, `xor` | of bits; with `bits` 1 of conditions: one that is 0 is enough for `and` |
| `not` | the opposite condition |
| `eq`, `lt_u`, `lt_s` | a condition: 1 or 0; the arguments have 32 or 64 bits, `lt_s` reads them as signed |
| `select` | [condition, a, b]: a where the condition is 1, else b; only that one need have a value |
| `shl`, `shr`, `sar` | [value, count]; `sar` repeats the sign; a count of `bits` or more leaves nothing but the sign |
| `zero_extend`, `sign_extend` | 32 to 64 bits |
| `low`, `high` | the halves of 64 bits |
| `pair` | [low, high] to 64 bits |
| `min_s`, `max_s`, `min_u`, `max_u`, `abs` | of signed or unsigned numbers |
| `div_u`, `div_s`, `rem_u`, `rem_s` | towards 0; all ones for a divisor of 0 in 32 bits, no value in 64 |
| `mulhi_u`, `mulhi_s` | the upper 32 bits of the product of two values of 32 bits |
| `lop3` | [a, b, c, table]: for each bit, bit 4a+2b+c of the table |
| `prmt` | [a, selector, b]: four bytes of {b:a}, by the nibbles of the selector; 8 in a nibble repeats the sign |
| `sgxt`, `ugxt` | [value, n]: the lowest n bits, extended with their sign or with zeros |
| `popc`, `brev`, `flo` | number of ones; bits reversed; number of the highest one, else all ones |
| `constant_at` | [offset]: a word of constant bank `bank` |
| `in_lane` | [value, lane]: the value in another thread of the warp |
| `any`, `ballot` | [condition]: 1 where it holds in any thread that runs it; a bit for each thread in which it does |

A leaf has `bits` too: `{"constant": n}`; `{"parameter": k, "bytes": [from, to]}` of argument k, counted from 1;
`{"special": NAME}`; `{"special": "elected", "at": offset, "register": P}`, 1 in the one thread that the ELECT there
chooses of those that run it, else 0; `{"special": "electedLane", "at": offset, "register": R}`, the lane of that one;
`{"constant_bank": b, "offset": o, "bytes": n}`; `{"loaded": k, "bytes": [from, to]}`, bytes of the
registers that the load `loads[k]` wrote; `{"loop": k}`, the variable `loops[k]`; `{"opaque": OPCODE, "at": offset,
"register": R}`, what that instruction wrote; `{"entry": R}`, what a register had when the function was entered.
What is too large for one tree is in `in_parts`, where `{"part": k}` means the tree `in_parts.parts[k]`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

from gpucore.explain.address import Address, address_at
from gpucore.explain.algebra import (
    MASK32,
    TWO32,
    Atom,
    Poly,
    TooLarge,
    atom,
    carry_parts,
    extend,
    fits,
    inside,
    join,
    most,
    norm,
    of,
    polys_in,
    written_size,
    zx,
)
from gpucore.explain.evaluate import LEAVES
from gpucore.explain.operations import signed
from gpucore.explain.program import Argument
from gpucore.explain.slice import Loop
from gpucore.sass import Constant, Register, RegisterOperand, definitions

Node: TypeAlias = Poly | Atom
_MOST_LOADS: Final = 24
_MOST_LOOPS: Final = 64
_MOST_GUARDS: Final = 4
_MOST_GUARDED: Final = 100
_MOST_MADE: Final = 4


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
        self.made_from: dict[Atom, tuple[tuple[Atom, ...], bool]] = {}
        """Of values in the formula that are not looked into what they are made from, and whether that is all of it."""
        for a in [x for p in (self.address.formula, *self.address.coordinates) for x in inside(p)]:
            if a.kind == "opaque" and a.bits == 32 and a not in self.made_from and len(self.made_from) < _MOST_MADE:
                made, whole = self._sources(a)
                if any(x.kind == "load" for x in made):
                    self.made_from[a] = made, whole
                    self.follow([of(x) for x in made])

    def _sources(self, a: Atom) -> tuple[tuple[Atom, ...], bool]:
        """Return the loads and arguments that lead to a value which is not looked into, and whether these are all."""
        values, found, seen, whole = self.address.slice, dict[Atom, None](), {a}, True
        todo = [a]
        while todo and len(seen) < _MOST_GUARDED:
            site = todo.pop(0).args[0]
            if not isinstance(site, tuple) or not isinstance(site[0], int):
                return (), False
            i = values.code.instructions[site[0]]
            whole &= bool(i.sources) and i.guard is None
            for x in [x for source in i.sources for x in self._read(source, site[0])]:
                if x.kind in {"load", "bank", "special"}:
                    found[x] = None
                elif x.kind == "opaque" and x.bits == 32:
                    todo += [x] if x not in seen else []
                    seen.add(x)
                else:
                    whole &= x.kind not in LEAVES
        return (tuple(found), whole and not todo) if len(found) <= _MOST_MADE else ((), False)

    def _read(self, source: object, n: int) -> list[Atom]:
        """Return what the operand of an instruction holds, as the atoms in it."""
        values = self.address.slice
        polys: list[Poly] = []
        try:
            if isinstance(source, RegisterOperand) and not source.register.predicate:
                polys += [values.run(lambda r=r: values.register(r, n)) for r in source.registers]  # type: ignore[misc]
            elif isinstance(source, Constant) and source.bank is not None and source.index is None:
                polys.append(values.bank_word(source.bank, source.offset))
        except TooLarge:
            return []
        return [x for p in polys for x in inside(p)]

    def follow(self, todo: list[Poly]) -> None:
        """Number the leaves of formulas, and those of the addresses and loops that these lead to."""
        seen = self._seen
        while todo:
            atoms = inside(todo.pop(0))
            halves = {x for a in atoms if a.kind == "wide" for x in a.args if isinstance(x, Atom) and x.kind == "phi"}
            for a in atoms:
                if a in seen or a in halves:
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
        loop = None if a.kind == "turn" else values.loop(a)
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

    def indexed_argument(self, a: Atom) -> tuple[Argument, Poly] | None:
        """Return the argument that holds an array which is read at an index, and the place in it, in bytes."""
        low = a.args[0] if a.kind == "wide" else a
        if not isinstance(low, Atom) or low.kind != "bank_at" or low.args[0] != 0:
            return None
        place = low.args[1]
        assert isinstance(place, Poly)
        start = signed(place.terms.get((), 0))
        rest = place - start
        reach = most(rest) if fits(rest) else 0  # an index without a known end starts in its array, as a rule
        found = self.address.program.argument_at(start)
        if found is None or found[0].size <= 8 or found[1] + reach >= found[0].size:
            return None
        return found[0], rest + found[1]

    def copied_argument(self, a: Atom) -> Argument | None:
        """Return the argument that a pointer was copied from, if local memory has it and holds that argument alone."""
        low = a.args[0] if a.kind == "wide" else a
        site = low.args[0] if isinstance(low, Atom) and low.kind == "load" else None
        loaded = self.loads.get(site) if isinstance(site, int) else None
        if loaded is None or loaded.opcode != "LDL" or self.address.program.table is None:
            return None
        values = self.address.slice
        found: set[Argument | None] = set()
        for n, i in enumerate(values.code.instructions):
            data = i.sources[-1] if i.opcode in {"STL", "ST"} and i.sources else None
            if i.opcode == "ST" or n in values.code.called:
                return None
            if not isinstance(data, RegisterOperand):
                continue
            for r in data.registers or (None,):
                word = None if r is None else self._stored(r, n)
                at = self.argument(word) if word is not None and word.kind == "bank" else None
                found.add(at[0] if at is not None else None)
        return next(iter(found)) if len(found) == 1 else None

    def _stored(self, r: Register, n: int) -> Atom | None:
        values = self.address.slice
        try:
            return values.run(lambda: values.register(r, n)).single
        except TooLarge:
            return None

    def is_unsigned(self, a: Atom) -> bool:
        """Say whether a leaf is a number without a sign by the type of the argument that it is, or is loaded from."""
        low = a.args[0] if a.kind == "wide" else a
        if not isinstance(low, Atom):
            return False
        if low.kind == "load" and isinstance(low.args[0], int):
            loaded = self.loads.get(low.args[0])
            base = loaded.address.base if loaded is not None and loaded.address is not None else None
            return (
                base is not None
                and base.argument is not None
                and base.argument.pointer is True
                and (base.argument.unsigned)
            )
        found = self.argument(a)
        return found is not None and found[1] == 0 and not found[0].pointer and found[0].unsigned

    def leaf(self, a: Atom, words: int) -> Json:
        """Return a leaf of the published tree."""
        bits = 32 * words if a.bits != 1 else 1
        low = a.args[0] if a.kind == "wide" else a
        assert isinstance(low, Atom)
        if a in self.loops:
            return {"loop": self.loops[a].number, "bits": 64 if a.kind == "turn" else bits}
        if low.kind == "special":
            return {"special": low.args[0], "bits": 32}
        if low.kind in {"elected", "electedLane"}:
            return {"special": low.kind, "bits": bits, **self._written(low)}
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
        variable = self.variable_of(low)
        if variable is not None and words == 1:
            half = "low" if variable.leaf.args[0] is low else "high"
            return {"op": half, "bits": 32, "args": [{"loop": variable.number, "bits": 64}]}
        return self._opaque(low, bits)

    def variable_of(self, a: Atom) -> LoopValue | None:
        """Return the loop variable of two words that an atom is a word of."""
        return next((found for x, found in self.loops.items() if x.kind == "wide" and a in x.args), None)

    def _opaque(self, a: Atom, bits: int) -> Json:
        tree: Json = {"opaque": self.opcode_of(a), "bits": bits}
        site = a.args[0]
        if isinstance(site, tuple) and len(site) == 2 and isinstance(site[0], int):
            tree |= self._written(a)
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

    def _written(self, a: Atom) -> Json:
        """Return which instruction wrote a value to which register."""
        site, number = a.args
        assert isinstance(site, tuple)
        return {"at": self.address.slice.code.instructions[site[0]].offset, "register": f"{site[1]}{number}"}


# Text.

WEAK: Final = " (by one register alone)"  # after a value that nothing confirms
_SIGNS: Final = {
    "udiv": "/", "sdiv": "/", "udiv64": "/", "sdiv64": "/", "urem": "%", "srem": "%", "urem64": "%", "srem64": "%",
    "and": "&", "or": "|", "xor": "^", "shr": ">>", "sar": ">>", "shl": "<<", "shr64": ">>", "sar64": ">>",
}  # fmt: skip
_NAMES: Final = {"smin": "min", "umin": "min", "smax": "max", "umax": "max"}
_RELATIONS: Final = {"eq": ("==", "!="), "lt_u": ("<", ">="), "lt_s": ("<", ">=")}
_LONGEST: Final = 600
_DEEPEST: Final = 40
_MOST_NODES: Final = 400
_MOST_SHARED: Final = 4000
_MOST_PARTS: Final = 48  # of one answer: more is no help to a reader
_LONG_PART: Final = 100
_LONG_SHARED: Final = 24  # characters, from which on what is used more than once has a name
_MARKED: Final = re.compile("\x00([0-9]+)\x00")


class Words:
    """Writes the formulas of one address."""

    def __init__(self, legend: Legend, names: dict[int, str] | None = None) -> None:
        self.legend = legend
        self.names = names or {}
        self._depth = 0
        self._uses: dict[Node, int] = {}
        self._parts: dict[Node, str] = {}  # the mark that stands for a part in text
        self._texts: list[str] = []

    def _conjuncts(self, a: Atom) -> Iterator[Atom]:
        for x in a.args:
            assert isinstance(x, Atom)
            yield from self._conjuncts(x) if x.kind == "all" and x not in self._parts else (x,)

    # Parts: a formula that is too long for one line is written in several, each part once.

    def share(self, formulas: Sequence[Node]) -> None:
        """Make parts of what is long or repeated in formulas, if one of these is too long for one line."""
        if all(written_size(x) <= _MOST_NODES // 4 for x in formulas):
            return
        self._uses = uses_in(formulas)
        if len(self._uses) > _MOST_SHARED:
            self._uses = {}
            return
        self._depth = 1
        for a in sorted((x for x in self._uses if isinstance(x, Atom)), key=lambda a: a.depth):
            if a.bits != 1:
                self.atom(a)
            elif a.kind != "not":
                self.condition(a)
        self._depth = 0

    def with_parts(self, lines: Sequence[str], more: Sequence[str] = ()) -> list[str]:
        """Return lines, each followed by the parts that it is the first to name.

        A line that would add too many parts adds none: `...` stands for those that no other line names. So it is in
        the lines of `more`.
        """
        texts, found, numbers = self._texts, list[str](), dict[int, int]()

        def needed(line: str) -> Iterator[int]:
            for match in _MARKED.finditer(line):
                n = int(match[1])
                if n not in numbers:
                    yield from needed(texts[n])
                    numbers[n] = len(numbers) + 1
                    yield n

        for line in lines:
            before = dict(numbers)
            new = list(needed(line))
            if len(numbers) > _MOST_PARTS:
                numbers, new = before, []
            found += [line, *(f"part{numbers[n]} is {_bare(texts[n])}" for n in new)]
        return [
            _MARKED.sub(lambda match: f"part{numbers[n]}" if (n := int(match[1])) in numbers else "...", line)
            for line in (*found, *more)
        ]

    def _part(self, x: Node, text: str) -> str:
        """Return a text, or a mark for it if it is long enough to be a part."""
        if not self._uses or len(text) <= (_LONG_SHARED if self._uses.get(x, 0) > 1 else _LONG_PART):
            return text
        self._texts.append(text)
        self._parts[x] = f"\x00{len(self._texts) - 1}\x00"
        return self._parts[x]

    def _too_large(self, x: Node) -> bool:
        return not self._uses and written_size(x) > _MOST_NODES

    def formula(self, p: Poly) -> str:
        """Return a formula, cut where it is too long to read."""
        return self.cut(p, _LONGEST)

    def cut(self, p: Poly, most: int, bracketed: bool = False) -> str:
        """Return a formula, cut after `most` characters; later where it has parts, since they keep it short."""
        text = self.poly(p, bracketed)
        most = _LONGEST if self._uses else most
        return text if len(text) <= most else f"{text[:most].rpartition(' ')[0]} ..."

    def poly(self, p: Poly, bracketed: bool = False) -> str:
        """Return a sum, in brackets where it is more than one term and is part of a term."""
        if p in self._parts:
            return self._parts[p]
        p = _joined(p)
        if self._depth > _DEEPEST or self._too_large(p):
            return "..."
        if not p.terms:
            return "0"
        self._depth += 1
        try:
            text = self._remainder(p, bracketed)
            if text is None:
                text = self._sum(p, bracketed)
        finally:
            self._depth -= 1
        return self._part(p, text) if self._depth and len(p.terms) > 1 else text

    def _sum(self, p: Poly, bracketed: bool) -> str:
        parts = [self._term(m, c, p.bits) for m, c in p.ordered()]
        text = " + ".join(parts).replace("+ -", "- ")
        return f"({text})" if bracketed and len(parts) > 1 else text

    def _remainder(self, p: Poly, bracketed: bool) -> str | None:
        """Return (x - d * (x / d)) * f as f * (x % d)."""
        for a in p.atoms():
            if a.kind not in {"udiv", "sdiv", "udiv64", "sdiv64"}:
                continue
            over, under = a.args
            assert isinstance(over, Poly) and isinstance(under, Poly)
            if over.bits != p.bits:
                continue
            for factor in _factors(p, a, under):
                scaled = (over - under * of(a)) * factor
                if not all(p.terms.get(m) == c for m, c in scaled.terms.items()):
                    continue
                text = f"({self.poly(over, True)} % {self._operand(under)})"
                text = text if factor.constant == 1 else f"{self.poly(factor, True)}*{text}"
                rest = p - scaled
                if not rest.terms:
                    return text
                text = f"{text} + {self.poly(rest)}".replace("+ -", "- ")
                return f"({text})" if bracketed else text
        return None

    def _term(self, m: tuple[Atom, ...], c: int, bits: int) -> str:
        value = signed(c, bits)
        factors = "*".join(self.atom(a) for a in m)
        if not m:
            return number(value)
        return factors if value == 1 else f"-{factors}" if value == -1 else f"{number(value)}*{factors}"

    def atom(self, a: Atom) -> str:
        """Return an atom in words."""
        if a in self._parts:
            return self._parts[a]
        if self._too_large(a):
            return "(...)"
        kind, first = a.kind, a.args[0] if a.args else None
        if kind in {"zx", "sx", "named"} and isinstance(first, Poly):
            text = self.poly(first, True)
            return f"({text})" if text.startswith("-") else text
        if kind in {"phi", "turn"} or a in self.legend.loops:
            return self._loop(a)
        if kind == "wide":
            return self._wide(a)
        if kind == "special":
            return str(first)
        if kind == "bank":
            return self._bank(a, 4)
        if kind == "load":
            return self._load(a)
        if kind in {"select", "select64", "choose"}:
            condition, x, y = a.args
            assert isinstance(condition, Atom)
            return self._part(a, f"({self.condition(condition)} ? {self._any(x)} : {self._any(y)})")
        if kind in _SIGNS:
            return self._part(a, f"({self._any(a.args[0])} {_SIGNS[kind]} {self._operand(a.args[1])})")
        if a.bits == 1:
            return f"({self.condition(a)})"
        return self._part(a, self._other(a)) if kind not in LEAVES else self._other(a)

    def _other(self, a: Atom) -> str:
        if a.kind == "sign":
            return f"({self._any(a.args[0])} < 0 ? -1 : 0)"
        if a.kind == "hi":
            return f"upper32({self._any(a.args[0])})"
        if a.kind == "lo":
            return f"lower32({self._any(a.args[0])})"
        if a.kind == "bank_at":
            return self._bank_at(a, int(str(a.args[2])))
        if a.kind == "funnel":
            low, high, by = a.args
            assert isinstance(low, Poly) and isinstance(high, Poly)
            whole = _joined(zx(low) + extend(high) * TWO32)
            if not _has_halves(whole):
                return f"({self.poly(whole, True)} >> {self._any(by)})"
            return f"(({self._any(a.args[1])}:{self._any(a.args[0])}) >> {self._any(a.args[2])})"
        if a.kind in {"opaque", "result", "elected", "electedLane"}:
            place = self._place(a)
            return f"{{{self.legend.opcode_of(a)}{place}}}"
        if a.kind == "entry":
            return f"{a.args[0]}{a.args[1]} at entry"
        if a.kind == "carry":
            return "carry"
        if a.kind == "sgxt" and isinstance(a.args[1], Poly) and a.args[1].constant in (8, 16):
            return f"({'char' if a.args[1].constant == 8 else 'short'}){self._operand(a.args[0])}"
        name = _NAMES.get(a.kind.removesuffix("64"), a.kind.removesuffix("64"))
        return f"{name}({', '.join(map(self._plain, a.args))})"

    def _place(self, a: Atom) -> str:
        site = a.args[0]
        if not isinstance(site, tuple):
            return ""
        program = self.legend.address.program
        offset = self.legend.address.slice.code.instructions[site[0]].offset
        return f" at {program.line(offset) or f'+{offset:#x}'}"

    def _any(self, x: object) -> str:
        return self.poly(x, True) if isinstance(x, Poly) else self.atom(x) if isinstance(x, Atom) else str(x)

    def _operand(self, x: object) -> str:
        """Return what follows a sign that binds as a product does, or a cast: a product in brackets too."""
        text = self._any(x)
        return f"({text})" if isinstance(x, Poly) and x.constant is None and not _is_closed(text) else text

    def _plain(self, x: object) -> str:
        if isinstance(x, Atom) and x.bits == 1:
            return self.condition(x)
        return self.poly(x) if isinstance(x, Poly) else self._any(x)

    def _wide(self, a: Atom) -> str:
        low, high = a.args
        assert isinstance(low, Atom) and isinstance(high, Atom)
        if low.kind == "bank":
            return self._bank(low, 8)
        if low.kind == "bank_at":
            return self._bank_at(low, 8)
        if low.kind == "load":
            return self._load(low, whole=True)
        if low.kind in {"opaque", "result", "entry"}:
            return self.atom(low)
        return f"({self.atom(high)}:{self.atom(low)})"

    def _bank(self, a: Atom, size: int) -> str:
        bank, offset, width = a.args
        size = size if size == 8 else int(str(width))
        found = self.legend.argument(a)
        if found is None:
            return f"c[{bank}][{offset:#x}]"
        argument, at = found
        if at == 0 and argument.size <= size:
            return argument.words
        return f"{argument.words}.bytes[{at}:{at + size}]"

    def _bank_at(self, a: Atom, size: int) -> str:
        """Return so many bytes from a place on that an index gives: of an argument, else of a constant bank."""
        bank, offset, _ = a.args
        found = self.legend.indexed_argument(a)
        if found is None:
            return f"c[{bank}][{self._plain(offset)}]"
        argument, place = found
        return f"{argument.words}.bytes[{self.poly(place)}:+{size}]"

    def _load(self, a: Atom, whole: bool = False) -> str:
        """Return a word of what was loaded, or the value of 64 bits that starts with it."""
        n, word, _ = a.args
        assert isinstance(n, int) and isinstance(word, int)
        found = self.legend.loads.get(n)
        if found is None:
            return "loaded"
        name = self.names.get(found.number, f"loaded{found.number + 1}")
        width = found.address.width if found.address is not None else 4
        if width <= 4 or word >= 8 or (whole and width == 8):
            return name
        base = found.address.base if found.address is not None else None
        element = base.argument.scalar if base is not None and base.argument is not None and not base.offset else None
        if element == 8 and not whole and width == 8:
            return f"{'upper' if word else 'lower'}32({name})"
        return f"{name}.{'xyzw'[word // 2] if element == 8 and whole else 'xyzwabcd'[word]}"

    def _loop(self, a: Atom) -> str:
        found = self.legend.loops.get(a)
        if found is not None:
            return f"turn{found.number + 1}" if a.kind == "turn" else f"loop{found.number + 1}"
        found = self.legend.variable_of(a)
        if found is None:
            return "loop"
        return f"{'lower' if found.leaf.args[0] is a else 'upper'}32(loop{found.number + 1})"

    def _of_sign(self, a: Atom) -> str | None:
        """Return the 64-bit value whose upper word is compared with 0."""
        left, right = a.args
        assert isinstance(left, Poly) and isinstance(right, Poly)
        upper = left.single
        if a.kind != "lt_s" or left.bits != 32 or right.constant != 0 or upper is None:
            return None
        if upper.kind == "load" and upper.args[1] == 1:
            return self._load(atom("load", upper.args[0], 0, upper.args[2]), whole=True)
        found = self.legend.argument(upper) if upper.kind == "bank" else None
        return found[0].words if found is not None and found[1] == 4 and found[0].size == 8 else None

    def condition(self, a: Atom, holds: bool = True) -> str:
        """Return a condition, or its opposite."""
        if a in self._parts:
            return f"{'' if holds else '!'}{self._parts[a]}"
        if self._too_large(a):
            return "..."
        if a.kind == "not" and isinstance(a.args[0], Atom):
            return self.condition(a.args[0], not holds)
        if a.kind in _RELATIONS:
            whole = self._of_sign(a)
            if whole is not None:
                return f"{whole} {'<' if holds else '>='} 0"
            if a.kind == "eq" and _has_load(a.args[1]) and not _has_load(a.args[0]):
                return f"{self._any(a.args[1])} {_RELATIONS[a.kind][0 if holds else 1]} {self._any(a.args[0])}"
            left, right = a.args
            assert isinstance(left, Poly) and isinstance(right, Poly)
            if a.kind == "eq" and right.constant is not None:  # x - 4 == 0 is x == 4
                left, right = left - left.terms.get((), 0), right - left.terms.get((), 0)
            return f"{self._any(left)} {_RELATIONS[a.kind][0 if holds else 1]} {self._any(right)}"
        if a.kind == "all":
            sides = [self.condition(x, holds) for x in self._conjuncts(a)]
            text = (" && " if holds else " || ").join(f"({s})" if "||" in s or "&&" in s else s for s in sides)
            return self._part(a, text) if holds else text
        if a.kind == "any" and isinstance(a.args[0], Atom):
            return f"{'' if holds else '!'}any({self.condition(a.args[0])})"
        if a.kind == "carries":
            return f"{'' if holds else 'not '}carry"
        if a.kind in {"true", "false"}:
            return "true" if (a.kind == "true") == holds else "false"
        if a.kind == "choose":
            text = self.atom(a)
        elif a.kind == "different":
            text = " != ".join(f"({self.condition(x)})" for x in a.args if isinstance(x, Atom))
        elif a in self.legend.loops:
            text = self._loop(a)
        elif a.kind in {"phi", "entry"}:
            text = f"{a.args[1] if a.kind == 'phi' else a.args[0]}{a.args[-1]}"
        else:
            text = f"{{{self.legend.opcode_of(a)}{self._place(a)}}}"
        return text if holds else f"!{text}" if a.kind in {"phi", "entry"} else f"!({text})"


def _has_halves(p: Poly) -> bool:
    return p.bits == 64 and not all(c & MASK32 for c in p.terms.values())


def _joined(p: Poly) -> Poly:
    """Return a sum with the halves of 64-bit values put together."""
    if not _has_halves(p):
        return p
    try:
        return join(norm(p))
    except TooLarge:
        return p


def _bare(text: str) -> str:
    """Return a text without the brackets around all of it."""
    depth = 0
    for n, letter in enumerate(text):
        depth += (letter == "(") - (letter == ")")
        if not depth:
            return text[1:-1] if n and n == len(text) - 1 else text
    return text


def _is_closed(text: str) -> bool:
    """Say whether no sign stands outside of a text's brackets: nothing that is put beside it can take it apart."""
    depth = 0
    for letter in text:
        depth += (letter in "([{") - (letter in ")]}")
        if not depth and letter in "*-+":
            return False
    return True


def number(value: int) -> str:
    """Return a number: large ones in hex."""
    return str(value) if abs(value) < 1 << 24 else f"{value:#x}"


def _has_load(x: object) -> bool:
    return isinstance(x, Poly) and any(a.kind == "load" for a in inside(x))


def _factors(p: Poly, quotient: Atom, under: Poly) -> Iterator[Poly]:
    """Yield what x - d * (x / d) may be multiplied by in a sum, by the products that hold the quotient."""
    divisor = under.single
    for m, c in p.ordered():
        rest = list(m)
        if quotient not in rest:
            continue
        rest.remove(quotient)
        if divisor is not None and divisor in rest:
            rest.remove(divisor)
            yield Poly({tuple(rest): -c}, p.bits)
        elif under.constant:
            value = signed(-c, p.bits)
            if value % under.constant == 0:
                yield Poly({tuple(rest): value // under.constant}, p.bits)
    yield Poly({(): 1}, p.bits)


# The tree.

Json: TypeAlias = dict[str, object]
_LEAST_PART: Final = 6  # nodes
LeafTree: TypeAlias = Callable[[Atom, int], Json]
"""Gives the leaf for an atom; the number is how many 32-bit words it has."""

_SAME: Final = {
    "and": "and", "or": "or", "xor": "xor", "shr": "shr", "sar": "sar", "shl": "shl", "abs": "abs", "smin": "min_s",
    "smax": "max_s", "umin": "min_u", "umax": "max_u", "mulhi_u": "mulhi_u", "mulhi_s": "mulhi_s", "udiv": "div_u",
    "sdiv": "div_s", "urem": "rem_u", "srem": "rem_s", "lop3": "lop3", "prmt": "prmt", "sgxt": "sgxt", "ugxt": "ugxt",
    "popc": "popc", "brev": "brev", "flo": "flo", "eq": "eq", "lt_u": "lt_u", "lt_s": "lt_s", "not": "not",
    "all": "and", "different": "xor", "select": "select", "choose": "select", "shfl": "in_lane", "any": "any",
    "ballot": "ballot",
}  # fmt: skip


class Parts:
    """The trees that large formulas have in common, each once; formulas and later parts refer to them by number."""

    def __init__(self, formulas: Sequence[Node], leaf: LeafTree) -> None:
        self._leaf, self._numbers = leaf, dict[Node, int]()
        self.trees: list[Json] = []
        uses = uses_in(formulas)
        shared = [x for x, count in uses.items() if count > 1 and written_size(x) >= _LEAST_PART]
        self.nodes = len(uses)
        for x in sorted(shared, key=_depth_of):
            self.trees.append(tree_of(x, self) if isinstance(x, Poly) else tree_of_atom(x, self))
            self._numbers[x] = len(self.trees) - 1

    def __call__(self, a: Atom, words: int) -> Json:
        """Return a leaf."""
        return self._leaf(a, words)

    def of(self, x: Node) -> Json | None:
        """Return the leaf that refers to a part; None if a value is not one."""
        number = self._numbers.get(x)
        return None if number is None else {"part": number, "bits": x.bits}


def uses_in(formulas: Iterable[Node]) -> dict[Node, int]:
    """Return how often each value and condition in formulas is used, if each is written once; numbers do not count."""
    found: dict[Node, int] = {}
    todo: list[object] = list(formulas)
    while todo:
        x = todo.pop()
        if isinstance(x, tuple):
            todo += x
        elif isinstance(x, Poly | Atom) and not (isinstance(x, Poly) and x.constant is not None):
            found[x] = found.get(x, 0) + 1
            if found[x] == 1:
                todo += x.terms if isinstance(x, Poly) else x.args
    return found


def _depth_of(x: Node) -> tuple[int, bool]:
    return (x.depth, False) if isinstance(x, Atom) else (max(a.depth for a in x.atoms()), True)


def _part(x: Node, leaf: LeafTree) -> Json | None:
    return leaf.of(x) if isinstance(leaf, Parts) else None


def tree_of(p: Poly, leaf: LeafTree) -> Json:
    """Return a polynomial as a tree."""
    part = _part(p, leaf)
    if part is not None:
        return part
    terms = [_term(m, c, p.bits, leaf) for m, c in p.ordered()]
    if not terms:
        return {"constant": 0, "bits": p.bits}
    return terms[0] if len(terms) == 1 else {"op": "add", "bits": p.bits, "args": terms}


def _term(m: tuple[Atom, ...], c: int, bits: int, leaf: LeafTree) -> Json:
    factors = [_factor(a, bits, leaf) for a in m]
    if c != 1 or not factors:
        factors.insert(0, {"constant": c, "bits": bits})
    return factors[0] if len(factors) == 1 else {"op": "mul", "bits": bits, "args": factors}


def _factor(a: Atom, bits: int, leaf: LeafTree) -> Json:
    tree = tree_of_atom(a, leaf)
    return (
        {"op": "zero_extend", "bits": 64, "args": [tree]} if bits == 64 and a.bits == 32 and a.kind != "turn" else tree
    )


def tree_of_atom(a: Atom, leaf: LeafTree) -> Json:
    """Return an atom as a tree of the width of its value."""
    part = _part(a, leaf)
    if part is not None:
        return part
    kind = a.kind
    first = a.args[0] if a.args else None
    if kind in {"true", "false"}:
        return {"constant": int(kind == "true"), "bits": 1}
    if kind in {"zx", "sx"} and isinstance(first, Poly):
        op = "zero_extend" if kind == "zx" else "sign_extend"
        return {"op": op, "bits": 64, "args": [tree_of(first, leaf)]}
    if kind == "named" and isinstance(first, Poly):
        return tree_of(first, leaf)
    if kind == "sign" and isinstance(first, Poly):
        return {"op": "sar", "bits": 32, "args": [tree_of(first, leaf), {"constant": 31, "bits": 32}]}
    if kind == "hi" and isinstance(first, Poly):
        return {"op": "high", "bits": 32, "args": [tree_of(first, leaf)]}
    if kind == "lo" and isinstance(first, Atom):
        return {"op": "low", "bits": 32, "args": [tree_of_atom(first, leaf)]}
    if kind == "wide":
        return _wide(a, leaf)
    if kind == "carry":
        return {"op": "high", "bits": 32, "args": [_sum_of(a, leaf)]}
    if kind == "carries" and isinstance(first, Poly):
        return {"op": "not", "bits": 1, "args": [{"op": "eq", "bits": 1, "args": [tree_of(first, leaf), _zero()]}]}
    if kind == "funnel":
        return _funnel(a, leaf)
    if kind == "bank_at":
        bank, offset, size = a.args
        assert isinstance(offset, Poly)
        return {"op": "constant_at", "bits": 32, "bank": bank, "bytes": size, "args": [tree_of(offset, leaf)]}
    name = _SAME.get(kind.removesuffix("64"))
    if name is None:
        return leaf(a, 2 if a.bits == 64 else 1)
    args = [
        tree_of(x, leaf) if isinstance(x, Poly) else tree_of_atom(x, leaf) for x in a.args if isinstance(x, Poly | Atom)
    ]
    return {"op": name, "bits": a.bits, "args": args}


def _zero() -> Json:
    return {"constant": 0, "bits": 32}


def _wide(a: Atom, leaf: LeafTree) -> Json:
    low, high = a.args
    assert isinstance(low, Atom) and isinstance(high, Atom)
    consecutive = low.kind in {"bank", "load"} or (low.kind == "phi" and high.kind == "phi")
    if consecutive:
        return leaf(a, 2)
    return {"op": "pair", "bits": 64, "args": [tree_of_atom(low, leaf), tree_of_atom(high, leaf)]}


def _sum_of(a: Atom, leaf: LeafTree) -> Json:
    args: list[Json] = []
    for q, subtracted in carry_parts(a):
        extended: Json = {"op": "zero_extend", "bits": 64, "args": [tree_of(q, leaf)]}
        if subtracted:
            args.append({"constant": TWO32, "bits": 64})
            extended = {"op": "mul", "bits": 64, "args": [{"constant": (1 << 64) - 1, "bits": 64}, extended]}
        args.append(extended)
    return {"op": "add", "bits": 64, "args": args}


def _funnel(a: Atom, leaf: LeafTree) -> Json:
    low, high, by = (x for x in a.args if isinstance(x, Poly))
    value: Json = {"op": "pair", "bits": 64, "args": [tree_of(low, leaf), tree_of(high, leaf)]}
    count: Json = {"op": "zero_extend", "bits": 64, "args": [tree_of(by, leaf)]}
    return {"op": "low", "bits": 32, "args": [{"op": "shr", "bits": 64, "args": [value, count]}]}
