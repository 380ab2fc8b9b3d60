"""Formulas in the words of the program: `key_cache + 2 * (block_stride * (slot / block_size) + threadIdx.x)`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from gpucore.explain.algebra import Atom, Poly, atom, inside, of, written_size
from gpucore.explain.legend import Legend
from gpucore.explain.operations import signed

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


class Words:
    """Writes the formulas of one address."""

    def __init__(self, legend: Legend, names: dict[int, str] | None = None) -> None:
        self.legend = legend
        self.names = names or {}
        self._depth = 0

    def formula(self, p: Poly) -> str:
        """Return a formula, cut where it is too long to read."""
        text = self.poly(p)
        return text if len(text) <= _LONGEST else text[:_LONGEST] + " ..."

    def poly(self, p: Poly, bracketed: bool = False) -> str:
        """Return a sum, in brackets where it is more than one term and is part of a term."""
        if self._depth > _DEEPEST or written_size(p) > _MOST_NODES:
            return "..."
        if not p.terms:
            return "0"
        self._depth += 1
        try:
            remainder = self._remainder(p, bracketed)
            if remainder is not None:
                return remainder
            parts = [self._term(m, c, p.bits) for m, c in p.ordered()]
        finally:
            self._depth -= 1
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
                text = f"({self.poly(over, True)} % {self.poly(under, True)})"
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
        kind = a.kind
        if written_size(a) > _MOST_NODES:
            return "(...)"
        first = a.args[0] if a.args else None
        if kind in {"zx", "sx", "named"} and isinstance(first, Poly):
            return self.poly(first, True)
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
            return f"({self.condition(condition)} ? {self._any(x)} : {self._any(y)})"
        if kind in _SIGNS:
            return f"({self._any(a.args[0])} {_SIGNS[kind]} {self._any(a.args[1])})"
        if a.bits == 1:
            return f"({self.condition(a)})"
        return self._other(a)

    def _other(self, a: Atom) -> str:
        if a.kind == "sign":
            return f"({self._any(a.args[0])} < 0 ? -1 : 0)"
        if a.kind == "hi":
            return f"upper32({self._any(a.args[0])})"
        if a.kind == "lo":
            return f"lower32({self._any(a.args[0])})"
        if a.kind == "funnel":
            return f"(({self._any(a.args[1])}:{self._any(a.args[0])}) >> {self._any(a.args[2])})"
        if a.kind in {"opaque", "result"}:
            place = self._place(a)
            return f"{{{self.legend.opcode_of(a)}{place}}}"
        if a.kind == "entry":
            return f"{a.args[0]}{a.args[1]} at entry"
        if a.kind == "carry":
            return "carry"
        if a.kind == "sgxt" and isinstance(a.args[1], Poly) and a.args[1].constant in (8, 16):
            return f"({'char' if a.args[1].constant == 8 else 'short'}){self._any(a.args[0])}"
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

    def _plain(self, x: object) -> str:
        if isinstance(x, Atom) and x.bits == 1:
            return self.condition(x)
        return self.poly(x) if isinstance(x, Poly) else self._any(x)

    def _wide(self, a: Atom) -> str:
        low, high = a.args
        assert isinstance(low, Atom) and isinstance(high, Atom)
        if low.kind == "bank":
            return self._bank(low, 8)
        if low.kind in {"load", "opaque", "result", "entry"}:
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

    def _load(self, a: Atom) -> str:
        n, word, _ = a.args
        assert isinstance(n, int) and isinstance(word, int)
        found = self.legend.loads.get(n)
        if found is None:
            return "loaded"
        name = self.names.get(found.number, f"loaded{found.number + 1}")
        return name + (f".{'xyzwabcd'[word]}" if word and word < 8 else "")

    def _loop(self, a: Atom) -> str:
        found = self.legend.loops.get(a)
        if found is None:  # a word of a variable of two
            found = next((x for key, x in self.legend.loops.items() if a in key.args), None)
        if found is None:
            return "loop"
        return f"turn{found.number + 1}" if a.kind == "turn" else f"loop{found.number + 1}"

    def _of_sign(self, a: Atom) -> str | None:
        """Return the 64-bit value whose upper word is compared with 0."""
        left, right = a.args
        assert isinstance(left, Poly) and isinstance(right, Poly)
        upper = left.single
        if a.kind != "lt_s" or left.bits != 32 or right.constant != 0 or upper is None:
            return None
        if upper.kind == "load" and upper.args[1] == 1:
            return self._load(atom("load", upper.args[0], 0, upper.args[2]))
        found = self.legend.argument(upper) if upper.kind == "bank" else None
        return found[0].words if found is not None and found[1] == 4 and found[0].size == 8 else None

    def condition(self, a: Atom, holds: bool = True) -> str:
        """Return a condition, or its opposite."""
        if written_size(a) > _MOST_NODES:
            return "..."
        if a.kind == "not" and isinstance(a.args[0], Atom):
            return self.condition(a.args[0], not holds)
        if a.kind in _RELATIONS:
            whole = self._of_sign(a)
            if whole is not None:
                return f"{whole} {'<' if holds else '>='} 0"
            if a.kind == "eq" and _has_load(a.args[1]) and not _has_load(a.args[0]):
                return f"{self._any(a.args[1])} {_RELATIONS[a.kind][0 if holds else 1]} {self._any(a.args[0])}"
            return f"{self._any(a.args[0])} {_RELATIONS[a.kind][0 if holds else 1]} {self._any(a.args[1])}"
        if a.kind == "all":
            sides = [self.condition(x, holds) for x in a.args if isinstance(x, Atom)]
            return (" && " if holds else " || ").join(f"({s})" if "||" in s or "&&" in s else s for s in sides)
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
        elif a.kind in {"phi", "entry"}:
            text = f"{a.args[1] if a.kind == 'phi' else a.args[0]}{a.args[-1]}"
        else:
            text = f"{{{self.legend.opcode_of(a)}{self._place(a)}}}"
        return text if holds else f"!({text})"


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
