"""The comparison itself: what gpucore says of an access, against what the interpreter computed there.

`Explain` is all that is known of gpucore here: an offset and the calls around it in, the published JSON out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from tests.support.sass.flow import loops
from tests.support.sass.launches import Access, Launch
from tests.support.sass.listing import ZERO_REGISTER
from tests.support.sass.machine import Dim3, Endless, Machine, Thread, Touch, Where
from tests.support.sass.published import Leaves, NotKnown, Tree, evaluator, published, watched, word_of

Explain = Callable[[int, tuple[int, ...]], Mapping[str, Any] | None]
Variable = tuple[Mapping[str, Any], int, tuple[int, ...]]
"""A variable of a loop: an answer, the variable's number in it, and the calls around what the answer is about."""
_AXES = "xyz"
_UNIFORM = 63  # the general uniform registers of all architectures: the next is URZ of the older ones
_UNWRITTEN = 0xDEAD_4200  # and a register's number: what it has where nothing has written it, or its lower half alone


@dataclass
class Outcome:
    """What a comparison found; `wrong` are differences, in words, `not_evaluated` the reasons by how often.

    `turns` are values of loops' variables where a turn begins, `turns_right` those that the loop's start or its next
    value gives.
    """

    accesses: int = 0
    executed: int = 0
    right: int = 0
    bases: int = 0
    bases_right: int = 0
    bases_one_of: int = 0
    bases_none: int = 0
    turns: int = 0
    turns_right: int = 0
    wrong: list[str] = field(default_factory=list)
    not_evaluated: Counter[str] = field(default_factory=Counter)
    unexplained: Counter[str] = field(default_factory=Counter)
    kinds: Counter[str] = field(default_factory=Counter)

    def add(self, other: Outcome) -> None:
        """Add another outcome."""
        for name, value in vars(other).items():
            if isinstance(value, int):
                setattr(self, name, getattr(self, name) + value)
        self.wrong += other.wrong
        for name in ("not_evaluated", "unexplained", "kinds"):
            getattr(self, name).update(getattr(other, name))


@dataclass(frozen=True)
class Run:
    """A thread at the start of a kernel, and what gpucore's leaves stand for in its launch."""

    thread: Callable[[], Thread]
    parameters: bytes
    places: Sequence[tuple[int, int]]
    specials: Mapping[str, int]


def specials(launch: Launch) -> dict[str, int]:
    """Return what the names of special values mean in a launch."""
    rank = launch.thread[0] + launch.block[0] * (launch.thread[1] + launch.block[1] * launch.thread[2])
    return named_specials(rank % 32, launch.thread, launch.block_index, launch.block, launch.grid)


def named_specials(lane: int, thread: Dim3, index: Dim3, block: Dim3, grid: Dim3) -> dict[str, int]:
    """Return what the names of special values mean to a thread."""
    low, every = (1 << lane) - 1, (1 << 32) - 1
    found = {
        "laneId": lane, "laneid": lane, "LANEID": lane, "CgaCtaId": 0, "elected": 1, "electedLane": lane,
        "EQMASK": 1 << lane, "LTMASK": low, "LEMASK": low << 1 | 1,
        "GTMASK": every ^ (low << 1 | 1), "GEMASK": every ^ low,
    }  # fmt: skip
    for word, values in (("threadIdx", thread), ("blockIdx", index), ("blockDim", block), ("gridDim", grid)):
        found.update({f"{word}.{axis}": value for axis, value in zip(_AXES, values, strict=True)})
    return found


