"""Read PyTorch's flight-recorder dumps: which collectives each rank entered, and who is missing from which.

The dump of a rank is a pickle (version 2.x of its format) with the last collectives of each process group. It is read
as plain data, never unpickled.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gpucore.dwarf import SourceFrame
from vdbg_env.evidence.finding import Finding, HowKnown, Level
from vdbg_env.evidence.logs.plain_pickle import NotPlainData, plain_data

_LIBRARY = re.compile(r"/torch/")
_SAME_SIZE = ("all_reduce", "broadcast")  # of the others, ranks may give different sizes
MOST_SHOWN = 4


@dataclass(frozen=True, kw_only=True)
class Collective:
    """One collective that a rank entered, by the number it has in its process group."""

    number: int
    name: str
    sizes: str
    state: str
    frame: SourceFrame | None

    @property
    def shape(self) -> str:
        """What all ranks have to agree on."""
        return f"{self.name} of {self.sizes}" if self.sizes else self.name


@dataclass(frozen=True, kw_only=True)
class FlightRecord:
    """The dump of one rank: its collectives by process group, and the ranks that each group has, where it says so."""

    rank: int
    collectives: Mapping[str, tuple[Collective, ...]]
    members: Mapping[str, tuple[int, ...]]


def read_flight_record(data: bytes, rank: int) -> FlightRecord:
    """Return the record of a rank; raises NotPlainData for what is not such a dump."""
    document = plain_data(data)
    if not isinstance(document, dict) or not isinstance(document.get("entries"), list):
        raise NotPlainData("a pickle, but not a flight-recorder dump: it has no entries")
    groups: dict[str, list[Collective]] = defaultdict(list)
    for entry in document["entries"]:
        if isinstance(entry, dict) and not entry.get("is_p2p") and isinstance(entry.get("collective_seq_id"), int):
            groups[_group(entry)].append(_collective(entry))
    config = document.get("pg_config")
    members = {_text(name): _ranks(one) for name, one in config.items()} if isinstance(config, dict) else {}
    return FlightRecord(rank=rank, collectives={k: tuple(v) for k, v in groups.items()}, members=members)


def flight_findings(records: Sequence[FlightRecord]) -> tuple[Finding, ...]:
    """Return, for each process group, the ranks that never entered the last collective, or entered another one."""
    groups = sorted({group for record in records for group in record.collectives})
    return tuple(found for group in groups if (found := _of_group(group, records)))


def _of_group(group: str, records: Sequence[FlightRecord]) -> Finding | None:
    members = {rank for record in records for rank in record.members.get(group, ())}
    inside = [record for record in records if group in record.collectives or record.rank in members]
    entered = {record.rank: {one.number: one for one in record.collectives.get(group, ())} for record in inside}
    if len(entered) < 2:
        return None
    last = {rank: max(numbers, default=0) for rank, numbers in entered.items()}
    if differs := _different(entered):
        number, shapes = differs
        said = "; ".join(f"rank {rank}: {shape}" for rank, shape in sorted(shapes.items())[:MOST_SHOWN])
        message = f"process group {group}: the ranks do not agree about collective {number}: {said}"
        return _finding(message, entered, number, min(shapes))
    first = min(last.values()) + 1
    missing = sorted(rank for rank, number in last.items() if number < first)
    waiting = sorted(rank for rank, number in last.items() if number >= first)
    if not waiting or first not in entered[waiting[0]]:
        return None
    there = f"{len(waiting)} of {len(last)} ranks entered collective {first} ({entered[waiting[0]][first].shape})"
    who = ", ".join(f"rank {rank} (its last is {_last(entered[rank])})" for rank in missing[:MOST_SHOWN])
    more = f", and {len(missing) - MOST_SHOWN} more" if len(missing) > MOST_SHOWN else ""
    silent = sorted(members - {record.rank for record in records})
    unknown = f"; no dump of rank {', '.join(map(str, silent[:MOST_SHOWN]))}" if silent else ""
    return _finding(f"process group {group}: {there}; missing: {who}{more}{unknown}", entered, first, waiting[0])


def _different(entered: Mapping[int, Mapping[int, Collective]]) -> tuple[int, dict[int, str]] | None:
    """Return the first collective that ranks entered under one number with different names or sizes."""
    for number in sorted({number for numbers in entered.values() for number in numbers}):
        names = {rank: one[number].name for rank, one in entered.items() if number in one}
        if len(set(names.values())) > 1:
            return number, {rank: entered[rank][number].shape for rank in names}
        shapes = {rank: entered[rank][number].shape for rank in names}
        if len(set(shapes.values())) > 1 and any(word in next(iter(names.values())) for word in _SAME_SIZE):
            return number, shapes
    return None


def _finding(message: str, entered: Mapping[int, Mapping[int, Collective]], number: int, rank: int) -> Finding:
    return Finding(
        rule="ranks-missing-from-collective",
        level=Level.ERROR,
        message=message,
        how_known=HowKnown.LOG,
        confidence=0.85,
        location=entered[rank][number].frame,
        next_step="look at what the missing ranks do: their stacks, their logs, and the warps of their GPU cores",
    )


def _last(numbers: Mapping[int, Collective]) -> str:
    return f"{max(numbers)}, {numbers[max(numbers)].name}" if numbers else "none"


def _collective(entry: Mapping[str, Any]) -> Collective:
    return Collective(
        number=entry["collective_seq_id"],
        name=_text(entry.get("profiling_name")).rpartition(":")[2],
        sizes=_sizes(entry.get("input_sizes")),
        state=_text(entry.get("state")),
        frame=_frame(entry.get("frames")),
    )


def _frame(frames: object) -> SourceFrame | None:
    """Return the innermost frame outside of PyTorch."""
    places = [
        SourceFrame(function=_text(one.get("name")), file=_text(one.get("filename")), line=one["line"])
        for one in (frames[:64] if isinstance(frames, list) else [])
        if isinstance(one, dict) and isinstance(one.get("line"), int)
    ]
    return next((one for one in places if not _LIBRARY.search(one.file)), places[0] if places else None)


def _group(entry: Mapping[str, Any]) -> str:
    named = entry.get("process_group")
    return _text(named[0]) if isinstance(named, tuple | list) and named else "0"


def _ranks(config: object) -> tuple[int, ...]:
    said = config.get("ranks") if isinstance(config, dict) else None
    return tuple(int(one) for one in re.findall(r"\d+", said)[:4096]) if isinstance(said, str) else ()


def _sizes(sizes: object) -> str:
    """Return `[[4, 3]]` as `4x3`; what is nested deeper is not from PyTorch, and left out."""
    rows = sizes[:8] if isinstance(sizes, list) else []
    whole = [row[:16] for row in rows if isinstance(row, list) and all(isinstance(n, int) for n in row)]
    return ", ".join("x".join(map(str, row)) or "a scalar" for row in whole)


def _text(value: object) -> str:
    return value[:300] if isinstance(value, str) else ""
