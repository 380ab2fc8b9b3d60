"""Where the loops of a function turn, from the interpreter's own reading of its branches."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from tests.support.sass.listing import Code, Line

_ENDS = frozenset(("EXIT", "RET", "KILL"))


@dataclass(frozen=True)
class Block:
    """Instructions that run one after the other: their first and last offset, and the blocks that may follow."""

    first: int
    last: int
    following: tuple[int, ...]


def blocks(code: Code, roots: Mapping[str, int]) -> dict[int, Block]:
    """Return the basic blocks by their first offset; a call of a function falls through."""
    functions = frozenset(roots.values())
    leaders, end = {0, *functions}, 16 * len(code.lines)
    for line in code.lines:
        target = _target(line, functions)
        if target is not None:
            leaders.add(target)
        if target is not None or line.name in _ENDS:
            leaders.add(line.offset + 16)
    starts = sorted(one for one in leaders if 0 <= one < end)
    found = {}
    for n, first in enumerate(starts):
        last = (starts[n + 1] if n + 1 < len(starts) else end) - 16
        line = code.lines[last // 16]
        target, following = _target(line, functions), []
        if target is not None:
            following.append(target)
        by_threads = {"DIV", "CONV"} & set(line.flags)
        conditional = line.guard is not None or by_threads or any(one.is_predicate for one in line.operands)
        if last + 16 < end and (conditional or (target is None and line.name not in _ENDS)):
            following.append(last + 16)
        found[first] = Block(first, last, tuple(following))
    return found


def _target(line: Line, functions: Collection[int]) -> int | None:
    if line.name not in ("BRA", "JMP", "CALL") or not line.operands:
        return None
    last = line.operands[-1]
    is_call = line.name == "CALL" and ("REL" not in line.flags or last.number in functions)
    return last.number if last.kind == "immediate" and not is_call else None


def loops(code: Code, roots: Mapping[str, int] | None = None) -> dict[int, frozenset[int]]:
    """Return, for the first offset of each loop, the offsets of the instructions from which it turns."""
    roots = roots or code.labels
    graph = blocks(code, roots)
    found: dict[int, set[int]] = {}
    for root in {0, *roots.values()}:
        if root in graph:
            for tail, head in _back_edges(graph, root):
                found.setdefault(head, set()).add(graph[tail].last)
    return {head: frozenset(tails) for head, tails in found.items()}


def _back_edges(graph: Mapping[int, Block], root: int) -> list[tuple[int, int]]:
    order = _order(graph, root)
    place = {node: n for n, node in enumerate(order)}
    before: dict[int, list[int]] = {node: [] for node in order}
    for node in order:
        for other in graph[node].following:
            if other in place:
                before[other].append(node)
    above = {root: root}
    changed = True
    while changed:
        changed = False
        for node in order[1:]:
            known = [one for one in before[node] if one in above]
            if not known:
                continue
            new = known[0]
            for one in known[1:]:
                while new != one:
                    while place[new] > place[one]:
                        new = above[new]
                    while place[one] > place[new]:
                        one = above[one]
            if above.get(node) != new:
                above[node], changed = new, True
    edges = []
    for node in order:
        for head in graph[node].following:
            up = node
            while up != head and up != root:
                up = above[up]
            if up == head:
                edges.append((node, head))
    return edges


def _order(graph: Mapping[int, Block], root: int) -> list[int]:
    """Return the blocks that a root reaches, in reverse postorder."""
    seen, done, stack = {root}, [], [(root, iter(graph[root].following))]
    while stack:
        node, rest = stack[-1]
        for other in rest:
            if other in graph and other not in seen:
                seen.add(other)
                stack.append((other, iter(graph[other].following)))
                break
        else:
            done.append(node)
            stack.pop()
    return done[::-1]
