"""A whole block of threads: warps that take turns, lanes that part and meet again, barriers and shared memory.

    block = Block(machine, threads, shared_size=4096)
    fault = block.run(judge)      # `judge` gives an access's exception, 0 where it may be made

The lanes of a warp that stand at one instruction execute it together. They meet again where the code says so, at
BSYNC and WARPSYNC. The warps take turns of `turn` instructions, so that all of them make way. The first access with an
exception stops the block, as it stops an SM. Uniform registers belong to the warp: what writes only these runs once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Final

from tests.support.sass.accesses import ACCESSES
from tests.support.sass.collective import LANES, Together, together
from tests.support.sass.listing import Line, Operand
from tests.support.sass.machine import EXIT, Endless, Machine, Thread, Touch, Unsupported, place
from tests.support.sass.mapped import Zeros
from tests.support.sass.memory import Memory
from tests.support.sass.operands import M32, put, put_test, test, word
from tests.support.sass.semantics import FLOW

Judge = Callable[[Touch], int]
"""Gives the exception that an access leads to, 0 for none."""
_FAIR: Final = 64  # after so many steps a warp goes on with its last lanes, so that a loop that waits for them ends


class Deadlock(Exception):
    """Every thread waits for another."""


@dataclass
class Fault:
    """An access that was stopped: the lanes that stand there, the addresses of those that made it, and the bad ones."""

    warp: Warp
    offset: int
    calls: tuple[int, ...]
    exception: int
    lanes: tuple[int, ...]
    addresses: dict[int, int]
    bad: frozenset[int]
    size: int
    space: str


@dataclass(eq=False)
class Gathering:
    """A place where lanes wait for each other: those that must come, and those that have."""

    lanes: set[int]
    arrived: set[int] = field(default_factory=set)


@dataclass
class BlockBarrier:
    """A barrier of the block: the threads that have come, what they brought, and how many it takes (0: all)."""

    arrived: int = 0
    waiting: list[tuple[Warp, int]] = field(default_factory=list)
    values: list[bool] = field(default_factory=list)
    wanted: int = 0


@dataclass(eq=False)
class Warp:
    """Up to 32 threads, and for each lane where it stands; `at` is an instruction's index or EXIT."""

    number: int
    threads: dict[int, Thread]
    at: dict[int, int] = field(default_factory=dict)
    waits: dict[int, Gathering | BlockBarrier] = field(default_factory=dict)
    gatherings: dict[tuple[int, str], Gathering] = field(default_factory=dict)
    kept: dict[int, Gathering] = field(default_factory=dict)
    masks: dict[tuple[int, int], Gathering] = field(default_factory=dict)
    results: dict[int, int] = field(default_factory=dict)
    stopped: bool = False
    steps: int = 0

    def __post_init__(self) -> None:
        self.at = dict.fromkeys(self.threads, 0)
        first = next(iter(self.threads.values()))
        for thread in self.threads.values():
            thread.u, thread.q = first.u, first.q

    @property
    def alive(self) -> list[int]:
        """The lanes that have not exited."""
        return [lane for lane, at in self.at.items() if at != EXIT]

    def next_lanes(self) -> list[int]:
        """Return the lanes that go on together; none where all wait or have exited, or an access stopped the warp."""
        if self.stopped:
            return []
        ready = [lane for lane in self.alive if lane not in self.waits]
        if not ready:
            return []
        places = sorted({(self.at[lane], self.threads[lane].calls) for lane in ready})
        chosen = places[-1 if self.steps % _FAIR == _FAIR - 1 else 0]
        return [lane for lane in ready if (self.at[lane], self.threads[lane].calls) == chosen]


