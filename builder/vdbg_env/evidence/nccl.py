"""Read NCCL's log, its RAS service and PyTorch's flight recorder: who is where, and who is missing."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gpucore.dwarf import SourceFrame
from vdbg_env.evidence.finding import Finding, HowKnown, Level, NextStep

_LINE = re.compile(
    r"(?P<host>[^\s:]+):(?P<pid>\d+):\d+ \[(?P<device>-?\d+)\] (?:\S+ )?NCCL (?P<level>\w+) (?P<text>.*)"
)
_VIA = re.compile(r" via (?P<transport>P2P|SHM|NET|COLLNET|NVLS|C2C)(?:/(?P<detail>\w+))?")
_RANKS = re.compile(r"\b(?:nranks|nRanks)(?:=| +)(?P<count>\d+)")
_COLLECTIVE = re.compile(r"(?P<name>[A-Z]\w+): opCount (?P<count>[0-9a-f]+) .*?comm (?P<comm>0x[0-9a-f]+)")
_MOST_WARNINGS = 20


@dataclass(frozen=True, kw_only=True)
class Collective:
    """The last collective one process has entered on one communicator; `count` is NCCL's running number."""

    process: str
    name: str
    count: int


@dataclass(frozen=True, kw_only=True)
class NcclLog:
    """NCCL's output of all processes: warnings once each, transports with how many channels use them."""

    warnings: tuple[str, ...] = ()
    transports: tuple[tuple[str, int], ...] = ()
    ranks: int = 0
    last: tuple[Collective, ...] = ()


def parse_nccl_log(lines: Iterable[str]) -> NcclLog:
    """Return the content of NCCL's lines; other lines are passed over."""
    warnings: dict[str, None] = {}
    transports: Counter[str] = Counter()
    last: dict[tuple[str, str], Collective] = {}
    ranks = 0
    for line in lines:
        match = _LINE.search(line)
        if not match:
            continue
        text, process = match["text"].strip(), f"{match['host']}:{match['pid']} [{match['device']}]"
        if match["level"] == "WARN" and len(warnings) < _MOST_WARNINGS:
            warnings[text] = None
        if via := _VIA.search(text):
            transports["/".join(part for part in via.groups() if part)] += 1
        if count := _RANKS.search(text):
            ranks = max(ranks, int(count["count"]))
        if entered := _COLLECTIVE.search(text):
            number = int(entered["count"], 16)
            last[process, entered["comm"]] = Collective(process=process, name=entered["name"], count=number)
    newest: dict[str, Collective] = {}
    for one in last.values():
        if one.process not in newest or newest[one.process].count < one.count:
            newest[one.process] = one
    return NcclLog(
        warnings=tuple(warnings), transports=tuple(transports.most_common()), ranks=ranks, last=tuple(newest.values())
    )


def nccl_findings(log: NcclLog) -> tuple[Finding, ...]:
    """Return the processes whose last collective is older than the others', or a different one."""
    if len(log.last) < 2:
        return ()
    front = max(one.count for one in log.last)
    names = Counter(one.name for one in log.last if one.count == front)
    behind = [one for one in log.last if one.count < front]
    if behind:
        places = ", ".join(f"{one.process} is at {one.name} number {one.count}" for one in behind[:4])
        message = f"not all ranks are at collective number {front} ({names.most_common(1)[0][0]}): {places}"
    elif len(names) > 1:
        message = f"ranks entered different collectives at number {front}: {', '.join(sorted(names))}"
    else:
        return ()
    return (
        Finding(
            rule="nccl-ranks-apart",
            level=Level.WARNING,
            message=message,
            how_known=HowKnown.LOG,
            confidence=0.7,
            next_step=NextStep("look at what the ranks behind do: their stacks, and the warps of their GPU cores"),
        ),
    )


# Read the answer of NCCL's RAS service: which ranks it misses, and which are behind in a collective.
#
# The shape is that of NCCL's source (2.32); no real answer was ever met, so what has another shape is passed over.


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