class Witness:
    """Compares the answers for one kernel with runs of it. Answers are asked for once for each access and its calls."""

    def __init__(self, machine: Machine, explain: Explain, starts: Mapping[str, int]) -> None:
        self.machine = machine
        self._explain = explain
        self._starts = sorted(starts.values())
        self._loops = loops(machine.code, starts)
        self.answers: dict[Where, Mapping[str, Any] | None] = {}
        self._watched: dict[Where, tuple[set[int], set[int]]] = {}
        self.outcome = Outcome()

    def answer(self, where: Where) -> Mapping[str, Any] | None:
        """Return what gpucore says of an access."""
        if where not in self.answers:
            found = self.answers[where] = self._explain(*where)
            self.outcome.accesses += 1
            if found is None:
                self.outcome.unexplained[self.machine.code.lines[where[0] // 16].opcode] += 1
        return self.answers[where]

    def _needs(self, where: Where) -> tuple[set[int], set[int]]:
        if where not in self._watched:
            answer = self.answer(where)
            self._watched[where] = watched(answer) if answer is not None else (set(), set())
        return self._watched[where]

    def run(
        self,
        run: Run,
        truth: Callable[[Thread], Callable[[int], Sequence[tuple[int, int, int]] | None]] | None = None,
        limit: int = 200_000,
    ) -> Thread:
        """Run a thread and compare each access that it executes.

        `truth` is given the thread after a first run; what it returns gives for a touch, by its number, the pointers
        that it may go through: value, argument counted from 0 (-1 for a pointer in memory), and offset in it. Raises
        `Unsupported`.
        """
        first = run.thread()
        with suppress(Endless):
            self.machine.run(first, limit=limit)
        pointers = truth(first) if truth else None
        offsets: set[int] = set()
        heads: set[int] = set()
        for touch in first.touched:
            if touch.space != "local":
                more, turning = self._needs((touch.offset, touch.calls))
                offsets |= more
                heads |= turning
        # A function that is explained apart begins with what its callers left in its registers.
        offsets |= set(self._starts)
        second = run.thread()
        second.r[:ZERO_REGISTER] = [held or _UNWRITTEN + n for n, held in enumerate(second.r[:ZERO_REGISTER])]
        second.u[:_UNIFORM] = [held or _UNWRITTEN + n for n, held in enumerate(second.u[:_UNIFORM])]
        count = 0

        def compare(thread: Thread, touch: Touch) -> None:
            nonlocal count
            count += 1
            if touch.space != "local":
                self._compare(run, thread, touch, pointers(count - 1) if pointers else None)

        second.observe = compare
        variables = self._variables(first.touched)
        last = -1

        def arrive(thread: Thread, offset: int) -> bool:
            nonlocal last
            where = (offset, thread.calls)
            for registers, (answer, n, outer) in variables.get(where, {}).items():
                turned = last in self._loops.get(offset, ()) and where in thread.before
                self._compare_turn(run, thread, answer, n, outer, registers, turned)
            last = offset
            return False

        turning_at = {at: self._loops.get(at, frozenset()) for at in heads}
        with suppress(Endless):
            self.machine.run(second, limit=limit, watch=offsets, loops=turning_at, until=arrive if variables else None)
        return second

    def _variables(self, touched: Sequence[Touch]) -> dict[Where, dict[tuple[str, ...], Variable]]:
        """Return the loops' variables in the answers for accesses, by where a turn begins and by their registers."""
        found: dict[Where, dict[tuple[str, ...], Variable]] = {}
        for touch in touched:
            answer = self.answers.get((touch.offset, touch.calls))
            if answer is None:
                continue
            outer = touch.calls[: len(touch.calls) - len(answer["calls"])]
            for n, one in enumerate(answer["loops"]):
                if one["registers"] and one["starts"]:
                    at = found.setdefault((one["offset"], (*outer, *one["calls"])), {})
                    at.setdefault(tuple(one["registers"]), (answer, n, outer))
        return found

    def _compare_turn(
        self, run: Run, thread: Thread, answer: Tree, n: int, outer: tuple[int, ...], registers: Sequence[str],
        turned: bool,
    ) -> None:  # fmt: skip
        """Compare what a loop's variable has where a turn begins with its starts, or with what a turn makes of it.

        What nothing has written yet is no value of the loop: its formula is of the ways that write it.
        """
        held = [thread.r[int(one[1:])] for one in registers if one.startswith("R")]
        held += [thread.u[int(one[2:])] for one in registers if one.startswith("UR")]  # a predicate has no such mark
        if any(value >> 16 == _UNWRITTEN >> 16 for value in held):
            return
        loop, inner = answer["loops"][n], tuple(answer["calls"])
        entry = max(one for one in self._starts if one <= (inner[0] if inner else loop["offset"]))
        leaves = Leaves(answer, thread, outer, run.parameters, run.places, run.specials, entry, self._destination)
        evaluate = evaluator(answer, leaves).value
        now = word_of(thread.snapshot(), registers)
        given, unknown = [], False
        for name in ("steps", "others") if turned else ("starts",):
            for k in range(len(loop[name])):
                tree = published(answer, f"/loops/{n}/{name}/{k}")
                try:
                    if tree is None:
                        raise NotKnown("too large")
                    before = leaves({"loop": n}) if name == "steps" else 0
                    given.append((before + evaluate(tree)) % (1 << 32 * len(registers)))
                except NotKnown:
                    unknown = True
        if turned and not (loop["steps"] or loop["others"]):
            given.append(leaves({"loop": n}))
        self.outcome.turns += 1
        if now in given:
            self.outcome.turns_right += 1
        elif not unknown:
            values = ", ".join(map(hex, given))
            what = "a turn makes it" if turned else "it starts as"
            self.outcome.wrong.append(
                f"{self.machine.code.name}+{loop['offset']:#x} {' '.join(registers)}: {what} {values}, not {now:#x}"
            )

    def _compare(self, run: Run, thread: Thread, touch: Touch, pointers: Sequence[tuple[int, int, int]] | None) -> None:
        answer, outcome = self.answer((touch.offset, touch.calls)), self.outcome
        if answer is None:
            return
        inner = tuple(answer["calls"])
        outer = touch.calls[: len(touch.calls) - len(inner)]
        here = f"{self.machine.code.name}+{touch.offset:#x} {self.machine.code.lines[touch.offset // 16].opcode}"
        if touch.calls[len(outer) :] != inner:
            outcome.wrong.append(f"{here}: explained inside the calls {inner}, executed inside {touch.calls}")
            return
        entry = max(one for one in self._starts if one <= (inner[0] if inner else touch.offset))
        leaves = Leaves(
            answer, thread, outer, run.parameters, run.places, run.specials, entry, self._destination
        )  # fmt: skip
        evaluate = evaluator(answer, leaves).value
        outcome.executed += 1
        formula = published(answer, "/formula")
        if formula is None:
            outcome.not_evaluated["a formula that is too large to be published"] += 1
            return
        try:
            value = evaluate(formula)
        except NotKnown as error:
            outcome.not_evaluated["a leaf that was not executed" if "0x" in str(error) else str(error)] += 1
            return
        if value != touch.address:
            outcome.wrong.append(f"{here}: the formula gives {value:#x}, the instruction used {touch.address:#x}")
            return
        outcome.right += 1
        if touch.space in ("global", "generic"):
            self._compare_base(answer, evaluate, touch, pointers, here)

    def _compare_base(
        self,
        answer: Mapping[str, Any],
        evaluate: Callable[[Tree], int],
        touch: Touch,
        pointers: Sequence[tuple[int, int, int]] | None,
        here: str,
    ) -> None:
        outcome, base = self.outcome, answer["base"]
        outcome.bases += 1
        if base is None:
            outcome.bases_one_of += bool(answer["bases"])
            outcome.bases_none += not answer["bases"]
            return
        try:
            value = evaluate(base["formula"])
            index = published(answer, "/index/formula")
            whole = touch.address if index is None else value + answer["index"]["scale"] * evaluate(index)
        except NotKnown:
            outcome.not_evaluated["base"] += 1
            return
        if whole % (1 << 64) != touch.address:
            outcome.wrong.append(f"{here}: base + scale * index is {whole:#x}, not {touch.address:#x}")
            return
        if pointers is None:
            return
        for pointer, argument, offset in pointers:
            named = base["argument"]
            if argument < 0 and named is None and value >> 40 == pointer >> 40:
                break
            if argument >= 0 and named == argument + 1 and base["bytes"][0] == offset and value == pointer:
                break
        else:
            outcome.wrong.append(
                f"{here}: the base is said to be argument {base['argument']} ({value:#x}), C++ uses {pointers}"
            )
            return
        outcome.bases_right += 1

    def _destination(self, offset: int) -> str:
        line = self.machine.code.lines[offset // 16]
        first = next(one for one in line.operands if one.kind in ("R", "UR"))
        return f"{first.kind}{first.number}"


def pointers_of(launch: Launch, accesses: Sequence[Access]) -> list[tuple[int, int, int]]:
    """Return the pointers that accesses go through: value, argument, offset in it."""
    return list(dict.fromkeys(launch.pointers[one.array] for one in accesses if one.array in launch.pointers))
