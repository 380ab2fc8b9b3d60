"""One row per rank: the part that each had in the end of an attempt, and the nodes that differ."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from vdbg_env.evidence.observation import EndedBy, Observation
from vdbg_env.evidence.system.ranks import blame, is_victim

_NAMED = 3  # nodes or ranks named in one note


def parts(observations: Sequence[Observation]) -> Mapping[tuple[int, int], str]:
    """Return the part of each rank by attempt and rank; nothing for attempts of a single rank."""
    found: dict[tuple[int, int], str] = {}
    for attempt in {seen.attempt for seen in observations}:
        ranks = [seen for seen in observations if seen.attempt == attempt]
        began = blame(ranks)
        named = {seen.rank: began.part for seen in began.ranks} if began else {}
        if len(ranks) > 1:
            found |= {(seen.attempt, seen.rank): named.get(seen.rank) or _part(seen) for seen in ranks}
    return found


def notes(observations: Sequence[Observation]) -> Iterator[str]:
    """Yield what the ranks of the last attempt show together: who failed first, and which nodes are not alike."""
    last = max((seen.attempt for seen in observations), default=0)
    ranks = [seen for seen in observations if seen.attempt == last]
    if len(ranks) < 2:
        return
    if began := blame(ranks):
        yield began.words
    yield from (note for note in ranks[0].notes if all(note in other.notes for other in ranks))
    blur = max((seen.clock.within_s for seen in ranks if seen.clock), default=0.0)
    ahead = max((abs(seen.clock.ahead_s) for seen in ranks if seen.clock), default=0.0)
    if ahead > blur:
        yield f"the nodes' clocks are up to {ahead:.3g} s apart, known to {blur:.2g} s; the order of ends allows for it"
    yield from _differences({seen.host: seen.node for seen in ranks if seen.node})


def _part(seen: Observation) -> str:
    if seen.went_well:
        return "well"
    if seen.ended.by is EndedBy.CANCEL:
        return "cancelled"
    if seen.ended.by is EndedBy.PEER:
        return "ended by us"
    if seen.ended.by in {EndedBy.NODE_LOST, EndedBy.ENGINE_LOST}:
        return "lost"
    if seen.ended.by is EndedBy.WATCH:
        return "reported the hang"
    if seen.ended.by is EndedBy.TIMEOUT:
        return "out of time"
    return "victim" if is_victim(seen) else "failed"


def _differences(nodes: Mapping[str, Mapping[str, str]]) -> Iterator[str]:
    """Yield one note for each property in which a node is not like most of the others."""
    for name in dict.fromkeys(name for node in nodes.values() for name in node):
        values = Counter(node.get(name, "none") for node in nodes.values())
        usual = values.most_common(1)[0][0]
        odd = [
            f"{host} has {node.get(name, 'none')}" for host, node in nodes.items() if node.get(name, "none") != usual
        ]
        if odd:
            more = f" and {len(odd) - _NAMED} more" if len(odd) > _NAMED else ""
            yield f"nodes differ in {name}: {', '.join(odd[:_NAMED])}{more}, the others {usual}"