# Read a pickle of plain data without running it: no class is looked up, no function is called.
#
# `pickle.loads` runs what the file asks for, and the file was written by the workload. Here the opcodes are read one by
# one, and one that would make an object is refused.


_CONSTANTS = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False}
_VALUES = frozenset(
    {"INT", "BININT", "BININT1", "BININT2", "LONG", "LONG1", "LONG4", "FLOAT", "BINFLOAT"}
    | {"UNICODE", "BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8", "BINBYTES", "SHORT_BINBYTES"}
)
_EMPTY = {"EMPTY_LIST": list, "EMPTY_DICT": dict, "EMPTY_TUPLE": tuple}
_TUPLES = {"TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}
_KEYS = (str, bytes, int, float, type(None))
_MOST_BITS = 1024  # Python prints no number of thousands of digits
_NOTHING = frozenset({"PROTO", "FRAME", "STOP"})


class NotPlainData(ValueError):
    """The bytes are no pickle, a cut one, or one that makes objects."""


def plain_data(data: bytes) -> Any:
    """Return the lists, dictionaries, tuples, texts and numbers of a pickle; raises NotPlainData."""
    import pickletools  # only here: it takes 8 ms

    machine = _Machine()
    try:
        for opcode, argument, _ in pickletools.genops(data):
            machine.step(opcode.name, argument)
        (value,) = machine.stack
    except NotPlainData:
        raise
    except (ValueError, IndexError, KeyError, TypeError, AttributeError, OverflowError) as error:
        raise NotPlainData(f"not a whole pickle: {error}") from None
    return value


class _Machine:
    """The stack, the marks in it, and what was memorised."""

    def __init__(self) -> None:
        self.stack: list[Any] = []
        self._marks: list[int] = []
        self._memo: dict[int, Any] = {}

    def step(self, name: str, argument: Any) -> None:
        """Do one opcode; raises NotPlainData for one that makes an object."""
        stack = self.stack
        if name in _VALUES:
            if isinstance(argument, int) and argument.bit_length() > _MOST_BITS:
                raise NotPlainData(f"a number of {argument.bit_length()} bits")
            stack.append(argument)
        elif name in _CONSTANTS:
            stack.append(_CONSTANTS[name])
        elif name in _EMPTY:
            stack.append(_EMPTY[name]())
        elif name == "MARK":
            self._marks.append(len(stack))
        elif name in ("PUT", "BINPUT", "LONG_BINPUT"):
            self._memo[argument] = stack[-1]
        elif name == "MEMOIZE":
            self._memo[len(self._memo)] = stack[-1]
        elif name in ("GET", "BINGET", "LONG_BINGET"):
            stack.append(self._memo[argument])
        elif name not in _NOTHING:
            self._gather(name)

    def _gather(self, name: str) -> None:
        stack = self.stack
        if name in _TUPLES:
            items = stack[-_TUPLES[name] :]
            stack[-_TUPLES[name] :] = [tuple(items)]
        elif name in ("TUPLE", "LIST", "DICT"):
            items = self._marked()
            stack.append(tuple(items) if name == "TUPLE" else items if name == "LIST" else _pairs(items))
        elif name in ("APPEND", "APPENDS"):
            items = [stack.pop()] if name == "APPEND" else self._marked()
            stack[-1].extend(items)
        elif name in ("SETITEM", "SETITEMS"):
            value, key = (stack.pop(), stack.pop()) if name == "SETITEM" else (None, None)
            items = [key, value] if name == "SETITEM" else self._marked()
            stack[-1].update(_pairs(items))
        else:
            raise NotPlainData(f"{name} would make an object or call a function")

    def _marked(self) -> list[Any]:
        at = self._marks.pop()
        items = self.stack[at:]
        del self.stack[at:]
        return items


def _pairs(items: list[Any]) -> dict[Any, Any]:
    # To hash a tuple in a million tuples overflows the interpreter's stack, which ends it.
    if not all(isinstance(key, _KEYS) for key in items[::2]):
        raise NotPlainData("a dictionary with other keys than texts and numbers")
    return dict(zip(items[::2], items[1::2], strict=True))


# Read PyTorch's flight-recorder dumps: which collectives each rank entered, and who is missing from which.
#
# The dump of a rank is a pickle (version 2.x of its format) with the last collectives of each process group. It is read
# as plain data, never unpickled.


_LIBRARY = re.compile(r"/torch/")
_SAME_SIZE = ("all_reduce", "broadcast")  # of the others, ranks may give different sizes
_ENDED = ("completed", "")  # a dump whose entries have no state says of none that it is open
MOST_SHOWN = 4


@dataclass(frozen=True, kw_only=True)
class RecordedCollective:
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
    collectives: Mapping[str, tuple[RecordedCollective, ...]]
    members: Mapping[str, tuple[int, ...]]


def read_flight_record(data: bytes, rank: int) -> FlightRecord:
    """Return the record of a rank; raises NotPlainData for what is not such a dump."""
    document = plain_data(data)
    if not isinstance(document, dict) or not isinstance(document.get("entries"), list):
        raise NotPlainData("a pickle, but not a flight-recorder dump: it has no entries")
    groups: dict[str, list[RecordedCollective]] = defaultdict(list)
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


def unfinished_collective(records: Sequence[FlightRecord]) -> tuple[str, SourceFrame | None] | None:
    """Return, in words, the first collective that did not end on ranks that all entered it, and its line in Python.

    None where all ended. A rank that left no dump may be the one that did not come, and is named.
    """
    for group in sorted({group for record in records for group in record.collectives}):
        open_ones = {
            record.rank: one
            for record in records
            if (one := next((c for c in record.collectives.get(group, ()) if c.state not in _ENDED), None))
        }
        if not open_ones:
            continue
        first = min(open_ones.values(), key=lambda one: one.number)
        inside = sorted(rank for rank, one in open_ones.items() if one.number == first.number)
        who = f"{'rank' if len(inside) == 1 else 'ranks'} {_numbers(inside)}"
        said = f"process group {group}: {who} entered collective {first.number} ({first.shape}), which did not end"
        return said + _without_dump(group, records), first.frame
    return None


def _without_dump(group: str, records: Sequence[FlightRecord]) -> str:
    members = {rank for record in records for rank in record.members.get(group, ())}
    silent = sorted(members - {record.rank for record in records})
    return f"; no dump of rank {_numbers(silent)}" if silent else ""


def _numbers(ranks: Sequence[int]) -> str:
    more = f" and {len(ranks) - MOST_SHOWN} more" if len(ranks) > MOST_SHOWN else ""
    return ", ".join(map(str, ranks[:MOST_SHOWN])) + more


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
    unknown = _without_dump(group, records)
    return _finding(f"process group {group}: {there}; missing: {who}{more}{unknown}", entered, first, waiting[0])


def _different(entered: Mapping[int, Mapping[int, RecordedCollective]]) -> tuple[int, dict[int, str]] | None:
    """Return the first collective that ranks entered under one number with different names or sizes."""
    for number in sorted({number for numbers in entered.values() for number in numbers}):
        names = {rank: one[number].name for rank, one in entered.items() if number in one}
        if len(set(names.values())) > 1:
            return number, {rank: entered[rank][number].shape for rank in names}
        shapes = {rank: entered[rank][number].shape for rank in names}
        if len(set(shapes.values())) > 1 and any(word in next(iter(names.values())) for word in _SAME_SIZE):
            return number, shapes
    return None


def _finding(message: str, entered: Mapping[int, Mapping[int, RecordedCollective]], number: int, rank: int) -> Finding:
    return Finding(
        rule="ranks-missing-from-collective",
        level=Level.ERROR,
        message=message,
        how_known=HowKnown.LOG,
        confidence=0.85,
        location=entered[rank][number].frame,
        next_step=NextStep(
            "look at what the missing ranks do: their stacks, their logs, and the warps of their GPU cores"
        ),
    )


def _last(numbers: Mapping[int, RecordedCollective]) -> str:
    return f"{max(numbers)}, {numbers[max(numbers)].name}" if numbers else "none"


def _collective(entry: Mapping[str, Any]) -> RecordedCollective:
    return RecordedCollective(
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
