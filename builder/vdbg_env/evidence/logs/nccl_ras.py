"""Read the answer of NCCL's RAS service: which ranks it misses, and which are behind in a collective.

The shape is that of NCCL's source (2.32); no real answer was ever met, so what has another shape is passed over.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

_MOST = 32


@dataclass(frozen=True, kw_only=True)
class RasAnswer:
    """What the service says of one job; `missing` and `behind` are in words, `pids` those of all ranks it names."""

    nccl: str | None = None
    missing: tuple[str, ...] = ()
    behind: tuple[str, ...] = ()
    pids: frozenset[int] = frozenset()


def read_ras(document: object) -> RasAnswer:
    """Read an answer; never raises, whatever it holds."""
    whole = _mapping(document)
    missing: list[str] = []
    behind: list[str] = []
    pids: set[int] = set()
    for communicator in _mappings(whole.get("communicators")):
        ranks, lost = list(_mappings(communicator.get("ranks"))), list(_mappings(communicator.get("missing_ranks")))
        pids |= {pid for one in (*ranks, *lost) if type(pid := one.get("pid")) is int}
        of = f"of communicator {communicator.get('hash')} ({communicator.get('size')} ranks)"
        missing += [f"{_who(one)} {of} is missing{_state(one)}" for one in lost]
        behind += [f"{words} {of}" for words in _behind(ranks)]
    nccl = whole.get("nccl_version")
    return RasAnswer(
        nccl=nccl if isinstance(nccl, str) else None,
        missing=tuple(missing[:_MOST]),
        behind=tuple(behind[:_MOST]),
        pids=frozenset(pids),
    )


def _behind(ranks: list[Mapping[str, Any]]) -> Iterator[str]:
    counts = [(one, _mapping(one.get("collective_counts"))) for one in ranks]
    for name in dict.fromkeys(key for _, count in counts for key in count):
        known = [(one, count[name]) for one, count in counts if type(count.get(name)) is int]
        most = max((number for _, number in known), default=0)
        for one, number in known:
            if number < most:
                yield f"{_who(one)} has begun {number} {name}, others {most}"


def _who(one: Mapping[str, Any]) -> str:
    return f"rank {one.get('rank')} (process {one.get('pid')} on {one.get('host')})"


def _state(one: Mapping[str, Any]) -> str:
    status = _mapping(one.get("status"))
    said = [name.replace("_", " ") for name in ("unresponsive", "considered_dead") if status.get(name) is True]
    return f": {', '.join(said)}" if said else ""


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _mappings(value: object) -> Iterator[Mapping[str, Any]]:
    yield from (one for one in value if isinstance(one, dict)) if isinstance(value, list) else ()