class Block:
    """A block's warps and its shared memory. `watch` sees every lane before and after it executes an instruction."""

    def __init__(
        self, machine: Machine, threads: Iterable[Thread], *, shared: Memory | None = None, turn: int = 16,
    ) -> None:  # fmt: skip
        self.machine: Final = machine
        self.shared: Final = shared or Zeros()
        self.warps: Final[list[Warp]] = []
        every = list(threads)
        for first in range(0, len(every), LANES):
            lanes = {thread.lane: thread for thread in every[first : first + LANES]}
            for thread in lanes.values():
                thread.shared = self.shared
            self.warps.append(Warp(first // LANES, lanes))
        self._turn: Final = turn
        self._barriers: Final[dict[int, BlockBarrier]] = {}
        self._together: Final[dict[int, Together | None]] = {}
        self._judge: Judge = lambda touch: 0
        self._numbers: Final = count(1)
        self.watch: Callable[[Thread, Line], None] = lambda thread, line: None

    def run(
        self, judge: Judge = lambda touch: 0, *, limit: int = 200_000, rounds: int | None = None
    ) -> Fault | None:  # fmt: skip
        """Run until an access is stopped or all threads have exited; `limit` are instructions of a warp.

        A further call goes on with the warps that were not stopped, as they do on a GPU until it has noticed. It ends
        after `rounds` turns of each warp. Raises `Endless`, `Deadlock` and `Unsupported`.
        """
        self._judge = judge
        for turn in count():
            if turn == rounds or not any(warp.alive for warp in self.warps if not warp.stopped):
                break
            moved = False
            for warp in self.warps:
                for _ in range(self._turn):
                    lanes = warp.next_lanes()
                    if not lanes:
                        break
                    moved = True
                    warp.steps += 1
                    if warp.steps > limit:
                        raise Endless
                    fault = self._step(warp, lanes)
                    if fault:
                        return fault
            if not moved:
                raise Deadlock(", ".join(sorted({place(self._line(w.at[n])) for w in self.warps for n in w.alive})))
        return None

    def waits_for_block(self, warp: Warp, lane: int) -> bool:
        """Whether a lane waits at a barrier of the block."""
        return isinstance(warp.waits.get(lane), BlockBarrier)

    def _line(self, index: int) -> Line:
        return self.machine.code.lines[index]

    def _step(self, warp: Warp, lanes: Sequence[int]) -> Fault | None:
        """Let lanes of a warp execute the instruction that they stand at."""
        index = warp.at[lanes[0]]
        line = self._line(index)
        threads = [warp.threads[lane] for lane in lanes]
        for thread in threads:
            thread.steps += 1
            self.watch(thread, line)
        acting = threads
        if line.guard is not None:
            holds = test(line.guard)
            acting = [thread for thread in threads if holds(thread)]
        for lane in lanes:
            warp.at[lane] = index + 1
        if not acting:
            return None
        if line.name in ACCESSES:
            return self._access(warp, index, lanes, acting)
        if line.name in _MEETINGS:
            _MEETINGS[line.name](self, warp, line, acting)
            return None
        if index not in self._together:
            self._together[index] = together(line)
        operation = self._together[index]
        if operation:
            operation(acting, warp.threads)
            return None
        self._each(warp, index, line, acting)
        return None

    def _each(self, warp: Warp, index: int, line: Line, acting: Sequence[Thread]) -> None:
        run = self.machine.operation(index)
        if writes_uniform(line):
            run(acting[0])
            return
        for thread in acting:
            following = run(thread)
            if following is not None:
                warp.at[thread.lane] = following
                if following == EXIT:
                    self._leave(warp, thread.lane)

    def _access(self, warp: Warp, index: int, lanes: Sequence[int], acting: Sequence[Thread]) -> Fault | None:
        run, bad, exception = self.machine.operation(index), set(), 0
        touches: dict[int, Touch] = {}
        for thread in acting:
            thread.observe = self._observe
            try:
                run(thread)
            except _Stopped as stopped:
                bad.add(thread.lane)
                exception = stopped.exception
            touches[thread.lane] = thread.touched[-1]
        if not bad:
            return None
        for lane in lanes:
            warp.at[lane] = index
        warp.stopped = True
        first = next(iter(touches.values()))
        return Fault(
            warp=warp, offset=16 * index, calls=first.calls, exception=exception, lanes=tuple(lanes),
            addresses={lane: touch.address for lane, touch in touches.items()}, bad=frozenset(bad), size=first.size,
            space=first.space,
        )  # fmt: skip

    def _observe(self, thread: Thread, touch: Touch) -> None:
        exception = self._judge(touch)
        if exception:
            raise _Stopped(exception)

    def _leave(self, warp: Warp, lane: int) -> None:
        """Let no one wait for a lane that has exited."""
        for gathering in [*warp.gatherings.values(), *warp.kept.values(), *warp.masks.values()]:
            gathering.lanes.discard(lane)
            self._release(warp, gathering)
        for barrier in self._barriers.values():
            self._complete(barrier)

    def _release(self, warp: Warp, gathering: Gathering) -> None:
        """Let lanes go on if all that must come have come."""
        if gathering.arrived and gathering.lanes <= gathering.arrived:
            for lane in gathering.arrived:
                if warp.waits.get(lane) is gathering:
                    del warp.waits[lane]
            gathering.arrived.clear()

    def _open(self, warp: Warp, line: Line, acting: Sequence[Thread]) -> None:
        """BSSY: these lanes will meet again"""
        gathering = Gathering({thread.lane for thread in acting})
        for thread in acting:
            warp.gatherings[thread.lane, line.operands[0].text] = gathering

    def _meet(self, warp: Warp, line: Line, acting: Sequence[Thread]) -> None:
        """BSYNC: wait for those that were together at BSSY"""
        for thread in acting:
            gathering = warp.gatherings[thread.lane, line.operands[-1].text]
            gathering.arrived.add(thread.lane)
            warp.waits[thread.lane] = gathering
        for gathering in {id(g): g for g in warp.waits.values() if isinstance(g, Gathering)}.values():
            self._release(warp, gathering)

    def _part(self, warp: Warp, line: Line, acting: Sequence[Thread]) -> None:
        """BREAK: these lanes do not come to the meeting"""
        for thread in acting:
            gathering = warp.gatherings[thread.lane, line.operands[-1].text]
            gathering.lanes.discard(thread.lane)
            self._release(warp, gathering)

    def _keep(self, warp: Warp, line: Line, acting: Sequence[Thread]) -> None:
        """BMOV: a meeting into a register, and from it"""
        target, source = line.operands[0], line.operands[-1]
        if target.text.startswith("B"):
            get = word(source)
            for thread in acting:
                if get(thread) in warp.kept:
                    warp.gatherings[thread.lane, target.text] = warp.kept[get(thread)]
            return
        numbers: dict[int, int] = {}
        write = put(target)
        for thread in acting:
            gathering = warp.gatherings.get((thread.lane, source.text))
            if gathering is not None:
                number = numbers.setdefault(id(gathering), next(self._numbers))
                warp.kept[number] = gathering
                write(thread, number)

    def _gather(self, warp: Warp, line: Line, acting: Sequence[Thread]) -> None:
        """WARPSYNC: wait for the lanes of a mask"""
        mask = (lambda t: M32) if "ALL" in line.flags else word(line.operands[0])
        for thread in acting:
            wanted = mask(thread) if "ALL" not in line.flags else M32
            key = line.offset, wanted
            if key not in warp.masks or not warp.masks[key].arrived:
                warp.masks[key] = Gathering({lane for lane in warp.alive if wanted >> lane & 1})
            gathering = warp.masks[key]
            gathering.arrived.add(thread.lane)
            warp.waits[thread.lane] = gathering
        for gathering in [g for (offset, _), g in warp.masks.items() if offset == line.offset]:
            self._release(warp, gathering)

    def _block_barrier(self, warp: Warp, line: Line, acting: Sequence[Thread]) -> None:
        """BAR.SYNC, BAR.RED and BAR.ARV"""
        numbers = [one for one in line.operands if not one.is_predicate]
        given = [test(one) for one in line.operands if one.is_predicate]
        if len(numbers) > 2 or not {"SYNC", "RED", "ARV"} & set(line.flags):
            raise Unsupported(place(line))
        for thread in acting:
            number, wanted = barrier_of(numbers, thread)
            barrier = self._barriers.setdefault(number, BlockBarrier())
            barrier.wanted = wanted
            barrier.arrived += 1
            barrier.values += [holds(thread) for holds in given]
            if "ARV" not in line.flags:
                barrier.waiting.append((warp, thread.lane))
                warp.waits[thread.lane] = barrier
        self._complete(barrier, next((f for f in line.flags if f in ("POPC", "AND", "OR")), ""))

    def _complete(self, barrier: BlockBarrier, how: str = "") -> None:
        wanted = barrier.wanted or sum(len(warp.alive) for warp in self.warps)
        if not barrier.arrived or barrier.arrived < wanted:
            return
        values = barrier.values
        result = {"POPC": sum(values), "AND": int(all(values)), "OR": int(any(values))}.get(how, 0)
        for warp, lane in barrier.waiting:
            del warp.waits[lane]
            warp.results[lane] = result
        barrier.arrived, barrier.waiting, barrier.values = 0, [], []

    def _result(self, warp: Warp, line: Line, acting: Sequence[Thread]) -> None:
        """B2R.RESULT: what the block's barrier found"""
        if "RESULT" not in line.flags:
            raise Unsupported(place(line))
        for thread in acting:
            value = warp.results.get(thread.lane, 0)
            for one in line.operands:
                if one.is_predicate:
                    put_test(one)(thread, value != 0)
                else:
                    put(one)(thread, value)


class _Stopped(Exception):
    """An access leads to an exception."""

    def __init__(self, exception: int) -> None:
        super().__init__(exception)
        self.exception: Final = exception


def barrier_of(operands: Sequence[Operand], thread: Thread) -> tuple[int, int]:
    """Return a barrier's number and how many threads it takes, 0 for all; one register may hold both."""
    values = [word(one)(thread) for one in operands]
    if len(values) == 2 and operands[0].kind == "R" and operands[0].number == operands[1].number:
        return values[0] & 0xFFFF, values[0] >> 16
    number, wanted = (*values, 0, 0)[:2]
    return number, wanted


def writes_uniform(line: Line) -> bool:
    """Whether an instruction writes registers of the warp, and so is executed once for all of its lanes."""
    return bool(line.operands) and line.operands[0].kind in ("UR", "UP") and line.name not in FLOW


def block_threads(block: tuple[int, int, int]) -> Iterator[tuple[int, int, int]]:
    """Yield the threads of a block in the order of their warps and lanes."""
    x, y, z = block
    for n in range(x * y * z):
        yield n % x, n // x % y, n // (x * y)


_MEETINGS: Final[dict[str, Callable[[Block, Warp, Line, Sequence[Thread]], None]]] = {
    "BSSY": Block._open, "BSYNC": Block._meet, "BREAK": Block._part, "BMOV": Block._keep, "WARPSYNC": Block._gather,
    "BAR": Block._block_barrier, "B2R": Block._result,
}  # fmt: skip
