"""The answer: why an address was what it was, as text for people and as JSON for programs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from gpucore.explain.address import Address, Base, explain_address
from gpucore.explain.algebra import Poly, of
from gpucore.explain.legend import Legend, LoadedValue, LoopValue
from gpucore.explain.program import Program
from gpucore.explain.text import Words
from gpucore.explain.tree import Json, tree_of, tree_of_atom

_VERBS: Final = {"read": "reads", "write": "writes", "update": "updates"}
_MOST_GUARDS: Final = 4
_WIDEST: Final = 160


@dataclass(frozen=True)
class Why:
    """What the address of an instruction is made of, and what a core adds to it."""

    address: Address
    legend: Legend
    names: dict[int, str] = field(default_factory=dict)
    """What the source calls the loaded values, by their number."""


def explain_place(program: Program, offset: int, calls: Sequence[int] = ()) -> Why | None:
    """Return what is known of the access at an offset of the section; None where it accesses no memory.

    `calls` are the offsets of the calls that lead to it, outermost first, as a backtrace has them.
    """
    address = explain_address(program, offset, calls)
    return Why(address, Legend(address)) if address is not None else None


# Text.


def why_text(why: Why) -> list[str]:
    """Return the answer in lines for people, without a heading."""
    address, words = why.address, Words(why.legend, why.names)
    lines = [f"{_VERBS[address.direction]} {address.width} bytes of {address.space} memory"]
    lines += [_formula_line(why, words), *(_load_line(why, words, x) for x in why.legend.loads.values())]
    lines += [_loop_line(words, x) for x in why.legend.loops.values() if x.loop is not None]
    lines += _guard_lines(why, words)
    return lines


def _formula_line(why: Why, words: Words) -> str:
    address = why.address
    if address.base is None or address.index is None:
        text = f"= {words.formula(address.formula)}"
        if len(address.bases) > 1:
            text += f"; based on one of {', '.join(words.atom(b.value) for b in address.bases)}"
        return text
    base = f"{words.atom(address.base.value)} ({_what(address.base)})"
    if not address.index.terms:
        return f"= {base}"
    index = words.poly(address.index, bracketed=address.scale != 1)
    index = index if len(index) < 4 * _WIDEST else index[: 4 * _WIDEST] + " ..."
    return f"= {base} + {f'{address.scale} * ' if address.scale != 1 else ''}{index}"


def _what(base: Base) -> str:
    if base.argument is None:
        return "a loaded pointer"
    kind = f", {base.argument.type}" if base.argument.type else ""
    return f"argument {base.argument.number}{kind}"


def _load_line(why: Why, words: Words, loaded: LoadedValue) -> str:
    program = why.address.program
    name = why.names.get(loaded.number, f"loaded{loaded.number + 1}")
    place = program.line(loaded.offset) or f"+{loaded.offset:#x}"
    verb = "was returned by the atomic" if loaded.opcode.startswith("ATOM") else "was loaded"
    source = loaded.address
    if source is None:
        return f"{name} {verb} at {place}"
    if source.base is not None and source.index is not None:
        element = f"{words.atom(source.base.value)}[{words.poly(source.index)[:_WIDEST]}]"
        return f"{name} {verb} at {place}: {element}"
    return f"{name} {verb} at {place} from {source.space} memory at {words.poly(source.formula)[:_WIDEST]}"


def _loop_line(words: Words, found: LoopValue) -> str:
    loop = found.loop
    assert loop is not None
    name = words.atom(found.leaf)
    starts = " or ".join(words.poly(p)[:_WIDEST] for p in loop.starts)
    if not loop.steps and not loop.others:
        return f"{name} is {starts}"
    grows = " or ".join(words.poly(p)[:_WIDEST] for p in loop.steps)
    if not loop.others:
        return f"{name} starts as {starts} and grows by {grows}"
    others = " or ".join(words.poly(p)[:_WIDEST] for p in loop.others)
    return f"{name} starts as {starts}; a later turn has {others}" + (f", or {grows} more" if grows else "")


def _guard_lines(why: Why, words: Words) -> list[str]:
    program = why.address.program
    lines = []
    for guard in why.address.guards[:_MOST_GUARDS]:
        text = words.condition(guard.condition)
        if len(text) <= _WIDEST:
            lines.append(f"it runs where {text}, tested at {program.line(guard.offset) or f'+{guard.offset:#x}'}")
    return lines


# JSON.


def why_json(why: Why) -> Json:
    """Return the answer for programs, as the published schema has it."""
    address, legend = why.address, why.legend
    program = address.program
    return {
        "space": address.space,
        "direction": address.direction,
        "width": address.width,
        "value": None,
        "offset": address.offset,
        "calls": list(address.calls),
        "base": _base_json(address.base, legend),
        "bases": [_base_json(b, legend) for b in address.bases] if len(address.bases) > 1 else [],
        "formula": tree_of(address.formula, legend.leaf),
        "index": _index_json(address, legend),
        "loads": [_load_json(why, x) for x in legend.loads.values()],
        "loops": [_loop_json(x, legend) for x in legend.loops.values()],
        "lanes": None,
        "guards": [
            {"line": program.line(g.offset), "offset": g.offset, "condition": tree_of_atom(g.condition, legend.leaf)}
            for g in address.guards
        ],
        "evidence": None,
        "not_known": sorted(set(legend.opaque.values())),
        "judgement": None,
        "how_known": "from the code",
    }


def _base_json(base: Base | None, legend: Legend) -> Json | None:
    if base is None:
        return None
    argument = base.argument
    return {
        "argument": argument.number if argument else None,
        "name": argument.name if argument else None,
        "type": argument.type if argument else None,
        "bytes": [base.offset, base.offset + 8] if argument else None,
        "formula": tree_of(of(base.value), legend.leaf),
        "value": None,
    }


def _index_json(address: Address, legend: Legend) -> Json | None:
    if address.index is None:
        return None
    return {"scale": address.scale, "formula": tree_of(address.index, legend.leaf), "value": None}


def _load_json(why: Why, loaded: LoadedValue) -> Json:
    source, program = loaded.address, why.address.program
    return {
        "name": why.names.get(loaded.number),
        "line": program.line(loaded.offset),
        "offset": loaded.offset,
        "calls": list(loaded.calls),
        "opcode": loaded.opcode,
        "space": source.space if source else None,
        "width": source.width if source else None,
        "base": _base_json(source.base, why.legend) if source else None,
        "formula": tree_of(source.formula, why.legend.leaf) if source else None,
        "index": _index_json(source, why.legend) if source else None,
        "value": None,
    }


def _loop_json(found: LoopValue, legend: Legend) -> Json:
    def trees(polys: Sequence[Poly]) -> list[Json]:
        return [tree_of(p, legend.leaf) for p in polys]

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
