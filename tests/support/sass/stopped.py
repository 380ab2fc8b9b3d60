"""A warp that is stopped where one of its threads uses a bad address, as a GPU stops it and as a core then holds it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from tests.builders.core_builder import LaneSpec, WarpSpec
from tests.support.sass.listing import ZERO_REGISTER, Line, Operand
from tests.support.sass.machine import Endless, Machine, Thread, Touch, Unsupported
from tests.support.sass.programs import STACK

_HELD: Final = 255  # registers of a thread
_LOCAL: Final = 1 << 10  # bytes of its stack
FAR: Final = 20  # a store runs on through branches for more instructions than that
_STOPS: Final = frozenset(
    """BRA EXIT CALL RET BAR WARPSYNC BSYNC BRX JMP ATOMS ATOMG SHFL VOTE VOTEU MATCH REDUX CREDUX ELECT
    B2R""".split()  # noqa: SIM905
)


class _Bad(Exception):
    """A thread uses an address that is not allowed."""


@dataclass
class Lane:
    """A thread of the warp: where and when it stopped, the address it used, and its state from there on."""

    number: int
    thread: Thread
    offset: int
    calls: tuple[int, ...]
    step: int
    address: int


@dataclass(frozen=True)
class Stopped:
    """The threads that failed together: the offset of their access, and the warp as a core has it."""

    offset: int
    calls: tuple[int, ...]
    lanes: tuple[Lane, ...]
    warp: WarpSpec


def stop(
    machine: Machine, threads: Sequence[Thread], allowed: Callable[[Touch], bool], *, run_on: int = 0,
    exception: int = 14, held: int = _HELD,
) -> Stopped | None:  # fmt: skip
    """Run the threads of a warp until each exits or makes an access that is not allowed; None where none does.

    They run on for at most `run_on` instructions, as a GPU does, and `held` of their registers are in the core. None
    too where a thread never ends, executes what the interpreter does not know, or stands elsewhere than the others.
    """

    def watch(_: Thread, touch: Touch) -> None:
        if not allowed(touch):
            raise _Bad

    lanes: list[Lane] = []
    for number, thread in enumerate(threads):
        thread.observe = watch
        try:
            machine.run(thread, limit=20_000)
        except _Bad:
            touch = thread.touched[-1]
            lanes.append(Lane(number, thread, touch.offset, touch.calls, thread.steps, touch.address))
        except (Endless, Unsupported):
            return None
    if not lanes:
        return None
    leader = lanes[0]
    together = [one for one in lanes if (one.offset, one.calls, one.step) == (leader.offset, leader.calls, leader.step)]
    ends = {go_on(machine, one.thread, leader.offset, run_on) for one in together}
    if len(ends) != 1:
        return None
    (end,), active = ends, sum(1 << one.number for one in together)
    warp = WarpSpec(
        offset=end, error_offset=leader.offset, exception=exception, marked=active, valid=active, active=active,
        lanes={
            one.number: LaneSpec(
                offset=end, registers=tuple(one.thread.r[:held]), predicates=tuple(map(int, one.thread.p[:7])),
                local=(STACK - _LOCAL, one.thread.local.read(STACK - _LOCAL, _LOCAL)),
            )
            for one in together
        },
        uniform=tuple(leader.thread.u[:63]), uniform_predicates=tuple(map(int, leader.thread.q[:7])),
        calls=tuple(call + 16 for call in reversed(leader.calls)),
    )  # fmt: skip
    return Stopped(leader.offset, leader.calls, tuple(together), warp)


def go_on(machine: Machine, thread: Thread, offset: int, count: int) -> int:
    """Run a thread on after the access that never returns; returns where it stands then.

    It goes no further than to the first instruction that needs the result, or that a warp waits at. What the failed
    access was to load is 0 then, as an H100 has it. Of the loads on the way nothing has arrived: what they write stays
    as it was. A store stops nothing: its thread also goes round its loop, if the count allows it, and all loads arrive
    on the way.
    """
    first = machine.code.lines[offset // 16]
    waiting = {("R", 256)}
    if first.name.startswith(("LD", "ATOM")):
        waiting |= {
            (one.kind, one.number + n) for one in first.operands[:2] for n in range(4) if one.kind in ("R", "UR")
        }
        written = next((one.number for one in first.operands[:2] if one.kind == "R"), ZERO_REGISTER)
        for n in range(written, min(written + _words(first), ZERO_REGISTER)):
            thread.r[n] = 0
    thread.observe = None
    at = offset + 16
    far = count > FAR and first.name.startswith("ST")
    for _ in range(count):
        line = machine.code.lines[at // 16]
        if far:
            if line.name in _STOPS - {"BRA", "BSYNC"}:
                break
            following = None if line.name.startswith(("ST", "RED")) else machine.operation(at // 16)(thread)
            at = at + 16 if following is None else 16 * following
            continue
        if line.name in _STOPS or _registers(line) & waiting:
            break
        if line.name.startswith("LD") and not line.name.startswith("LDC"):
            waiting |= {(one.kind, one.number + n) for one in line.operands[:1] for n in range(4)}
        elif not line.name.startswith(("ST", "RED")):
            following = machine.operation(at // 16)(thread)
            if following is not None:
                break
        at += 16
    return at


def _words(line: Line) -> int:
    return next((words for flag, words in (("128", 4), ("64", 2)) if flag in line.flags), 1)


def _registers(line: Line) -> set[tuple[str, int]]:
    """Return the registers near those that an instruction names: enough to see that it needs a load's result."""
    found: set[tuple[str, int]] = set()

    def add(one: Operand) -> None:
        if one.kind in ("R", "UR"):
            found.update((one.kind, one.number + n) for n in range(4))
        for part in one.parts:
            add(part)

    for one in (*line.operands, *([line.guard] if line.guard else [])):
        add(one)
    return found
